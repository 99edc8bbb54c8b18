"""Calls a user's listener: on the loop if it is `async def`, otherwise in a daemon thread."""

import asyncio
from collections.abc import Callable, Sequence

from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.hooks import ConsumeHook, watched
from lockstep.client.consumer.listener import ConcurrentlyContext, Listener, OrderlyContext, is_async
from lockstep.client.consumer.loop_watch import LoopWatch
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

Context = OrderlyContext | ConcurrentlyContext
ListenerResult = tuple[object, BaseException | None]
"""The listener's result, and the error that it raised."""


class ListenerCalls:
    """Calls one listener, on the loop or in a thread."""

    __slots__ = ("_count", "_ctx", "_listener", "in_loop", "watch")

    def __init__(self, ctx: ConsumerContext, listener: Listener, hooks: Sequence[ConsumeHook]) -> None:
        self._ctx = ctx
        self._listener = watched(listener, ctx.group, hooks)
        self._count = 0
        self.in_loop = is_async(listener)
        self.watch = LoopWatch(ctx.host, ctx.listener_name, lambda: self.in_loop and self._count > 0)

    async def call(
        self, queue: MessageQueue, batch: list[MessageExt], context: Context, given_up: Callable[[], bool] = lambda: False
    ) -> ListenerResult:
        """Call the listener. Return its result or the error that it raised.

        Raises:
            CancelledError: This task was cancelled and the call was not given up. If it was, the CancelledError is returned as the call's
                error.
        """
        self._count += 1
        try:
            if self.in_loop:
                return await self._listener(batch, context), None  # type: ignore[misc, arg-type]
            return await self._in_thread(queue, batch, context)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not given_up() and task is not None and task.cancelling():
                raise
            return None, error
        except GeneratorExit:
            raise
        except BaseException as error:  # listener: any error means that the call failed; outside this task, SystemExit would end the loop
            return None, error
        finally:
            self._count -= 1

    async def _in_thread(self, queue: MessageQueue, batch: list[MessageExt], context: Context) -> ListenerResult:
        """Call it in a daemon thread, where a plain listener blocks neither the loop nor the end of the process."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[ListenerResult] = loop.create_future()

        def work() -> None:
            try:
                result: ListenerResult = (self._listener(batch, context), None)  # type: ignore[arg-type]
            except BaseException as error:  # listener: handled on the loop, like an async one's
                result = (None, error)
            calls.end(key)
            try:
                loop.call_soon_threadsafe(_give, outcome, result)
            except RuntimeError:
                log.warning("call.outlived_its_loop", listener=self._ctx.listener_name, queue=str(queue))

        calls, key = self._ctx.host.calls, self._ctx.call_key(queue)
        calls.begin(key)
        self._ctx.host.threads.start_daemon(work, f"{self._ctx.listener_name} {queue}")
        return await outcome


def ends_the_consumer(error: BaseException) -> bool:
    """Return whether an error concerns more than this batch: SystemExit and KeyboardInterrupt."""
    return not isinstance(error, Exception | asyncio.CancelledError)


def _give(outcome: "asyncio.Future[ListenerResult]", result: ListenerResult) -> None:
    if not outcome.done():
        outcome.set_result(result)
