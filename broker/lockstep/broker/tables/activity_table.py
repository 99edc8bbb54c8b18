"""The groups that a broker knows, and the day of the last sign of life of each: a member, a commit, a setting.

A day is enough to forget a group after weeks: a commit costs a comparison, and one change a day and group goes into the log.
"""

from collections.abc import Iterable, Iterator

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.protocol.errors import StoreError

DAY_MS = 86_400_000


class ActivityTable:
    """Group name → last day of activity, days since 1970, durable. It has every group that another table has."""

    KINDS = frozenset({"group.active", "group.forgotten"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._days: dict[str, int] = {}
        self.today = 0
        self._since = 0
        """Idle days count from this day at the earliest: the start of the process, later by every jump of the clock."""

    def __len__(self) -> int:
        return len(self._days)

    def __contains__(self, group: str) -> bool:
        return group in self._days

    def __iter__(self) -> Iterator[str]:
        return iter(self._days)

    def set_day(self, today: int) -> bool:
        """Sets the day, in days since 1970. Returns whether it is another one than before.

        Only days on which the broker ran, one after the other, make a group idle: time in which it was stopped and days that the clock
        jumped over do not.
        """
        before, self.today = self.today, today
        if abs(today - before) > 1:
            self._since += today - before
        return today != before

    def record_activity(self, group: str) -> None:
        """The group is in use. Begins it, where it is not known: ask for room first. A day never falls: the clock may have been ahead."""
        if self._days.get(group, -1) < self.today:
            self._record(("group.active", group, self.today))

    def idle_days(self, group: str) -> int:
        """Whole days since the last sign of life that the broker has run through; 0 of a group that is not known."""
        return max(0, self.today - max(self._days.get(group, self.today), self._since))

    def record_forgotten(self, group: str) -> None:
        """Records that the group is forgotten: its locks, its progress and its settings go with it."""
        self._record(("group.forgotten", group))

    def apply(self, change: Change) -> None:
        """One change: live or from the log."""
        match change:
            case ("group.active", group, day):
                self._days[group] = day
            case ("group.forgotten", group):
                self._days.pop(group, None)
            case _:
                raise StoreError(f"state change {change[:1]} is unknown to the activity of groups")

    def snapshot(self) -> SnapshotRows:
        days = dict(self._days)
        return SnapshotRows(len(days), lambda: ([group, days[group]] for group in sorted(days)))

    def restore(self, plain: Iterable[tuple[str, int]]) -> None:
        for group, day in plain:
            self._days[group] = day

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)
