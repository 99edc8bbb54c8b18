"""Which store starts as what, and that its file of copies loses no change to another one."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.asking import RoleError, ask_before_start, is_replica
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, begin_as_replica, save_copy_identity
from lockstep.broker.replication.installing import remove_store
from lockstep.broker.replication.serving import ReplicaServer
from lockstep.broker.replication.start_rules import CopyStatus, StartVerdict
from lockstep.broker.store.config import FlushMode
from lockstep.broker.store.start.directory import held_directory
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.runtime.clock import Clock
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.testing.simulation import SimFiles
from support.store_kit import SeededRandom, host_of

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"
"""Nothing listens there."""


def host_with(identity: CopyIdentity | None, *, has_log: bool = False, is_restored: bool = False) -> Any:
    files = SimFiles(1)
    if has_log:
        with held_directory(files, "/store") as directory:
            directory.make_own()
            directory.replace(f"{directory.own}/identity", b"")
            if is_restored:
                directory.mark_restored()
    if identity is not None:
        with held_directory(files, "/store") as directory:
            directory.make_own()
            save_copy_identity(directory, identity)

    return host_of(files)


def starts_as_replica(host: Any, replica_of: str | None, monkeypatch: pytest.MonkeyPatch, status: ReplicaStatus | None = None) -> bool:
    async def answered(*_: object) -> ReplicaStatus | None:
        return status

    monkeypatch.setattr("lockstep.broker.replication.asking.ask_status", answered)
    config = BrokerConfig(name="broker-a", store="/store", insecure=True, replica_of=replica_of)
    return asyncio.run(is_replica(host, config, NO_SECURITY))


MASTER = CopyIdentity("a" * 16, Role.MASTER)
PROMOTED = CopyIdentity("b" * 16, Role.MASTER, instead_of=OLD)
REPLICA = CopyIdentity("c" * 16, Role.REPLICA)


@pytest.mark.parametrize(
    ("identity", "replica_of", "replica"),
    [
        (None, None, False),
        (None, OLD, True),
        (REPLICA, OLD, True),
        (MASTER, None, False),
        (MASTER, NEW, True),  # an old master that is told to follow does so, although the new one does not answer now
        (PROMOTED, OLD, False),  # its settings are those of before its promotion
        (PROMOTED, NEW, True),
        (PROMOTED, None, False),
    ],
)
def test_role_of_a_start_whose_master_does_not_answer(
    identity: CopyIdentity | None, replica_of: str | None, replica: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starts_as_replica(host_with(identity), replica_of, monkeypatch) is replica


@pytest.mark.parametrize(
    ("is_restored", "role", "replica"),
    [(False, None, False), (False, "replica", False), (False, "master", True), (True, None, True), (True, "replica", True)],
)
def test_broker_with_a_log_that_never_had_a_replica_stays_a_master_unless_one_answers(
    is_restored: bool, role: str | None, replica: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, status = host_with(None, has_log=True, is_restored=is_restored), None if role is None else answer(role=role)
    assert starts_as_replica(host, OLD, monkeypatch, status) is replica


def test_store_of_a_replica_is_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RoleError, match="--replica-of"):
        starts_as_replica(host_with(REPLICA), None, monkeypatch)


@pytest.mark.parametrize(("flush", "kept"), [(FlushMode.ASYNC, False), (FlushMode.SYNC, True)])
async def test_copy_that_began_anew_is_another_member_after_a_power_cut(flush: FlushMode, kept: bool) -> None:
    host = host_with(None)
    with held_directory(host.files, "/store") as directory:
        before = begin_as_replica(directory, SeededRandom(1), "boot-1", flush, OLD)
        await remove_store(host, directory, before)
        save_copy_identity(directory, before)  # the copy is whole
        assert begin_as_replica(directory, SeededRandom(2), "boot-1", flush, OLD).member == before.member
        assert (begin_as_replica(directory, SeededRandom(3), "boot-2", flush, OLD).member == before.member) is kept


def answer(**facts: Any) -> ReplicaStatus:
    usual = {"store_id": "store", "role": "replica", "member": "b", "term": 5, "end": 100, "master": OLD}
    return ReplicaStatus("broker-a", "DefaultCluster", **{**usual, **facts}, confirmed=0, applied=0)


@pytest.mark.parametrize(
    ("status", "has_forgotten_too", "expected"),
    [
        (answer(), False, StartVerdict()),
        (answer(end=101), False, "promote it"),
        (answer(end=101, member="c"), False, StartVerdict()),  # it has lost something since it was in the set
        (answer(may_have_forgotten=True), True, "promote it"),  # under this id it has everything, whatever it had lost before
        (answer(member="c"), True, StartVerdict()),
        (answer(store_id="", member="c", term=0, end=0), False, StartVerdict()),  # it waits for this master, to copy it
        (answer(store_id="", member="c", term=0, end=0), True, StartVerdict()),
        (answer(store_id="", term=0, end=0), False, StartVerdict()),  # it is starting, or damaged: this master lacks nothing
        (answer(store_id="", term=0, end=0), True, StartVerdict(waiting_for=(NEW,))),  # it may have what this master lacks
        (answer(store_id="", member="c", term=0, end=0, master=NEW), False, StartVerdict(waiting_for=(NEW,))),
        (answer(store_id="another"), False, StartVerdict(waiting_for=(NEW,))),
        (None, False, StartVerdict(waiting_for=(NEW,))),
    ],
)
def test_answer_of_a_member_to_a_master_that_starts(
    status: ReplicaStatus | None, has_forgotten_too: bool, expected: StartVerdict | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(*_: object) -> ReplicaStatus | None:
        return status

    monkeypatch.setattr("lockstep.broker.replication.asking.ask_status", answered)
    own = CopyStatus(5, 100, may_have_forgotten=has_forgotten_too)
    members = {"b": NEW}
    verdict = asyncio.run(ask_before_start(host_with(None), "broker-a", "store", OLD, own, members, members, NO_SECURITY))
    if isinstance(expected, str):
        assert expected in verdict.refused
    else:
        assert verdict == expected


async def test_changes_of_the_copies_at_the_same_time_lose_nothing() -> None:
    saved: list[dict[str, Any]] = []
    directory = SimpleNamespace(own="", replace=lambda path, data: saved.append(json.loads(data)))

    async def change_directory(change: Any) -> None:
        await asyncio.sleep(0)
        change(directory)

    store = SimpleNamespace(change_directory=change_directory, writer=SimpleNamespace(copies_advanced=lambda: None, copies=None))
    state = SimpleNamespace(record_replicas=lambda known: None)
    copy_identity = CopyIdentity("a" * 16, Role.MASTER, {"b": OLD, "c": NEW}, {"b": OLD, "c": NEW, "d": "elsewhere"})
    parts = cast(Any, SimpleNamespace(clock=Clock(), random=None)), cast(Any, None), cast(Any, store), cast(Any, state)
    server = ReplicaServer(*parts, lambda: "here", copy_identity, cast(Any, None))
    server.replicas.forget("b", 0)
    members = server.replicas.begin_storing()
    assert members == {"c": NEW}
    await asyncio.gather(server._store_set(members), server.forget("d"))
    assert saved[-1]["members"] == {"c": NEW}
    assert saved[-1]["known"] == {"b": OLD, "c": NEW}
