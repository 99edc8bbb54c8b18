"""A reset plan: the new offset of each queue, and the difference in messages."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.changes.reset_plan import Move, plan_moves, undo_commands
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.targets import Target
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.errors import StateError
from lockstep.protocol.topics.queue import MessageQueue

Q = MessageQueue("orders", "broker-a", 0)
LINE = QueueLine("orders", "broker-a", 0, True, None, "0", None, 50, 100, 50, None, 0, "1")
NOW = 1_700_000_000_000


def plan(target: Target, *, before: int | None = 50, first: int = 10, end: int = 100, at_time: int = 0) -> Move:
    lines = [replace(LINE, committed_offset=before)]
    (move,) = plan_moves([Q], lines, {Q: OffsetRange(0, first, end)}, target, {Q: at_time})
    return move


@pytest.mark.parametrize(
    ("target", "after", "change"),
    [
        (Target("beginning"), 10, -40),
        (Target("end"), 100, 50),
        (Target("offset", 60), 60, 10),
        (Target("offset", 50), 50, 0),
        (Target("offset", 10), 10, -40),
        (Target("offset", 100), 100, 50),
        (Target("time", NOW), 42, -8),
    ],
)
def test_move_counts_redelivered_and_skipped_messages(target: Target, after: int, change: int) -> None:
    move = plan(target, at_time=42)
    assert (move.before, move.after, move.change) == (50, after, change)


@pytest.mark.parametrize("offset", [9, 101])
def test_offset_outside_the_queue_is_rejected(offset: int) -> None:
    with pytest.raises(StateError, match="has offsets 10 to 100"):
        plan(Target("offset", offset))


def test_move_has_the_parked_keys_that_it_forgets() -> None:
    found = plan_moves([Q], [replace(LINE, parked=2)], {Q: OffsetRange(0, 10, 100)}, Target("end"), {})
    assert ([move.parked for move in found], plan(Target("end")).parked) == ([2], 0), "a broker that reports none has none"


def test_commands_that_undo_a_reset_set_each_moved_queue_back() -> None:
    def move(broker: str, queue_id: int, before: int | None, after: int, topic: str = "orders") -> Move:
        return Move(MessageQueue(topic, broker, queue_id), before, after, 10, 100)

    moves = [move("a", 0, 50, 10), move("a", 1, 20, 10), move("b", 0, 50, 10), move("b", 1, 10, 10), move("b", 2, None, 10)]
    moves += [move("a", 0, 50, 60, "bills"), move("a", 1, 3, 60, "bills")]
    assert undo_commands("it's", moves) == [
        """lockstep group reset-offset 'it'"'"'s' --topic orders --queue a:0 --queue b:0 --to 50""",
        """lockstep group reset-offset 'it'"'"'s' --topic orders --queue a:1 --to 20""",
        """lockstep group reset-offset 'it'"'"'s' --topic bills --queue a:0 --to 50""",
        """lockstep group reset-offset 'it'"'"'s' --topic bills --queue a:1 --to 10""",
    ], "retention has removed what was below 10"


def test_group_without_progress_starts_at_the_first_message() -> None:
    assert (plan(Target("end"), before=None).before, plan(Target("end"), before=None).change) == (None, 90)


def test_messages_removed_by_retention_are_not_counted_as_redelivered() -> None:
    assert plan(Target("beginning"), before=3, first=10).change == 0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(-10, 200), st.sampled_from(["beginning", "end", "time"]))
def test_planned_offset_is_always_within_the_queue(first: int, length: int, at_time: int, word: str) -> None:
    move = plan(Target(word), first=first, end=first + length, at_time=at_time)
    assert first <= move.after <= first + length


def test_time_in_milliseconds_that_is_taken_for_an_offset_is_explained() -> None:
    with pytest.raises(StateError) as refused:
        plan(Target("offset", 1_795_897_648_356), first=0, end=9)
    assert str(refused.value) == (
        "nothing was changed: orders@broker-a:0 has offsets 0 to 9, not 1795897648356; digits alone are an offset: "
        "if 1795897648356 is a time in milliseconds since 1970, write it as 2026-11-28T20:27:28.356Z"
    )


def test_queue_unknown_to_its_broker_is_reported() -> None:
    with pytest.raises(StateError, match=r"nothing was changed: broker broker-a does not know orders@broker-a:0 yet.*Run the command"):
        plan_moves([Q], (), {}, Target("end"), {})
