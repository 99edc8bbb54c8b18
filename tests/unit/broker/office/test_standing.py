"""What a copy writes into the register when it becomes the master."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry
from lockstep.broker.office.rules import OwnCopy
from lockstep.broker.office.standing import Standing
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.running_replica import RunningReplica
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock
from support.closed_copies import closed_copy
from support.registers import MEMBERS, MemoryRegister, entry

pytestmark = pytest.mark.simulated

LATE = 1 << 40
"""A term of a clock that was far ahead."""


@pytest.mark.parametrize(
    ("found", "of_log"),
    [
        pytest.param(None, LATE, id="the first entry of a pair's log"),
        pytest.param(entry(7), LATE, id="the register was set back, and an operator decides"),
        pytest.param(entry(LATE), 7, id="the log has not the last term, and an operator decides"),
    ],
)
async def test_term_of_a_new_master_is_above_those_of_its_log_and_of_the_register(found: Entry | None, of_log: int) -> None:
    host, register = Host.current(), MemoryRegister(found)
    office = Office(host, register, "etcd://10.0.0.9:2379")
    await office.look()
    standing, own = Standing(host, office, "broker-a", lambda: "10.0.0.1:10911", 3_000), OwnCopy(MEMBERS[0], "log", of_log, may_create=True)
    if found is None:
        tenure: Any = await standing.create(own, "log", {}, assumed_loss=False)
    else:
        tenure = await standing._rule_alone(own, found, "unclean")
    assert (tenure.term, tenure.replaced_term) == (LATE + 1, 0 if found is None else found.term)


@pytest.mark.parametrize(
    ("installing", "stopping", "opened", "stands"),
    [(False, False, True, True), (True, False, True, False), (False, True, True, False), (False, False, False, False)],
)
async def test_copy_that_is_being_made_or_mended_does_not_stand(installing: bool, stopping: bool, opened: bool, stands: bool) -> None:
    """The register would name a master that can't serve, and that no master mends any more."""
    host, register = Host.current(), MemoryRegister(entry(7))
    office = Office(host, register, "etcd://10.0.0.9:2379")
    standing = Standing(host, office, "broker-a", lambda: "10.0.0.2:10911", 3_000)
    await office.look()
    standing.master, standing._followed_term = entry(7).replicas[MEMBERS[0]], 7
    copy = RunningReplica.__new__(RunningReplica)
    copy._copy, copy._store, copy._state = (
        closed_copy(SimFiles(), CopyIdentity(MEMBERS[1], Role.REPLICA, installing=installing)),
        None,
        None,
    )
    following: Any = SimpleNamespace(stopping=asyncio.Event())
    if stopping:
        following.stopping.set()
    copy._following = following if opened else None
    assert (await standing._consider(copy, lost=True) is not None, register.version) == (stands, 2 if stands else 1)


async def test_copy_that_was_elected_does_not_rule_if_another_one_was_elected_before_it_could_read_that() -> None:
    """It follows that one meanwhile, and may have the later term in its log."""
    host, register = Host.current(), MemoryRegister(before := entry(7))
    office, swap = Office(host, register, "etcd://10.0.0.9:2379"), register.swap
    standing = Standing(host, office, "broker-a", lambda: "10.0.0.2:10911", 3_000)
    await office.look()

    async def overtaken(version: int, wanted: Entry) -> bool:
        assert await swap(version, wanted)
        return await swap(register.version, replace(wanted, master=MEMBERS[2], term=wanted.term + 1, write=f"{MEMBERS[2]}-1"))

    register.swap = overtaken  # type: ignore[method-assign]
    assert await standing.stand(OwnCopy(MEMBERS[1], "log", 7, may_create=False)) is None
    assert register.value is not None
    assert (register.value.master, register.value.in_sync) == (MEMBERS[2], before.in_sync)


async def test_copy_that_the_register_still_names_dials_nobody_and_says_why_it_is_not_elected(caplog: pytest.LogCaptureFixture) -> None:
    """It may lack what it acknowledged as the member that was elected; the other member of the set does not answer."""
    clock = SetClock(0)
    host, register = replace(Host.current(), clock=clock), MemoryRegister(before := entry(7))
    office, mine = Office(host, register, "etcd://10.0.0.9:2379"), before.replicas[before.master]
    copy = RunningReplica.__new__(RunningReplica)
    standing = copy.standing = Standing(host, office, "broker-a", lambda: mine, 3_000)
    copy._copy, copy._store, copy._state = closed_copy(SimFiles(), CopyIdentity("d" * 16, Role.REPLICA)), None, None
    copy._following, copy.addresses = cast(Any, SimpleNamespace(stopping=asyncio.Event())), {INTERNAL_LISTENER: mine}
    copy._following.drop_connection = lambda reason: None
    await office.look()
    assert await standing._consider(copy, lost=False) is None
    assert (standing.master, copy.master) == (mine, None)
    for now_ms, reasons in ((0, 0), (3_000, 1), (4_000, 1)):
        clock.now_ms = now_ms
        assert await standing._consider(copy, lost=True) is None
        waits = [record.getMessage() for record in caplog.records if "office.waits" in record.getMessage()]
        assert len(waits) == reasons
    assert "this copy is not in the set of term 7" in waits[0]
