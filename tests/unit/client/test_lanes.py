"""Lanes: whatever the interleaving of calls, each key's messages are taken in order, one batch at a time, and none is lost."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lockstep.client.consumer.calls.lanes import KeyLane, Lanes
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.protocol import done_ranges
from lockstep.protocol.done_ranges import Ranges, above, contains, union
from lockstep.protocol.messages.message import MessageExt
from lockstep.testing import message
from support.effort import examples

LIMITS = FlowLimits(count_max=1_000, bytes_max=1 << 30, span_max=10_000)


def at(offset: int, key: str | None) -> MessageExt:
    return message("orders", b"%d" % offset, sharding_key=key, queue_offset=offset)


def keys_of(lanes: Lanes, count: int = 1) -> list[list[int]]:
    """Take all batches that are ready. Return their offsets."""
    found = []
    while (taken := lanes.take(count)) is not None:
        found.append([each.queue_offset for each in taken[1]])
    return found


def test_keys_are_taken_side_by_side_and_each_key_one_batch_at_a_time() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True)
    lanes.put([at(0, "a"), at(1, "a"), at(2, "b"), at(3, None), at(4, None)])
    assert len(lanes) == 3
    assert keys_of(lanes) == [[0], [2], [3]]
    assert not lanes.ready


def test_messages_without_a_key_are_independent_if_the_consumer_says_so() -> None:
    lanes = Lanes(0, 0, unkeyed_together=False)
    lanes.put([at(0, None), at(1, None), at(2, "a"), at(3, "a")])
    assert keys_of(lanes, count=8) == [[0], [1], [2, 3]]


def test_failed_batch_is_repeated_after_its_pause_before_later_messages_of_its_key() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True)
    lanes.put([at(0, "a"), at(1, "a"), at(2, "b")])
    lane, batch = lanes.take(1) or (KeyLane(None), [])
    lanes.failed(lane, batch, 500)
    lanes.put([at(3, "a")])
    assert lanes.attempts_at(0) == 1
    assert keys_of(lanes) == [[2]]
    assert lanes.wake(499) == 500
    assert not lanes.ready
    assert lanes.wake(500) is None
    assert keys_of(lanes, count=8) == [[0, 1, 3]]


def test_blocked_lane_waits_for_resume_and_keeps_its_attempts() -> None:
    lanes = Lanes(0, 2, unkeyed_together=True)
    lanes.put([at(0, "a"), at(1, "b")])
    lane, batch = lanes.take(1) or (KeyLane(None), [])
    assert lanes.attempts_at(batch[0].queue_offset) == 2, "those of the grant"
    lanes.block(lane, batch)
    assert lanes.blocked_keys == ["a"]
    assert keys_of(lanes) == [[1]]
    lanes.resume()
    assert lanes.blocked_keys == []
    assert (keys_of(lanes), lanes.attempts_at(0)) == ([[0]], 3)


def taken(lanes: Lanes, count: int = 1) -> tuple[KeyLane, list[MessageExt]]:
    found = lanes.take(count)
    assert found is not None
    return found


def test_batch_that_failed_is_repeated_message_by_message_if_the_right_key_is_to_be_parked() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True, by_key=False, alone_after_failure=True)
    lanes.put([at(0, "a"), at(1, "b"), at(2, "a"), at(3, "b")])
    lane, batch = taken(lanes, 3)
    lanes.failed(lane, batch, 0)
    lanes.wake(0)
    lane, batch = taken(lanes, 3)
    assert [each.queue_offset for each in batch] == [0]
    lanes.finished(lane, batch)
    assert [each.queue_offset for each in taken(lanes, 3)[1]] == [1, 2, 3], "no call that began with it has failed"


def test_key_that_is_left_out_takes_its_messages_from_its_own_lane_or_from_the_common_one() -> None:
    for by_key in (True, False):
        lanes = Lanes(0, 0, unkeyed_together=True, by_key=by_key)
        lanes.put([at(0, "a"), at(1, "b"), at(2, "a"), at(3, None), at(4, "a")])
        lane, batch = taken(lanes)
        assert [each.queue_offset for each in lanes.leave_out("a")] == [2, 4]
        lanes.finished(lane, batch)
        assert sorted(offset for each in keys_of(lanes, count=8) for offset in each) == [1, 3]


@pytest.mark.parametrize("by_key", [True, False])
def test_lane_does_not_exist_without_messages(by_key: bool) -> None:
    lanes = Lanes(0, 0, unkeyed_together=True, by_key=by_key)
    lanes.put([])
    assert not lanes.ready
    lanes.put([at(0, "a"), at(1, "a")])
    assert [each.queue_offset for each in lanes.leave_out("a")] == [0, 1]
    assert not lanes.ready
    assert len(lanes) == 0


def test_replayed_key_has_a_lane_of_its_own_beside_the_common_one() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True, by_key=False)
    lanes.put([at(10, "b"), at(11, None)])
    lanes.put_replayed("a", [at(0, "a"), at(2, "a")])
    assert keys_of(lanes, count=8) == [[10, 11], [0, 2]]


def test_replays_leave_every_second_call_to_the_common_lane() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True, by_key=False)
    for number in range(3):
        lanes.put_replayed(f"a{number}", [at(10 * number + n, f"a{number}") for n in range(2)])
    lanes.put([at(100 + n, None) for n in range(5)])
    found = []
    while lanes.ready:
        lane, batch = taken(lanes)
        found += [each.queue_offset for each in batch]
        lanes.finished(lane, batch)
    assert found == [0, 100, 10, 101, 20, 102, 1, 103, 11, 104, 21]


@pytest.mark.parametrize("state", ["ready", "pausing", "blocked"])
def test_messages_that_wait_for_a_call_are_taken_back_whatever_their_lane_waits_for(state: str) -> None:
    lanes = Lanes(0, 0, unkeyed_together=True)
    lanes.put_replayed("a", [at(0, "a"), at(2, "a")])
    if state != "ready":
        lane, batch = taken(lanes)
        if state == "pausing":
            lanes.failed(lane, batch, 500)
        else:
            lanes.block(lane, batch)
    lanes.put([at(5, "b")])
    assert lanes.take_back("a") == 2
    assert (len(lanes), lanes.blocked_keys, lanes.wake(1_000), lanes.attempts_at(0)) == (1, [], None, 0)
    lanes.resume()
    assert keys_of(lanes) == [[5]]
    lanes.put([at(8, "a")])
    assert keys_of(lanes) == [[8]], "the key has a lane again"
    assert lanes.take_back("c") == 0


def test_call_that_runs_when_its_key_is_taken_back_is_the_last_one() -> None:
    lanes = Lanes(0, 0, unkeyed_together=True)
    lanes.put_replayed("a", [at(0, "a"), at(2, "a"), at(4, "a")])
    lane, batch = taken(lanes)
    assert lanes.take_back("a") == 2
    assert not lanes.ready
    lanes.finished(lane, batch)
    assert (len(lanes), lanes.ready) == (0, False)


def test_ranges_of_an_earlier_owner_are_reported_again_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a later message of a key could be known as finished, and an earlier one not: it would come again after the later one."""
    monkeypatch.setattr(done_ranges, "RANGES_MAX", 2)
    inherited = (10, 11, 20, 21)
    queue = ProcessQueue(0, 0, LIMITS, inherited)
    messages = [at(offset, f"k{offset}") for offset in range(30)]
    queue.put(messages, 30, 10)
    taken = {each.queue_offset: each for each in queue.take(30)}
    assert not {10, 20} & taken.keys()
    queue.finish([taken[5]])
    queue.finish([taken[7]])
    known = union(inherited, queue.done_ranges(0))
    assert known == (5, 6, 7, 8), "the highest were left out"
    queue.finish([taken[22]])
    queue.finish([taken[offset] for offset in (0, 1, 2, 3, 4, 6, 8)])
    assert queue.commit_offset == 9
    assert union(above(known, 9), queue.done_ranges(9)) == (10, 11, 20, 21), "20 again, before 22"


def test_ranges_are_reported_with_the_offset_that_they_belong_to_only() -> None:
    queue = ProcessQueue(0, 0, LIMITS)
    queue.put([at(offset, "a") for offset in range(4)], 4, 10)
    batch = queue.take(4)
    queue.finish([batch[2]])
    assert queue.done_ranges(0) == (2, 3)
    queue.finish([batch[0]])
    assert queue.done_ranges(0) == (), "a member that still commits 0 reports no ranges above 1"
    assert queue.done_ranges(1) == (2, 3)


@dataclass
class Running:
    lane: KeyLane
    batch: list[MessageExt] = field(default_factory=list)


class LaneRuns(RuleBasedStateMachine):
    """Any interleaving of fetches, calls and their ends, with a change of owner: what is accepted is each key's sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str | None] = []
        self.accepted: list[int] = []
        self.now_ms = 0
        self.begin(0, ())

    def begin(self, offset: int, done: Ranges) -> None:
        self.done = done
        self.queue = ProcessQueue(offset, 0, LIMITS, done)
        self.lanes = Lanes(offset, 0, unkeyed_together=True)
        self.calls: list[Running] = []

    def committed(self) -> tuple[int, Ranges]:
        """Return the progress as the broker keeps it."""
        offset = self.queue.commit_offset
        return offset, union(above(self.done, offset), self.queue.done_ranges(offset))

    @rule(keys=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=6))
    def store(self, keys: list[str | None]) -> None:
        self.log += keys

    @rule(count=st.integers(1, 5))
    def fetch(self, count: int) -> None:
        first = self.queue.next_offset
        found = [at(offset, self.log[offset]) for offset in range(first, min(first + count, len(self.log)))]
        self.queue.put(found, first + len(found), 100)
        self.lanes.put(self.queue.take(self.queue.waiting))

    @rule(count=st.integers(1, 3))
    def call(self, count: int) -> None:
        taken = self.lanes.take(count)
        if taken is not None:
            assert len({each.sharding_key for each in taken[1]}) == 1
            self.calls.append(Running(*taken))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data: st.DataObject, ok: bool) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        if ok:
            self.accepted += [each.queue_offset for each in call.batch]
            self.queue.finish(call.batch)
            self.lanes.finished(call.lane, call.batch)
        else:
            self.lanes.failed(call.lane, call.batch, self.now_ms + 10)

    @rule()
    def wait(self) -> None:
        self.now_ms += 10
        self.lanes.wake(self.now_ms)

    @rule()
    def change_owner(self) -> None:
        self.begin(*self.committed())

    @invariant()
    def progress_and_done_ranges_are_what_was_accepted(self) -> None:
        committed, done = self.committed()
        if done_ranges.RANGES_MAX < 128:
            return
        assert len(set(self.accepted)) == len(self.accepted), "a change of owner repeats nothing"
        assert set(self.accepted) == {offset for offset in range(len(self.log)) if offset < committed or contains(done, offset)}

    @invariant()
    def each_key_is_accepted_in_order(self) -> None:
        """A message comes again only with all later ones of its key."""
        for key in ("a", "b", "c", None):
            mine = [offset for offset, each in enumerate(self.log) if each == key]
            end = 0
            for offset in (each for each in self.accepted if self.log[each] == key):
                assert offset in mine[: end + 1], "an earlier message was not accepted"
                end = mine.index(offset) + 1
            committed, done = self.committed()
            known = [offset < committed or contains(done, offset) for offset in mine]
            assert known == sorted(known, reverse=True), "a later message is known to be finished, and an earlier one is not"


TestLaneRuns = LaneRuns.TestCase
TestLaneRuns.settings = examples(1_000)


class FewRanges(LaneRuns):
    """The same, and the highest ranges are often left out, because there are more than fit."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(done_ranges, "RANGES_MAX", 2)

    def teardown(self) -> None:
        self.patch.undo()


TestFewRanges = FewRanges.TestCase
TestFewRanges.settings = examples(1_000)


class ParkedLanes(RuleBasedStateMachine):
    """Any interleaving of calls with keys that are left out, replayed and taken back: no message is lost, or called twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0
        self.inside: dict[int, str | None] = {}
        """The offsets that are in the lanes, or called."""
        self.calls: list[Running] = []

    @initialize(by_key=st.booleans())
    def begin(self, by_key: bool) -> None:
        self.lanes = Lanes(0, 0, unkeyed_together=True, by_key=by_key, alone_after_failure=True)
        self.by_key = by_key

    def some(self, keys: list[str | None]) -> list[MessageExt]:
        messages = [at(self.next + number, key) for number, key in enumerate(keys)]
        self.next += len(keys)
        self.inside |= {each.queue_offset: each.sharding_key for each in messages}
        return messages

    @rule(keys=st.lists(st.sampled_from(["a", "b", None]), max_size=5))
    def put(self, keys: list[str | None]) -> None:
        self.lanes.put(self.some(keys))

    @rule(key=st.sampled_from("ab"), count=st.integers(0, 3))
    def replay(self, key: str, count: int) -> None:
        self.lanes.put_replayed(key, self.some([key] * count))

    @rule(count=st.integers(1, 3))
    def call(self, count: int) -> None:
        assert self.lanes.ready == (self.lanes._ready != deque())
        taken = self.lanes.take(count)
        if taken is not None:
            lane, batch = taken
            assert batch
            assert all(call.lane is not lane for call in self.calls), "one batch of a lane at a time"
            self.calls.append(Running(lane, batch))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["ok", "ok", "fail", "block"]))
    def end(self, data: st.DataObject, how: str) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        if how == "fail":
            self.lanes.failed(call.lane, call.batch, data.draw(st.integers(0, 3)))
        elif how == "block":
            self.lanes.block(call.lane, call.batch)
        else:
            for each in call.batch:
                del self.inside[each.queue_offset]
            self.lanes.finished(call.lane, call.batch)

    @rule(now_ms=st.integers(0, 3))
    def wake(self, now_ms: int) -> None:
        self.lanes.wake(now_ms)

    @rule()
    def resume(self) -> None:
        self.lanes.resume()

    @rule(key=st.sampled_from("ab"))
    def leave_out(self, key: str) -> None:
        removed = [each.queue_offset for each in self.lanes.leave_out(key)]
        called = {each.queue_offset for call in self.calls for each in call.batch}
        assert sorted(removed) == sorted(offset for offset, of in self.inside.items() if of == key and offset not in called)
        for offset in removed:
            del self.inside[offset]

    @rule(key=st.sampled_from("ab"))
    def take_back(self, key: str) -> None:
        waiting = [each.queue_offset for each in (self.lanes._lanes[key].waiting if key in self.lanes._lanes else ())]
        assert self.lanes.take_back(key) == len(waiting)
        for offset in waiting:
            del self.inside[offset]

    @invariant()
    def every_message_waits_in_one_lane_or_is_called(self) -> None:
        if not hasattr(self, "lanes"):
            return
        found = [each.queue_offset for lane in self.lanes._lanes.values() for each in lane.waiting]
        found += [each.queue_offset for call in self.calls for each in call.batch]
        assert sorted(found) == sorted(self.inside)
        pausing = [each[2] for each in self.lanes._pausing]
        held = [*self.lanes._ready, *self.lanes._blocked, *pausing, *(call.lane for call in self.calls)]
        assert len(held) == len(set(map(id, held))) == len(self.lanes), "each lane waits for one thing"

    def teardown(self) -> None:
        """Let everything be called to its end."""
        if not hasattr(self, "lanes"):
            return
        for call in self.calls:
            self.lanes.finished(call.lane, call.batch)
        self.lanes.resume()
        self.lanes.wake(3)
        while (taken := self.lanes.take(2)) is not None:
            self.lanes.finished(*taken)
        assert len(self.lanes) == 0


TestParkedLanes = ParkedLanes.TestCase
TestParkedLanes.settings = examples(200)


@given(st.lists(st.sampled_from(["a", "b", None])), st.integers(1, 4))
def test_everything_is_taken_once(keys: list[str | None], count: int) -> None:
    lanes = Lanes(0, 0, unkeyed_together=True)
    lanes.put([at(offset, key) for offset, key in enumerate(keys)])
    taken = []
    while (found := lanes.take(count)) is not None:
        taken += [each.queue_offset for each in found[1]]
        lanes.finished(*found)
    assert sorted(taken) == list(range(len(keys)))
    assert len(lanes) == 0
