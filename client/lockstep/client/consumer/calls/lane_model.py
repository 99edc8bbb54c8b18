"""Calls an ordered listener for the keys of held queues: in each lane one batch after another, up to `concurrency` lanes at a time.

A lane is (queue, sharding key): lanes.py. A call starts only while its queue is HELD, life is proven and the consumer is not paused, as in
ordered_model.py; `ownership.running` is true while any call of the queue runs. The committed offset is that of the first unfinished
message, and finished ones above it are committed as done ranges, which the next owner passes over.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.client.consumer.calls.consume_model import HeldQueue, ListenerCall, fence_of
from lockstep.client.consumer.calls.crew import Call, Crew
from lockstep.client.consumer.calls.failed_calls import FailedCalls, ParkOutcome
from lockstep.client.consumer.calls.grant import Grant, RunnerStatus
from lockstep.client.consumer.calls.lanes import Lane, Lanes
from lockstep.client.consumer.calls.listener import ConsumeOrderlyStatus, OrderlyContext, read_call
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.parking import ParkedKeys, Replay
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.client.consumer.health import LaneHealth
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.done_ranges import Ranges
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

KEYS_SHOWN = 8
"""The number of blocked keys that `health()` names."""

_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_HELD = OwnershipState.HELD


@dataclass(slots=True, eq=False)
class LaneCall(Call):
    """A call of the listener."""

    runner: "LaneRunner"
    context: OrderlyContext
    lane: Lane
    replay: Replay | None
    """The replay whose messages these are; None: they are of the main flow."""


class LaneModel:
    """The consume model of `@consumer.orderly` with order_by="sharding_key"."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        self.ctx = ctx
        self.by_key = ctx.config.order_by == "sharding_key"
        # In the order of queues every queue may have its call.
        self.concurrency: int | None = ctx.config.concurrency if self.by_key else None
        self.crew: Crew[LaneCall] = Crew(ctx, listener, sys.maxsize if self.concurrency is None else self.concurrency)
        self._listener = listener

    def start(self) -> None:
        self._listener.watch.start()

    def stop(self) -> None:
        self._listener.watch.stop()

    def runner(self, queue: HeldQueue, grant: Grant) -> "LaneRunner":
        return LaneRunner(self, queue, grant)

    def tasks(self, queue: HeldQueue | None = None) -> "list[asyncio.Task[None]]":
        return self.crew.tasks(queue)

    def loop_blocked_ms(self, now_ms: int) -> int:
        return self._listener.watch.longest_ms(now_ms)

    def running_calls(self) -> Iterable[ListenerCall]:
        return self.crew.running_calls()

    def unassigned(self, queue: MessageQueue) -> None:
        pass


class LaneRunner:
    """One grant of one queue."""

    __slots__ = (
        "_batch_count",
        "_by_key",
        "_crew",
        "_ctx",
        "_errors",
        "_failures",
        "_fence",
        "_lanes",
        "_messages",
        "_ownership",
        "_parked",
        "grant",
        "queue",
    )

    def __init__(self, model: LaneModel, queue: HeldQueue, grant: Grant) -> None:
        ctx = self._ctx = model.ctx
        self._crew = model.crew
        self._batch_count = ctx.config.batch_count
        self.queue = queue
        self.grant = grant
        self._ownership = ownership = queue.ownership
        self._messages = grant.messages
        self._failures = FailedCalls(ctx, queue, grant)
        self._errors: dict[int, str] = {}
        """The offset of a failing batch → why its last call failed."""
        self._fence = fence_of(queue, grant)
        self._by_key = model.by_key
        self._lanes = Lanes(
            ownership.offset,
            ownership.attempts,
            unkeyed_together=ctx.config.unkeyed == "together",
            by_key=model.by_key,
            alone_after_failure=ctx.config.retry.on_exhausted == "park",
        )
        self._parked = ParkedKeys(ctx, queue, grant, self._pass_on, self._lanes.take_back)
        ownership.done_ranges = self._done_ranges

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._parked.stop()

    async def _run(self) -> None:
        grant, messages, lanes, parked = self.grant, self._messages, self._lanes, self._parked
        boot_ms = self._ctx.host.clock.boot_ms
        loop = asyncio.get_running_loop()
        while grant.alive:
            parked.wake()
            if messages.waiting and parked.may_take:
                kept, left_out = parked.split(messages.take(messages.waiting))
                lanes.put(kept)
                self._leave_out(left_out)
            now_ms = boot_ms()
            due_ms = lanes.wake(now_ms)
            if lanes.ready and self._may_call(now_ms):
                self._crew.schedule(self)
            timer = None if due_ms is None else loop.call_later((due_ms - now_ms) / 1000, grant.run_wake.set)
            await grant.rest()
            if timer is not None:
                timer.cancel()

    def _done_ranges(self, offset: int) -> Ranges:
        """Return the done ranges above `offset`; none while a PARK has no response. Pulls may have left the key out between two finished
        messages, and a broker that has lost the request would not know why."""
        return () if self._parked.unsure else self._messages.done_ranges(offset)

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        for each in self._parked.startable(keys):
            if each.key not in self._parked.replays:
                # An earlier PARK may have parked the key: then its messages of the main flow are still here.
                self._leave_out(self._lanes.leave_out(each.key))
            self._parked.start(each)

    def _pass_on(self, key: str, messages: Sequence[MessageExt]) -> None:
        self._lanes.put_replayed(key, messages)
        self.grant.run_wake.set()

    def before_release(self) -> None:
        self._parked.commit_soon()

    def _may_call(self, now_ms: int) -> bool:
        session = self.queue.session
        if not self.grant.alive or self._ownership.state is not _HELD or self._ctx.paused:
            return False
        if now_ms >= session.proof.deadline_ms:
            session.proof_awaited = True
            return False
        return True

    def position_moved(self) -> None:
        self._note_progress()

    def resume(self) -> None:
        self._lanes.resume()

    def give_up(self) -> None:
        self._crew.give_up(self)

    def status(self) -> RunnerStatus:
        lanes = self._lanes
        return RunnerStatus(self._lane_health() if self._by_key else None, bool(lanes.blocked_keys), lanes.due_ms)

    def _lane_health(self) -> LaneHealth:
        oldest = self._messages.first_unfinished
        offset, key = (None, None) if oldest is None else (oldest.queue_offset, oldest.sharding_key)
        return LaneHealth(
            len(self._lanes),
            offset,
            key,
            self._lanes.most_attempts(self._messages.commit_offset),
            tuple(self._lanes.blocked_keys[:KEYS_SHOWN]),
        )

    # ---------------------------------------------------------------------------------------------------------------- calls

    def begin_call(self, now_ms: int) -> LaneCall | None:
        if not self._may_call(now_ms):
            return None  # a proof of life, resume() or the next grant wakes `run`
        if not self._by_key and self.queue.calls:
            return None  # the end of that call schedules the next one
        taken = self._lanes.take(self._batch_count)
        if taken is None:
            return None
        lane, batch = taken
        replay = self._parked.replays.get(lane.key) if self._parked.replays else None
        context = OrderlyContext(self.queue.queue, self._fence, self._lanes.attempts_at(batch[0].queue_offset), self._has_lapsed)
        return LaneCall(self, batch, context, now_ms, self._by_key and self._lanes.ready, lane, replay)

    def _has_lapsed(self) -> bool:
        return self._ctx.host.clock.boot_ms() >= self.queue.session.proof.deadline_ms

    def succeeded(self, call: LaneCall, result: object, *, last: bool) -> bool:
        if (result is not _SUCCESS and result is not None) or call.context.auto_commit is not True or not self.grant.alive:
            return False
        self._finish(call)
        if not last:
            self._note_progress()
        return True

    async def process(self, call: LaneCall, result: object, error: BaseException | None) -> None:
        lanes, grant, batch = self._lanes, self.grant, call.batch
        offset = batch[0].queue_offset
        if not grant.alive:
            log.warning("result.was_stale", listener=self._ctx.listener_name, epoch=grant.token, queue=str(self.queue.queue), offset=offset)
            return
        manual = call.context.auto_commit is False
        if manual:
            what = 'order_by="sharding_key"' if self._by_key else 'on_exhausted="park"'
            self._ctx.fail(ConfigError(f"{self._ctx.group}: auto_commit=False can't be used with {what}: keys commit alone"))
        status, wrong = read_call(call.context, result, error)
        if wrong is None and manual:
            wrong = "the listener set auto_commit=False"
        if status is not ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT and not manual:
            if status is not _SUCCESS:
                log.warning("result.needs_manual_commit", listener=self._ctx.listener_name, status=status.value, taken_as="SUCCESS")
            self._finish(call)
            self._note_progress()
            return
        attempts = lanes.attempts_at(offset) + 1
        if await self._failures.dead_letter(batch, attempts, call.context, result, error, finish=True):
            self._finish(call)
            self._note_progress()
            return
        outcome, due = ParkOutcome.NOT_NOW, self._due(call, batch)
        if len(due) == len(batch) == 1:  # otherwise each of its messages gets a call of its own first
            self._parked.park_begins(batch[0])
            try:
                outcome = await self._failures.park(batch[0], attempts, call.context, result, error)
            finally:
                self._parked.park_ended(batch[0])
        if not grant.alive:
            return  # it has ended while the response was awaited, and its messages are gone
        if outcome is ParkOutcome.PARKED:
            self._park(call)
        elif due := self._due(call, due):
            pause_ms = self._failures.pause_ms(batch, attempts, call.context, wrong)
            self._errors[offset] = self._failures.why
            if self._ctx.config.retry.blocks(attempts) or outcome is ParkOutcome.REFUSED:
                lanes.block(call.lane, due)
            else:
                lanes.failed(call.lane, due, self._ctx.host.clock.boot_ms() + pause_ms)
        else:
            lanes.finished(call.lane, batch)
        grant.run_wake.set()  # for the timer of the pause
        self._note_progress()

    def _due(self, call: LaneCall, batch: list[MessageExt]) -> list[MessageExt]:
        """Return the messages of a failed batch that are called again. The others are left out: the replay of their key has begun while the
        call ran, or the replay whose messages they are has ended, or is dropped."""
        if call.replay is not None:
            if call.replay.drop:
                call.replay.left_out(len(batch))
            return batch if self._parked.replays.get(call.lane.key) is call.replay and not call.replay.drop else []
        due, left_out = self._parked.split(batch)
        self._leave_out(left_out)
        return due

    def last_call_ended(self) -> None:
        """Release the queue if it drains, as no call works on it, and acquire it again if this grant has ended."""
        ownership, session, grant = self._ownership, self.queue.session, self.grant
        if not grant.alive:
            ownership.running = False
            session.trigger()
            self.queue.forget_if_done()
            return
        if not self._by_key and self._lanes.ready:
            self._crew.schedule(self)
        if ownership.state is not _HELD:
            self._parked.commit_soon()
        offset = self._messages.commit_offset
        ownership.error = self._errors.get(offset)
        ownership.call_ended(grant.token, offset, self._lanes.attempts_at(offset))
        session.changed(ownership)

    def _finish(self, call: LaneCall) -> None:
        """Count the batch as done, and go on in its lane."""
        grant, messages = self.grant, self._messages
        if call.replay is None:
            messages.finish(call.batch)
        else:
            call.replay.finished(call.batch)
        self._lanes.finished(call.lane, call.batch)
        if self._errors:
            self._errors.pop(call.batch[0].queue_offset, None)
        if grant.pull_waits and messages.room():
            grant.pull_wake.set()
        if self._lanes.ready:
            self._crew.note_waiting(self)

    def _park(self, call: LaneCall) -> None:
        """Leave out the key of the message, which was parked, and go on with the others."""
        message = call.batch[0]
        assert message.sharding_key is not None, "the broker has parked its key"
        replayed = message.sharding_key in self._parked.replays
        self._parked.parked(message.sharding_key)
        waiting = self._lanes.leave_out(message.sharding_key)
        self._lanes.finished(call.lane, call.batch)
        self._errors.pop(message.queue_offset, None)
        if replayed:
            # What waits is of the replay. That may have begun while the call, of the main flow, ran.
            waiting = []
            self.queue.session.trigger()  # the response names the keys that had to wait for this one
        self._leave_out(waiting if call.replay is not None else [message, *waiting])
        self.grant.run_wake.set()

    def _leave_out(self, left_out: list[MessageExt]) -> None:
        """Let progress pass messages of parked keys."""
        if left_out:
            self._messages.finish(left_out)
            if self.grant.pull_waits and self._messages.room():
                self.grant.pull_wake.set()
            self._note_progress()

    def _note_progress(self) -> None:
        """Commit by the next SYNC what is finished, while other calls of the queue run."""
        if not self.grant.alive:
            return
        ownership, offset = self._ownership, self._messages.commit_offset
        ownership.error = self._errors.get(offset)
        ownership.progressed(self.grant.token, offset, self._lanes.attempts_at(offset))
        self.queue.session.changed(ownership)
