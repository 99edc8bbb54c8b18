"""The table of pending timers against a list of them: none is early by either clock, none is returned twice, and none is lost."""

from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.tables import timer_table
from lockstep.broker.tables.timer_table import (
    BUCKET_BITS,
    COMPACT_COUNT,
    ENDED,
    RECALLED,
    SPLIT_COUNT,
    TIMES_OF_DAY,
    PendingTimer,
    TimerTable,
)
from lockstep.protocol.messages.rooms import ABSOLUTE, CARRIED, DUE_SHIFT
from support.effort import examples

BUCKET_MS = 1 << BUCKET_BITS
NOW_MS = 26_000_000 * BUCKET_MS
"""The beginning of a bucket."""
STEPS_MS = (1, 2, 999, 14_999, 15_000, BUCKET_MS - 1, BUCKET_MS, BUCKET_MS + 1, 2 * BUCKET_MS, 3_600_000)
"""Between two times, both of which may be the first or the last ms of a bucket."""
DELAYS_MS = (-BUCKET_MS, -1, 0, *STEPS_MS)
"""From now until a timer is due. A start also adds those that were due while the broker was down."""


def code_of(era: int, due_ms: int) -> int:
    return due_ms << DUE_SHIFT | (ABSOLUTE if era == TIMES_OF_DAY else 0)


def restored(table: TimerTable, shift: Any = lambda era: 0, journal: Journal | None = None) -> TimerTable:
    """Return the table of a start from a snapshot of this one."""
    pending, recalled = ([msgpack.unpackb(msgpack.packb(row)) for row in rows] for rows in (table.snapshot(), table.recalled()))
    again = TimerTable(Journal() if journal is None else journal, shift)
    again.restore(pending, recalled)
    return again


def take_all(table: TimerTable, now_ms: int, wall_ms: int | None = None, count: int = 100) -> list[PendingTimer]:
    """Take what is due, as the delivery does: until the table says that nothing is due now."""
    now = now_ms, now_ms if wall_ms is None else wall_ms
    found: list[PendingTimer] = []
    for _ in range(1_000):
        more = table.prepare(*now)
        taken = table.take(*now, count)
        assert len(taken) <= count
        found += taken
        next_ms = table.next_ms(*now)
        if not more and not taken and (next_ms is None or next_ms > 0):
            return found
    raise AssertionError("the delivery never waits")


def table_of(*dues_ms: int, era: int = 0) -> TimerTable:
    """Return a table with timers at offsets from 0 on."""
    table = TimerTable(Journal(), lambda era: 0)
    for offset, due_ms in enumerate(dues_ms):
        table.add(offset, code_of(era, due_ms), 0)
    return table


@dataclass
class Waiting:
    """A pending timer of the model."""

    era: int
    due_ms: int
    taken: bool = False

    @property
    def code(self) -> int:
        return code_of(self.era, self.due_ms)


class TimersAndClocks(RuleBasedStateMachine):
    """Pending timers in a list, the store's clock, which is set from time to time, and the wall clock."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(timer_table, "SPLIT_COUNT", 3)
        self.patch.setattr(timer_table, "COMPACT_COUNT", 2)
        self.now_ms = self.wall_ms = NOW_MS
        self.shifts = {0: 0}
        """Era of the store's clock → by how much it was set since."""
        self.journal = Journal()
        self.table = TimerTable(self.journal, lambda era: self.shifts[era])
        self.pending: dict[int, Waiting] = {}
        self.past: dict[int, int] = {}
        """Offset → due code of the timers that are pending no longer."""
        self.recalled: set[int] = set()
        self.next_offset = 0

    def teardown(self) -> None:
        self.patch.undo()

    # -- timers that begin and end ---------------------------------------------------------------

    def _add(self, era: int, due_ms: int, carried: bool) -> None:
        timer = self.pending[self.next_offset] = Waiting(era, due_ms)
        newest = max(self.shifts)
        self.table.add(self.next_offset, timer.code | carried * CARRIED, newest if era == TIMES_OF_DAY else era)
        self.next_offset += 1

    @rule(data=st.data(), delay_ms=st.sampled_from(DELAYS_MS), carried=st.booleans())
    def add_delay(self, data: st.DataObject, delay_ms: int, carried: bool) -> None:
        era = data.draw(st.sampled_from(sorted(self.shifts)), "era")
        self._add(era, self.now_ms - self.shifts[era] + delay_ms, carried)

    @rule(delay_ms=st.sampled_from(DELAYS_MS), by_wall_clock=st.booleans(), carried=st.booleans())
    def add_time_of_day(self, delay_ms: int, by_wall_clock: bool, carried: bool) -> None:
        self._add(TIMES_OF_DAY, (self.wall_ms if by_wall_clock else self.now_ms) + delay_ms, carried)

    @rule(delay_ms=st.sampled_from(DELAYS_MS), count=st.integers(2, 9))
    def add_many_at_one_time(self, delay_ms: int, count: int) -> None:
        for _ in range(count):
            self._add(0, self.now_ms - self.shifts[0] + delay_ms, carried=False)

    def _end(self, data: st.DataObject) -> tuple[int, int]:
        """Let a pending timer, taken or not, be pending no longer. Return its offset and code."""
        offset = data.draw(st.sampled_from(sorted(self.pending)), "offset")
        self.past[offset] = code = self.pending.pop(offset).code
        return offset, code

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.table.remove(*self._end(data))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def remove_again(self, data: st.DataObject) -> None:
        """A start may read a change that its snapshot has already, and the copy of a timer whose record is lost."""
        offset = data.draw(st.sampled_from(sorted(self.past)), "offset")
        self.table.remove(offset, self.past[offset])

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), recalled=st.booleans(), again=st.booleans())
    def end_by_a_change(self, data: st.DataObject, recalled: bool, again: bool) -> None:
        offset, code = self._end(data)
        (self.table.recall if recalled else self.table.end)(offset, code)
        if recalled:
            self.recalled.add(offset)
        (body,) = self.journal.encode(1 << 20)
        (change,) = decode_changes(body)
        assert change == (RECALLED if recalled else ENDED, code, offset)
        if again:
            self.table.apply(change)

    # -- the clocks ------------------------------------------------------------------------------

    @rule(ms=st.sampled_from(STEPS_MS))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.wall_ms += ms

    @rule(ms=st.sampled_from(STEPS_MS), back=st.booleans())
    def set_the_wall_clock(self, ms: int, back: bool) -> None:
        self.wall_ms += -ms if back else ms

    @rule(ms=st.sampled_from(STEPS_MS), back=st.booleans())
    def set_the_clock_of_the_store(self, ms: int, back: bool) -> None:
        by_ms = -ms if back else ms
        self.now_ms += by_ms
        self.shifts = {era: shift + by_ms for era, shift in self.shifts.items()}
        self.shifts[max(self.shifts) + 100] = 0

    def _left_ms(self, timer: Waiting) -> int:
        """Return in how many ms a timer is due."""
        if timer.era == TIMES_OF_DAY:
            return timer.due_ms - min(self.now_ms, self.wall_ms)
        return timer.due_ms + self.shifts[timer.era] - self.now_ms

    # -- what the broker does --------------------------------------------------------------------

    def _note_taken(self, found: list[PendingTimer]) -> None:
        for timer in found:
            model = self.pending[timer.offset]
            assert timer == PendingTimer(model.era, model.due_ms, timer.offset)
            assert self._left_ms(model) <= 0, "early"
            assert not model.taken, "twice"
            model.taken = True

    @rule(count=st.integers(1, 5))
    def take_some(self, count: int) -> None:
        found = self.table.take(self.now_ms, self.wall_ms, count)
        assert len(found) <= count
        for era in {timer.era for timer in found}:
            dues = [timer.due_ms for timer in found if timer.era == era]
            assert dues == sorted(dues)
        self._note_taken(found)

    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        self._note_taken(take_all(self.table, self.now_ms, self.wall_ms, count))
        assert [offset for offset, timer in self.pending.items() if not timer.taken and self._left_ms(timer) <= 0] == [], "lost"

    @rule()
    def prepare(self) -> None:
        self.table.prepare(self.now_ms, self.wall_ms)

    @rule(data=st.data(), end=st.integers(0, 30))
    def find_all_below(self, data: st.DataObject, end: int) -> None:
        """While they are found, others are taken, and are removed."""
        before = set(self.past)
        found: set[int] = set()
        for part in self.table.below(end):
            for timer in part:
                model = self.pending.get(timer.offset)
                assert model is not None, "it was removed before this part"
                assert timer == PendingTimer(model.era, model.due_ms, timer.offset)
                found.add(timer.offset)
            then = data.draw(st.sampled_from(["nothing", "take", "prepare", "remove"]), "then")
            if then == "take":
                self._note_taken(self.table.take(self.now_ms, self.wall_ms, 3))
            elif then == "prepare":
                self.prepare()
            elif then == "remove" and self.pending:
                self.table.remove(*self._end(data))
        assert not found & before
        assert {offset for offset in self.pending if offset < end} <= found <= set(range(end))

    @rule()
    def restart(self) -> None:
        """A start reads a snapshot. What was taken was not delivered by then, and is pending again."""
        self.table = restored(self.table, lambda era: self.shifts[era], self.journal)
        for timer in self.pending.values():
            timer.taken = False

    # -- laws ------------------------------------------------------------------------------------

    @rule()
    def count(self) -> None:
        """A rule: counting looks for what was removed."""
        assert len(self.table) == len(self.pending)

    @invariant()
    def it_holds_what_is_pending(self) -> None:
        for offset, timer in self.pending.items():
            assert self.table.is_taken(offset) == timer.taken

    @rule()
    def hold(self) -> None:
        for offset, timer in self.pending.items():
            assert self.table.holds(offset, timer.code)
            assert not self.table.holds(offset, code_of(timer.era, timer.due_ms + 1))
            assert not self.table.was_recalled(offset, timer.code)
        for offset, code in self.past.items():
            assert not self.table.holds(offset, code)
            assert not self.table.is_taken(offset)

    @invariant()
    def next_one_is_never_awaited_too_long(self) -> None:
        left = [self._left_ms(timer) for timer in self.pending.values() if not timer.taken]
        next_ms = self.table.next_ms(self.now_ms, self.wall_ms)
        assert not left or (next_ms is not None and next_ms <= min(left))
        last_ms = self.table.last_ms(self.now_ms, self.wall_ms)
        assert not left or (last_ms is not None and last_ms >= max(left))


TestTimersAndClocks = TimersAndClocks.TestCase
TestTimersAndClocks.settings = examples(400)


# -------------------------------------------------------------------------------------------------------------------- boundaries


@pytest.mark.parametrize("within", [0, 1, BUCKET_MS - 1])
@pytest.mark.parametrize("era", [0, TIMES_OF_DAY])
def test_timer_is_taken_at_the_ms_at_which_it_is_due_and_once(era: int, within: int) -> None:
    due_ms = NOW_MS + within
    table = table_of(due_ms, era=era)
    assert take_all(table, due_ms - 1) == []
    assert table.next_ms(due_ms - 1, due_ms - 1) == 1
    assert take_all(table, due_ms) == [PendingTimer(era, due_ms, 0)]
    assert take_all(table, due_ms + 1) == []
    assert (len(table), table.is_taken(0), table.next_ms(due_ms + 1, due_ms + 1)) == (1, True, None)


@pytest.mark.parametrize(("now_ms", "wall_ms"), [(NOW_MS - 1, NOW_MS + 3_600_000), (NOW_MS + 3_600_000, NOW_MS - 1)])
def test_time_of_day_has_come_when_both_clocks_have_reached_it(now_ms: int, wall_ms: int) -> None:
    table = table_of(NOW_MS, era=TIMES_OF_DAY)
    assert take_all(table, now_ms, wall_ms) == []
    assert table.next_ms(now_ms, wall_ms) == 1
    assert take_all(table, max(now_ms, NOW_MS), max(wall_ms, NOW_MS)) == [PendingTimer(TIMES_OF_DAY, NOW_MS, 0)]


@pytest.mark.parametrize("wall_ms", [0, NOW_MS * 2])
def test_wall_clock_moves_no_delay(wall_ms: int) -> None:
    table = table_of(NOW_MS)
    assert take_all(table, NOW_MS - 1, wall_ms) == []
    assert take_all(table, NOW_MS, wall_ms) == [PendingTimer(0, NOW_MS, 0)]


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
def test_clock_of_the_store_moves_the_delays_of_earlier_eras_when_it_is_set(set_by_ms: int) -> None:
    shifts = {0: 0}
    table = TimerTable(Journal(), shifts.__getitem__)
    table.add(0, code_of(0, NOW_MS), 0)
    shifts |= {0: set_by_ms, 1: 0}
    table.add(1, code_of(1, NOW_MS), 1)
    dues = sorted([(NOW_MS + set_by_ms, PendingTimer(0, NOW_MS, 0)), (NOW_MS, PendingTimer(1, NOW_MS, 1))])
    for due_ms, timer in dues:
        assert take_all(table, due_ms - 1) == []
        assert take_all(table, due_ms) == [timer]


def test_later_time_of_a_bucket_is_not_taken_with_an_earlier_one() -> None:
    table = table_of(NOW_MS + 5, NOW_MS + BUCKET_MS - 1, NOW_MS + BUCKET_MS)
    assert [timer.offset for timer in take_all(table, NOW_MS + 5)] == [0]
    assert table.next_ms(NOW_MS + 5, 0) == BUCKET_MS - 6
    assert [timer.offset for timer in take_all(table, NOW_MS + BUCKET_MS - 1)] == [1]
    assert [timer.offset for timer in take_all(table, NOW_MS + BUCKET_MS)] == [2]


# -------------------------------------------------------------------------------------------------------------------- large buckets


MANY = 2 * SPLIT_COUNT + 1


@pytest.mark.parametrize("spread_ms", [1, BUCKET_MS], ids=["one time", "one bucket"])
def test_all_timers_of_a_large_bucket_are_taken_and_none_early(spread_ms: int) -> None:
    dues = [NOW_MS + offset * 7 % spread_ms for offset in range(MANY)]
    table = table_of(*dues)
    for now_ms in (NOW_MS - 15_001, NOW_MS - 1, NOW_MS, NOW_MS + BUCKET_MS // 2, NOW_MS + BUCKET_MS - 1):
        found = take_all(table, now_ms)
        for timer in found:
            assert timer.due_ms == dues[timer.offset] <= now_ms
            table.remove(timer.offset, code_of(0, timer.due_ms))
        assert len(table) == sum(due_ms > now_ms for due_ms in dues)


def test_timer_that_is_added_while_its_bucket_is_split_is_taken_in_time() -> None:
    table = table_of(*[NOW_MS + 1] * MANY)
    assert table.prepare(NOW_MS, NOW_MS), "there are more"
    for offset, due_ms in enumerate((NOW_MS, NOW_MS + 1, NOW_MS + 2), MANY):
        table.add(offset, code_of(0, due_ms), 0)
    assert [timer.offset for timer in take_all(table, NOW_MS)] == [MANY]
    assert {timer.offset for timer in take_all(table, NOW_MS + 1)} == {*range(MANY), MANY + 1}
    assert [timer.offset for timer in take_all(table, NOW_MS + 2)] == [MANY + 2]


@pytest.mark.parametrize(
    ("removed", "stored"),
    [(COMPACT_COUNT, 2 * COMPACT_COUNT), (COMPACT_COUNT + 1, COMPACT_COUNT - 1), (2 * COMPACT_COUNT, COMPACT_COUNT - 1)],
)
def test_bucket_is_compacted_when_most_of_many_were_removed_and_loses_no_other(removed: int, stored: int) -> None:
    table = table_of(*[NOW_MS + 5] * 2 * COMPACT_COUNT)
    for offset in range(removed):
        table.remove(offset, code_of(0, NOW_MS + 5))
    assert len(table) == 2 * COMPACT_COUNT - removed
    assert sum(map(len, table._wheels[0].buckets.values())) == stored
    left = list(range(removed, 2 * COMPACT_COUNT))
    for each in (restored(table), table):
        assert sorted(timer.offset for timer in take_all(each, NOW_MS + 5)) == left


# -------------------------------------------------------------------------------------------------------------------- ends


def test_end_of_a_timer_that_is_not_there_ends_no_other_one() -> None:
    """A start reads copies whose waiting records are lost, and changes that its snapshot already has."""
    table = table_of(NOW_MS, NOW_MS, NOW_MS + 1)
    for offset in (0, 0, 3, 4):
        table.remove(offset, code_of(0, NOW_MS))
    table.remove(2, code_of(0, NOW_MS))
    assert len(table) == 2
    assert [len(row[2]) for row in table.snapshot()] == [16]
    assert {timer.offset for timer in take_all(table, NOW_MS + 1)} == {1, 2}


@pytest.mark.parametrize("taken", [False, True])
def test_recalled_timer_is_not_delivered_and_stays_known_for_another_recall(taken: bool) -> None:
    journal = Journal()
    table = TimerTable(journal, lambda era: 0)
    codes = [code_of(0, NOW_MS), code_of(TIMES_OF_DAY, NOW_MS), code_of(0, NOW_MS + 1)]
    for offset, code in enumerate(codes):
        table.add(offset, code, 0)
    if taken:
        assert len(table.take(NOW_MS, NOW_MS, 2)) == 2
    for _ in range(2):
        table.recall(0, codes[0])
        assert len(journal) == 1
    for each in (table, restored(table)):
        assert (each.was_recalled(0, codes[0]), each.was_recalled(1, codes[1]), each.was_recalled(0, codes[2])) == (True, False, False)
        assert sorted(each.offsets_at(NOW_MS, 10)) == [0, 1]
        assert len(each.offsets_at(NOW_MS, 1)) == 1
        assert each.offsets_at(NOW_MS + 1, 10) == [2]
        assert len(each) == 2
        assert not each.holds(0, codes[0])


def test_change_that_is_applied_again_gives_the_same_table() -> None:
    table = table_of(NOW_MS, NOW_MS)
    for change in ((ENDED, code_of(0, NOW_MS), 0), (ENDED, code_of(0, NOW_MS), 0)):
        table.apply(change)
        assert (len(table), table.holds(0, change[1]), table.holds(1, change[1])) == (1, False, True)
    again = restored(table)
    again.apply((ENDED, code_of(0, NOW_MS), 0))
    assert again.snapshot() == table.snapshot()


def test_timers_that_were_taken_are_pending_again_after_a_restart() -> None:
    table = table_of(NOW_MS, NOW_MS, NOW_MS + 1)
    taken = table.take(NOW_MS, NOW_MS, 1)
    table.prepare(NOW_MS, NOW_MS)
    again = restored(table)
    assert (len(again), again.is_taken(taken[0].offset)) == (3, False)
    assert {timer.offset for timer in take_all(again, NOW_MS + 1)} == {0, 1, 2}
