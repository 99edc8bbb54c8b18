"""Open half messages, and how transactions have ended. RocketMQ: TransactionalMessageServiceImpl, without its op messages.

The table is a function of the log: a record in the room of half messages opens one, and the copy in its own topic that names it is its
commit, or a change of the journal its rollback. A snapshot has all open ones, so that a start reads the log from there.

The outcome of a message that has ended is remembered for a day, so that a decision that is repeated gets its first answer, and another one
is refused; of more than OUTCOMES_MAX, the newest.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.tables.carried_offsets import CarriedOffsets
from lockstep.protocol.messages.rooms import CARRIED, DUE_SHIFT, due_of_code

ROLLED_BACK = "half.rolled_back"
"""The kind of this table's journal changes, with (due code, offset, time by the store's clock)."""
OUTCOMES_MAX = 100_000
OUTCOMES_KEPT_MS = 86_400_000
PART_COUNT = 1_000
"""Open half messages that are yielded at once."""


class OpenHalf(NamedTuple):
    """A half message whose transaction is not decided."""

    era: int
    """That of its stamp (StoreClock.era)."""
    sent_ms: int
    """When it was sent, by the stamps of its era."""
    offset: int
    """Its offset in the room."""

    @property
    def code(self) -> int:
        """Return its due code, without CARRIED."""
        return self.sent_ms << DUE_SHIFT


class HalfOutcome(NamedTuple):
    """How the transaction of a half message has ended."""

    at_ms: int
    """By the store's clock; 0 if that is not known."""
    queue_id: int
    """The queue in which the committed message is; −1 if it was rolled back."""
    offset: int
    """Its offset there; −1 if it was rolled back."""

    @property
    def committed(self) -> bool:
        """Return whether it was committed."""
        return self.queue_id >= 0


class TransactionTable:
    """The half messages of one broker."""

    def __init__(self, journal: Journal, shift: Callable[[int], int]) -> None:
        """`shift` returns by how many ms the stamps of an era are moved by the later settings of the clock."""
        self._journal = journal
        self._shift = shift
        self._open: dict[int, OpenHalf] = {}
        """By offset."""
        self._outcomes: dict[int, HalfOutcome] = {}
        """By offset, the oldest first."""
        self.carried = CarriedOffsets()
        """Where half messages are that were stored again."""
        self.watched: set[int] = set()
        """Offsets of open ones, set by who wants to know which of them are removed: those are taken out."""
        self._opened: list[int] | None = None
        """First offsets of those that were opened since `take_opened`; None before its first call."""

    def __len__(self) -> int:
        return len(self._open)

    # -- changes ---------------------------------------------------------------------------------

    def add(self, offset: int, code: int, era: int) -> None:
        """Open the half message of a record with this due code, which was stamped in this era."""
        self._open[offset] = OpenHalf(era, due_of_code(code), offset)
        if self._opened is not None and not code & CARRIED:
            self._opened.append(offset)

    def remove(self, offset: int, code: int) -> None:
        """Remove an open half message that is stored again, or whose outcome is known."""
        self._open.pop(offset, None)
        self.watched.discard(offset)

    def commit(self, offset: int, code: int, outcome: HalfOutcome) -> None:
        """Record where the copy is that commits a half message: the log has it."""
        self.remove(offset, code)
        self._remember(offset, outcome)

    def roll_back(self, half: OpenHalf, now_ms: int) -> None:
        """Record that an open half message will never be delivered."""
        self._journal.record((ROLLED_BACK, half.code, half.offset, now_ms), self.apply)

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        _, code, offset, at_ms = change
        self.remove(offset, code)
        self._remember(offset, HalfOutcome(at_ms, -1, -1))

    def _remember(self, offset: int, outcome: HalfOutcome) -> None:
        self._outcomes.pop(offset, None)
        self._outcomes[offset] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    def forget_outcomes(self, now_ms: int) -> None:
        """Forget outcomes that are a day old."""
        for offset in list(self._outcomes):
            if self._outcomes[offset].at_ms + OUTCOMES_KEPT_MS > now_ms:
                break
            del self._outcomes[offset]

    def take_opened(self) -> list[int]:
        """Return the first offsets of the open ones that were opened since the last call, by the first call of all."""
        opened, self._opened = self._opened, []
        if opened is None:
            firsts = {present: first for first, present in self.carried.items()}
            return [firsts.get(offset, offset) for offset in sorted(self._open)]
        return opened

    # -- questions -------------------------------------------------------------------------------

    def find(self, offset: int) -> OpenHalf | None:
        """Return the open half message that was stored at this offset at first, or is there."""
        return self._open.get(self.carried.find(offset))

    def outcome(self, offset: int) -> HalfOutcome | None:
        """Return how the transaction of the half message has ended that was stored at this offset at first, or is there."""
        return self._outcomes.get(self.carried.find(offset))

    def present_ms(self, half: OpenHalf) -> int:
        """Return when a half message was sent by the present setting of the clock."""
        return half.sent_ms + self._shift(half.era)

    def below(self, end: int) -> "Iterator[list[OpenHalf]]":
        """Yield the open half messages with an offset below `end`, in parts. The table may change between them."""
        found = [half for half in self._open.values() if half.offset < end]
        for at in range(0, len(found), PART_COUNT):
            yield [half for half in found[at : at + PART_COUNT] if half.offset in self._open]

    def from_offset(self, offset: int, count: int) -> list[OpenHalf]:
        """Return at most `count` open half messages from this offset on, by their offsets."""
        return [self._open[each] for each in sorted(each for each in self._open if each >= offset)[:count]]

    # -- the snapshot ----------------------------------------------------------------------------

    def snapshot(self) -> SnapshotRows:
        """Return a row [era, sent ms, offset] for each open half message."""
        rows = list(self._open.values())
        return SnapshotRows(len(rows), lambda: map(list, rows))

    def outcomes(self) -> SnapshotRows:
        """Return a row [offset, at ms, queue id, queue offset] for each outcome that is remembered."""
        rows = list(self._outcomes.items())
        return SnapshotRows(len(rows), lambda: ([offset, *outcome] for offset, outcome in rows))

    def restore(self, opened: Any = (), outcomes: Any = (), carried: Any = ()) -> None:
        """Take what a snapshot has."""
        for era, sent_ms, offset in opened:
            self._open[offset] = OpenHalf(era, sent_ms, offset)
        self._outcomes = {offset: HalfOutcome(*outcome) for offset, *outcome in outcomes}
        self.carried.restore(carried)
