"""Registers on simulated machines: what each fault of the simulated etcd looks like to brokers, and a witness whose power is cut."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest

from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.broker.office.register import Entry, Register, RegisterUnknownError, RegisterUnreachableError, Version
from lockstep.broker.witness.app import Witness
from lockstep.broker.witness.config import WitnessConfig
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.testing.simulated import SimServer
from lockstep.testing.simulation import SimLoop
from support.registers import MEMBERS, entry
from sweep.sim_etcd import LATE_S, EtcdFault, SimEtcd

ADDRESSES = ("10.0.9.1", "10.0.9.2", "10.0.9.3")
BROKERS = ("10.0.0.11", "10.0.0.12", "10.0.0.13")


def play(sim: SimLoop, url: str, *mains: Callable[[Register], Awaitable[Any]]) -> list[Any]:
    """Run each of these as a process on a machine of its own, with a register at the URL. Return their results."""

    def on(main: Callable[[Register], Awaitable[Any]]) -> Callable[[], Any]:
        async def run() -> Any:
            register = open_register(RegisterUrl.parse(url), "shop", "broker-a", Host.current(), NO_SECURITY)
            try:
                return await main(register)
            finally:
                await register.close()

        return run

    processes = [sim.start(sim.machine(address), on(main)) for address, main in zip(BROKERS, mains, strict=False)]
    sim.run_until(sim.now + 300)
    return [process.main.result() for process in processes]


def running_etcd(sim: SimLoop, addresses: Sequence[str]) -> SimEtcd:
    etcd = SimEtcd(sim, addresses)
    for member in etcd.members.values():
        member.launch()
    return etcd


async def changed(register: Register, wanted: Entry) -> bool:
    """Swap until the entry is this one, or another one has been stored meanwhile. Return whether it is this one."""
    version: int | None = None
    while True:
        try:
            found, now = await register.read()
            if found is not None and found.write == wanted.write:
                return True
            if version is not None and now != version:
                return False
            version = now
            if await register.swap(version, wanted):
                return True
        except (RegisterUnknownError, RegisterUnreachableError):
            await asyncio.sleep(0.05)


def test_writes_of_three_brokers_form_one_chain_whatever_the_faults(sim: SimLoop) -> None:
    etcd = running_etcd(sim, ADDRESSES)
    faults = [None, None, None, *EtcdFault]
    etcd.fault = lambda path: sim.random.choice(faults)

    def writer(member: str) -> Callable[[Register], Awaitable[list[str]]]:
        async def write(register: Register) -> list[str]:
            mine = [entry(number, member=member) for number in range(1, 31)]
            return [each.write for each in mine if await changed(register, each)]

        return write

    for number, address in enumerate(ADDRESSES):
        sim.at(5 + 7 * number, sim.kill, sim.machine(address))
        sim.at(8 + 7 * number, lambda address=address: etcd.members[address].launch())  # type: ignore[misc]
    won = play(sim, etcd.url, *map(writer, MEMBERS))
    assert all(won)
    stored = [Entry.from_json(write.value).write for write in etcd.writes]
    assert {each for writes in won for each in writes} <= set(stored), "what was read or answered is stored"
    assert len(set(stored)) == len(stored), "no swap was stored twice"
    assert [write.before for write in etcd.writes] == [0, *(write.revision for write in etcd.writes[:-1])], "each replaced the one before"


@pytest.mark.parametrize(("fault", "later"), [(EtcdFault.NOT_DONE, False), (EtcdFault.DONE, True), (EtcdFault.LATE, True)])
def test_answer_503_is_unknown_and_what_happened_is_seen_later(sim: SimLoop, fault: EtcdFault, later: bool) -> None:
    etcd = running_etcd(sim, ADDRESSES)

    async def main(register: Register) -> bool:
        etcd.fault = lambda path: fault if path.endswith("txn") else None
        with pytest.raises(RegisterUnknownError, match="etcdserver: request timed out"):
            await register.swap(0, entry(1))
        await asyncio.sleep(LATE_S + 1)
        found, version = await register.read()
        assert (found, version > 0) == ((entry(1), True) if later else (None, False))
        return True

    assert play(sim, etcd.url, main) == [True]


def test_etcd_that_is_set_back_answers_an_older_entry(sim: SimLoop) -> None:
    etcd = running_etcd(sim, ADDRESSES[:1])

    async def main(register: Register) -> Entry | None:
        assert await register.swap(0, entry(1))
        version = (await register.read())[1]
        assert await register.swap(version, entry(2))
        etcd.set_back(version)
        return (await register.read())[0]

    assert play(sim, etcd.url, main) == [entry(1)]


def test_endpoint_that_is_cut_off_costs_a_part_of_the_call(sim: SimLoop) -> None:
    etcd = running_etcd(sim, ADDRESSES)
    sim.network.partition(BROKERS[:1], ADDRESSES[:2])

    async def main(register: Register) -> bool:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert await register.swap(0, entry(1))
        assert loop.time() - begin < 1
        begin = loop.time()
        assert (await register.read())[0] == entry(1)
        assert loop.time() - begin < 0.2, "the one that answered last is asked first"
        sim.network.partition(BROKERS[:1], ADDRESSES)
        for error, call in ((RegisterUnknownError, register.swap(9, entry(2))), (RegisterUnreachableError, register.read())):
            begin = loop.time()
            with pytest.raises(error):
                await call
            assert loop.time() - begin <= 1.01
        return True

    assert play(sim, etcd.url, main) == [True]


def test_witness_keeps_what_it_has_answered_when_its_power_is_cut(sim: SimLoop) -> None:
    address = f"{ADDRESSES[0]}:9878"
    config = WitnessConfig(listen=(address,), insecure=True, store="/data/witness")
    machine = sim.machine(ADDRESSES[0])
    machine.thread_delay_s = (0.02, 0.2)  # cuts meet writes
    failures: list[BaseException] = []
    server = SimServer(sim, "witness", machine, 9878, lambda: Witness(config, Host.current()), failed=failures.append)
    server.launch()
    cuts = 30
    for number in range(1, cuts + 1):
        sim.at(number + sim.random.random(), lambda: sim.kill(machine, power=True))
        sim.at(number + sim.random.random(), lambda: server.process is None and server.launch())
    sim.at(cuts + 2, lambda: server.process is None and server.launch())
    seen: list[str] = []

    async def write(register: Register) -> None:
        known, possible = "", set[str]()
        end = asyncio.get_running_loop().time() + cuts + 20
        for number in count(1):
            await asyncio.sleep(0.02)
            if asyncio.get_running_loop().time() > end:
                return
            mine = entry(number)
            try:
                found, version = await register.read()
                now = "" if found is None else found.write
                assert now == known or now in possible, (now, known, possible)
                known, possible = now, {mine.write}
                if await register.swap(version, mine):
                    seen.append(mine.write)
                    known, possible = mine.write, set()
            except (RegisterUnreachableError, RegisterUnknownError):
                pass

    async def watch(register: Register) -> Version:
        last, end = 0, asyncio.get_running_loop().time() + cuts + 20
        while asyncio.get_running_loop().time() < end:
            try:
                version = (await register.read())[1]
                assert version >= last, "what was shown is gone"
                last = version
            except RegisterUnreachableError:
                await asyncio.sleep(0.02)
        return last

    _, last = play(sim, f"witness://{address}", write, watch)
    assert failures == []
    assert last >= len(seen) > cuts
