"""What a process knows of its register, and the changes that it makes there."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from lockstep.broker.office.register import Entry, Register, RegisterError, RegisterUnknownError, RegisterUnreachableError, Version
from lockstep.protocol.bodies import RegisterStanding
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

LOOK_S = 1.0
"""How often the register is read while nothing happens."""
AGAIN_S = 0.1

T = TypeVar("T")


class DeposedError(LockstepError):
    """Another copy has been elected."""


class Office:
    """The entry of this broker's name, as it was last read or written. One for all lives of a process."""

    def __init__(self, host: Host, register: Register, url: str) -> None:
        """`url`: of the register, for those who ask."""
        self._host = host
        self.url = url
        self._register = register
        self._writing = asyncio.Lock()
        self._writes = 0
        """Number of the writes that have ended."""
        self.entry: Entry | None = None
        self.version: Version = 0
        self.read_ms: int | None = None
        """When the register last answered."""
        self.unreachable = ""
        """Why it did not answer last; empty if it did."""
        self.deposed = asyncio.Event()
        """Set when the register has another term than this master's."""

    async def look(self) -> Entry | None:
        """Read the entry. Raises RegisterError. What was read before the last write ended is not taken over."""
        writes = self._writes
        try:
            entry, version = await self._register.read()
        except RegisterError as error:
            self._note(str(error))
            raise
        self._note("")
        if writes == self._writes:
            self.entry, self.version = entry, version
        return self.entry

    def _note(self, unreachable: str) -> None:
        if unreachable and not self.unreachable:
            log_limited(log, "error", "register.unreachable", error=unreachable, then="it is asked again; nobody can be elected meanwhile")
        elif self.unreachable and not unreachable:
            log_limited(log, "info", "register.reached")
        self.unreachable = unreachable
        if not unreachable:
            self.read_ms = self._host.clock.boot_ms()

    async def write(self, member: str, change: Callable[[Entry | None], Entry | None]) -> Entry | None:
        """Swap the entry for what `change` makes of it, again until it is certain what came of it. Return the new entry.

        Return None if `change` has returned None for the entry that is there. A swap whose answer was lost can be carried out for ever:
        only another version settles it. So it is repeated as it was: whichever of the two is carried out, the other one can't be.
        """
        async with self._writing:
            while True:
                entry, version = self.entry, self.version
                wanted = change(entry)
                if wanted is None:
                    return None
                wanted = replace(wanted, write=f"{member}-{self._host.random.below(10**18)}")
                is_swapped = await self._swap_surely(version, wanted)
                self._writes += 1
                if is_swapped:
                    return wanted

    async def _swap_surely(self, version: Version, wanted: Entry) -> bool:
        """Return whether the entry was swapped and is still that one, when that is certain. `entry` and `version` are as read after it.

        It can be another one although it was swapped: while the register could not be read, another copy has been elected.
        """
        while True:
            try:
                await self._register.swap(version, wanted)
                await self._read_surely()
                return self.entry is not None and self.entry.write == wanted.write
            except RegisterUnreachableError as error:
                self._note(str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            except RegisterUnknownError as error:
                log_limited(log, "warning", "register.unknown", error=str(error), then="it is asked again until that is certain")
            await self._read_surely()
            if self.version != version:
                return self.entry is not None and self.entry.write == wanted.write

    async def _read_surely(self) -> None:
        while True:
            try:
                await self.look()
                return
            except RegisterError:
                await asyncio.sleep(AGAIN_S)

    async def while_in_office(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raise DeposedError as soon as another copy is known to be elected; the work is cancelled then."""
        tasks = Tasks()
        working, deposed = tasks.spawn(work, "office.work"), tasks.spawn(self.deposed.wait(), "office.deposed")
        try:
            await asyncio.wait({working, deposed}, return_when=asyncio.FIRST_COMPLETED)
            if self.deposed.is_set():
                raise DeposedError("another copy has been elected")
            return working.result()  # type: ignore[no-any-return]
        finally:
            await tasks.cancel_all()

    def standing(self) -> RegisterStanding:
        """Return what is known of the register, for tools."""
        read_ms = None if self.read_ms is None else self._host.clock.boot_ms() - self.read_ms
        entry = self.entry
        if entry is None:
            return RegisterStanding(self.url, read_ms, self.unreachable)
        rest = entry.term, entry.master, entry.in_sync, entry.replicas, entry.why, entry.assumed_loss
        return RegisterStanding(self.url, read_ms, self.unreachable, *rest)

    async def close(self) -> None:
        await self._register.close()
