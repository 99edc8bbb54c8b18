"""Requests between the copies of a broker's log, and of tools about them (docs/replication.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaFollowHeader:
    """REPLICA_FOLLOW (30030): a replica asks its master what to do. The body has the terms of its log."""

    broker_name: str
    cluster: str
    store_id: str
    """Of the log; empty for a replica that has none yet."""
    member: str
    """16 hex digits, another one since the replica may lack what it acknowledged."""
    address: str
    """Where the replica can be asked for its status."""
    end: int
    confirmed: int
    """Up to where the replica knows that its log was confirmed."""
    version: str
    """The version of lockstep at the replica."""


@dataclass(frozen=True, slots=True)
class ReplicaFollowReply:
    """What a replica has to do."""

    action: str
    """follow, truncate or install (log_parting.py)."""
    keep: int
    """truncate: where the logs part. install: where the master's log begins."""
    term: int
    store_id: str
    member: str
    """Of the master."""


@dataclass(frozen=True, slots=True)
class ReplicaFetchHeader:
    """REPLICA_FETCH (30031): asks for bytes of the log, and tells what the replica has. Held until there are some, or for 250 ms.

    One is in flight at a time. With `waits` False it is answered at once, as those of an install are.
    """

    position: int
    max_bytes: int
    stored: int = 0
    synced: int = 0
    applied: int = 0
    heard: int = 0
    """`number` of the last response."""
    waits: bool = True
    trouble: str | None = None
    """Why the replica can't go on now."""


@dataclass(frozen=True, slots=True)
class ReplicaFetchReply:
    """The bytes are the body: of one segment, none if there are none yet."""

    number: int
    """1 for the first response on a connection, then one more for each."""
    term: int
    crc: int
    """CRC-32 of the body."""
    confirmed: int
    log_start: int
    written: int
    """Where the master's log ends."""
    time_ms: int
    """The time of the master's store, by which records are stamped: ms since 1970."""
    complete: bool = False
    """The master stops, and `written` is the end of its log for ever."""
    in_set: bool = False
    """The replica is in the master's set: everything that is confirmed waits for it."""


@dataclass(frozen=True, slots=True)
class ReplicaAckHeader:
    """REPLICA_ACK (30032, one way): what the replica has stored since its last request."""

    stored: int
    synced: int
    applied: int
    heard: int


@dataclass(frozen=True, slots=True)
class ReplicaFileHeader:
    """REPLICA_FILE (30033): asks for a piece of a small file of the store, for a replica that is installed."""

    name: str
    """identity, proof, damage, or snapshot: the oldest that the master keeps, with which its whole log can be read."""
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaFileReply:
    """The piece is the body."""

    name: str
    """Of the file; snapshot-N for a snapshot. Empty if there is none."""
    size: int = 0
    """Of the whole file, in bytes."""


@dataclass(frozen=True, slots=True)
class ReplicaStatusHeader:
    """REPLICA_STATUS (30034): asks a copy of the log, a master or a replica, for its status."""

    counts: bool = False
    """Count its messages, and what its groups have consumed."""


@dataclass(frozen=True, slots=True)
class ReplicaPromoteHeader:
    """REPLICA_PROMOTE (30036): a replica becomes the master."""

    force: bool = False
    """Also if that is known to lose acknowledged messages. Under a register: although it is not in the set."""


@dataclass(frozen=True, slots=True)
class ReplicaHandOverHeader:
    """REPLICA_HAND_OVER (30035): a master under a register stops in order, so that a replica of its set is elected, and follows it."""

    member: str = ""
    """The replica that is to be elected; empty for any."""


@dataclass(frozen=True, slots=True)
class ReplicaForgetHeader:
    """REPLICA_FORGET (30037): the master no longer waits for a replica."""

    member: str
