"""Calls a user's listener: on the loop if it is `async def`, otherwise in a daemon thread."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.client.consumer.calls.hooks import ConsumeHook, watched
from lockstep.client.consumer.calls.listener import Listener, is_async
from lockstep.client.consumer.calls.loop_watch import LoopWatch
from lockstep.client.consumer.calls.runner import Call
from lockstep.client.consumer.context import ConsumerContext
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

ListenerResult = tuple[object, BaseException | None]
"""The listener's result, and the error that it raised."""


class ListenerCalls:
    """One listener. call_loop.py awaits it on the loop itself, without a coroutine between, or calls `in_thread`."""

    __slots__ = ("_ctx", "in_loop", "listener", "running", "watch")

    def __init__(self, ctx: ConsumerContext, listener: Listener, hooks: Sequence[ConsumeHook]) -> None:
        self._ctx = ctx
        self.listener: Callable[..., Any] = watched(listener, ctx.group, hooks)
        """The listener with its hooks."""
        self.running: dict[Call, None] = {}
        """The calls that run, under any grant."""
        self.in_loop = is_async(listener)
        self.watch = LoopWatch(ctx.host, ctx.listener_name, lambda: self.in_loop and bool(self.running))

    async def in_thread(self, call: Call) -> ListenerResult:
        """Call it in a daemon thread, where a plain listener blocks neither the loop nor the end of the process."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[ListenerResult] = loop.create_future()
        queue, batch, context = call.runner.worker.queue, call.batch[:], call.context

        def work() -> None:
            call.thread = self._ctx.host.threads.ident()
            try:
                result: ListenerResult = (self.listener(batch, context), None)
            except BaseException as error:  # listener: handled on the loop, like an async one's
                result = (None, error)
            call.thread = None
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
