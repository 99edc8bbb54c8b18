"""Calls an ordered listener for the lanes of a held queue: in each lane one batch after another.

A lane is (queue, sharding key): lanes.py. `ownership.running` is true while any call of the queue runs. The committed offset is that of the
first unfinished message, and finished ones above it are committed as done ranges, which the next owner passes over.

With order_by="queue" and on_exhausted="park" the lanes of a queue are its main flow and the replays, and one of them has a call at a time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.client.consumer.calls.crew import Crew
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.lanes import KeyLane, Lanes
from lockstep.client.consumer.calls.listener import OrderlyContext, QueueAction
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.ordered_runner import OrderedRunner
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome
from lockstep.client.consumer.calls.parking.replay import Replay
from lockstep.client.consumer.calls.parking.shell import ParkedKeys
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, OrderedCall, RunnerStatus
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.client.consumer.health import LaneHealth
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt

KEYS_SHOWN = 8
"""The number of blocked keys that `health()` names."""


@dataclass(slots=True, eq=False)
class LaneCall(OrderedCall):
    """A call of the listener."""

    lane: KeyLane
    replay: Replay | None
    """The replay whose messages these are; None: they are of the main flow."""


class LaneRunner(OrderedRunner[LaneCall]):
    """One grant of one queue."""

    __slots__ = ("_by_key", "_crew", "_errors", "_lanes", "_parked", "_parks")

    def __init__(
        self, ctx: ConsumerContext, listener: ListenerCalls, worker: AbstractQueueWorker, grant: Grant, crew: Crew[LaneCall] | None
    ) -> None:
        """Create it. `crew` makes the calls by key, of all queues; None: in the order of queues, in which each queue has one call at a
        time."""
        self._by_key = crew is not None
        self._lanes = Lanes(
            worker.ownership.offset,
            worker.ownership.attempts,
            unkeyed_together=ctx.config.unkeyed == "together",
            by_key=self._by_key,
            alone_after_failure=ctx.config.retry.on_exhausted == "park",
        )
        OrderedRunner.__init__(self, ctx, listener, worker, grant, self._lanes)
        self._crew = Crew[LaneCall](ctx, listener, 1) if crew is None else crew
        self._errors: dict[int, str] = {}
        """The offset of a failing batch → why its last call failed."""
        self._parked = ParkedKeys(ctx, worker, grant, self._lanes)
        self._parks = self._parked.machine
        self.ownership.done_ranges = self._parks.done_ranges

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._parked.stop()

    async def _run(self) -> None:
        grant, messages, lanes, parks, boot_ms = self.grant, self.messages, self._lanes, self._parks, self._boot_ms
        loop = asyncio.get_running_loop()
        while grant.alive:
            self._parked.wake()
            if messages.waiting and parks.may_take:
                kept, left_out = parks.split(messages.take(messages.waiting))
                lanes.put(kept)
                self._leave_out(left_out)
            now_ms = boot_ms()
            due_ms = lanes.wake(now_ms)
            if lanes.ready and self.may_call(now_ms):
                self._crew.schedule(self)
            timer = None if due_ms is None else loop.call_later((due_ms - now_ms) / 1000, grant.run_wake.set)
            await grant.rest()
            if timer is not None:
                timer.cancel()

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        for each in self._parks.startable(keys):
            if each.key not in self._parks.replays:
                # An earlier PARK may have parked the key: then its messages of the main flow are still here.
                self._leave_out(self._lanes.leave_out(each.key))
            self._parked.start(each)

    def before_release(self) -> None:
        self._parked.commit_soon()

    def resume(self) -> None:
        self._lanes.resume()

    def status(self) -> RunnerStatus:
        lanes = self._lanes
        return RunnerStatus(self._lane_health() if self._by_key else None, bool(lanes.blocked_keys), lanes.due_ms)

    def _lane_health(self) -> LaneHealth:
        oldest = self.messages.first_unfinished
        offset, key = (None, None) if oldest is None else (oldest.queue_offset, oldest.sharding_key)
        return LaneHealth(
            len(self._lanes),
            offset,
            key,
            self._lanes.most_attempts(self.messages.commit_offset),
            tuple(self._lanes.blocked_keys[:KEYS_SHOWN]),
        )

    # ---------------------------------------------------------------------------------------------------------------- calls

    def begin_call(self, now_ms: int) -> LaneCall | None:
        if not self.may_call(now_ms):
            return None
        lanes = self._lanes
        taken = lanes.take(self.batch_count)
        if taken is None:
            return None
        if lanes.ready:
            self._crew.note_waiting(self)
        lane, batch = taken
        replay = self._parks.replays.get(lane.key) if self._parks.replays else None
        context = OrderlyContext(self.worker.queue, self.fence, lanes.attempts_at(batch[0].queue_offset), self.has_lapsed)
        return LaneCall(self, batch, context, now_ms, lane, replay)

    def finish(self, call: LaneCall) -> None:
        """Count the batch as done, and go on in its lane."""
        if call.replay is None:
            self.messages.finish(call.batch)
        else:
            self._parked.accepted(call.replay, call.batch)
        self._lanes.finished(call.lane, call.batch)
        if self._errors:
            self._errors.pop(call.batch[0].queue_offset, None)
        if self._lanes.ready:
            self._crew.note_waiting(self)

    def committed_by_hand(self, call: LaneCall, step: QueueAction) -> None:
        self._refuse_manual_commit()
        offset = call.batch[0].queue_offset
        self._call_again(call, self._due(call, call.batch), self._lanes.attempts_at(offset) + 1, "the listener set auto_commit=False")

    def _refuse_manual_commit(self) -> None:
        what = 'order_by="sharding_key"' if self._by_key else 'on_exhausted="park"'
        self.ctx.fail(ConfigError(f"{self.ctx.group}: auto_commit=False can't be used with {what}: keys commit alone"))

    async def failed(self, call: LaneCall, wrong: BaseException | str | None) -> None:
        if call.context.auto_commit is False:
            self._refuse_manual_commit()
        batch = call.batch
        attempts = self._lanes.attempts_at(batch[0].queue_offset) + 1
        if await self.failures.dead_letter(call, attempts, wrong, finish=True):
            self.finish(call)
            return
        outcome, due = ParkOutcome.NOT_NOW, self._due(call, batch)
        if len(due) == len(batch) == 1:  # otherwise each of its messages gets a call of its own first
            self._parks.park_begins(batch[0])
            try:
                outcome = await self.failures.park(call, attempts, wrong)
            finally:
                self._parked.park_ended(batch[0])
        if not self.grant.alive:
            return  # its messages are gone
        if outcome is ParkOutcome.PARKED:
            self._park(call)
        else:
            self._call_again(call, self._due(call, due), attempts, wrong, blocks=outcome is ParkOutcome.REFUSED)

    def _call_again(
        self, call: LaneCall, due: list[MessageExt], attempts: int, wrong: BaseException | str | None, *, blocks: bool = False
    ) -> None:
        """Call the listener again with what is `due` of a failed batch: after its pause, or after `resume` if it blocks."""
        if due:
            pause_ms = self.failures.report_failure(call, attempts, wrong)
            self._errors[call.batch[0].queue_offset] = self.failures.why
            if blocks or self.ctx.config.retry.blocks(attempts):
                self._lanes.block(call.lane, due)
            else:
                self._lanes.failed(call.lane, due, self._boot_ms() + pause_ms)
        else:
            self._lanes.finished(call.lane, call.batch)
        self.grant.run_wake.set()  # for the timer of the pause

    def _due(self, call: LaneCall, batch: list[MessageExt]) -> list[MessageExt]:
        """Return the messages of a failed batch that are called again. The others are left out: the replay of their key has begun while the
        call ran, or the replay whose messages they are has ended, or is dropped."""
        if call.replay is not None:
            if call.replay.drop:
                self._parked.left_out(call.replay, len(batch))
            return batch if self._parks.goes_on(call.replay) and not call.replay.drop else []
        due, left_out = self._parks.split(batch)
        self._leave_out(left_out)
        return due

    def last_call_ended(self) -> None:
        if self.ownership.state is not OwnershipState.HELD:
            self._parked.commit_soon()
        self._note_error()
        OrderedRunner.last_call_ended(self)

    def note_progress(self) -> None:
        self._note_error()
        OrderedRunner.note_progress(self)

    def _note_error(self) -> None:
        if self._errors and self.grant.alive:
            self.ownership.error = self._errors.get(self.messages.commit_offset)

    def _park(self, call: LaneCall) -> None:
        """Leave out the key of the message, which was parked, and go on with the others."""
        message = call.batch[0]
        assert message.sharding_key is not None, "the broker has parked its key"
        replayed = message.sharding_key in self._parks.replays
        self._parked.parked(message.sharding_key)
        waiting = self._lanes.leave_out(message.sharding_key)
        self._lanes.finished(call.lane, call.batch)
        self._errors.pop(message.queue_offset, None)
        if replayed:
            # What waits is of the replay. That may have begun while the call, of the main flow, ran.
            waiting = []
            self.worker.session.trigger()  # the response names the keys that had to wait for this one
        self._leave_out(waiting if call.replay is not None else [message, *waiting])
        self.grant.run_wake.set()

    def _leave_out(self, left_out: list[MessageExt]) -> None:
        """Let progress pass messages of parked keys."""
        if left_out:
            self.messages.finish(left_out)
            self.grant.pull_if_room()
            self.note_progress()
