"""What a process does with what the register says. Pure: entries and times are passed in.

           entry                                            this copy                         then
    none                                       has never had copies, or is a pair's master    it creates the entry
    none                                       anything else                                  it waits: the entry was lost
    of another log                             has messages                                   it refuses
    of a term before the last one of its log   any                                            it waits: the register was set back
    this copy is the master                    still has its member id                        it stands again: a restart is an election
    another copy is the master                 any                                            it follows that one

Who stands for election has its present member id in the set. So whoever is elected has everything that was ever confirmed: the set shrinks
in the register before anything is confirmed without the member that left it (replication/replica_set.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from lockstep.broker.office.register import Entry
from lockstep.protocol.errors import LockstepError

RESTORE = "`lockstep ha failover BROKER --to HOST:PORT --unclean`"
OTHERS_MAX = 32
"""Copies that are not in the set, in an entry: of more, the first ones are left out."""
PAUSED_MS = 100
"""Looks at the silence of a master that are further apart are a pause of this process. So much of it counts all the same: on a busy machine
each look may be late."""
REFUSED_MS = 100
"""A member stands when its connection to the master has ended, and another one is refused so long afterwards: the process has ended. Where
the link alone was lost, the master is connected to again meanwhile."""
ENDED_MS = 300
"""A member stands so long after its connection to the master has ended if no other one could be made, refused or not."""


class Step(StrEnum):
    CREATE = "create"
    STAND = "stand"
    FOLLOW = "follow"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """What a copy of the log is, as far as the register's entry matters."""

    member: str
    log: str
    """Its store id; empty if it has no messages and no state."""
    term: int
    """The last one of its log."""
    may_create: bool
    """Whether it may be the first copy of its log: it has never had another, or is the master of a pair without a register."""


@dataclass(frozen=True, slots=True)
class RegisterVerdict:
    step: Step
    why: str = ""
    """Of WAIT."""


class OfficeError(LockstepError):
    """This copy can't take part in what the register says: an operator has to decide."""

    exit_code = 4


def first_step(name: str, entry: Entry | None, own: OwnCopy) -> RegisterVerdict:
    """Return what a copy does at its start, or when the register changes. Raises OfficeError."""
    if entry is None:
        if own.may_create:
            return RegisterVerdict(Step.CREATE)
        return RegisterVerdict(
            Step.WAIT,
            f"the register has no entry of broker {name}, and this store has been a copy under one: it was lost, or --ha names another "
            f"register. To go on with the copy that has most: {RESTORE}",
        )
    if own.log and own.log != entry.log:
        raise OfficeError(
            f"the register says that broker {name} is store {entry.log[:8]}, this is store {own.log[:8]}: start the copies of that one, or "
            "give this one a directory of its own"
        )
    if entry.term < own.term:
        why = f"the register was set back: it is at term {entry.term}, this copy has seen term {own.term}"
        return RegisterVerdict(Step.WAIT, f"{why}. To go on with the copy that has most: {RESTORE}")
    return RegisterVerdict(Step.STAND if entry.master == own.member else Step.FOLLOW)


def created(entry_log: str, term: int, member: str, replicas: dict[str, str], *, assumed_loss: bool) -> Entry:
    """Return the first entry of a log. `replicas`: member id → address of the set, which has this copy."""
    return Entry(entry_log, term, member, tuple(sorted(replicas)), replicas, "", "created", assumed_loss)


def elected(entry: Entry, own: OwnCopy, address: str, term: int) -> Entry | None:
    """Return the entry with this copy as the master, None if it is not in the set. The set does not change."""
    if own.member not in entry.in_sync:
        return None
    replicas = _kept({**entry.replicas, own.member: address}, entry.in_sync)
    return replace(entry, master=own.member, term=term, why="elected", assumed_loss=_assumes(entry, own), replicas=replicas)


def _kept(replicas: dict[str, str], in_sync: Iterable[str]) -> dict[str, str]:
    """Return those of the known copies that an entry has: the set, and of the others those that came last, so that it has its limit."""
    others = [member for member in replicas if member not in in_sync]
    left_out = set(others[:-OTHERS_MAX])
    return {member: address for member, address in replicas.items() if member not in left_out}


def _assumes(entry: Entry, own: OwnCopy) -> bool:
    """Return whether a loss that the last term assumed is one of the next term too: its master ended before it began.

    Whoever has joined the set of that term has its beginning.
    """
    return entry.assumed_loss and own.term < entry.term and entry.in_sync == (own.member,)


def ruling_alone(entry: Entry | None, log: str, member: str, address: str, term: int, why: str) -> Entry:
    """Return the entry with this copy as the master and the only one in the set, and with an assumed loss. `log`: its store id."""
    replicas = {} if entry is None or entry.log != log else entry.replicas
    return Entry(log, term, member, (member,), _kept({**replicas, member: address}, (member,)), "", why, assumed_loss=True)


@dataclass(frozen=True, slots=True)
class Called:
    """What a copy has answered to a roll call."""

    member: str
    was: tuple[str, ...]
    term: int
    end: int


def called_first(entry: Entry, own: Called, answers: Iterable[Called]) -> bool:
    """Return whether the copy `own` is the one to go on from, of those that have answered with it.

    Only if every member of the set has answered as somebody who may lack what that member had acknowledged: all of their machines crashed
    under async flush. Then nobody has more than the furthest of all, which may be one that was not in the set. A member that is still what
    it was stands itself.
    """
    called = [own, *answers]
    came_back = {member for each in called for member in each.was}
    if any(each.member in entry.in_sync for each in called) or not set(entry.in_sync) <= came_back:
        return False
    return max(called, key=lambda each: (each.term, each.end, each.member)) is own


def with_members(entry: Entry, members: Iterable[str], replicas: dict[str, str]) -> Entry:
    """Return the entry of the same term with another set, the master's included, and other known copies."""
    in_sync = tuple(sorted({*members, entry.master}))
    why = entry.why if in_sync == entry.in_sync else "grown" if len(in_sync) > len(entry.in_sync) else "shrunk"
    known = _kept({**replicas, entry.master: entry.replicas[entry.master]}, in_sync)
    return replace(entry, in_sync=in_sync, why=why, replicas=known)


def restored(log: str, term: int, member: str, members: Iterable[str], replicas: dict[str, str], *, assumed_loss: bool) -> Entry:
    """Return the entry of a master that runs, for a register that has lost it. `members`: of its set, without itself."""
    in_sync = tuple(sorted({*members, member}))
    return Entry(log, term, member, in_sync, _kept(replicas, in_sync), "", "restored", assumed_loss)


class Silence:
    """How long a copy has not heard its master."""

    def __init__(self, silence_ms: int, now_ms: int) -> None:
        self._silence_ms = silence_ms
        self._heard_ms = now_ms
        self._was_heard = False
        """Whether this master was heard at all: one that has just been elected reads its log first, and is not there meanwhile."""
        self._ended_ms: int | None = None
        """When the connection to it ended."""
        self._is_refused = False
        """Whether another one was refused REFUSED_MS later, since this process was paused last."""
        self._looked_ms = now_ms

    def begin(self, now_ms: int) -> None:
        """Another copy is the master from now on."""
        self._heard_ms, self._was_heard, self._ended_ms, self._is_refused = now_ms, False, None, False

    def heard(self, now_ms: int) -> None:
        """Its master has sent something."""
        self._heard_ms, self._was_heard, self._ended_ms, self._is_refused = now_ms, True, None, False

    def refused(self, now_ms: int) -> None:
        """A connection to its master was refused, or ended."""
        if self._ended_ms is not None:
            self._is_refused = now_ms - self._ended_ms >= REFUSED_MS
        elif self._was_heard:
            self._ended_ms = now_ms

    def is_lost(self, now_ms: int, longest_ms: int) -> bool:
        """Return whether the copy may stand. If the last call was more than `longest_ms` ago, this process was paused for that time: that
        is no silence of its master, but for PAUSED_MS of it."""
        since_ms = now_ms - self._looked_ms
        self._looked_ms = now_ms
        if since_ms > longest_ms:
            paused_ms = since_ms - PAUSED_MS
            self._heard_ms = min(now_ms, self._heard_ms + paused_ms)
            if self._ended_ms is not None:
                self._ended_ms, self._is_refused = min(now_ms, self._ended_ms + paused_ms), False
        has_ended = self._ended_ms is not None and now_ms - self._ended_ms >= ENDED_MS
        return self._is_refused or has_ended or self.is_silent(now_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the master has said nothing for `silence_ms`."""
        return now_ms - self._heard_ms >= self._silence_ms
