"""Requests to a witness, which keeps the register of broker names (docs/replication.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegisterReadHeader:
    """REGISTER_READ (30038): asks for the value of a broker name."""

    cluster: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class RegisterReadReply:
    """The value is the body."""

    version: int
    """One more with each swap; 0 if there is no value."""


@dataclass(frozen=True, slots=True)
class RegisterSwapHeader:
    """REGISTER_SWAP (30039): stores the body as the value, if the version is still this one. The response comes when it is on the disk."""

    cluster: str
    broker_name: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisterSwapReply:
    """Whether the value was stored."""

    swapped: bool
