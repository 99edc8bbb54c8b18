"""Rules of ordered groups that consume by key (docs/invariants.md K1 to K3)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.client.consumer.calls import process_queue
from lockstep.client.consumer.calls.crew import Crew
from lockstep.client.consumer.calls.lane_runner import LaneRunner
from lockstep.client.consumer.calls.lanes import KeyLane, Lanes
from lockstep.client.consumer.calls.process_queue import ProcessQueue
from lockstep.protocol.done_ranges import Ranges
from lockstep.protocol.messages.message import MessageExt
from sweep.mutants.registry import Patches, mutant

WORLD = "lanes"


@mutant(WORLD)
def two_calls_of_a_lane(patch: Patches) -> None:
    """A lane has one call at a time."""
    take = Lanes.take

    def and_goes_on(self: Lanes, count: int) -> tuple[KeyLane, list[MessageExt]] | None:
        taken = take(self, count)
        if taken is not None and taken[0].waiting:
            self._ready.append(taken[0])
        return taken

    patch.set(Lanes, "take", and_goes_on)
    patch.set(Lanes, "finished", lambda self, lane, batch: None if lane.waiting else self._lanes.pop(lane.key, None))


@mutant(WORLD)
def a_failed_lane_goes_on_with_the_next(patch: Patches) -> None:
    """A failed batch is repeated before later messages of its key."""

    def behind(self: Lanes, lane: KeyLane, batch: list[MessageExt]) -> None:
        self._failed[batch[0].queue_offset] = self._failed.get(batch[0].queue_offset, 0) + 1
        lane.waiting.extend(batch)

    patch.set(Lanes, "_put_back", behind)


@mutant(WORLD)
def a_batch_mixes_keys(patch: Patches) -> None:
    """A batch has messages of one key."""

    def take(self: Lanes, count: int) -> tuple[KeyLane, list[MessageExt]] | None:
        if not self._ready:
            return None
        lane = self._ready.popleft()
        batch = [lane.waiting.popleft() for _ in range(min(count, len(lane.waiting)))]
        if self._ready and len(batch) < count:
            batch.append(self._ready[0].waiting.popleft())
            if not self._ready[0].waiting:
                del self._lanes[self._ready.popleft().key]
        return lane, batch

    patch.set(Lanes, "take", take)


@mutant(WORLD)
def progress_passes_an_unfinished_lane(patch: Patches) -> None:
    """The committed offset is that of the first unfinished message."""
    finish = ProcessQueue.finish

    def ahead(self: ProcessQueue, messages: Sequence[MessageExt]) -> bool:
        last = messages[-1].queue_offset
        return finish(self, [each for each in self._messages[self._first : self._next] if each.queue_offset <= last])

    patch.set(ProcessQueue, "finish", ahead)


@mutant(WORLD)
def done_ranges_hold_unfinished_messages(patch: Patches) -> None:
    """A done range has finished messages only."""
    done_ranges = ProcessQueue.done_ranges

    def whole(self: ProcessQueue, offset: int) -> Ranges:
        ranges = done_ranges(self, offset)
        return (ranges[0], ranges[-1]) if ranges else ()

    patch.set(ProcessQueue, "done_ranges", whole)


@mutant(WORLD)
def the_next_owner_ignores_done_ranges(patch: Patches) -> None:
    """The next owner passes over the done ranges of its grant."""
    patch.set(process_queue, "contains", lambda ranges, offset: False)


@mutant(WORLD)
def done_ranges_are_kept_in_memory(patch: Patches) -> None:
    """Done ranges outlive a restart of the broker."""

    def forgets(self: ProgressTable, change: Any) -> None:
        written = change[:6] if change[0] == "progress.committed" else change
        self._journal.record(written, lambda _: self.apply(change))

    patch.set(ProgressTable, "_record", forgets)


@mutant(WORLD)
def done_ranges_outlive_a_reset(patch: Patches) -> None:
    """A reset forgets the done ranges: their messages come again."""
    put = ProgressTable.set_progress

    def keeps(self: ProgressTable, key: QueueKey, progress: Progress) -> None:
        before = self.get(key)
        put(self, key, progress if before is None else replace(progress, done=before.done))

    patch.set(ProgressTable, "set_progress", keeps)


@mutant(WORLD)
def draining_waits_for_one_call(patch: Patches) -> None:
    """A queue is released when all calls of its keys have ended."""
    note = LaneRunner.note_progress

    def as_if_the_last_had_ended(self: LaneRunner) -> None:
        if self.worker.calls:
            self.last_call_ended()
        else:
            note(self)

    patch.set(LaneRunner, "note_progress", as_if_the_last_had_ended)


@mutant(WORLD)
def concurrency_is_not_limited(patch: Patches) -> None:
    """A consumer has at most `concurrency` calls at a time."""
    add = Crew._add_task

    def one_more(self: Crew[Any]) -> None:
        self._concurrency += 1
        add(self)
        self._concurrency -= 1

    patch.set(Crew, "_add_task", one_more)


@mutant(WORLD, aimed="tests/unit/client/test_lanes.py::test_ranges_of_an_earlier_owner_are_reported_again_when_there_is_room")
def ranges_of_earlier_owners_are_not_reported(patch: Patches) -> None:
    """A member reports what earlier owners have finished together with its own, so that the highest are left out, whoever finished them."""
    done_ranges = ProcessQueue.done_ranges

    def own(self: ProcessQueue, offset: int) -> Ranges:
        inherited, self._done = self._done, ()
        ranges = done_ranges(self, offset)
        self._done = inherited
        return ranges

    patch.set(ProcessQueue, "done_ranges", own)


@mutant(WORLD, aimed="tests/unit/client/test_crew.py::test_batch_that_arrives_in_the_turn_in_which_the_last_task_ends_is_called")
def a_task_that_ends_is_not_replaced(patch: Patches) -> None:
    """What arrives while the last task of the crew ends gets another task."""
    patch.set(Crew, "_task_ended", lambda self, task: self.tasks.pop(task, None))
