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
