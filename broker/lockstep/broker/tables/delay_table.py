"""How far each delay level has been delivered, durable. RocketMQ: ScheduleMessageService's offset table.

The change is written with the messages that it is about, by one write: after a crash none of them is lost, and none comes twice but for
those of a write that the disk took in part.
"""

from collections.abc import Iterable

from lockstep.broker.journal import Change, Journal

KIND = "delay.delivered"
"""The journal's word for a change of this table: (KIND, level, next offset). Here a level is its queue's id + 1, as in RocketMQ's table."""


class DelayTable:
    """Level (1 …) → next offset of its queue."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next: dict[int, int] = {}

    def next(self, level: int) -> int:
        return self._next.get(level, 0)

    def delivered(self, level: int, next_offset: int) -> None:
        """Everything below is where it belongs."""
        change = (KIND, level, next_offset)
        self.apply(change)
        self._journal.append(change)

    def apply(self, change: Change) -> None:
        """One change: live or from the log."""
        _, level, next_offset = change
        self._next[level] = next_offset

    def snapshot(self) -> list[list[int]]:
        return [[level, self._next[level]] for level in sorted(self._next)]

    def restore(self, plain: Iterable[Iterable[int]]) -> None:
        for level, next_offset in plain:
            self._next[level] = next_offset
