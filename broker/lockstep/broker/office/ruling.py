"""The master's side of the register: its set, whether it is still the master, and whether it can prove that."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.broker.office.office import LOOK_S, Office
from lockstep.broker.office.register import Entry, RegisterError
from lockstep.broker.office.rules import restored, with_members
from lockstep.broker.office.standing import Tenure
from lockstep.broker.tables.send_gate import SendGate
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

TICK_S = 0.25
SUSPENDED = "the broker can reach neither its replicas nor the register, and may not be the master any more"


class Ruling:
    """Keeps one tenure in step with the register."""

    def __init__(
        self, host: Host, tasks: Tasks, office: Office, tenure: Tenure, gate: SendGate, silence_ms: int, address: Callable[[], str]
    ) -> None:
        self._address = address
        self._tasks = tasks
        self._storing = asyncio.Lock()
        self._members = tenure.others
        """The set that was written last, or is being written: member id → address, without the master."""
        self._host = host
        self._office = office
        self._gate = gate
        self._silence_ms = silence_ms
        self.is_suspended = False
        """Whether sends are refused because nobody can say who the master is."""
        self._look = asyncio.Event()
        self.tenure = tenure

    def look_soon(self) -> None:
        """Read the register at once: somebody has heard of a higher term."""
        self._look.set()

    def _is_mine(self, entry: Entry | None) -> bool:
        return entry is not None and (entry.master, entry.term) == (self.tenure.member, self.tenure.term)

    async def store_members(self, members: dict[str, str], known: dict[str, str]) -> None:
        """Return when the register has this set (member id → address, without the master). Never, if another copy is the master by then."""
        async with self._storing:
            self._members = members
            await self._write_members(known)

    async def store_known(self, known: Callable[[], dict[str, str]]) -> None:
        """Return when the register has the present set with the other copies that `known` returns. Never, as `store_members`."""
        async with self._storing:
            await self._write_members(known())

    async def _write_members(self, known: dict[str, str]) -> None:
        def change(entry: Entry | None) -> Entry | None:
            members = self._members
            return with_members(entry, members, {**known, **members}) if entry is not None and self._is_mine(entry) else None

        while await self._office.write(self.tenure.member, change) is None:
            self._judge(self._office.entry)
            await asyncio.sleep(LOOK_S)

    async def restore(self, members: dict[str, str], known: dict[str, str]) -> bool:
        """Write the entry anew if the register has lost it, or was set back: this is the master all the same. Return whether it was so."""
        tenure = self.tenure

        def change(entry: Entry | None) -> Entry | None:
            if entry is not None and (entry.log != tenure.log or entry.term >= tenure.term):
                return None
            replicas = {**known, **members, tenure.member: self._address()}
            whose = tenure.log, tenure.term, tenure.member
            return restored(*whose, members, replicas, assumed_loss=tenure.assumed_loss)

        await self._office.look()
        return await self._office.write(tenure.member, change) is not None

    async def while_in_office(self, work: Coroutine[Any, Any, None]) -> None:
        """Return when `work` has ended. Raise DeposedError as soon as another copy is known to be elected."""
        await self._office.while_in_office(work)

    async def watch(self, unproven_ms: Callable[[], int]) -> None:
        """Read the register until it names another master, and refuse sends while nobody can say who the master is.

        `unproven_ms` returns for how long a member of the set has not been heard.
        """
        while not self._office.deposed.is_set():
            await self._look_once()
            until = asyncio.get_running_loop().time() + LOOK_S
            while not self._look.is_set() and (rest_s := until - asyncio.get_running_loop().time()) > 0:
                self._suspend(unproven_ms())
                try:
                    async with asyncio.timeout(min(rest_s, TICK_S)):
                        await self._look.wait()
                except TimeoutError:
                    pass
            self._look.clear()

    async def _look_once(self) -> None:
        try:
            entry = await self._office.look()
        except RegisterError:
            return  # what is confirmed goes on being so: nobody can be elected either
        self._judge(entry)
        if entry is not None and self._is_mine(entry) and not self._storing.locked():
            self._judge_set(entry)

    def _judge_set(self, entry: Entry) -> None:
        """Write the set anew if the register has an older one: whoever left it could be elected, and lacks what was confirmed since."""
        if {*entry.in_sync} != {*self._members, self.tenure.member}:
            log_limited(log, "error", "register.set_back", why="it has an older set of this term", then="the set is written anew")
            self._tasks.spawn(self.store_known(lambda: entry.replicas), "broker.replica_set")

    def _judge(self, entry: Entry | None) -> None:
        """Take note of an entry that was read: whether it is still that of this master."""
        if self._is_mine(entry):
            return
        if entry is not None and entry.log == self.tenure.log and entry.term > self.tenure.term:
            log.warning("office.left", term=self.tenure.term, elected=entry.replicas[entry.master], elected_term=entry.term)
            self._office.deposed.set()
        else:
            why = "it has no entry of this broker" if entry is None else f"it is at term {entry.term}, before that of this master"
            if entry is not None and entry.log != self.tenure.log:
                why = (
                    f"it has the entry of another log, {entry.log[:8]}: another copy was started for the first time while this one was lost"
                )
            log_limited(log, "error", "register.set_back", why=why, then="nobody is elected, and no replica can join; the rest goes on")

    def _suspend(self, unproven_ms: int) -> None:
        """Refuse sends while the register can't be read and a member of the set is silent: another copy may have been elected."""
        suspended = bool(self._office.unreachable) and unproven_ms >= self._silence_ms
        if suspended == self.is_suspended:
            return
        self.is_suspended = suspended
        if suspended and self._gate.closed_because is None:
            self._gate.closed_because = SUSPENDED
            log.error("office.suspended", why=SUSPENDED)
        elif not suspended and self._gate.closed_because == SUSPENDED:
            self._gate.closed_because = None
            log.warning("office.resumed")
