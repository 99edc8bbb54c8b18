"""The tables of half messages: a function of the log that a snapshot has, and when their senders are asked."""

from collections.abc import Callable
from functools import partial

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
        for end in (number, number // 2):
            below = sorted(half.offset for part in table.below(end) for half in part)
            assert below == [offset for offset in sorted(present.values()) if offset < end]
    assert (sorted(table.take_opened()), table.take_opened()) == (sorted(present), [])


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


@given(st.lists(st.tuples(st.sampled_from(["put", "asked", "forget", "take", "wait"]), st.integers(0, 4), st.integers(0, 3)), max_size=60))
def test_schedule_agrees_with_a_model(steps: list[tuple[str, int, int]]) -> None:
    schedule, now_ms = CheckSchedule(), 1_000
    due: dict[int, int] = {}
    asked: dict[int, int] = {}
    for step, offset, number in steps:
        if step == "put":
            due[offset] = now_ms + (number - 1) * 30_000
            schedule.put(offset, due[offset])
        elif step == "asked":
            asked[offset] = asked.get(offset, 0) + 1
            due[offset] = now_ms + min(30_000 * 2 ** (asked[offset] - 1), 600_000)
            schedule.put_asked(offset, now_ms)
        elif step == "forget":
            due.pop(offset, None)
            asked.pop(offset, None)
            schedule.forget(offset)
        elif step == "wait":
            now_ms += (1, 29_999, 30_000, 30_001)[number]
        else:
            ready = sorted((at_ms, each) for each, at_ms in due.items() if at_ms <= now_ms)[:number]
            assert schedule.take(now_ms, number) == [each for _, each in ready]
            for _, each in ready:
                del due[each]
        assert len(schedule) == len(due)
        next_ms = schedule.next_ms()
        assert not due or (next_ms is not None and next_ms <= min(due.values()))


@given(st.lists(st.sampled_from(["commit", "roll back", "carry", "none"]), max_size=30), st.data())
def test_changes_of_the_log_give_the_table_again_from_any_snapshot(steps: list[str], data: st.DataObject) -> None:
    """The log has each message, the copy that ends it, and the change of its rollback, in the order in which they happened."""
    log: list[Callable[[TransactionTable], None]] = []
    number = 0
    for step in steps:
        log.append(partial(TransactionTable.add, offset=number, code=code_of(number), era=0))
        present, code = number, code_of(number)
        number += 1
        if step == "carry":
            log.append(partial(TransactionTable.add, offset=number, code=code | CARRIED, era=0))
            log.append(partial(add_alias, first=present, present=number))
            log.append(partial(TransactionTable.remove, offset=present, code=code))
            number += 1
        elif step == "commit":
            log.append(partial(TransactionTable.commit, offset=present, code=code, outcome=HalfOutcome(9, 1, present)))
        elif step == "roll back":
            log.append(partial(TransactionTable.apply, change=(transaction_table.ROLLED_BACK, code, present, 9)))
    whole = TransactionTable(Journal(), lambda era: 0)
    for entry in log:
        entry(whole)
    at = data.draw(st.integers(0, len(log)))
    part = TransactionTable(Journal(), lambda era: 0)
    for entry in log[:at]:
        entry(part)
    again = restored(part)
    for entry in log[at:]:
        entry(again)
    assert [list(rows) for rows in (again.snapshot(), again.outcomes(), again.carried.snapshot())] == [
        list(rows) for rows in (whole.snapshot(), whole.outcomes(), whole.carried.snapshot())
    ]
    assert sorted(again.take_opened()) == sorted(whole.take_opened())


def add_alias(table: TransactionTable, first: int, present: int) -> None:
    table.carried.add(first, present)


def test_open_messages_are_told_once_by_their_first_offsets() -> None:
    table = TransactionTable(Journal(), lambda era: 0)
    for number in range(3):
        table.add(number, code_of(number), 0)
    table.add(3, code_of(1) | CARRIED, 0)
    table.carried.add(1, 3)
    table.remove(1, code_of(1))
    assert (table.take_opened(), table.take_opened()) == ([0, 2, 1], [])
    table.add(4, code_of(4), 0)
    table.add(5, code_of(0) | CARRIED, 0)
    table.carried.add(0, 5)
    table.remove(0, code_of(0))
    assert (table.take_opened(), table.take_opened()) == ([4], [])
