"""Body of the response to LIST_WAITING (30025), which lists messages that wait for any delay or until a time of day."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A message that waits, without its body."""

    topic: str
    """The topic and the queue to which it goes."""
    queue_id: int
    message_id: str
    """UNIQ_KEY; empty if it has none."""
    keys: str
    """The property KEYS: words; empty if it has none."""
    tag: str | None
    sharding_key: str | None
    stored_ms: int
    """When it was stored, or stored again because old log files were removed; ms since 1970."""
    due_ms: int
    """When it is due by the present setting of the broker's clock, ms since 1970."""
    absolute: bool
    """Whether it waits until a time of day, not for a delay."""
    offset: int
    """Its offset in the room of timers. Rows are in the order of due_ms and offset."""
    handle: str
    """The handle by which it is recalled (recall.py); empty if it has no UNIQ_KEY that fits into one."""
    record_bytes: int
    """The size of its record."""


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """A part of a list."""

    rows: tuple[WaitingRow, ...]
    cursor: str | None
    """Where the next page begins; None at the end. A page may have fewer rows than its limit, also none, and not be the last."""
    pending: int
    """How many messages wait at this broker, of all topics."""
    unread: int = 0
    """Messages that were left out because their records can't be read now."""
