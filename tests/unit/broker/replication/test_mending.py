"""How a replica mends its copy when it finds the same damage again and again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker import running_replica
from lockstep.broker.replication import closed_copy as module
from lockstep.broker.replication.closed_copy import RottenLogError
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.running_replica import scrub
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import held_directory
from lockstep.testing.simulation.disk import SimFiles
from support.closed_copies import closed_copy
from support.store_kit import PATH


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
    files, done = SimFiles(), list[object]()
    copy = closed_copy(files, CopyIdentity("a", Role.REPLICA))

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

    monkeypatch.setattr(module, "connect", connected)
    monkeypatch.setattr(module, "present", presented)
    monkeypatch.setattr(module.asyncio, "sleep", paused)
    for name, what in (("_install", "everything"), ("_repair", "a file")):
        monkeypatch.setattr(copy, name, note(what))
    with held_directory(files, PATH) as directory:
        directory.make_own()
        for name in ("identity", "proof"):
            directory.replace(f"{directory.own}/{name}", b"")
        for position in found:
            await copy.note_damage(StoreCorruptError("damaged", position=position))
            assert await copy.prepare(directory)
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
