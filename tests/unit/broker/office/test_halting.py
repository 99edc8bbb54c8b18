"""What a replica does from its election on, until it serves as the master."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.replication import following as module
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.replication.following import Following
from lockstep.broker.running_replica import RunningReplica
from lockstep.protocol.errors import TransportError
from lockstep.testing.simulation.disk import SimFiles
from support.closed_copies import closed_copy
from support.store_kit import SeededRandom


class OldMaster:
    """The connection to it, on which nothing is answered."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked = 0

    async def request(self, *_: object, **__: object) -> Any:
        self.asked += 1
        return await self.ended

    def abort(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(TransportError(reason))

    close = abort


async def test_elected_replica_tells_its_old_master_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[OldMaster] = []

    async def connect(*_: object, **__: object) -> OldMaster:
        connections.append(OldMaster())
        return connections[-1]

    monkeypatch.setattr(module, "connect", connect)
    host, state, nothing = SimpleNamespace(random=SeededRandom(1)), SimpleNamespace(terms=()), cast(Any, None)
    following = Following(cast(Any, host), nothing, cast(Any, state), nothing, lambda: nothing, nothing, lambda: "old:1")
    monkeypatch.setattr(module, "RETRY_FIRST_MS", 0)
    monkeypatch.setattr(module, "present", lambda endpoint, header, terms: endpoint.request())
    running = asyncio.ensure_future(following.run(nothing))
    for _ in range(100):
        await asyncio.sleep(0)
    assert connections[0].asked
    following.halt()
    for _ in range(100):
        await asyncio.sleep(0)
    assert connections[0].ended.done(), "what it would acknowledge is dropped"
    assert len(connections) == 1
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_copy_that_has_lost_something_since_it_stood_does_not_rule() -> None:
    """Nobody knows for how long whether its swap was carried out; meanwhile its log may be found damaged."""
    replica: Any = RunningReplica.__new__(RunningReplica)
    replica._copy, replica._following = closed_copy(SimFiles(), CopyIdentity("b" * 16, Role.REPLICA)), None
    tenures = [SimpleNamespace(member="a" * 16), SimpleNamespace(member="b" * 16)]
    ruled: list[str] = []

    async def follow(_: object) -> Any:
        return tenures.pop(0)

    async def promote_to(tenure: Any) -> bool:
        ruled.append(tenure.member)
        return True

    replica._promote_to = promote_to
    await replica._stand(SimpleNamespace(follow=follow))
    assert ruled == ["b" * 16]
