"""What a master does when the register has something else than it has written there."""

import asyncio
from dataclasses import replace

import pytest

from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry, Version
from lockstep.broker.office.ruling import Ruling
from lockstep.broker.office.standing import Tenure
from lockstep.broker.tables.send_gate import SendGate
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from support.registers import MEMBERS, entry

pytestmark = pytest.mark.simulated


class Memory:
    """A register in memory."""

    def __init__(self, first: Entry) -> None:
        self.value: Entry | None = first
        self.version = 1

    async def read(self) -> tuple[Entry | None, Version]:
        return self.value, self.version

    async def swap(self, version: Version, entry: Entry) -> bool:
        if version != self.version:
            return False
        self.value, self.version = entry, version + 1
        return True

    async def close(self) -> None:
        pass


async def test_older_set_of_the_same_term_is_written_anew() -> None:
    """Who left the set could be elected from the older one."""
    register, tasks, host = Memory(before := entry()), Tasks(), Host.current()
    office = Office(host, register, "etcd://10.0.0.9:2379")
    await office.look()
    ruling = Ruling(host, tasks, office, Tenure.of(before, None), SendGate(), 3_000, lambda: "10.0.0.1:10911")
    others = {MEMBERS[1]: before.replicas[MEMBERS[1]]}
    await ruling.store_members(others, before.replicas)
    watching = tasks.spawn(ruling.watch(lambda: 0), "watch")
    await asyncio.sleep(3)
    assert register.version == 2, "nothing is written while the register has what was written"
    register.value, register.version = before, 1
    await asyncio.sleep(3)
    assert register.value is not None
    assert (register.value.in_sync, register.version) == (MEMBERS[:2], 2)
    register.value, register.version = replace(before, term=before.term + 1, master=MEMBERS[2]), 7
    await asyncio.wait([watching])
    assert office.deposed.is_set()
    assert register.version == 7, "another copy rules"
    await tasks.cancel_all()
