"""Bodies of END_TRANSACTION (37)."""

from dataclasses import dataclass

HALVES_MAX = 1_024
"""Half messages of one request."""


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message of a transaction."""

    offset: int
    """Its offset in HALF_TOPIC, as the response to its send had it."""
    message_id: str
    """Its UNIQ_KEY."""


@dataclass(frozen=True, slots=True)
class EndTransactionBody:
    """The half messages of a transaction at one broker, in the order in which they were sent."""

    halves: tuple[HalfMessage, ...]


@dataclass(frozen=True, slots=True)
class CommittedPlace:
    """Where a committed message is; −1 and −1 if it was rolled back."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class EndTransactionReply:
    """The places of the messages, in the order of the request."""

    places: tuple[CommittedPlace, ...]


@dataclass(frozen=True, slots=True)
class HalfRow:
    """A half message, without its body."""

    topic: str
    """The topic and the queue to which it goes."""
    queue_id: int
    message_id: str
    """UNIQ_KEY; empty if it has none."""
    transaction_id: str
    """As its sender has named it, else UNIQ_KEY."""
    keys: str
    tag: str | None
    sharding_key: str | None
    producer_group: str
    client_id: str
    """That of its sender; empty if it was not known."""
    connected: bool
    """Whether a client with this id is connected to the broker."""
    sent_ms: int
    """When it was sent, by the present setting of the broker's clock, in ms since 1970."""
    expires_ms: int
    """Until when it is asked about, by the same clock and the present setting."""
    expired: bool
    """Whether it is too old to be asked about."""
    offset: int
    """The offset by which END_TRANSACTION names it."""
    record_bytes: int


@dataclass(frozen=True, slots=True)
class HalfPage:
    """The body of the response to LIST_HALVES (30027): a part of a list."""

    rows: tuple[HalfRow, ...]
    cursor: int | None
    """Where the next page begins; None at the end. A page may have fewer rows than its limit, also none, and not be the last."""
    open: int
    """How many half messages the broker has, of all topics."""
    unread: int = 0
    """Messages that were left out because their records can't be read now."""
