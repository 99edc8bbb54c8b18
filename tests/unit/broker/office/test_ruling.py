"""What a master does when the register has something else than it has written there."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry
from lockstep.broker.office.ruling import SUSPENDED, Ruling
from lockstep.broker.office.standing import Tenure
from lockstep.broker.processors.sent_frames import UNCONFIRMED_MAX
from lockstep.broker.running import RunningBroker
from lockstep.broker.tables.send_gate import SendGate
from lockstep.protocol.errors import NotLeaderError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from support.registers import MEMBERS, MemoryRegister, entry

pytestmark = pytest.mark.simulated


async def test_older_set_of_the_same_term_is_written_anew() -> None:
    """Who left the set could be elected from the older one."""
    register, tasks, host = MemoryRegister(before := entry()), Tasks(), Host.current()
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


def ruling_of(register: MemoryRegister, first: Entry) -> tuple[Ruling, Office, SendGate]:
    host, gate = Host.current(), SendGate()
    office = Office(host, register, "etcd://10.0.0.9:2379")
    return Ruling(host, Tasks(), office, Tenure.of(first, None), gate, 3_000, lambda: "10.0.0.1:10911"), office, gate


async def test_set_that_is_written_anew_is_the_one_of_then() -> None:
    """A smaller set is on its way when the older one is noticed: a member of that could be elected, and lack what was confirmed since."""
    register = MemoryRegister(before := entry())
    ruling, office, _ = ruling_of(register, before)
    await office.look()
    ruling._judge_set(replace(before, in_sync=MEMBERS[:2]))
    await ruling.store_members({}, before.replicas)
    await asyncio.sleep(1)
    assert register.value is not None
    assert register.value.in_sync == MEMBERS[:1]


async def test_answer_to_a_read_from_before_a_write_is_not_taken_over() -> None:
    register = MemoryRegister(before := entry())
    ruling, office, _ = ruling_of(register, before)
    await office.look()
    answer, read = asyncio.get_running_loop().create_future(), register.read

    async def late() -> object:
        found = await read()
        await answer
        return found

    register.read = late  # type: ignore[assignment]
    looking = asyncio.ensure_future(office.look())
    await asyncio.sleep(0)
    register.read = read  # type: ignore[method-assign]
    await ruling.store_members({}, before.replicas)
    answer.set_result(None)
    assert (await looking) == office.entry == register.value
    assert office.version == register.version == 2


@pytest.mark.parametrize("reason", [None, "the broker is shutting down"])
async def test_gate_that_was_closed_for_another_reason_stays_closed_when_the_register_answers_again(reason: str | None) -> None:
    ruling, office, gate = ruling_of(MemoryRegister(before := entry()), before)
    gate.closed_because = reason
    office.unreachable = "down"
    ruling._suspend(3_000)
    assert gate.closed_because == (reason or SUSPENDED)
    office.unreachable = ""
    ruling._suspend(3_000)
    assert gate.closed_because == reason


@pytest.mark.parametrize(
    ("is_suspended", "unproven_count", "is_refused"),
    [(False, UNCONFIRMED_MAX - 1, False), (False, UNCONFIRMED_MAX, True), (True, 0, True)],
)
async def test_requests_are_refused_that_would_wait_for_proof_in_vain(is_suspended: bool, unproven_count: int, is_refused: bool) -> None:
    broker: Any = RunningBroker.__new__(RunningBroker)
    broker.ruling = SimpleNamespace(is_suspended=is_suspended)
    broker.store = SimpleNamespace(writer=SimpleNamespace(unproven_count=unproven_count))
    broker.addresses, broker._settings = {"internal": "10.0.0.1:10911"}, SimpleNamespace(config=SimpleNamespace(name="broker-a"))
    refusal = pytest.raises(NotLeaderError, match=r"10\.0\.0\.1:10911 can't prove now that it is the master of broker broker-a")
    with refusal if is_refused else nullcontext():
        broker._check_office()
