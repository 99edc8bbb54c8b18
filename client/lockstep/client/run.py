"""Runs consumers as a program: the event loop, the signals and the end."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from types import FrameType

from lockstep.client.consumer.base_consumer import BaseConsumer
from lockstep.protocol.errors import ConfigError, LockstepError, StateError
from lockstep.runtime.daemon import Tasks, describe
from lockstep.runtime.event_loop import new_event_loop, runs_event_loop
from lockstep.runtime.garbage_collector import collect_less_often
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.safe_text import printable
from lockstep.runtime.loop_thread import in_main_thread

log = get_logger("client.program")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(*services: AbstractAsyncContextManager[object]) -> None:
    """Run consumers, and the services that they need, until SIGTERM, SIGINT or the failure of one of the consumers. Blocks.

        run(consumer)
        run(database, producer, billing, shipping)

    The services run on a new event loop (uvloop's if it is installed) and are started in the given order. At the end all consumers stop at
    the same time (each drains, commits, releases its queues and leaves its group), then the others in the reverse order. The function
    returns after a signal, or when every consumer has stopped. A second signal ends the process at once. A LockstepError ends the program
    with one line on stderr and exit code 1. The first threshold of the garbage collector is raised to 50,000 if it is lower and not 0.

    Args:
        services: Push and pull consumers, and any other asynchronous context managers. One of those polls a pull consumer.

    Raises:
        ConfigError: There is no consumer among the services.
        StateError: Signals can't be received: this is not the main thread, or it runs an event loop.
        SystemExit: A consumer failed, or a service did not start, by a LockstepError, which is its cause (`__cause__`).
        Exception: The same by any other error.
    """
    consumers = [service for service in services if isinstance(service, BaseConsumer)]
    if not consumers:
        raise ConfigError("run() waits for the end of its consumers, and none was given: run(consumer), or run(producer, consumer)")
    if runs_event_loop():
        raise StateError("run() has an event loop of its own, and this thread runs one: use `async with consumer` here")
    if not in_main_thread():
        raise StateError("run() waits for signals, and only the main thread gets them: use `async with consumer` here")
    collect_less_often()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(services, consumers))
    except LockstepError as error:
        raise SystemExit(f"lockstep: {printable(' '.join(describe(error).split()))}") from error


async def _serve(services: Sequence[AbstractAsyncContextManager[object]], consumers: Sequence[BaseConsumer]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    serving, signalled = True, False

    def stop(number: int) -> None:
        nonlocal signalled
        log.info("signal.received", signal=signal.Signals(number).name)
        if serving:
            signalled = True
            task.cancel()

    with _signals(lambda number: loop.call_soon_threadsafe(stop, number)):
        async with AsyncExitStack() as stack:
            try:
                for service in services:
                    await stack.enter_async_context(service)
                await _one_died_or_all_ended(consumers)
            except asyncio.CancelledError:
                if not signalled:
                    raise
                task.uncancel()
            finally:
                serving = False
                await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def _one_died_or_all_ended(consumers: Sequence[BaseConsumer]) -> None:
    tasks = Tasks()
    left = {tasks.spawn(consumer.ended.wait(), f"{consumer.group} end") for consumer in consumers}
    try:
        while left and all(consumer.failure is None for consumer in consumers):
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.cancel_all()
    for consumer in consumers:
        if consumer.failure is not None:
            raise consumer.failure


@contextmanager
def _signals(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call `on_signal` at the first signal, wherever the main thread is; the second one has its default effect."""

    def first(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        on_signal(number)

    before = {number: signal.signal(number, first) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
