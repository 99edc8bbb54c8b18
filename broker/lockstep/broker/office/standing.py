"""A copy that is not the master: whom it follows by the register, and when it stands for election."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lockstep.broker.groups.coordination import next_term
from lockstep.broker.office.office import LOOK_S, Office
from lockstep.broker.office.register import Entry, RegisterError
from lockstep.broker.office.rules import (
    PAUSED_MS,
    Called,
    OfficeError,
    OwnCopy,
    Silence,
    Step,
    called_first,
    created,
    elected,
    first_step,
    ruling_alone,
)
from lockstep.broker.replication.asking import ask_status
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity

log = get_logger("broker")

TICK_S = 0.05
LOOKED_MS = 4_000
"""A tick in which the register is read, and a roll is called, is a pause of this process if it takes longer."""
LOST_LOOK_S = 0.2
"""How often the register is read while the master is lost, and this copy can't stand."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """What the register says of a copy that has been elected."""

    member: str
    term: int
    replaced_term: int
    """The term that its own swap has replaced; 0 for the first one of a log."""
    log: str
    assumed_loss: bool
    others: dict[str, str]
    """The set without it: member id → address."""
    known: dict[str, str]
    """All other copies."""
    deposed: str
    """Member id of the master before."""

    @classmethod
    def of(cls, entry: Entry, before: Entry | None) -> "Tenure":
        """Return the tenure that an entry begins, which has replaced `before`."""
        known = {member: address for member, address in entry.replicas.items() if member != entry.master}
        others = {member: known[member] for member in entry.in_sync if member != entry.master}
        replaced, deposed = (0, "") if before is None else (before.term, before.master)
        return cls(entry.master, entry.term, replaced, entry.log, entry.assumed_loss, others, known, deposed)


class Copy(Protocol):
    """A copy that follows."""

    def own(self) -> OwnCopy:
        """Return what it is now."""
        ...

    def is_whole(self) -> bool:
        """Return whether it has all that it has acknowledged, in order, so that it can rule."""
        ...

    def called(self) -> Called:
        """Return what it answers to a roll call."""
        ...

    def redirect(self, master: str) -> None:
        """Follow the master at this address from now on."""
        ...


class Standing:
    """Watches the register for a copy until it is elected."""

    def __init__(
        self,
        host: Host,
        office: Office,
        name: str,
        address: Callable[[], str],
        silence_ms: int,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`address` returns where others reach this copy. `security`: of the connections to other copies."""
        self._security = security
        self._unclean = False
        self._waits = ""
        """Why nobody can be elected, as it was logged last; empty if somebody can be."""
        self._host = host
        self._office = office
        self._name = name
        self._address = address
        self._wake = asyncio.Event()
        self.silence = Silence(silence_ms, host.clock.boot_ms())
        self._followed_term = 0
        self.master: str | None = None
        """The address of the master by the register."""
        self.known = asyncio.Event()
        """Set when there is one."""

    def stand_now(self, *, unclean: bool = False) -> None:
        """Stand at once: the master has said that it leaves, and this copy has everything. `unclean`: whether it has or not."""
        self._unclean = unclean
        self._wake.set()

    async def create(self, own: OwnCopy, log_id: str, others: dict[str, str], *, assumed_loss: bool) -> Tenure | None:
        """Create the entry of a log. `others`: the set of a pair without a register. Return None if another copy was faster."""
        term = next_term(own.term, self._host.clock.wall_ms())
        first = created(log_id, term, own.member, {**others, own.member: self._address()}, assumed_loss=assumed_loss)
        won = await self._office.write(own.member, lambda entry: first if entry is None else None)
        return None if won is None else Tenure.of(won, None)

    async def stand(self, own: OwnCopy) -> Tenure | None:
        """Stand for election against the entry that was read last. Return None if another copy rules by then, or this one may not stand."""
        before = self._office.entry
        assert before is not None
        term = next_term(max(own.term, before.term), self._host.clock.wall_ms())

        def change(entry: Entry | None) -> Entry | None:
            if entry is None or entry.term != before.term:
                return None
            return elected(entry, own, self._address(), term)

        won = await self._office.write(own.member, change)
        if won is None:
            return None
        log.warning("office.elected", term=won.term, was=before.master, in_sync=len(won.in_sync))
        return Tenure.of(won, before)

    async def _rule_alone(self, own: OwnCopy, before: Entry | None, why: str) -> Tenure | None:
        """Take the office against an entry, or none, without a set: what others have and this copy lacks is lost."""
        last = 0 if before is None else before.term
        term = next_term(max(own.term, last), self._host.clock.wall_ms())

        def change(entry: Entry | None) -> Entry | None:
            if (0 if entry is None else entry.term) != last:
                return None
            return ruling_alone(entry, own.log, own.member, self._address(), term, why)

        won = await self._office.write(own.member, change)
        if won is None:
            return None
        was = None if before is None else before.master
        log.error("office.elected", term=won.term, was=was, why=why, then="a loss is assumed: generations rise, grants end")
        return Tenure.of(won, before)

    async def _is_called_first(self, copy: Copy, entry: Entry) -> bool:
        """Call the roll. Return whether all of the set have lost what they acknowledged, and this copy is the furthest of all."""
        own, others = copy.called(), sorted({*entry.replicas.values()} - {self._address()})
        answers = await asyncio.gather(*(ask_status(self._host, address, self._security) for address in others))
        known = [status for status in answers if status is not None and status.store_id == entry.log]
        return called_first(entry, own, [Called(each.member, tuple(each.was), each.term, each.end) for each in known])

    async def follow(self, copy: Copy) -> Tenure:
        """Keep `copy` at the master that the register names, until it is elected. Returns its tenure."""
        look_ms, longest_ms = self._host.clock.boot_ms(), PAUSED_MS
        while True:
            now_ms = self._host.clock.boot_ms()
            leaves, lost = self._wake.is_set(), self.silence.is_lost(now_ms, longest_ms)
            longest_ms = PAUSED_MS
            self._wake.clear()
            if leaves or now_ms >= look_ms or (lost and now_ms >= look_ms - (LOOK_S - LOST_LOOK_S) * 1000):
                look_ms, longest_ms = now_ms + int(LOOK_S * 1000), LOOKED_MS
                try:
                    await self._office.look()
                    term = None if self._office.entry is None else self._office.entry.term
                    if (tenure := await self._consider(copy, lost or leaves)) is not None:
                        return tenure
                    if self._office.entry is not None and self._office.entry.term != term:
                        look_ms = now_ms  # another copy was faster: it is followed at once
                except (RegisterError, OfficeError) as error:
                    self._note_waits(str(error))
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _note_waits(self, why: str) -> None:
        if why != self._waits:
            self._waits = why
            log_limited(log, "error", "office.waits", error=why, then="nobody is elected, and nothing is cut, meanwhile")

    async def _consider(self, copy: Copy, lost: bool) -> Tenure | None:
        own, entry = copy.own(), self._office.entry
        unclean, self._unclean = self._unclean and copy.is_whole(), False
        if unclean:
            return await self._rule_alone(own, entry, "unclean")
        verdict = first_step(self._name, entry, own)
        if verdict.step is Step.WAIT or entry is None:
            self._note_waits(verdict.why)
            return None
        if verdict.step is Step.FOLLOW:
            master, was = entry.replicas[entry.master], self.master
            if (master, entry.term) != (was, self._followed_term):
                self.master, self._followed_term = master, entry.term
                self.known.set()
                self.silence.begin(self._host.clock.boot_ms())
                if master != was:
                    copy.redirect(master)
                return None
            if not lost:
                self._waits = ""
                return None
        if not copy.is_whole():
            why = "this copy is being made or mended"
        elif own.member in entry.in_sync:
            return await self.stand(own)
        elif await self._is_called_first(copy, entry):
            return await self._rule_alone(own, entry, "roll_call")
        else:
            why = f"this copy is not in the set of term {entry.term}"
        if self.silence.is_silent(self._host.clock.boot_ms()):  # otherwise a member is being elected
            self._note_waits(why)
        return None
