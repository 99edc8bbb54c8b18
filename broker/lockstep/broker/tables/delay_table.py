"""How far each queue of delays has been delivered, durable. RocketMQ: ScheduleMessageService's offset table.

The change is written with the messages that it is about, by one write: after a crash none of them is lost, and none comes twice but for
those of a write that the disk took in part.
"""

from collections.abc import Iterable

from lockstep.broker.journal import Change, Journal

KIND = "delay.delivered"
"""The journal's word for a change of this table: (KIND, queue id + 1, next offset): RocketMQ's levels count from 1."""


class DelayTable:
    """Queue id → next offset."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next: dict[int, int] = {}

    def next_offset(self, queue_id: int) -> int:
        return self._next.get(queue_id, 0)

    def record_delivered(self, queue_id: int, next_offset: int) -> None:
        """Everything below is where it belongs."""
        change = (KIND, queue_id + 1, next_offset)
        self._journal.record(change, self.apply)

    def apply(self, change: Change) -> None:
        """One change: live or from the log."""
        _, number, next_offset = change
        self._next[number - 1] = next_offset

    def snapshot(self) -> list[list[int]]:
        return [[queue_id + 1, self._next[queue_id]] for queue_id in sorted(self._next)]

    def restore(self, plain: Iterable[Iterable[int]]) -> None:
        for number, next_offset in plain:
            self._next[number - 1] = next_offset
