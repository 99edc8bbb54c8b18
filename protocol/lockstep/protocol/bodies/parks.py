"""Parked keys: keys of an ordered group that were set aside after a message failed for the last time (ordering.md 15)."""

from dataclasses import dataclass
from enum import Enum

KEY_BYTES_MAX = 1_024
"""A longer sharding key is not parked."""
KEYS_PER_QUEUE_MAX = 1_000
"""The number of parked keys of one group in one queue."""
REPLAYS_MAX = 16
"""The number of keys of one queue that are replayed or dropped at the same time."""
LISTED_MAX = 10_000
"""The number of keys in one response to PARK_CONTROL. Fewer, if they have long keys and errors."""


class ParkState(Enum):
    """What becomes of a parked key."""

    PARKED = "parked"
    """Its messages wait."""
    REPLAYING = "replaying"
    """The owner of the queue calls the listener with them, in order."""
    DROPPING = "dropping"
    """They are copied to the dead-letter topic, in order."""
    ENDED = "ended"
    """All below an offset are accepted or copied. The key is in the main flow again from there."""


class ParkAction(Enum):
    """What PARK_CONTROL does with the keys that it names."""

    LIST = "list"
    REPLAY = "replay"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ParkControlBody:
    """PARK_CONTROL (30013): lists parked keys, or lets them be replayed or dropped."""

    action: ParkAction
    group: str | None = None
    """None: of all groups, for LIST only."""
    topic: str | None = None
    """None: in all topics."""
    key: str | None = None
    """None: every parked key."""


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """One parked key of a group in a queue."""

    group: str
    topic: str
    queue_id: int
    key: str
    next: int
    """The offset from which on its messages are not accepted yet."""
    state: ParkState
    attempts: int
    """The number of failed calls of the message at which it was parked."""
    error: str
    """Why the last of them failed."""
    since_ms: int
    """When it was parked, in milliseconds since 1970."""
    upto: int = 0
    """ENDED: its messages below this offset are left out of the main flow, and those from it on are not."""


@dataclass(frozen=True, slots=True)
class ParkControlReply:
    """The keys that were named, as they are now."""

    keys: tuple[ParkedKey, ...]
    more: bool = False
    """There are more keys than one response holds."""


@dataclass(frozen=True, slots=True)
class ReplayKey:
    """A parked key that the owner of the queue replays or drops."""

    key: str
    next: int
    """The offset from which on its messages are not accepted yet."""
    drop: bool = False
    """Copy its messages to the dead-letter topic instead of calling the listener."""
