"""Calling the listener for one held queue, one batch after the other. RocketMQ: ConsumeMessageOrderlyService.ConsumeRequest.

A batch starts only while the queue is HELD, life is proven (boot time < proven + grace − 500 ms), the consumer is not paused and the queue
is not blocked. The result is processed before the next batch; it counts only while the epoch is still held. There is no task, timer or lock
per message: an async listener is awaited in the queue's own task, which lets the loop go on every 5 ms.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.client.consumer.config import clamp_suspend_ms
from lockstep.client.consumer.events import MessageDeadLettered, QueueBlocked
from lockstep.client.consumer.listener import STEPS, ConsumeOrderlyStatus, OrderlyContext, Step, read_result
from lockstep.client.consumer.listener_call import Answer, call, ends_the_consumer
from lockstep.client.consumer.loop_watch import BLOCKED_MS
from lockstep.client.consumer.ownership import State
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.headers.send import DeadLetterHeader
from lockstep.protocol.message import MessageExt
from lockstep.protocol.properties import REASON_LENGTH_MAX
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.consumer.queue_worker import Grant, QueueWorker

log = get_logger("client.consumer")

SLICE_MS = 5
"""After so long without letting the loop go on, a runner does: sockets are read and other queues have their turn."""
_SUCCESS = ConsumeOrderlyStatus.SUCCESS


async def consume(worker: "QueueWorker", holding: "Grant") -> None:
    """The runner of one holding."""
    own, use, session, messages = worker.own, worker.use, worker.session, holding.messages
    boot_ms, proof, watch = use.host.clock.boot_ms, session.proof, use.watch
    batch_count, each = use.config.batch_count, use.config.commit == "each"
    slice_end_ms = boot_ms() + SLICE_MS
    lapsed = _lapsed(worker)
    while holding.alive:
        now_ms = boot_ms()
        if own.state is not State.HELD or use.paused or holding.blocked:
            await _rest(holding)
            continue
        if now_ms >= proof.deadline_ms:
            session.awaited = True
            await _rest(holding)
            continue
        batch = messages.take(batch_count)
        if not batch:
            _warn_uncommitted(worker, holding)
            await _rest(holding)
            slice_end_ms = boot_ms() + SLICE_MS
            continue
        context = OrderlyContext(worker.queue, holding.fence, messages.batch_attempts, lapsed)
        own.call_started()
        worker.call = context
        worker.call_started_ms = now_ms
        result, error = await _call(worker, batch, context)
        worker.call = None
        if (result is _SUCCESS or (result is None and error is None)) and context.auto_commit and holding.alive:
            own.call_ended(holding.epoch, messages.commit(), messages.committed_attempts)
            session.changed(own)
            pause_ms = 0
        else:
            if await _is_given_up(worker, holding, batch, context, result, error):
                pause_ms = _leave_behind(worker, holding, batch)
            else:
                pause_ms = _process(worker, holding, batch, context, result, error)
            if error is not None and ends_the_consumer(error):
                use.failed(error)
        ended_ms = boot_ms()
        if ended_ms - now_ms >= BLOCKED_MS and use.in_loop:
            watch.call_ended(now_ms, ended_ms)
        if not holding.alive:
            break
        if pause_ms:
            await _pause(holding, pause_ms, boot_ms)
        elif each:
            await _settled(worker, holding)
        if holding.pull_waits and messages.room():
            holding.pull_wake.set()
            slice_end_ms = 0
        if ended_ms >= slice_end_ms:
            await asyncio.sleep(0)
            slice_end_ms = boot_ms() + SLICE_MS


def _lapsed(worker: "QueueWorker") -> Callable[[], bool]:
    clock, proof = worker.use.host.clock, worker.session.proof
    return lambda: clock.boot_ms() >= proof.deadline_ms


async def _call(worker: "QueueWorker", batch: list[MessageExt], context: OrderlyContext) -> Answer:
    """The listener's result, or what it raised; a call that was given up is cancelled and counts as failed."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await call(worker.use, worker.queue, batch, context, lambda: worker.given_up_call)
    except asyncio.CancelledError:
        worker.own.running = False  # the consumer ends: nobody waits for a result
        raise
    finally:
        if worker.given_up_call:
            worker.given_up_call = False
            task.uncancel()


def _process(
    worker: "QueueWorker",
    holding: "Grant",
    batch: list[MessageExt],
    context: OrderlyContext,
    result: object,
    error: BaseException | None,
) -> int:
    """Everything but a plain SUCCESS: what the result does to the queue; how long to pause before the next call, 0: not at all."""
    own, use, messages = worker.own, worker.use, holding.messages
    if not holding.alive:
        own.call_ended(holding.epoch, 0, 0)
        facts = {"queue": str(worker.queue), "epoch": holding.epoch, "offset": batch[0].queue_offset}
        log.warning("result.was_stale", listener=use.listener_name, **facts)
        worker.session.trigger()
        worker.look()
        return 0
    status, wrong = read_result(result) if error is None else (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, error)
    step = STEPS[context.auto_commit, status]
    pause_ms = 0
    if step is Step.COMMIT:
        if context.auto_commit and status is not _SUCCESS:
            log.warning("result.needs_manual_commit", listener=use.listener_name, status=status.value, taken_as="SUCCESS")
        messages.commit()
    elif step is Step.ROLL_BACK:
        messages.roll_back()
        pause_ms = _suspend_ms(worker, context)
    elif step is Step.PUT_BACK:
        pause_ms = _put_back(worker, holding, batch, context, wrong)
    own.call_ended(holding.epoch, messages.commit_offset, messages.committed_attempts)
    worker.session.changed(own)
    return pause_ms


async def _is_given_up(
    worker: "QueueWorker", holding: "Grant", batch: list[MessageExt], context: OrderlyContext, result: object, error: BaseException | None
) -> bool:
    """The batch has failed for the last time, and its messages are in the group's dead-letter topic: each by one request.

    False as well where that could not be done: it is called again, and given up after the next failure.
    """
    use, own, messages = worker.use, worker.own, holding.messages
    attempts = messages.batch_attempts + 1 if holding.alive else 0
    if not use.config.retry.gives_up(attempts):
        return False
    status, wrong = read_result(result) if error is None else (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, error)
    if STEPS[context.auto_commit, status] is not Step.PUT_BACK or (error is not None and ends_the_consumer(error)):
        return False
    why = str(wrong) if not isinstance(wrong, BaseException) else f"{type(wrong).__name__}: {wrong}"
    advance = messages.taken == len(batch)
    for message in batch:
        place = (own.group, worker.queue.topic, worker.queue.queue_id, holding.epoch, message.queue_offset)
        header = DeadLetterHeader(*place, attempts, why[:REASON_LENGTH_MAX], advance)
        try:
            await worker.session.link.call(RequestCode.DEAD_LETTER, header)
        except (TransportError, BrokerError) as failed:
            log.warning("dead_letter.failed", queue=str(worker.queue), offset=message.queue_offset, error=str(failed))
            return False
        facts = {"queue": str(worker.queue), "offset": message.queue_offset, "attempts": attempts, "error": why}
        log.error("message.dead_lettered", group=own.group, **facts)
        use.tell(MessageDeadLettered(worker.queue, message.queue_offset, attempts, why))
    return holding.alive


def _leave_behind(worker: "QueueWorker", holding: "Grant", batch: list[MessageExt]) -> int:
    """The batch was dead-lettered: it counts as handled. What the listener has not committed yet keeps it company."""
    if holding.messages.taken == len(batch):
        holding.messages.commit()
    worker.own.call_ended(holding.epoch, holding.messages.commit_offset, holding.messages.committed_attempts)
    worker.session.changed(worker.own)
    return 0


def _suspend_ms(worker: "QueueWorker", context: OrderlyContext) -> int:
    asked_ms = context.suspend_current_queue_time_ms
    return clamp_suspend_ms(worker.use.config.suspend_current_queue_time_ms if asked_ms is None else asked_ms)


def _put_back(
    worker: "QueueWorker", holding: "Grant", batch: list[MessageExt], context: OrderlyContext, wrong: BaseException | str | None
) -> int:
    """The batch failed: it waits again, one attempt more."""
    use, retry = worker.use, worker.use.config.retry
    attempts = holding.messages.put_back()
    offset = batch[0].queue_offset
    why = "the listener returned SUSPEND_CURRENT_QUEUE_A_MOMENT"
    if wrong is not None:
        why = wrong if isinstance(wrong, str) else f"{type(wrong).__name__}: {wrong}"
        facts = {"queue": str(worker.queue), "offset": offset, "attempts": attempts, "error": why}
        log.warning("call.failed", listener=use.listener_name, **facts, exc_info=_first_time(holding, offset, wrong))
    worker.own.error = why[:REASON_LENGTH_MAX]
    if retry.tells(attempts):
        log.warning("queue.blocked", group=use.group, queue=str(worker.queue), offset=offset, attempts=attempts, error=why)
        use.tell(QueueBlocked(worker.queue, offset, attempts, why))
    holding.blocked = retry.blocks(attempts)
    if wrong is None or context.suspend_current_queue_time_ms is not None:
        return _suspend_ms(worker, context)
    return retry.backoff.pause_ms(attempts)


def _first_time(holding: "Grant", offset: int, wrong: BaseException | str) -> BaseException | None:
    """The error whose traceback is told: the first of its kind at this offset under this grant, not each attempt's."""
    if isinstance(wrong, str) or holding.traced == (offset, type(wrong)):
        return None
    holding.traced = (offset, type(wrong))
    return wrong


async def _rest(holding: "Grant") -> None:
    """Until somebody wakes the runner. It looked and found nothing to do in this very step, so no wake can be lost."""
    holding.run_wake.clear()
    await holding.run_wake.wait()


async def _pause(holding: "Grant", pause_ms: int, boot_ms: Callable[[], int]) -> None:
    """Between two calls of one batch; ends early where the holding does."""
    until_ms = boot_ms() + pause_ms
    while holding.alive and (left_ms := until_ms - boot_ms()) > 0:
        holding.run_wake.clear()
        try:
            async with asyncio.timeout(left_ms / 1000):
                await holding.run_wake.wait()
        except TimeoutError:
            pass


async def _settled(worker: "QueueWorker", holding: "Grant") -> None:
    """commit="each": until the broker has answered the commit."""
    offset = worker.own.offset
    worker.session.changed(worker.own, urgent=True)
    while holding.alive and worker.own.settled_offset < offset:
        await _rest(holding)


def _warn_uncommitted(worker: "QueueWorker", holding: "Grant") -> None:
    """Manual commit: what is never committed fills the queue's share, and then nothing is pulled any more."""
    taken = holding.messages.taken
    if taken and not holding.warned and not holding.messages.room():
        holding.warned = True
        log.warning("queue.full_of_uncommitted", listener=worker.use.listener_name, queue=str(worker.queue), taken=taken)
