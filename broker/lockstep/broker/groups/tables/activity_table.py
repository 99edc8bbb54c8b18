"""The groups that a broker knows, and the day on which each was last active (a member, a commit, a setting).

A day is precise enough to forget a group after weeks, and cheap: a commit costs a comparison, and the log gets one change per day and
group.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import unknown_change

DAY_MS = 86_400_000


class ActivityTable:
    """A durable table of group name → last active day, in days since 1970. It has every group that any other table has.

    A group may have a limit of its own for its idle days, which its commits bring.
    """

    KINDS = frozenset({"group.active", "group.idle_limit", "group.forgotten"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._days: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self.today = 0
        self._since = 0
        """Idle days count from this day at the earliest: the start of the process, moved by every jump of the clock."""

    def __len__(self) -> int:
        return len(self._days)

    def __contains__(self, group: str) -> bool:
        return group in self._days

    def __iter__(self) -> Iterator[str]:
        return iter(self._days)

    def set_day(self, today: int) -> bool:
        """Set the day, in days since 1970. Return whether it differs from the previous one.

        Only consecutive days on which the broker ran make a group idle. Time in which it was stopped, and days that the clock skipped, do
        not count.
        """
        before, self.today = self.today, today
        if abs(today - before) > 1:
            self._since += today - before
        return today != before

    def record_activity(self, group: str) -> None:
        """Record that the group is active today, and add it if it is unknown. The caller checks for room first.

        The recorded day never falls: the clock may have been ahead.
        """
        if self._days.get(group, -1) < self.today:
            self._record(("group.active", group, self.today))

    def idle_days(self, group: str) -> int:
        """Return the number of whole days since the last activity in which the broker ran. 0 for an unknown group."""
        return max(0, self.today - max(self._days.get(group, self.today), self._since))

    def record_idle_limit(self, group: str, days: int) -> None:
        """Record that the group, which is known, is to be forgotten after so many idle days."""
        if self._limits.get(group) != days:
            self._record(("group.idle_limit", group, days))

    def is_idle(self, group: str, days: int) -> bool:
        """Return whether the group was idle for `days` (0: for ever), or for its own limit."""
        limits = [limit for limit in (days, self._limits.get(group, 0)) if limit]
        return bool(limits) and self.idle_days(group) >= min(limits)

    def record_forgotten(self, group: str) -> None:
        """Record that the group is forgotten. Its locks, its progress and its settings are removed with it."""
        self._record(("group.forgotten", group))

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("group.active", group, day):
                self._days[group] = day
            case ("group.idle_limit", group, days):
                self._limits[group] = days
            case ("group.forgotten", group):
                self._days.pop(group, None)
                self._limits.pop(group, None)
            case _:
                raise unknown_change(change)

    def snapshot(self) -> SnapshotRows:
        days, limits = dict(self._days), dict(self._limits)
        return SnapshotRows(
            len(days), lambda: ([group, days[group], *([limits[group]] if group in limits else [])] for group in sorted(days))
        )

    def restore(self, plain: Iterable[Sequence[Any]]) -> None:
        for row in plain:
            group, day = row[:2]
            self._days[group] = day
            if len(row) > 2:
                (self._limits[group],) = row[2:]

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)
