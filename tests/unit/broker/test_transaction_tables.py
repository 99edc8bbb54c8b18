"""The tables of half messages: a function of the log that a snapshot has, and when their senders are asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.journal import Journal
from lockstep.broker.tables import transaction_table
from lockstep.broker.tables.check_schedule import FIRST_PAUSE_MS, PAUSE_MS_MAX, CheckSchedule
from lockstep.broker.tables.transaction_table import OUTCOMES_KEPT_MS, HalfOutcome, TransactionTable
from lockstep.protocol.messages.rooms import CARRIED, DUE_SHIFT

STEPS = st.lists(st.tuples(st.sampled_from(["open", "commit", "roll back", "carry", "snapshot"]), st.integers(0, 30)), max_size=80)


def code_of(number: int) -> int:
    return (1_000 + number) << DUE_SHIFT


def restored(table: TransactionTable) -> TransactionTable:
    again = TransactionTable(Journal(), lambda era: 0)
    again.restore(list(table.snapshot()), list(table.outcomes()), list(table.carried.snapshot()))
    return again


@given(STEPS)
def test_table_agrees_with_a_model_over_snapshots(steps: list[tuple[str, int]]) -> None:
    table, number = TransactionTable(Journal(), lambda era: 0), 0
    present: dict[int, int] = {}
    """First offset → present one, of the open ones."""
    ended: dict[int, HalfOutcome] = {}
    for step, choice in steps:
        opened = sorted(present)
        if step == "open":
            table.add(number, code_of(number), 0)
            present[number] = number
            number += 1
        elif step == "snapshot":
            table = restored(table)
        elif opened:
            first = opened[choice % len(opened)]
            half = table.find(first)
            assert half is not None
            if step == "carry":
                table.add(number, half.code | CARRIED, 0)
                table.carried.add(first, number)
                table.remove(half.offset, half.code)
                present[first] = number
                number += 1
                continue
            del present[first]
            if step == "commit":
                ended[first] = HalfOutcome(choice, 2, choice)
                table.commit(half.offset, half.code, ended[first])
            else:
                ended[first] = HalfOutcome(choice, -1, -1)
                table.roll_back(half, choice)
        assert len(table) == len(present)
        found = {first: table.find(first) for first in present}
        assert {first: half and half.offset for first, half in found.items()} == present
        assert {first: table.outcome(first) for first in ended} == ended
        assert [half.offset for half in table.from_offset(0, 1_000)] == sorted(present.values())
        assert [half.offset for part in table.below(number) for half in part] == list(dict.fromkeys(table._open))


def test_outcomes_are_forgotten_after_a_day_and_the_oldest_of_too_many_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_table, "OUTCOMES_MAX", 3)
    table = TransactionTable(Journal(), lambda era: 0)
    for number in range(4):
        table.add(number, code_of(number), 0)
        table.commit(number, code_of(number), HalfOutcome(number * 10, 0, number))
    assert [table.outcome(number) is not None for number in range(4)] == [False, True, True, True]
    table.forget_outcomes(10 + OUTCOMES_KEPT_MS - 1)
    assert table.outcome(1) is not None
    table.forget_outcomes(10 + OUTCOMES_KEPT_MS)
    assert [table.outcome(number) is not None for number in range(4)] == [False, False, True, True]


def test_question_is_due_at_its_time_and_not_before() -> None:
    schedule = CheckSchedule()
    schedule.put_all([7, 8], 1_000)
    assert (schedule.take(999, 10), schedule.next_ms()) == ([], 1_000)
    assert schedule.take(1_000, 1) == [7]
    assert schedule.take(1_001, 10) == [8]
    assert (schedule.take(10**9, 10), schedule.next_ms(), len(schedule)) == ([], None, 0)


def test_pauses_between_questions_double_up_to_ten_minutes() -> None:
    schedule, now_ms, pauses = CheckSchedule(), 0, []
    for _ in range(8):
        schedule.put_asked(1, now_ms)
        due_ms = schedule.next_ms()
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
        assert schedule.take(now_ms, 1) == [1]
    assert pauses == [FIRST_PAUSE_MS, 60_000, 120_000, 240_000, 480_000, PAUSE_MS_MAX, PAUSE_MS_MAX, PAUSE_MS_MAX]
    schedule.forget(1)
    schedule.put_asked(1, now_ms)
    assert schedule.next_ms() == now_ms + FIRST_PAUSE_MS


def test_later_time_replaces_an_earlier_one_and_the_other_way_round() -> None:
    schedule = CheckSchedule()
    schedule.put(1, 1_000)
    schedule.put(1, 2_000)
    assert (schedule.take(1_999, 10), schedule.take(2_000, 10)) == ([], [1])
    schedule.put(1, 5_000)
    schedule.put(1, 3_000)
    assert (schedule.take(3_000, 10), schedule.take(9_000, 10)) == ([1], [])
