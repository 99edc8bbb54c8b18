"""Parked keys, on the connections to brokers (wire.py)."""

from dataclasses import dataclass
from typing import NamedTuple

from sweep.events.wire import OfRequest
from sweep.history import Event, QueueKey


@dataclass(frozen=True, slots=True)
class _Park(OfRequest):
    """PARK: the message at `offset` has failed for the last time, and its key is set aside."""

    epoch: int
    offset: int
    attempts: int


@dataclass(frozen=True, slots=True)
class ParkSent(_Park):
    pass


@dataclass(frozen=True, slots=True)
class ParkResponded(_Park):
    code: int


@dataclass(frozen=True, slots=True)
class ParkReceived(_Park):
    code: int


@dataclass(frozen=True, slots=True)
class _ParkEnded(OfRequest):
    """The response to PARK_END, by which a replay has accepted all messages of the key below `next`."""

    epoch: int
    key: str
    next: int
    ends: bool
    """The replay is to end there."""
    code: int
    until: int | None
    """The replay has not ended, and has to reach this offset."""
    upto: int | None
    """The replay has ended: the key is in the main flow again from there. 0 if the broker has forgotten that."""


@dataclass(frozen=True, slots=True)
class ParkEndResponded(_ParkEnded):
    pass


@dataclass(frozen=True, slots=True)
class ParkEndReceived(_ParkEnded):
    pass


@dataclass(frozen=True, slots=True)
class ParkControlSent(Event):
    """An operator wrote PARK_CONTROL: "list", "replay" or "drop". It may be executed whether or not its response arrives."""

    broker: str
    action: str
    group: str
    key: str | None
    """None: every key."""


class ParkedRow(NamedTuple):
    """One parked key, as the response to PARK_CONTROL has it."""

    queue: QueueKey
    key: str
    next: int
    state: str


@dataclass(frozen=True, slots=True)
class ParkedListed(Event):
    """A broker responded to "list": these are its parked keys."""

    broker: str
    rows: tuple[ParkedRow, ...]
