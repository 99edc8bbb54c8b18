"""What the store answers."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a frame went. Records are contiguous: the i-th has queue_offset + i."""

    queue_offset: int
    physical_offset: int
    """Log offset of the first record."""
    store_timestamp: int
    """Milliseconds of wall time, never lower than an earlier record's."""


class ReadStatus(Enum):
    """RocketMQ: GetMessageStatus."""

    FOUND = "found"
    NO_MATCHED = "no matched message"
    """Entries were scanned, none passed the filter; `next_offset` is behind them."""
    OFFSET_AT_END = "offset overflow one"
    OFFSET_TOO_SMALL = "offset too small"
    OFFSET_TOO_LARGE = "offset overflow badly"
    EMPTY = "no message in queue"
    """The queue exists and never had a message."""
    NO_QUEUE = "no matched logic queue"
    LOST = "messages lost to damage"
    """The messages from the offset on are damaged in the log; `next_offset` is behind them."""


@dataclass(slots=True)
class ReadResult:
    """The answer to one read. `parts` laid end to end are `count` whole records as stored."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    """One behind the last message that readers may see."""
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    """Bytes of all parts."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found."""

    from_position: int
    """Log offset from which records were read again: that of the snapshot used."""
    end: int
    """Where the log goes on."""
    cut_bytes: int
    """Bytes of an unfinished tail that were made zero, counted to the last one that was not zero already."""
    clean: bool
    """The store had been closed in order."""
    lost_synced: bool = False
    """Damage below the synced length was passed over or cut (`cut_corrupt`): state may be lost, and after a cut offsets that readers have
    seen will name other messages."""
    lost_messages: int = 0
    """Queue offsets found to be lost by this start; consumers are told of each (QueueGap)."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """Free space against the reserve."""

    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    log_bytes: int
    """Apparent bytes from the log's minimum to its end."""

    @property
    def writable(self) -> bool:
        return self.free_bytes >= self.reserve_bytes
