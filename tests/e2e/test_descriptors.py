"""More connections than a server may have file descriptors: connected clients continue, files are opened, and the broker continues."""

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.offsets import QueueHeader
from support.background import Background, background
from support.effort import usually
from support.hostile_world import checked_world, hostile_world
from support.native import Native, native
from support.processes import LIMIT_S

pytestmark = pytest.mark.e2e

MIB = 1 << 20
UNFORESEEN = ("request.failed", "loop.failed", "task.failed", "daemon.failed", "stop.failed", "effect.failed")


@pytest.fixture(autouse=True)
def many_descriptors_here() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limited(folder: Path, limit: int, loop: str, module: str, *arguments: str) -> Background:
    return Background(folder, f"{module.rpartition('.')[2]}-{limit}", "-m", "support.worker_limited", str(limit), loop, module, *arguments)


@asynccontextmanager
async def broker_of(folder: Path, limit: int, loop: str) -> AsyncIterator[tuple[Background, str]]:
    options = ("--listen", "127.0.0.1:0", "--store", str(folder / "store"), "--segment-mib", "1")
    broker = limited(folder, limit, loop, "lockstep.broker", *options)
    try:
        yield broker, broker.started("broker.started")["address"]
    finally:
        broker.end()


def open_connections(address: str, count: int) -> list[socket.socket]:
    """Open `count` connections, as far as the kernel accepts them."""
    host, _, port = address.rpartition(":")
    made = []
    for _ in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        assert connection.connect_ex((host, int(port))) in (0, errno.EINPROGRESS)
        made.append(connection)
    return made


async def fill_log_files(client: Native, count: int) -> None:
    """Send messages that fill `count` files of the log."""
    for _ in range(count * 3):
        assert (await client.send("orders", os.urandom(400_000))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("limit", "loop"), usually([(256, "uvloop"), (1_024, "asyncio")], product([256, 1_024], ["uvloop", "asyncio"])))
async def test_connections_beyond_the_descriptor_limit_do_not_affect_connected_clients(tmp_path: Path, limit: int, loop: str) -> None:
    async with broker_of(tmp_path, limit, loop) as (broker, address):
        reported = broker.find("broker.started")[0]
        assert reported["descriptor_limit"] == limit
        assert reported["connections_max"] == {256: 96, 1_024: 640}[limit]
        async with native(address) as client:
            await client.create("orders")
            await fill_log_files(client, 1)
            crowd: list[socket.socket] = []
            for _ in range(4):
                # All connections are opened while a file is due in the same turn: they have descriptors before they can be rejected.
                broker.process.send_signal(signal.SIGSTOP)
                crowd += open_connections(address, limit // 2)
                responses = [client.send("orders", os.urandom(400_000)) for _ in range(3)]
                await asyncio.sleep(0)
                broker.process.send_signal(signal.SIGCONT)
                assert [(await response).code for response in responses] == [ResponseCode.SUCCESS] * 3
            await fill_log_files(client, 70)  # a snapshot is due after 64 MiB
            await broker.until("a snapshot is written", lambda: bool(snapshots(tmp_path)))
            assert len(os.listdir(tmp_path / "store" / "commitlog")) > 50
            assert len(crowd) > limit
            assert broker.find("connection.refused")
            paused = broker.find("accept.paused")
            assert (0 < len(paused) < 60) if loop == "asyncio" else not paused, "asyncio waits a second, uvloop closes what it can't take"
            for connection in crowd:
                connection.close()
            await until_served(broker, address)
            async with native(address) as late:
                await fill_log_files(late, 1)
            assert (await client.pull("orders")).code == ResponseCode.SUCCESS
        assert [each for each in broker.events if each["event"] in UNFORESEEN] == []
        assert broker.stop() == 0
    with background(
        tmp_path, "again", "-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), ready="broker.started"
    ) as again:
        async with native(again.started("broker.started")["address"]) as client:
            response = await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
            assert response.fields["offset"] == 3 + 4 * 3 + 70 * 3 + 3


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_producer_and_consumer_continue_with_more_connections_than_descriptors(tmp_path: Path, loop: str) -> None:
    """The broker, killed with all of them open, starts again and serves."""
    with hostile_world(tmp_path, program=("-m", "support.worker_limited", "256", loop)) as world:
        async with checked_world(world):
            crowd: list[socket.socket] = []
            for _ in range(3):
                crowd += open_connections(world.broker_address, 256)
                await world.until_progress()
            assert world.broker.find("connection.refused")
        with world.restarted_broker() as again:
            await until_served(again, again.started("broker.started")["address"])
        for connection in crowd:
            connection.close()


async def test_broker_without_a_free_descriptor_rejects_sends_and_continues(tmp_path: Path) -> None:
    """Its limit is lowered below the number of its open files, so that the reserve does not help either."""
    async with broker_of(tmp_path, 256, "uvloop") as (broker, address), native(address) as client:
        await client.create("orders")
        await fill_log_files(client, 1)
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (3, 256))
        codes = [(await client.send("orders", os.urandom(size))).code for size in [100_000] * 30 + [500] * 300]
        assert {*codes} == {ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE}
        for number in range(20):
            await client.create(f"topic-{number}")
        assert broker.process.poll() is None
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        await fill_log_files(client, 3)
        assert broker.stop() == 0
        assert [each for each in broker.events if each["event"] in UNFORESEEN] == []
    with background(
        tmp_path, "again", "-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), ready="broker.started"
    ) as again:
        async with native(again.started("broker.started")["address"]) as client:
            response = await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
            assert response.fields["offset"] == 3 + codes.count(ResponseCode.SUCCESS) + 9


async def until_served(server: Background, address: str) -> None:
    """Wait until a new connection is served: asyncio pauses accepting for a second after the others have closed."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        try:
            async with native(address) as late:
                await late.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
                return
        except TransportError:
            assert server.process.poll() is None
            assert asyncio.get_running_loop().time() < end, server.words()


def snapshots(folder: Path) -> list[Path]:
    return [path for path in (folder / "store").rglob("*") if "snapshot" in str(path) and path.is_file()]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_nameserver_serves_again_after_excess_connections_have_closed(tmp_path: Path, loop: str) -> None:
    nameserver = limited(tmp_path, 256, loop, "lockstep.nameserver", "--listen", "127.0.0.1:0")
    try:
        reported = nameserver.started("nameserver.started")
        assert (reported["connections_max"], reported["descriptor_limit"]) == (128, 256)
        crowd = open_connections(reported["address"], 600)
        for connection in crowd[:5]:
            await asyncio.get_running_loop().sock_connect(connection, crowd[0].getpeername())
        for connection in crowd:
            connection.close()
        await until_served(nameserver, reported["address"])
        async with native(reported["address"]) as client:
            response = await client.send_request(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert response.code == ResponseCode.ROUTE_NOT_READY
        assert nameserver.stop() == 0
    finally:
        nameserver.end()
