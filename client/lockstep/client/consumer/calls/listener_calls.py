"""Calls a user's listener: on the loop if it is `async def`, otherwise in a daemon thread."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.client.consumer.calls.hooks import ConsumeHook, watched
from lockstep.client.consumer.calls.listener import ConcurrentlyContext, Listener, OrderlyContext, is_async
from lockstep.client.consumer.calls.loop_watch import LoopWatch
from lockstep.client.consumer.context import ConsumerContext
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

Context = OrderlyContext | ConcurrentlyContext
ListenerResult = tuple[object, BaseException | None]
"""The listener's result, and the error that it raised."""


class ListenerCalls:
    """One listener. Consume models await it on the loop themselves, without a coroutine between, or call `in_thread`."""

    __slots__ = ("_ctx", "in_loop", "listener", "running", "threads", "watch")

    def __init__(self, ctx: ConsumerContext, listener: Listener, hooks: Sequence[ConsumeHook]) -> None:
        self._ctx = ctx
        self.listener: Callable[..., Any] = watched(listener, ctx.group, hooks)
        """The listener with its hooks."""
        self.running = 0
        """The number of calls that run, which the models count."""
        self.threads: dict[Context, int] = {}
        """The contexts of calls in daemon threads → the identifiers of these threads."""
        self.in_loop = is_async(listener)
        self.watch = LoopWatch(ctx.host, ctx.listener_name, lambda: self.in_loop and self.running > 0)

    async def in_thread(self, queue: MessageQueue, batch: list[MessageExt], context: Context) -> ListenerResult:
        """Call it in a daemon thread, where a plain listener blocks neither the loop nor the end of the process."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[ListenerResult] = loop.create_future()

        def work() -> None:
            self.threads[context] = self._ctx.host.threads.ident()
            try:
                result: ListenerResult = (self.listener(batch, context), None)
            except BaseException as error:  # listener: handled on the loop, like an async one's
                result = (None, error)
            del self.threads[context]
            calls.end(key)
            try:
                loop.call_soon_threadsafe(_give, outcome, result)
            except RuntimeError:
                log.warning("call.outlived_its_loop", listener=self._ctx.listener_name, queue=str(queue))

        calls, key = self._ctx.host.calls, self._ctx.call_key(queue)
        calls.begin(key)
        self._ctx.host.threads.start_daemon(work, f"{self._ctx.listener_name} {queue}")
        return await outcome


def ends_the_task(error: BaseException) -> bool:
    """Return whether an error that came out of a call ends the task that awaits it: the task itself was cancelled or closed."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)


def ends_the_consumer(error: BaseException) -> bool:
    """Return whether an error concerns more than this batch: SystemExit and KeyboardInterrupt."""
    return not isinstance(error, Exception | asyncio.CancelledError)


def _give(outcome: "asyncio.Future[ListenerResult]", result: ListenerResult) -> None:
    if not outcome.done():
        outcome.set_result(result)
