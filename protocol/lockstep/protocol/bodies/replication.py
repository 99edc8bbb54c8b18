"""Bodies of requests about the copies of a broker's log (docs/replication.md)."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogTerm:
    """A term of a log."""

    term: int
    begin: int
    """The log offset at which it began."""
    assumed_loss: bool = False
    writer: int = 0
    """32 bits that were drawn when it began: two masters may begin terms of the same number."""


@dataclass(frozen=True, slots=True)
class LogTerms:
    """The body of REPLICA_FOLLOW: the terms of the replica's log, in its order."""

    terms: tuple[LogTerm, ...]


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """A replica as its master knows it."""

    member: str
    address: str
    in_set: bool
    """Whether everything that is confirmed waits for it."""
    connected: bool
    stored: int
    applied: int
    silent_ms: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RegisterStanding:
    """The entry of a broker's register, as one of its copies has read it last."""

    address: str
    """The register's URL."""
    read_ms: int | None
    """How long ago it answered, None if it never did."""
    unreachable: str = ""
    """Why it did not answer last; empty if it did."""
    term: int = 0
    """0 if there is no entry."""
    master: str = ""
    in_sync: tuple[str, ...] = ()
    replicas: dict[str, str] = field(default_factory=dict)
    """Member → address."""
    why: str = ""
    """What the last change of the entry was."""
    assumed_loss: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The response to REPLICA_STATUS (30034): a copy of the log, as it knows itself."""

    broker_name: str
    cluster: str
    store_id: str
    role: str
    """master or replica."""
    member: str
    """Empty for a broker that has never had a replica."""
    term: int
    """The last term of its log."""
    end: int
    confirmed: int
    applied: int
    may_have_forgotten: bool = False
    """Whether the log may lack bytes that this copy had acknowledged."""
    complete: bool = False
    """Whether its master has stopped in order and this copy has all of its log."""
    following: bool = False
    """Whether it copies its master's log now."""
    master: str = ""
    """A replica's: the address that it follows."""
    trouble: str = ""
    messages: int | None = None
    """The number of messages that its queues ever had, if that was asked for: those of two copies can be compared."""
    consumed: dict[str, int] | None = None
    """Group → the sum of its offsets in all queues, if that was asked for."""
    replicas: tuple[ReplicaStanding, ...] = ()
    """A master's."""
    known: dict[str, str] = field(default_factory=dict)
    """A replica's: member → address of the other copies, as its master has written them into the log."""
    blank: bool = False
    """Whether this replica has never had a log."""
    was: tuple[str, ...] = ()
    """The member ids under which this copy acknowledged what it may lack now."""
    register: RegisterStanding | None = None
    """Without a register: None."""
