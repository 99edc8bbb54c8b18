"""Lists of timers: each that waits throughout is in one page, as it is due, whatever is taken, removed, stored again or set meanwhile."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.journal import Journal
from lockstep.broker.tables import timer_table, timer_walk
from lockstep.broker.tables.timer_table import BUCKET_BITS, COMPACT_COUNT, PIECE_COUNT, TIMES_OF_DAY, PendingTimer, TimerTable
from lockstep.broker.tables.timer_walk import SELECT_COUNT, Place, TimerWalk
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.rooms import ABSOLUTE, CARRIED, DUE_SHIFT
from support.effort import examples

BUCKET_MS = 1 << BUCKET_BITS
NOW_MS = 26_000_000 * BUCKET_MS
DUES_MS = (-BUCKET_MS, -1, 0, 1, 2, BUCKET_MS - 1, BUCKET_MS, 5 * BUCKET_MS)
COMMON = "nothing", "nothing", "take", "prepare", "remove", "carry", "add"
BETWEEN = *COMMON, "set forward", "set back", "restart"


class World:
    """A table, its clock, and the messages whose timers are pending."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.shifts = {0: 0}
        self.table = TimerTable(Journal(), self.shifts.__getitem__)
        self.pending: dict[int, PendingTimer] = {}
        """Message → its timer."""
        self.carried: set[int] = set()
        self._offsets = iter(range(1_000_000))

    def add(self, message: int, era: int, due_ms: int, *, carried: bool = False) -> None:
        timer = self.pending[message] = PendingTimer(era, due_ms, next(self._offsets))
        self.table.add(timer.offset, code_of(timer) | CARRIED * carried, max(self.shifts) if era == TIMES_OF_DAY else era)

    def present_ms(self, timer: PendingTimer) -> int:
        return timer.due_ms if timer.era == TIMES_OF_DAY else timer.due_ms + self.shifts[timer.era]

    def message_at(self, offset: int) -> int:
        return next(message for message, timer in self.pending.items() if timer.offset == offset)

    def act(self, data: st.DataObject, action: str) -> None:
        if action == "take":
            self.table.take(self.now_ms, self.now_ms, 2)
        elif action == "prepare":
            self.table.prepare(self.now_ms, self.now_ms)
        elif action == "add":
            era = data.draw(st.sampled_from([TIMES_OF_DAY, *self.shifts]), "era")
            self.add(next(NUMBERS), era, NOW_MS + data.draw(st.sampled_from(DUES_MS), "due"))
        elif action.startswith("set"):
            by_ms = BUCKET_MS // 2 if action == "set forward" else -3
            self.now_ms += by_ms
            self.shifts |= {era: shift + by_ms for era, shift in self.shifts.items()}
            self.shifts[max(self.shifts) + 100] = 0
        elif action == "restart":
            again = TimerTable(Journal(), self.shifts.__getitem__)
            again.restore(self.table.snapshot())  # type: ignore[arg-type]
            self.table = again
        elif action != "nothing" and self.pending:
            message = data.draw(st.sampled_from(sorted(self.pending)), action)
            timer = self.pending.pop(message)
            if action == "carry":
                self.carried.add(message)
                era = TIMES_OF_DAY if timer.era == TIMES_OF_DAY else max(self.shifts)
                self.add(message, era, self.present_ms(timer), carried=True)
            self.table.remove(timer.offset, code_of(timer))


NUMBERS = iter(range(1 << 60))


def code_of(timer: PendingTimer) -> int:
    return timer.due_ms << DUE_SHIFT | (ABSOLUTE if timer.era == TIMES_OF_DAY else 0)


def read_page(data: st.DataObject, world: World, place: Place, limit: int) -> tuple[list[int], Place | None]:
    """Return the messages of the next page, and where the one after it begins."""
    walk = TimerWalk(world.table, place, limit + 1)
    page: list[int] = []
    dues = list[int]()
    last: PendingTimer | None = None
    for timer in walk:
        if timer is not None and last is not None and len(page) == limit:
            return page, Place.parse(str(walk.place_after(last)))
        if timer is not None:
            last = timer
            page.append(world.message_at(timer.offset))
            dues.append(walk.due_ms(timer))
            assert dues[-1] == world.present_ms(timer)
        world.act(data, data.draw(st.sampled_from(COMMON), "meanwhile"))
    assert dues == sorted(dues)
    return page, None


@pytest.mark.parametrize("small", [1, 3])
@examples(300)
@given(data=st.data())
def test_each_timer_that_waits_throughout_is_listed_once(small: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (timer_table, "PIECE_COUNT"),
            (timer_table, "KEY_COUNT"),
            (timer_table, "COMPACT_COUNT"),
            (timer_table, "SPLIT_COUNT"),
            (timer_walk, "PIECE_COUNT"),
            (timer_walk, "SELECT_COUNT"),
        ):
            patch.setattr(module, name, small)
        world = World()
        for action in data.draw(st.lists(st.sampled_from((*BETWEEN, *["add"] * 20)), max_size=16), "before"):
            world.act(data, action)
        throughout, pages, place = set(world.pending), list[list[int]](), Place()
        world.carried.clear()
        while True:
            page, after = read_page(data, world, place, data.draw(st.integers(1, 4), "limit"))
            pages.append(page)
            if after is None:
                break
            place = after
            world.act(data, data.draw(st.sampled_from(BETWEEN), "between"))
        listed = Counter(message for page in pages for message in page)
        assert [message for message in throughout & set(world.pending) if not listed[message]] == [], "left out"
        twice = [message for message, count in listed.items() if count > 1 and message not in world.carried]
        assert twice == [], (world.pending, world.shifts, pages)
        assert world.table.readers == []


def table_of(dues: list[int]) -> TimerTable:
    table = TimerTable(Journal(), lambda era: 0)
    for offset, due_ms in enumerate(dues):
        table.add(offset, due_ms << DUE_SHIFT, 0)
    return table


@pytest.mark.parametrize("spread_ms", [1, 1_000, 100 * BUCKET_MS], ids=["one time", "one bucket", "many buckets"])
@pytest.mark.parametrize("split", [False, True])
def test_many_timers_are_listed_as_they_are_due_in_pieces(spread_ms: int, split: bool) -> None:
    count = 2 * SELECT_COUNT + PIECE_COUNT
    dues = [NOW_MS + offset * 7_919 % spread_ms for offset in range(count)]
    table = table_of(dues)
    while split and table.prepare(NOW_MS + spread_ms, NOW_MS + spread_ms):
        pass
    steps = list(TimerWalk(table, Place(), count))
    assert [(timer.due_ms, timer.offset) for timer in steps if timer is not None] == sorted((due, at) for at, due in enumerate(dues))
    assert steps.count(None) >= 3, "other tasks run between"


def test_timer_that_is_removed_while_a_list_is_read_is_not_in_it_and_none_of_a_compacted_bucket_is_left_out() -> None:
    table = table_of([NOW_MS + 5] * 3 * COMPACT_COUNT)
    found = []
    for timer in TimerWalk(table, Place(), 4 * COMPACT_COUNT):
        if timer is None:
            for offset in range(2 * COMPACT_COUNT):
                table.remove(offset, NOW_MS + 5 << DUE_SHIFT)
            assert len(table) == COMPACT_COUNT
        else:
            found.append(timer.offset)
    assert found == list(range(2 * COMPACT_COUNT, 3 * COMPACT_COUNT))


def test_place_stays_between_the_same_timers_of_each_era_when_the_clock_is_set() -> None:
    """The era of the delays moves past the time of day, and what was listed of it is not listed again."""
    shifts = {0: 0}
    table = TimerTable(Journal(), shifts.__getitem__)
    for offset, (era, due_ms) in enumerate([(0, NOW_MS), (TIMES_OF_DAY, NOW_MS + 1), (0, NOW_MS + 2)]):
        table.add(offset, code_of(PendingTimer(era, due_ms, offset)), era)
    listed, place = [], Place()
    for by_ms in (10, -20, 0):
        walk = TimerWalk(table, place, 2)
        timer = next(each for each in walk if each is not None)
        listed.append((timer.offset, walk.due_ms(timer)))
        place = walk.place_after(timer)
        shifts[0] += by_ms
    assert listed == [(0, NOW_MS), (1, NOW_MS + 1), (2, NOW_MS - 8)]
    assert [each for each in TimerWalk(table, place, 2) if each is not None] == []


@pytest.mark.parametrize("text", ["", "1", "1,2", "1,2,3,4", "1,2,3,", "1,2,x", "1.0,2,3", "٣,2,3", f"{'9' * 19},2,3"])
def test_text_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="expected the cursor of the response before"):
        Place.parse(text)


@pytest.mark.parametrize("place", [Place(((0, 1, 2),)), Place(((-1, 5, 0), (0, -3, 0), (7, 5, 9)))])
def test_place_is_read_from_its_text(place: Place) -> None:
    assert Place.parse(str(place)) == place
