"""How far each delay queue has been delivered, durable. RocketMQ: ScheduleMessageService's offset table.

A change is written together with the copies that it covers, in one write, and each copy names the place that it ends. So after a crash no
message is lost, and none is delivered twice, also if that write reached the disk only in part.
"""

from collections.abc import Iterable

from lockstep.broker.journal import Change, Journal

KIND = "delay.delivered"
"""The kind of this table's journal changes: (KIND, queue id + 1, next offset). RocketMQ's levels count from 1."""


class DelayTable:
    """A durable table of queue id → next offset."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next: dict[int, int] = {}

    def next_offset(self, queue_id: int) -> int:
        return self._next.get(queue_id, 0)

    def record_delivered(self, queue_id: int, next_offset: int) -> None:
        """Record that every message below `next_offset` was delivered."""
        change = (KIND, queue_id + 1, next_offset)
        self._journal.record(change, self.apply)

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        _, number, next_offset = change
        self._next[number - 1] = next_offset

    def ended(self, queue_id: int, offset: int) -> None:
        """Take note that the log has the copy of the message at this offset. Messages of a queue are delivered one after the other."""
        self._next[queue_id] = max(self.next_offset(queue_id), offset + 1)

    def snapshot(self) -> list[list[int]]:
        return [[queue_id + 1, self._next[queue_id]] for queue_id in sorted(self._next)]

    def restore(self, plain: Iterable[Iterable[int]]) -> None:
        for number, next_offset in plain:
            self._next[number - 1] = next_offset
