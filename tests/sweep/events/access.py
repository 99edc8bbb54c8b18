"""Users and their rules, which the universe writes, and what brokers serve to them, on the connections to brokers (wire.py)."""

from dataclasses import dataclass

from sweep.history import Event


@dataclass(frozen=True, slots=True)
class Account:
    """One user, as the universe writes it to the file of users."""

    name: str
    passwords: tuple[str, ...]
    allow: tuple[str, ...] = ()
    """Rules as docs/permissions.md has them: "Pub,Sub topic:orders*"."""
    deny: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    is_super: bool = False


@dataclass(frozen=True, slots=True)
class UsersWritten(Event):
    """The file of users, which all servers have, was written. Versions count from 1."""

    version: int
    accounts: tuple[Account, ...]


@dataclass(frozen=True, slots=True)
class UsersInForce(Event):
    """A server has read the file: its rules are those of this version from now on."""

    version: int


@dataclass(frozen=True, slots=True)
class LoginAccepted(Event):
    """A broker accepted a login."""

    broker: str
    connection: int
    user: str
    password: str | None = None
    """None if it changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """A broker responded to a request on a connection with a login."""

    broker: str
    connection: int
    user: str
    code: int
    """Of the request."""
    result: int
    """The code of the response."""
    request_t: float
    needs: tuple[str, ...] = ()
    """The rights without which the user may not have what this response gives: each of one of some actions, "Sub,Get topic:orders"."""
    claims: tuple[str, ...] = ()
    """What belongs to this user by this response: a client id, a producer id, or classic locks."""
    gives: bool = False
    """It has messages, for which the rights were asked when it was written."""


@dataclass(frozen=True, slots=True)
class LockGivenUp(Event):
    """A client wrote the request that frees a classic lock."""

    broker: str
    claim: str
