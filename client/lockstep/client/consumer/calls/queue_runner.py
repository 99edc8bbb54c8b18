"""Calls an ordered listener for a held queue: one batch after another, in the task of its runner.

RocketMQ: ConsumeMessageOrderlyService.ConsumeRequest.

The order of a queue needs no lanes: its batches are slices of the ProcessQueue. A LaneRunner with one lane does the same and knows parked
keys, but costs 56 % more CPU time for a call with one message, and 25 % more for one with 32 (CPython 3.11, an empty listener).
"""

import asyncio

from lockstep.client.consumer.calls.call_loop import make_calls
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener import OrderlyContext, QueueAction
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.ordered_runner import OrderedRunner
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, OrderedCall, RunnerStatus
from lockstep.client.consumer.context import ConsumerContext
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")


class QueueRunner(OrderedRunner[OrderedCall]):
    """One grant of one queue."""

    __slots__ = ("_again_ms", "_awaited", "_blocked", "_call", "_called", "_each", "_warned")

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls, worker: AbstractQueueWorker, grant: Grant) -> None:
        OrderedRunner.__init__(self, ctx, listener, worker, grant, grant.messages)
        self._each = ctx.config.commit == "each"
        self._called = False
        """A call has been made since the last check for its commit; with commit="each"."""
        self._awaited = 0
        """With commit="each": the offset up to which the broker has to confirm the commit before the next call."""
        self._call: OrderedCall | None = None
        """The call, which is used again: there is one at a time. A new object for each takes 5 % of the CPU time of one message a call."""
        self._again_ms: int | None = None
        """When a failed batch is called again."""
        self._blocked = False
        """Attempts are exhausted: the listener is not called until `resume()` or the next grant."""
        self._warned = False
        """Uncommitted messages fill the queue's limit, and a warning was logged."""

    async def run(self) -> None:
        grant, loop = self.grant, asyncio.get_running_loop()
        while grant.alive:
            await make_calls(self.ctx, self.listener, self.begin_call)
            if not grant.alive:
                break
            timer = None
            if self._again_ms is not None:
                timer = loop.call_later((self._again_ms - self._boot_ms()) / 1000, grant.run_wake.set)
            await grant.rest()
            if timer is not None:
                timer.cancel()

    def begin_call(self, now_ms: int) -> OrderedCall | None:
        if self._again_ms is not None:
            if now_ms < self._again_ms:
                return None
            self._again_ms = None
        if self._blocked or not self.may_call(now_ms) or (self._each and not self._is_committed()):
            return None
        messages = self.messages
        batch = messages.take(self.batch_count)
        if not batch:
            self._warn_uncommitted()
            return None
        self._called = True
        attempts = messages.attempts_at(batch[0].queue_offset) if messages.attempts else 0
        context = OrderlyContext(self.worker.queue, self.fence, attempts, self.has_lapsed)
        call = self._call
        if call is None:
            call = self._call = OrderedCall(self, batch, context, now_ms)
        else:
            call.batch, call.context, call.started_ms, call.ended, call.given_up = batch, context, now_ms, False, False
        return call

    def _is_committed(self) -> bool:
        """With commit="each": return whether the broker has confirmed the commit of the last call. Request it at once."""
        ownership = self.ownership
        if self._called:
            self._called = False
            self._awaited = ownership.offset
            if ownership.committed_offset < self._awaited:
                self.session.changed(ownership, urgent=True)
        return ownership.committed_offset >= self._awaited

    def finish(self, call: OrderedCall) -> None:
        self.messages.commit()

    async def failed(self, call: OrderedCall, wrong: BaseException | str | None) -> None:
        messages = self.messages
        attempts = messages.attempts_at(call.batch[0].queue_offset) + 1
        alone = messages.taken == len(call.batch)
        if await self.failures.dead_letter(call, attempts, wrong, advance=alone):
            if alone:  # otherwise it remains uncommitted with those before it
                messages.commit()
        elif self.grant.alive:
            messages.put_back()
            self._blocked = self.ctx.config.retry.blocks(attempts)
            self._pause(self.failures.report_failure(call, attempts, wrong))
            self.ownership.error = self.failures.why

    def committed_by_hand(self, call: OrderedCall, step: QueueAction) -> None:
        if step is QueueAction.COMMIT:
            self.messages.commit()
        elif step is QueueAction.ROLL_BACK:
            self.messages.roll_back()
            self._pause(self.failures.suspend_ms(call.context))

    def _pause(self, pause_ms: int) -> None:
        self._again_ms = self._boot_ms() + pause_ms

    def resume(self) -> None:
        self._blocked = False

    def status(self) -> RunnerStatus:
        running = sum(len(call.batch) for call in self.worker.calls if call.runner is self and not call.ended)
        return RunnerStatus(None, self._blocked, self._again_ms, self.messages.taken - running)

    def _warn_uncommitted(self) -> None:
        """Log a warning, once, if the listener commits manually and has so many uncommitted messages that no more are pulled."""
        taken = self.messages.taken
        if taken and not self._warned and not self.messages.room():
            self._warned = True
            log.warning("queue.full_of_uncommitted", listener=self.ctx.listener_name, queue=str(self.worker.queue), taken=taken)
