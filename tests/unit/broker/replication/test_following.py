"""What a replica takes from its master: bytes that continue its log, of the term that it follows, and nothing else."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.replication import following
from lockstep.broker.replication.following import Following
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import (
    AuthenticationError,
    MessageIllegalError,
    NoPermissionError,
    NotLeaderError,
    RemoteProtocolError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    TransportError,
)
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.replication import ReplicaFetchReply, ReplicaFollowHeader
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.registers import listening

DATA = b"ten bytes."
GOOD = ReplicaFetchReply(1, 7, crc32(DATA), confirmed=50, log_start=0, written=60, time_ms=0)
TERM = 7


class Copied:
    """A log of 50 bytes of its master's, and the responses that the master gives; then it gives none."""

    def __init__(self, *replies: tuple[ReplicaFetchReply, bytes]) -> None:
        self.replies = list(replies)
        self.received = list[tuple[int, bytes]]()
        self.log = SimpleNamespace(end=50, stored=50, synced=50, applied=50, receive=self.receive)
        nothing, store = cast(Any, None), SimpleNamespace(check_copy=lambda size: None)
        host = SimpleNamespace(clock=SimpleNamespace(boot_ms=lambda: 0))
        self.following = Following(cast(Any, host), cast(Any, store), nothing, cast(Any, self.log), nothing, nothing, nothing)

    def receive(self, position: int, data: bytes) -> None:
        self.received.append((position, bytes(data)))
        self.log.end = self.log.stored = position + len(data)

    async def request(self, *_: object, **__: object) -> Any:
        if not self.replies:
            await asyncio.get_running_loop().create_future()
        reply, body = self.replies.pop(0)
        return SimpleNamespace(code=0, fields=to_plain(reply), body=body, remark=None)

    async def copy(self) -> None:
        """Copy until the master responds no more. Raises RemoteProtocolError."""
        copying = asyncio.ensure_future(self.following._copy(cast(Any, self), TERM))
        for _ in range(20):
            await asyncio.sleep(0)
        copying.cancel()
        await asyncio.wait([copying])
        if not copying.cancelled():
            copying.result()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"term": 6}, id="a master that was replaced"),
        pytest.param({"term": 8}, id="a later one"),
        pytest.param({"number": 2}, id="a response before it is missing"),
        pytest.param({"crc": GOOD.crc ^ 1}, id="changed bytes"),
        pytest.param({"log_start": 51}, id="the master has removed what this log lacks"),
    ],
)
async def test_response_that_does_not_continue_the_log_is_refused(wrong: dict[str, Any]) -> None:
    copied = Copied((replace(GOOD, confirmed=60, **wrong), DATA))
    with pytest.raises(RemoteProtocolError):
        await copied.copy()
    assert (copied.received, copied.following.confirmed) == ([], 0)


async def test_log_is_complete_when_the_master_has_ended_its_own_and_this_one_has_all_of_it() -> None:
    empty = replace(GOOD, crc=crc32(b""))
    copied = Copied((replace(GOOD, written=70, complete=True), DATA))
    await copied.copy()
    assert (copied.received, copied.following.is_complete) == ([(50, DATA)], False), "ten more bytes follow"
    copied = Copied((replace(GOOD, complete=True), DATA))
    await copied.copy()
    assert copied.following.is_complete
    copied = Copied((GOOD, DATA), (replace(empty, number=2), b""))
    await copied.copy()
    assert not copied.following.is_complete, "the master goes on"


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
        known = iter([None, None])  # nobody says at first who the master is
        replica = Following(*parts, lambda: next(known, address))
        replica.on_heard = lambda: heard.append(connections)
        replica.on_refused = lambda: heard.append(-connections)
        running = asyncio.ensure_future(replica.run(NO_SECURITY))
        await third.wait()
        running.cancel()
        await asyncio.wait([running])
    assert heard == []


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (TransportError("10.0.0.1:10911: connection refused"), False),
        (NotLeaderError("10.0.0.1:10911 is a replica"), False),
        (ServiceNotAvailableError("the broker is shutting down"), False),
        (RequestTimeoutError("no answer within 5000 ms"), None),
        (caused(TransportError("10.0.0.1:10911: not connected"), TimeoutError()), None),
        (AuthenticationError("the password is wrong"), True),
        (NoPermissionError("user shop is no copy of broker broker-a"), True),
        (MessageIllegalError("the replica's log is that of store 1234"), True),
    ],
)
def test_master_that_refuses_a_copy_lives_and_one_that_is_not_there_or_not_the_master_does_not(
    error: Exception, shown: bool | None
) -> None:
    assert following.shows_master(error) is shown
