"""Results of the store's methods."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a frame was stored. Records are contiguous: the i-th has offset queue_offset + i."""

    queue_offset: int
    physical_offset: int
    """Log offset of the first record."""
    store_timestamp: int
    """Milliseconds of wall time, never lower than that of an earlier record."""


class ReadStatus(Enum):
    """RocketMQ: GetMessageStatus."""

    FOUND = "found"
    NO_MATCHED = "no matched message"
    """Entries were scanned and none passed the filter. `next_offset` is after them."""
    OFFSET_AT_END = "offset overflow one"
    OFFSET_TOO_SMALL = "offset too small"
    OFFSET_TOO_LARGE = "offset overflow badly"
    EMPTY = "no message in queue"
    """The queue exists but never had a message."""
    NO_QUEUE = "no matched logic queue"
    LOST = "messages lost to damage"
    """The messages from the offset on are damaged in the log. `next_offset` is after them."""


@dataclass(slots=True)
class ReadResult:
    """The result of one read. The concatenated `parts` are `count` whole records as stored."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    """One more than the offset of the last visible message."""
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    """Number of bytes of all parts."""
    examined_count: int = 0
    examined_bytes: int = 0
    """Records that a predicate has examined, whether they passed or not."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The findings of a start."""

    from_position: int
    """Log offset from which records were read again: that of the snapshot."""
    end: int
    """Where the log continues."""
    cut_bytes: int
    """Bytes of an unfinished tail that were zeroed, up to the last one that was not zero."""
    clean: bool
    """Whether the store had been closed in order."""
    lost_synced: bool = False
    """Whether damage below the synced length was skipped or cut (`cut_corrupt`). State may be lost, and after a cut other messages will get
    offsets that readers have seen."""
    lost_messages: int = 0
    """Number of queue offsets that this start found to be lost. Consumers receive a QueueGap for each range."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """Free space against the reserve."""

    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    log_bytes: int
    """Apparent bytes from the log's minimum to its end."""
    refusal: str | None
    """Why sends are refused for lack of room, also if only those of the size of the last refused one are; None if none is."""
