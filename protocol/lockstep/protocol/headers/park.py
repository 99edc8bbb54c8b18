"""PARK and PARK_END: an owner sets a key aside, and brings it back (ordering.md 15)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParkHeader:
    """PARK (30011): sets the sharding key of a stored message aside, after the message failed for the last time.

    From then on pulls of the group leave its messages out. A repeated request changes nothing.
    """

    consumer_group: str
    topic: str
    queue_id: int
    epoch: int
    offset: int
    """The offset of the message that failed. The key's messages from here on wait."""
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ParkEndHeader:
    """PARK_END (30012): commits the progress of a replay, and ends it if `pulled` is given."""

    consumer_group: str
    topic: str
    queue_id: int
    epoch: int
    key: str
    next: int
    """All messages of the key below this offset are accepted or filtered. Ignored while the broker copies them to the dead-letter topic."""
    pulled: int | None = None
    """End the replay: the key is in the main flow again from `next` on. The client has not pulled the main flow beyond this offset."""


@dataclass(frozen=True, slots=True)
class ParkEndReply:
    """The response to PARK_END. Without a value the replay goes on, and so does a drop that is far from its end."""

    until: int | None = None
    """The replay has not ended: pulls of the main flow have left the key out up to this offset. Replay it up to here, and try again."""
    upto: int | None = None
    """The replay has ended: the key is in the main flow again from this offset on. 0 if that has been so for long."""
