"""A replica and a master that stands still."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker.replication import following
from lockstep.broker.replication.following import Following
from lockstep.protocol.headers.replication import ReplicaFollowHeader
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.registers import listening


async def test_master_that_accepts_a_connection_and_says_nothing_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does so for a process that is suspended: its copies would never elect another master."""
    for name, value in {"ANSWER_MS": 20, "RETRY_FIRST_MS": 2, "RETRY_MAX_MS": 2}.items():
        monkeypatch.setattr(following, name, value)
    connections, third, heard = 0, asyncio.Event(), list[int]()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 3:
            third.set()
        await reader.read()

    async with listening(serve) as address:
        header = ReplicaFollowHeader("broker-a", "c", "store", "a", "here", 0, 0, "1")
        parts: Any = (Host.real(), None, SimpleNamespace(terms=()), SimpleNamespace(end=0), lambda: header, None)
        replica = Following(*parts, lambda: address)
        replica.on_heard = lambda: heard.append(connections)
        replica.on_refused = lambda: heard.append(-connections)
        running = asyncio.ensure_future(replica.run(NO_SECURITY))
        await third.wait()
        running.cancel()
        await asyncio.wait([running])
    assert heard == []
