"""What a consumer reports of itself: GET_CONSUMER_RUNNING_INFO. RocketMQ: DefaultMQPushConsumerImpl.consumerRunningInfo."""

from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.listener import OrderlyContext
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.calls.runner import Call
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.client.consumer.stacks import Stack, stack_of_task, stack_of_thread
from lockstep.protocol.bodies import RunningCall, RunningQueue

Oldest = tuple[RunningCall | None, str | None]
"""A call, and its queue as text."""


def running_queue(worker: QueueWorker, now_ms: int) -> RunningQueue:
    """Return what the consumer knows of one queue."""
    status, grant, ownership = worker.runner_status, worker.grant, worker.ownership
    health, lanes = worker.health(now_ms, status), status.lanes
    polled = worker.polled_ms is not None and ownership.running and not worker.calls and status.uncommitted > 0
    return RunningQueue(
        topic=health.queue.topic,
        queue_id=health.queue.queue_id,
        state=health.state,
        offset=health.offset,
        committed_offset=health.committed_offset,
        fetched=health.fetched_count,
        full=grant is not None and not grant.messages.room(),
        uncommitted=status.uncommitted,
        polled_ms=worker.ran_ms(now_ms) if polled else None,
        attempts=health.attempts if lanes is None else max(health.attempts, lanes.attempts),
        blocked=status.blocked and lanes is None,
        blocked_keys=() if lanes is None else lanes.blocked_keys,
        again_ms=None if status.again_ms is None else max(0, status.again_ms - now_ms),
        drain_ms=_drain_ms(worker, now_ms),
        keys=None if lanes is None else lanes.count,
        oldest_key=None if lanes is None else lanes.oldest_key,
        pulling=None if grant is None else grant.pulling,
        pulled_ms=None if grant is None or grant.pulled_ms is None else now_ms - grant.pulled_ms,
        pull_offset=None if grant is None else grant.messages.next_offset,
    )


def _drain_ms(worker: QueueWorker, now_ms: int) -> int | None:
    at_ms = worker.ownership.drain_at_ms
    return None if worker.ownership.state is not OwnershipState.DRAINING or at_ms is None else max(0, at_ms - now_ms)


def oldest_call(model: ConsumeModel, worker: QueueWorker | None, now_ms: int, *, with_stack: bool) -> Oldest:
    """Return the call that has run longest in the worker's queue. If there is no worker, or no call runs there and no further one may
    start, return the one that has run longest in any queue."""
    calls = list(model.running_calls())
    here = calls if worker is None else [call for call in calls if call.runner.worker is worker]
    if not here and model.concurrency is not None and len(calls) >= model.concurrency:
        here = calls
    call = min(here, key=lambda each: each.started_ms, default=None)
    if call is None:
        return None, None
    return _running_call(call, now_ms, with_stack=with_stack), str(call.runner.worker.queue)


def _running_call(call: Call, now_ms: int, *, with_stack: bool) -> RunningCall:
    first = call.batch[0] if call.batch else None
    stack = _stack(call) if with_stack else Stack()
    attempts = call.context.attempt if isinstance(call.context, OrderlyContext) else 0 if first is None else first.reconsume_times
    return RunningCall(
        ran_ms=now_ms - call.started_ms,
        offset=-1 if first is None else first.queue_offset,
        count=len(call.batch),
        attempts=attempts,
        key=None if first is None else first.sharding_key,
        stack=stack.frames,
        own_frame=stack.own,
    )


def _stack(call: Call) -> Stack:
    if call.thread is not None:
        return stack_of_thread(call.thread)
    return Stack() if call.task is None else stack_of_task(call.task)
