"""What registers say, and what brokers do by it. Written from the register, the connections and the disks, not from the product."""

from dataclasses import dataclass

from sweep.history import Event


@dataclass(frozen=True, slots=True)
class RegisterSeen(Event):
    """A value of a register: when it was stored in etcd, or when a witness first told it. `machine` is the register's."""

    broker: str
    version: int
    """Higher with each value of a broker's register."""
    log: str
    term: int
    master: str
    """Member id, as all names of copies here."""
    in_sync: tuple[str, ...]
    replicas: tuple[tuple[str, str], ...]
    """(member id, address)."""
    write: str
    why: str
    assumed_loss: bool


@dataclass(frozen=True, slots=True)
class Elected(Event):
    """A value of a register names another term. `machine` is the master's: that of the address in the register."""

    broker: str
    term: int
    why: str
    is_present: bool
    """Whether the store there has that member id, and may not lack what was acknowledged under it."""
    others: tuple[str, ...]
    """The machines of the other members of the last set that have all that was acknowledged, by their member ids."""


@dataclass(frozen=True, slots=True)
class TermServed(Event):
    """A process has served a term for the first time: it has told a replica of it."""

    broker: str
    term: int


@dataclass(frozen=True, slots=True)
class TermLacked(Event):
    """A master opened, and a member of the set does not have the beginning of its term."""

    broker: str
    member: str
    """Its machine."""
    term: int


@dataclass(frozen=True, slots=True)
class DeposedAnswered(Event):
    """A process has answered a client that had written its request when a master of a higher term had opened."""

    broker: str
    term: int
    """The last one that it opened; 0 if it never did."""
    code: int
    """Of the request."""
    response: int
    request_t: float
    opened_t: float
    """When the master of a higher term had opened."""


@dataclass(frozen=True, slots=True)
class ConfirmedLost(Event):
    """A master opened whose log lacks what an earlier one had told as confirmed."""

    broker: str
    term: int
    position: int
    """The first byte that is another one."""
    may_lack: str
    """Why that may be; empty if it may not."""


@dataclass(frozen=True, slots=True)
class CopiesInStep(Event):
    """In the calm: each broker has one master by now, and all its other copies are in the set."""

    seconds: float
    """Since the calm began."""
