"""ProcessQueue: no message is lost, order is kept, and the commit offset never passes an unfinished message."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.protocol.messages.message import MessageExt

WIDE = FlowLimits(count_max=1_000, bytes_max=1 << 20, span_max=10_000)


@dataclass(frozen=True)
class Stored:
    queue_offset: int


def stored(*offsets: int) -> list[MessageExt]:
    return [cast(MessageExt, Stored(offset)) for offset in offsets]


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


def queue(offset: int = 0, attempts: int = 0, limits: FlowLimits = WIDE) -> ProcessQueue:
    return ProcessQueue(offset, attempts, limits)


def test_batch_is_counted_as_taken_until_commit() -> None:
    held = queue(3)
    held.put(stored(3, 4, 5), 6, 300)
    assert offsets(held.take(2)) == [3, 4]
    assert (held.count, held.taken, held.waiting, held.commit_offset) == (3, 2, 1, 3)
    assert held.commit() == 5
    assert (held.count, held.taken, held.waiting) == (1, 0, 1)
    assert offsets(held.take(2)) == [5]
    assert held.commit() == 6
    assert held.take(2) == []
    assert held.commit() == 6


def test_commit_offset_passes_filtered_messages_only_if_no_earlier_message_is_unfinished() -> None:
    held = queue(0)
    assert held.put((), 10, 0)
    assert held.commit_offset == 10
    held.put(stored(12, 17), 20, 100)
    assert held.commit_offset == 12
    held.take(1)
    assert not held.put((), 30, 0)
    assert held.commit_offset == 12
    assert held.commit() == 17
    held.take(1)
    assert held.commit() == 30


def test_pull_during_a_call_does_not_change_the_running_batch() -> None:
    held = queue(0)
    held.put(stored(0, 1, 2), 3, 30)
    held.take(1)
    held.commit()
    assert offsets(held.take(1)) == [1]
    held.put(stored(3), 4, 10)
    assert held.put_back() == 1
    assert offsets(held.take(1)) == [1]
    assert held.attempts_at(held.batch[0].queue_offset) == 1
    held.commit()
    assert offsets(held.take(5)) == [2, 3]


def test_attempts_belong_to_the_batch_that_begins_at_the_committed_offset() -> None:
    held = queue(5, attempts=2)
    held.put(stored(5, 6), 7, 20)
    held.take(1)
    assert (held.attempts_at(held.batch[0].queue_offset), held.attempts_at(held.commit_offset)) == (2, 2)
    assert held.put_back() == 3
    assert held.attempts_at(held.commit_offset) == 3
    held.take(1)
    held.commit()
    assert held.attempts_at(held.commit_offset) == 0
    held.take(1)
    assert held.attempts_at(held.batch[0].queue_offset) == 0


def test_restored_attempts_do_not_pass_to_another_message() -> None:
    held = queue(5, attempts=2)
    held.put(stored(9), 10, 10)  # retention removed 5 … 8
    held.take(1)
    assert (held.attempts_at(held.batch[0].queue_offset), held.attempts_at(held.commit_offset)) == (0, 0)


def test_failure_after_uncommitted_messages_is_counted_but_not_committed() -> None:
    held = queue(0)
    held.put(stored(0, 1), 2, 20)
    held.take(1)  # SUCCESS without auto commit: stays taken
    held.take(1)
    assert held.put_back() == 1
    assert (held.taken, held.attempts_at(held.commit_offset)) == (1, 0)
    held.take(1)
    assert held.attempts_at(held.batch[0].queue_offset) == 1
    held.roll_back()
    assert offsets(held.take(2)) == [0, 1]
    assert held.attempts_at(held.batch[0].queue_offset) == 0


def test_attempts_of_a_failed_batch_are_committed_once_earlier_messages_are() -> None:
    held = queue(0)
    held.put(stored(0), 1, 10)
    held.take(1)
    held.put(stored(1), 2, 10)
    held.commit()
    held.take(1)
    held.put_back()
    assert (held.commit_offset, held.attempts_at(held.commit_offset)) == (1, 1)


@pytest.mark.parametrize(("held_count", "room"), [(0, 10), (4, 6), (5, 5), (6, 0), (10, 0)])
def test_pull_is_sent_if_half_of_the_count_limit_is_free_and_requests_the_free_count(held_count: int, room: int) -> None:
    held = queue(limits=FlowLimits(count_max=10, bytes_max=1_000, span_max=100))
    held.put(stored(*range(held_count)), held_count, held_count)
    assert held.room() == room


@pytest.mark.parametrize(("size", "open_"), [(999, True), (1_000, False), (1_001, False)])
def test_pulling_waits_at_the_size_threshold(size: int, open_: bool) -> None:
    held = queue(limits=FlowLimits(count_max=10, bytes_max=1_000, span_max=100))
    held.put(stored(0), 1, size)
    assert bool(held.room()) is open_


@pytest.mark.parametrize(("next_offset", "open_"), [(100, True), (101, False)])
def test_pulling_waits_beyond_the_span(next_offset: int, open_: bool) -> None:
    held = queue(limits=FlowLimits(count_max=10, bytes_max=1_000, span_max=100))
    held.put(stored(0), next_offset, 1)
    assert bool(held.room()) is open_


def test_count_limit_of_one_pulls_one_message_at_a_time() -> None:
    held = queue(limits=FlowLimits(count_max=1, bytes_max=1_000, span_max=100))
    assert held.room() == 1
    held.put(stored(0), 1, 1)
    assert held.room() == 0
    held.take(1)
    assert held.room() == 0
    held.commit()
    assert held.room() == 1


def test_bytes_of_a_pull_are_released_when_its_last_message_is_committed() -> None:
    held = queue()
    held.put(stored(0, 1), 2, 200)
    held.put(stored(2), 3, 70)
    held.take(1)
    held.commit()
    assert held.size_bytes == 270
    held.take(1)
    held.commit()
    assert held.size_bytes == 70
    held.drop()
    assert (held.size_bytes, held.count) == (0, 0)


def test_gap_moves_the_pull_offset_and_keeps_unfinished_messages() -> None:
    held = queue(0)
    held.put(stored(0), 1, 10)
    assert not held.move(50)
    assert (held.next_offset, held.commit_offset) == (50, 0)
    held.take(1)
    assert held.commit() == 50
    assert not held.move(40)
    assert held.next_offset == 50


# ------------------------------------------------------------------------------------------------------------- against a model


@dataclass
class Model:
    """A model of plain lists: messages received, messages held by the listener, messages done."""

    seen: int = 0
    matching: list[int] = field(default_factory=list)
    done: int = 0
    """How many of `matching` are committed."""
    taken: int = 0
    batch: int = 0
    """Index of the batch taken last."""

    @property
    def commit(self) -> int:
        return self.matching[self.done] if self.done < len(self.matching) else self.seen


pull = st.tuples(st.just("pull"), st.lists(st.booleans(), max_size=12))
step = st.one_of(
    pull,
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["commit", "roll_back", "put_back"]), st.none()),
)


@settings(max_examples=300)
@given(st.lists(step, max_size=60))
def test_process_queue_matches_a_list_model(steps: list[tuple[str, object]]) -> None:
    held, model = queue(), Model()
    in_call = False
    for name, argument in steps:
        if name == "pull":
            bits = cast(list[bool], argument)
            new = [model.seen + i for i, matches in enumerate(bits) if matches]
            model.matching += new
            model.seen += len(bits)
            held.put(stored(*new), model.seen, 10 * len(new))
        elif name == "take":
            count = cast(int, argument)
            begin = model.done + model.taken
            expected = model.matching[begin : begin + count]
            assert offsets(held.take(count)) == expected
            model.batch, model.taken, in_call = begin, model.taken + len(expected), bool(expected)
        elif name == "commit":
            model.done, model.taken, in_call = model.done + model.taken, 0, False
            assert held.commit() == model.commit
        elif name == "roll_back":
            held.roll_back()
            model.taken, in_call = 0, False
        elif in_call:
            held.put_back()
            model.taken, in_call = model.batch - model.done, False
        assert held.commit_offset == model.commit
        assert held.count == len(model.matching) - model.done
        assert held.taken == model.taken
        assert held.next_offset == model.seen
        assert (held.size_bytes == 0) is (held.count == 0)


def test_commit_offset_is_the_lowest_unfinished_message_after_out_of_order_finishes() -> None:
    """RocketMQ: a slow 7 blocks the commit of a finished 8; a restart repeats instead of losing."""
    held = queue(5)
    held.put(stored(6, 7, 8, 9), 10, 400)
    six, seven, eight, nine = held.take(4)
    assert not held.finish([eight])
    assert (held.commit_offset, held.count) == (6, 3)
    assert held.finish([six])
    assert held.commit_offset == 7
    assert not held.finish([eight]), "a second time"
    assert held.finish([seven])
    assert (held.commit_offset, held.count) == (9, 1)
    assert held.finish([nine])
    assert (held.commit_offset, held.count, held.size_bytes) == (10, 0, 0)
    assert not held.finish([six, nine])
    held.put(stored(10), 11, 100)
    assert held.commit_offset == 10


@settings(max_examples=200)
@given(st.data())
def test_commit_offset_never_passes_an_unfinished_message_and_ends_after_all(data: st.DataObject) -> None:
    held = queue(0)
    running: list[MessageExt] = []
    unfinished: set[int] = set()
    following = 0
    for _ in range(data.draw(st.integers(1, 12))):
        found = stored(*range(following, following + data.draw(st.integers(0, 4))))
        following += len(found) + data.draw(st.integers(0, 2))
        held.put(found, following, 10 * len(found))
        unfinished |= {message.queue_offset for message in found}
        running += held.take(data.draw(st.integers(1, 4)))
        done = data.draw(st.lists(st.sampled_from(running), unique=True)) if running else []
        held.finish(done)
        running = [message for message in running if message not in done]
        unfinished -= {message.queue_offset for message in done}
        assert held.commit_offset == min(unfinished, default=following)
        assert held.count == len(unfinished)
    while left := running + held.take(100):
        held.finish(left)
        running = []
    assert (held.commit_offset, held.count, held.size_bytes) == (following, 0, 0)


def test_seek_discards_buffered_messages_and_continues_at_the_new_offset() -> None:
    held = queue(3)
    held.put(stored(3, 4, 5), 6, 300)
    held.take(1)
    for place in (100, 0):
        held.seek(place)
        assert (held.count, held.waiting, held.taken, held.size_bytes) == (0, 0, 0, 0)
        assert (held.commit_offset, held.next_offset) == (place, place)
        held.put(stored(place), place + 1, 100)
        assert offsets(held.take(5)) == [place]
        assert held.commit() == place + 1
