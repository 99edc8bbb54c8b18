"""Parked keys, on the connections to brokers."""

from dataclasses import dataclass
from typing import NamedTuple

from sweep.history import Event, QueueKey


class ParkedRow(NamedTuple):
    """One parked key, as the response to PARK_CONTROL has it."""

    queue: QueueKey
    key: str
    next: int
    state: str


@dataclass(frozen=True, slots=True)
class _Park(Event):
    """PARK: the message at `offset` has failed for the last time, and its key is set aside."""

    queue: QueueKey
    epoch: int
    offset: int
    request: int


@dataclass(frozen=True, slots=True)
class ParkSent(_Park):
    attempts: int


@dataclass(frozen=True, slots=True)
class ParkResponded(_Park):
    code: int
    client: int


@dataclass(frozen=True, slots=True)
class ParkReceived(_Park):
    code: int
    request_t: float


@dataclass(frozen=True, slots=True)
class _ParkEnd(Event):
    """PARK_END: a replay has accepted all messages of the key below `next`."""

    queue: QueueKey
    epoch: int
    key: str
    next: int
    ends: bool
    """The replay is to end there."""


@dataclass(frozen=True, slots=True)
class ParkEndSent(_ParkEnd):
    pass


@dataclass(frozen=True, slots=True)
class _ParkEnded(_ParkEnd):
    code: int
    until: int | None
    """The replay has not ended, and has to reach this offset."""
    upto: int | None
    """The replay has ended: the key is in the main flow again from there. 0 if the broker has forgotten that."""


@dataclass(frozen=True, slots=True)
class ParkEndResponded(_ParkEnded):
    client: int


@dataclass(frozen=True, slots=True)
class ParkEndReceived(_ParkEnded):
    request_t: float


@dataclass(frozen=True, slots=True)
class ParkControlSent(Event):
    """An operator wrote PARK_CONTROL: "list", "replay" or "drop". It may be executed whether or not its response arrives."""

    broker: str
    action: str
    group: str
    key: str | None
    """None: every key."""


@dataclass(frozen=True, slots=True)
class ParkedListed(Event):
    """A broker responded to "list": these are its parked keys."""

    broker: str
    rows: tuple[ParkedRow, ...]
