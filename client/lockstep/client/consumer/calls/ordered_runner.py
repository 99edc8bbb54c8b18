"""What the calls of an ordered listener have in common, whatever the unit of order is: when one may start, and what its result means.

A call starts only while the queue is HELD, life is proven (boot time < proven + grace − 500 ms) and the consumer is not paused. Its result
is processed before the next call of its queue or key, and counts only if the grant is still held.
"""

from abc import abstractmethod

from lockstep.client.consumer.calls.failed_calls import FailedCalls
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener import STEPS, ConsumeOrderlyStatus, Fence, QueueAction, read_call
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, Attempts, CallRunner, OrderedCallT
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_HELD = OwnershipState.HELD


class OrderedRunner(CallRunner[OrderedCallT]):
    """One grant of one queue."""

    __slots__ = ("_boot_ms", "_proof", "batch_count", "failures", "fence", "has_lapsed", "listener")

    def __init__(
        self, ctx: ConsumerContext, listener: ListenerCalls, worker: AbstractQueueWorker, grant: Grant, attempts: Attempts
    ) -> None:
        CallRunner.__init__(self, ctx, worker, grant, attempts)
        self.listener = listener
        self.batch_count = ctx.config.batch_count
        self.failures = FailedCalls(ctx, worker, grant)
        self.fence = _fence_of(worker, grant)
        self._boot_ms = boot_ms = ctx.host.clock.boot_ms
        self._proof = proof = worker.session.proof
        self.has_lapsed = lambda: boot_ms() >= proof.deadline_ms
        """Returns whether life is not proven any more: `context.cancelled` is set."""

    def may_call(self, now_ms: int) -> bool:
        """Return whether a call may start. Otherwise a proof of life, resume() or the next grant wakes `run`."""
        if not self.grant.alive or self.ownership.state is not _HELD or self.ctx.paused:
            return False
        if now_ms >= self._proof.deadline_ms:
            self.session.proof_awaited = True
            return False
        return True

    def succeeded(self, call: OrderedCallT, result: object) -> bool:
        if (result is not _SUCCESS and result is not None) or call.context.auto_commit is not True or not self.grant.alive:
            return False
        self.finish(call)
        return True

    async def process(self, call: OrderedCallT, result: object, error: BaseException | None) -> None:
        if self.grant.alive:
            status, wrong = read_call(call.context, result, error)
            step = STEPS[call.context.auto_commit is not False, status]
            if step is QueueAction.PUT_BACK:
                await self.failed(call, wrong)
            elif call.context.auto_commit is False:
                self.committed_by_hand(call, step)
            else:
                if status is not _SUCCESS:
                    log.warning("result.needs_manual_commit", listener=self.ctx.listener_name, status=status.value, taken_as="SUCCESS")
                self.finish(call)
        if not self.grant.alive:  # it may have ended while a dead letter was written
            self.log_stale(call, epoch=self.grant.token)

    @abstractmethod
    def finish(self, call: OrderedCallT) -> None:
        """Count the batch as done."""

    @abstractmethod
    async def failed(self, call: OrderedCallT, wrong: BaseException | str | None) -> None:
        """Dead-letter a batch that has failed for the last time, or call it again after its pause. `wrong`: why it has failed; None if the
        listener returned SUSPEND. The grant may end meanwhile."""

    @abstractmethod
    def committed_by_hand(self, call: OrderedCallT, step: QueueAction) -> None:
        """Handle the result of a listener that has set auto_commit=False, and has not failed."""

    def give_up(self) -> None:
        """Cancel the listener where it is awaited on the loop. Calls whose results are being handled go on."""
        for call in self.worker.calls:
            if call.runner is self and call.task is not None and not call.ended and self.listener.in_loop:
                call.given_up = True
                call.task.cancel()


def _fence_of(worker: AbstractQueueWorker, grant: Grant) -> Fence:
    config, place = worker.ctx.config, worker.queue
    return Fence(
        worker.ctx.group,
        place.topic,
        place.broker_name,
        place.queue_id,
        grant.token,
        grant.generation or 0,
        "sharding_key" if config.in_lanes else "queue",
        config.unkeyed,
    )
