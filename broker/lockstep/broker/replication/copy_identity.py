"""`lockstep/replica`: what a store is among the copies of its log. JSON; a store that was never copied has none.

A member id stands for bytes that were acknowledged. A store that may lack some of those is another member from then on (KIP-966): it is not
waited for under the old id, and it may not be promoted as if it had them. So is a store at another address: the directory may have been
copied, and two stores with one id would each have a part of what that id has acknowledged.
"""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from lockstep.broker.replication.master_clock import NEAR_MS
from lockstep.broker.store.config import FlushMode
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.runtime.host import Random

FORMAT = 1


class Role(StrEnum):
    MASTER = "master"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class CopyIdentity:
    """The content of `lockstep/replica`."""

    member: str
    """16 hex digits, drawn by this store."""
    role: Role
    members: dict[str, str] = field(default_factory=dict)
    """Master: member id → address of its set, without itself."""
    known: dict[str, str] = field(default_factory=dict)
    """Master: the same of all replicas that have followed it and were not forgotten."""
    confirmed: int = 0
    """Replica: up to where it knows that the log was confirmed, at most a second old."""
    installing: bool = False
    """Replica: the files are not whole yet. Its next start begins with empty ones, when a master answers."""
    cut_to: int | None = None
    """Replica: the log is being cut to this position."""
    complete: bool = False
    """Replica: its master has stopped in order, and this store has all of its log. Master: the same, until a nameserver has accepted it."""
    forgot: bool = False
    """Replica: it may lack bytes that it had acknowledged under an earlier id, and has not had all of its master's log since."""
    promoted: bool = False
    """Master: it was promoted, after other copies were asked, and no nameserver has accepted it since."""
    in_set: bool = False
    """Replica: it is in the set of its master, as that has said last."""
    address: str = ""
    """Replica: where it was reached when it took its id."""
    registered: bool = False
    """Whether it has been a copy under a register: an entry that is missing there was lost."""
    was: list[str] = field(default_factory=list)
    """Its ids of before, under which it acknowledged what it may lack now. It has had all of its master's log since, if there is none."""
    clock_boot: str = ""
    """The boot of this machine in which `clock_ahead_ms` was measured; empty if it was not."""
    clock_ahead_ms: int = 0
    """The time of its master's store minus the boot clock here. A copy that is elected or promoted continues that time."""
    instead_of: str = ""
    """Master that was promoted, or that began the log of a pair: the address of the other copy. Settings that still name that one do not
    make it a replica."""


def new_member(random: Random) -> str:
    return random.token(8).hex()


def copy_identity_path(directory: StoreDirectory) -> str:
    return f"{directory.own}/replica"


def read_copy_identity(directory: StoreDirectory) -> CopyIdentity | None:
    """Return the content of the file, None if there is none. Raises StoreCorruptError."""
    path = copy_identity_path(directory)
    text = directory.read(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found.pop("format") != FORMAT:
            raise ValueError("another format: start the version that wrote it")
        identity = CopyIdentity(**found)
        return replace(identity, role=Role(identity.role))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreCorruptError(
            f"{path} is damaged ({error}): it says of which copies of the log this store is one. Restore it, or, if another copy is whole, "
            "remove the store's directory and start a new replica"
        ) from error


def save_copy_identity(directory: StoreDirectory, identity: CopyIdentity) -> None:
    """Replace the file, durably. For a worker thread while anything is served."""
    directory.replace(copy_identity_path(directory), json.dumps({"format": FORMAT, **asdict(identity)}, indent=1).encode())


def may_lack(directory: StoreDirectory, boot_id: str) -> bool:
    """Return whether a store may lack what it acknowledged: restored from a backup, or its machine crashed under async flush."""
    last_boot = directory.boot()
    crashed = last_boot is not None and last_boot[0] != boot_id and last_boot[1] != FlushMode.SYNC.value
    return directory.is_restored or crashed


def _begun(found: CopyIdentity | None, random: Random, address: str, *, lacks: bool, registered: bool) -> CopyIdentity:
    """Return the identity of a replica that starts at `address` with the identity `found`. `lacks`: whether it may lack something."""
    new = CopyIdentity("", Role.REPLICA, forgot=lacks, registered=registered, address=address)
    if found is None or (found.role is Role.MASTER and not (registered and found.registered)):
        return replace(new, member=new_member(random))
    moved = found.address != address
    copy = replace(new if found.role is Role.MASTER else found, member=found.member, was=found.was, registered=registered)
    if not moved and not lacks:
        return copy
    # One that has moved may be a copy of that directory, so it does not answer for the id.
    was = [] if moved else [*found.was, found.member]
    return replace(copy, member=new_member(random), was=was, complete=False, forgot=True, in_set=False, address=address)


def begin_as_replica(
    directory: StoreDirectory, random: Random, boot_id: str, flush: FlushMode, address: str, *, registered: bool = False
) -> CopyIdentity:
    """Return what the store is in this start of a replica at `address`, and store it, before anything is acknowledged.

    A store that was restored from a backup, whose machine crashed under async flush, or that has another address, is another member from
    now on. So is a former master, unless a register says who the master is (`registered`): there it is a member as well.
    """
    found = read_copy_identity(directory)
    begun = _begun(found, random, address, lacks=may_lack(directory, boot_id), registered=registered)
    if begun != found:
        directory.make_own()
        save_copy_identity(directory, begun)
        if directory.is_restored:
            directory.clear_restored()
    directory.mark_boot(boot_id, flush.value)
    return begun


def with_clock(identity: CopyIdentity, boot_id: str, ahead_ms: int | None) -> CopyIdentity:
    """Return the identity with what a replica knows of its master's clock, the same one if that says nothing new.

    A value that is a little higher is nothing new, so that few are written. Each lower one is: it is of another master, or that one's clock
    was set back, and with the higher one this copy would deliver delayed messages early.
    """
    if ahead_ms is None or (identity.clock_boot == boot_id and 0 <= ahead_ms - identity.clock_ahead_ms <= NEAR_MS):
        return identity
    return replace(identity, clock_boot=boot_id, clock_ahead_ms=ahead_ms)


def clock_ahead_ms(identity: CopyIdentity | None, boot_id: str) -> int | None:
    """Return by how much the clock of the master that was followed is ahead of the boot clock; None if that is not known."""
    return identity.clock_ahead_ms if identity is not None and identity.clock_boot == boot_id else None


def has_copies(directory: StoreDirectory) -> bool:
    """Return whether the store is one of several copies of a log, whose bytes no other program may change. Raises StoreCorruptError."""
    identity = read_copy_identity(directory)
    return identity is not None and (identity.role is Role.REPLICA or bool(identity.members or identity.known))


def without(identity: CopyIdentity, forgotten: AbstractSet[str]) -> CopyIdentity:
    """Return the identity of a master that does not know some replicas any more. One that is in its set leaves that first."""
    gone = forgotten - identity.members.keys()
    return replace(identity, known={member: address for member, address in identity.known.items() if member not in gone})


def with_set(identity: CopyIdentity, members: Mapping[str, str]) -> CopyIdentity:
    """Return the identity of a master with another set. Whoever was in one remains known."""
    return replace(identity, role=Role.MASTER, members=dict(members), known={**identity.known, **members})
