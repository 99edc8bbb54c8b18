"""What a peer makes a broker or a nameserver allocate goes with its last reference, not when the garbage collector runs."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.processors.pull_request import Pull
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, HeartbeatBody, LockItem, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.frame import encode_frame
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from lockstep.runtime.host import Host
from support.cycles import collector_off
from support.hostile import BROKER_CODES, NAMESERVER_CODES, Hostile
from support.hostile_java import HostileJava, classic_handlers
from support.java_wire import BINARY, JSON, java_wire
from support.loops import turns, until
from support.whole_broker import TOPIC, dialled, heartbeat, reconcile, running, settings

pytestmark = pytest.mark.both_loops

FRAMES = 120
HOLD = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 20_000}


class World:
    def __init__(self, broker: Broker, nameserver: Nameserver) -> None:
        self.broker = broker
        self.nameserver = nameserver
        self.number = 1
        """Of the last connection of a session."""

    async def held_pulls(self) -> None:
        """Hold pulls, and end the connection."""
        async with dialled(self.broker) as client:
            for queue_id in range(4):
                client.pull(1_000 if queue_id else 0, queue_id, **HOLD).cancel()
            await until(lambda: self.pulls() == 1)

    async def held_pull_that_is_served(self) -> None:
        async with dialled(self.broker) as client:
            end = 0
            while (response := await client.pull(end, 1)).code == ResponseCode.SUCCESS:
                end = response.fields["nextBeginOffset"]
            pulled = client.pull(end, 1, **HOLD)
            await until(lambda: self.pulls() == 1)
            assert (await client.send(TOPIC, b"x", 1)).code == ResponseCode.SUCCESS
            assert (await pulled).code == ResponseCode.SUCCESS

    def pulls(self) -> int:
        return self.broker.running.pulls.held_count

    async def session(self) -> None:
        async with dialled(self.broker) as client:
            self.number += 1
            await heartbeat(client, "member@1", "1" * 32, self.number)
            await reconcile(client, LockItem("g", TOPIC, 0))

    async def refused_heartbeats(self) -> None:
        """A member that does not agree with the others, and groups without room for another member, natively and classically."""
        other = ConsumerGroup("g", (Subscription("other"),), consume_from_where=ConsumeFromWhere.FIRST_OFFSET, ordered=True)
        more = [ConsumerGroup(name, (Subscription(TOPIC),)) for name in ("more", "most")]
        async with dialled(self.broker) as first, dialled(self.broker) as second, dialled(self.broker) as classic:
            self.number += 1
            await heartbeat(first, "member@1", "1" * 32, self.number)
            for groups in ((other,), (*more, other)):
                self.number += 1
                body = HeartbeatBody("member@2", groups, session="2" * 32, connection=self.number)
                await second.refused(RequestCode.HEART_BEAT, body=encode_body(body))
            await classic.refused(RequestCode.HEART_BEAT, body=encode_body(HeartbeatBody("member@3", tuple(more))))

    async def unexpected_errors(self) -> None:
        """An error of the table of held pulls fails all of them."""
        pulls = self.broker.running.pulls
        assert pulls is not None
        async with dialled(self.broker) as client:
            waiting = [client.pull(1_000, queue_id, **HOLD) for queue_id in range(1, 4)] + [client.pull(0, 0, **HOLD)]
            await until(lambda: self.pulls() >= 1)
            pulls._holds._unlink = _raise_missing  # type: ignore[method-assign, assignment]
            try:
                pulls._take(lambda holds: holds.take_group("g", TOPIC, 0))
            finally:
                del pulls._holds._unlink
            responses = await asyncio.gather(*waiting)
            assert responses[-1].code == ResponseCode.SYSTEM_ERROR

    async def hostile_requests(self) -> None:
        await self._blast(self.broker.address, native_frames(BROKER_CODES))

    async def hostile_requests_to_the_nameserver(self) -> None:
        await self._blast(self.nameserver.address, native_frames(NAMESERVER_CODES))

    async def hostile_classic_requests(self) -> None:
        await self._blast(self.broker.address, classic_frames("broker"))

    async def hostile_classic_requests_to_the_nameserver(self) -> None:
        await self._blast(self.nameserver.address, classic_frames("nameserver"))

    async def bodies_that_are_too_long(self) -> None:
        codes = (RequestCode.HEART_BEAT, RequestCode.GET_MAX_OFFSET, RequestCode.LOCK_BATCH_MQ)
        await self._blast(self.broker.address, [encode_frame(Command(code, 1, body=bytes(3 << 20))) for code in codes])

    async def _blast(self, address: str, frames: Iterable[bytes]) -> None:
        """Send each frame on a connection of its own, and a request after it, whose response shows that it was handled, if the connection
        is still open then."""
        for each in frames:
            async with java_wire(address, JSON) as client:
                client.writer.write(each)
                try:
                    await client.call(RequestCode.GET_MAX_OFFSET)
                except (OSError, asyncio.IncompleteReadError, AssertionError):
                    pass


def _raise_missing(*_: object) -> object:
    return {}["missing"]


def native_frames(codes: dict[int, tuple[type | None, type | None]]) -> Iterable[bytes]:
    source = Hostile(11)
    for number in range(FRAMES):
        code = source.random.choice(list(codes))
        fields, body = source.request(*codes[code])
        try:
            yield encode_frame(Command(code, number, fields=fields, body=body))
        except (LocalProtocolError, ValueError, OverflowError):
            pass  # what no client can send


def classic_frames(server: str) -> Iterable[bytes]:
    source, handlers = HostileJava(12), list(classic_handlers(server).values())
    for number in range(FRAMES):
        yield source.frame(source.random.choice(handlers), source.random.choice((BINARY, JSON)), number)


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    name: scenario for name, scenario in vars(World).items() if not name.startswith("_") and name != "pulls"
}


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    try:
        async with running(settings(path, members_max=1)) as broker:
            async with dialled(broker) as client:
                await client.create()
            yield World(broker, nameserver)
    finally:
        await nameserver.stop()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_requests_and_connections_are_freed_without_the_collector(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as here:

        async def run() -> None:
            await SCENARIOS[name](here)
            for server in (here.broker.running.server, here.nameserver._server):
                assert server is not None
                await until(lambda server=server: not server.endpoints)  # type: ignore[misc]
            await turns(5)

        await run()  # what is made once
        with collector_off():
            await run()


async def test_closed_connection_leaves_no_pull(tmp_path: Path) -> None:
    """Also not in the heap of deadlines."""
    async with world(tmp_path) as here:
        gc.collect()
        gc.disable()
        others = [each for each in gc.get_objects() if type(each) is Pull]  # of tests before this one
        try:
            await here.held_pulls()
            await until(lambda: sum(type(each) is Pull for each in gc.get_objects()) <= len(others), "the pulls are freed")
        finally:
            gc.enable()
