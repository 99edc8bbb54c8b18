"""What a process that starts with `--ha` is: what it may create, whom it asks before, and what becomes of a start that was interrupted."""

import asyncio
import json
from dataclasses import asdict

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.broker.office import beginning
from lockstep.broker.office.beginning import begin_under_register
from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry, Version
from lockstep.broker.office.rules import OfficeError
from lockstep.broker.office.standing import Tenure
from lockstep.broker.replication import asking
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, save_copy_identity
from lockstep.broker.store.start.directory import FORMAT, StoreIdentity, locked_directory
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.registers import MEMBERS, MemoryRegister

pytestmark = pytest.mark.simulated

HERE, THERE = "10.0.0.1:10911", "10.0.0.2:10911"
CONFIG = BrokerConfig(name="broker-a", store="/store", ha="etcd://10.0.0.9:2379", listen=(HERE,), insecure=True)
A, B, C = MEMBERS
PAIR = CopyIdentity(A, Role.MASTER, {B: THERE}, {B: THERE})


class Hanging(MemoryRegister):
    """Carries a swap out, and does not answer it."""

    async def swap(self, version: Version, entry: Entry) -> bool:
        await super().swap(version, entry)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def store(identity: CopyIdentity | None, *, log: str = "") -> None:
    """Make the directory of a copy; `log`: its store id, if it has messages."""
    with locked_directory(Host.current().files, "/store") as directory:
        directory.make_own()
        if identity is not None:
            save_copy_identity(directory, identity)
        if log:
            known = asdict(StoreIdentity("0.1.0", "DefaultCluster", "broker-a", log, 1 << 20, 1_000, 0))
            directory.replace(f"{directory.own}/identity", json.dumps({"format": FORMAT, **known}).encode())
        directory.unlock()


async def begin(register: MemoryRegister) -> Tenure | None:
    host = Host.current()
    return await begin_under_register(host, CONFIG, Office(host, register, ""), HERE, NO_SECURITY)


@pytest.mark.parametrize(("name", "identity", "log", "creates"), [
    ("an empty directory", None, "", True),
    ("a broker that never had replicas", None, "log", True),
    ("the master of a pair of which nobody is left", CopyIdentity(A, Role.MASTER), "log", True),
    ("a copy under a register that has lost its entry", CopyIdentity(A, Role.MASTER, registered=True), "log", False),
    ("a replica under one", CopyIdentity(A, Role.REPLICA, registered=True), "log", False),
    ("one that is half installed", CopyIdentity(A, Role.REPLICA, installing=True, registered=True), "", False),
    ("a replica of a pair", CopyIdentity(A, Role.REPLICA), "log", False),
    ("one that has no log yet", CopyIdentity(A, Role.REPLICA), "", False),
])  # fmt: skip
async def test_who_creates_the_entry_of_a_register_that_has_none(name: str, identity: CopyIdentity | None, log: str, creates: bool) -> None:
    register = MemoryRegister()
    store(identity, log=log)
    tenure = await begin(register)
    assert (tenure is not None, register.value is not None) == (creates, creates), name
    if tenure is not None:
        assert (tenure.log == log) is bool(log)


async def test_first_start_that_was_interrupted_after_its_swap_is_elected_by_the_next_one() -> None:
    """The entry names it, and nobody else has anything."""
    hanging = Hanging()
    store(None)
    beginning = asyncio.ensure_future(begin(hanging))
    await asyncio.sleep(1)
    beginning.cancel()
    await asyncio.wait([beginning])
    assert hanging.value is not None
    register = MemoryRegister(hanging.value)
    tenure = await begin(register)
    assert tenure is not None
    assert (tenure.member, tenure.log) == (hanging.value.master, hanging.value.log)


def status(term: int, *, role: str = "replica", member: str = B, forgot: bool = False) -> ReplicaStatus:
    ends = 100, 100, 100
    return ReplicaStatus("broker-a", "DefaultCluster", "log", role, member, term, *ends, may_have_forgotten=forgot)


@pytest.mark.parametrize(("name", "answer", "expected"), [
    ("it has nothing against it", status(0), True),
    ("it was promoted", status(9, role="master"), f"was promoted at {THERE} .*: let the copy at {THERE} be the first"),
    ("it is older than it", status(9), "is older than the replica"),
    ("it does not answer", None, False),
])  # fmt: skip
async def test_master_of_a_pair_asks_its_replica_before_it_creates_the_entry(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: ReplicaStatus | None, expected: bool | str
) -> None:
    async def ask(*_: object) -> ReplicaStatus | None:
        return answer

    monkeypatch.setattr(asking, "ask_status", ask)
    register = MemoryRegister()
    store(PAIR, log="log")
    if isinstance(expected, str):
        with pytest.raises(OfficeError, match=expected):
            await begin(register)
        return
    try:
        async with asyncio.timeout(10 * beginning.AGAIN_S):
            tenure = await begin(register)
    except TimeoutError:
        tenure = None
    assert (tenure is not None) is expected, name
    if tenure is not None:
        assert (tenure.others, register.value and register.value.in_sync) == ({B: THERE}, (A, B))
