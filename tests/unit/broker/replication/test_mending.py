"""How a replica mends its copy when it finds the same damage again and again."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker import running_replica
from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, save_copy_identity
from lockstep.broker.running_replica import RottenLogError, RunningReplica, scrub
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import held_directory
from lockstep.protocol.errors import StoreError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import PATH, host_of


class Inline:
    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


class EndError(StoreError):
    """Ends the life of a replica in these tests."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([7], ["a file"]),
        ([-1], ["everything"]),  # it is not in the log
        ([7, 9, 7], ["a file", "a file", "a file"]),
        ([7, 7, 7, 7], ["a file", "everything", 30, "everything", 30, "everything"]),
        ([-1, -1, -1], ["everything", "everything", 30, "everything"]),
    ],
)
async def test_damage_is_mended_by_a_file_then_by_a_new_copy_then_after_pauses(
    found: list[int], expected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, done, left = SimFiles(), list[object](), list(found)
    replica = RunningReplica.__new__(RunningReplica)
    replica._config, replica._host = BrokerConfig(store=PATH, replica_of="10.0.0.1:10911"), replace(host_of(files), threads=Inline())
    replica._changing, replica._damage, replica._replaced, replica._store = running_replica.asyncio.Lock(), None, set(), None
    replica._is_blank = False
    replica._office = replica.standing = None
    replica._copy_identity, replica._peers = CopyIdentity("a", Role.REPLICA), NO_SECURITY
    replica.addresses = {INTERNAL_LISTENER: "10.0.0.2:10911"}
    with held_directory(files, PATH) as directory:
        directory.make_own()
        save_copy_identity(directory, replica._copy_identity)
        for name in ("identity", "proof"):
            directory.replace(f"{directory.own}/{name}", b"")

    async def connected(*_: object, **__: object) -> Any:
        return SimpleNamespace(close=lambda reason: None)

    async def presented(*_: object) -> Any:
        return SimpleNamespace(keep=0)

    async def paused(seconds: float) -> None:
        done.append(seconds)

    def note(what: str) -> Any:
        async def mended(*_: object) -> None:
            done.append(what)

        return mended

    async def followed() -> Any:
        if not left:
            raise EndError("the end")
        raise StoreCorruptError("damaged", position=left.pop(0))

    monkeypatch.setattr(running_replica, "connect", connected)
    monkeypatch.setattr(running_replica, "present", presented)
    monkeypatch.setattr(running_replica.asyncio, "sleep", paused)
    for name, instead in (("_install", note("everything")), ("_repair", note("a file")), ("_follow", followed)):
        monkeypatch.setattr(replica, name, instead)
    with pytest.raises(EndError):
        await replica._live()
    assert done == expected


async def test_scrub_goes_on_over_damage_that_the_masters_bytes_have_too(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [{5: "bad", 9: "bad", 12: "bad"}, {5: "bad"}, {}]
    following = SimpleNamespace(stopping=asyncio.Event())

    async def at_once(stopping: asyncio.Event, _seconds: float) -> bool:
        if len(passes) == 1:
            stopping.set()
        return stopping.is_set()

    async def run(_stopping: object) -> None:
        scrubber.found = {position: SimpleNamespace(reason=reason) for position, reason in passes.pop(0).items()}

    scrubber = SimpleNamespace(found={}, run=run)
    monkeypatch.setattr(running_replica, "is_set_within", at_once)
    store: Any = SimpleNamespace(scrubber=scrubber)
    with pytest.raises(RottenLogError) as raised:
        await scrub(store, following, {5})  # type: ignore[arg-type]
    assert raised.value.positions == {9, 12}
    following.stopping.clear()
    await scrub(store, following, {5})  # type: ignore[arg-type]
    assert not passes
