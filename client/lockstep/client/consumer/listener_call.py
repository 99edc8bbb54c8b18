"""One call of a user's listener: on the loop where it is `async def`, else in a daemon thread."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.client.consumer.listener import ConcurrentlyContext, OrderlyContext
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.consumer.queue_worker import Consumption

log = get_logger("client.consumer")

Context = OrderlyContext | ConcurrentlyContext
Answer = tuple[object, BaseException | None]


async def call(
    use: "Consumption", queue: MessageQueue, batch: list[MessageExt], context: Context, given_up: Callable[[], bool] = lambda: False
) -> Answer:
    """The listener's result, or what it raised. CancelledError where this task is cancelled and the call was not given up."""
    task = asyncio.current_task()
    assert task is not None
    try:
        if use.in_loop:
            return await use.listener(batch, context), None  # type: ignore[misc, arg-type]
        return await _in_thread(use, queue, batch, context)
    except asyncio.CancelledError as error:
        if not given_up() and task.cancelling():
            raise
        return None, error
    except GeneratorExit:
        raise
    except BaseException as error:  # listener: whatever it raises means failed; out of this task, SystemExit would tear the loop down
        return None, error


def ends_the_consumer(error: BaseException) -> bool:
    """SystemExit, KeyboardInterrupt: whoever raises them means more than this batch."""
    return not isinstance(error, Exception | asyncio.CancelledError)


async def _in_thread(use: "Consumption", queue: MessageQueue, batch: list[MessageExt], context: Context) -> Answer:
    """A plain listener in a daemon thread: it blocks neither the loop nor the end of the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def work() -> None:
        try:
            result: Answer = (use.listener(batch, context), None)  # type: ignore[arg-type]
        except BaseException as error:  # listener: judged on the loop, as an async one's
            result = (None, error)
        calls.end(key)
        try:
            loop.call_soon_threadsafe(_give, answer, result)
        except RuntimeError:
            log.warning("call.outlived_its_loop", listener=use.listener_name, queue=str(queue))

    calls, key = use.host.calls, use.call_key(queue)
    calls.begin(key)
    use.host.threads.start_daemon(work, f"{use.listener_name} {queue}")
    return await answer


def _give(answer: "asyncio.Future[Answer]", result: Answer) -> None:
    if not answer.done():
        answer.set_result(result)
