"""Messages that decompress to a thousand times their stored size: a consumer's memory is limited by the stored size."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.record import SYS_COMPRESSED
from support.background import background
from support.hostile_world import World, checked_world
from support.native import native

pytestmark = pytest.mark.e2e

MIB = 1 << 20
COUNT = 250
BODY_BYTES = 4 * MIB


@pytest.fixture(autouse=True)
async def undisturbed(world: World) -> AsyncIterator[None]:
    """Check that producer and consumer continued without an error; the broker, killed, starts again with the stored messages."""
    async with checked_world(world):
        yield
    with world.restarted_broker() as again:
        async with native(again.started("broker.started")["address"]) as client:
            assert (await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader("fuzz", 0))).fields["offset"] == COUNT
            assert (await client.send("fuzz", b"x")).code == ResponseCode.SUCCESS


@pytest.mark.slow
async def test_consumer_memory_is_limited_by_stored_size_for_highly_compressed_bodies(world: World, tmp_path: Path) -> None:
    """There are 250 zlib bodies of 4 MiB each, 1 MiB stored, kept and read, some of them twice."""
    body = zlib.compress(bytes(BODY_BYTES), 9)
    reader = ("-m", "support.worker_bodies", world.nameserver_address, "fuzz", str(COUNT))
    with background(tmp_path, "reader", *reader, ready="bodies.ready") as consumer:
        before = consumer.resident_bytes()
        async with native(world.broker_address) as stranger:
            header = SendMessageHeader("senders", "fuzz", 0, sys_flag=SYS_COMPRESSED)
            responses = await asyncio.gather(*(stranger.send_request(RequestCode.SEND_MESSAGE, header, body) for _ in range(COUNT)))
            assert {response.code for response in responses} == {ResponseCode.SUCCESS}
        await consumer.until("every body was looked at", lambda: bool(consumer.find("bodies.read")))
        (read,) = consumer.find("bodies.read")
        assert (read["count"], read["stored_bytes"], read["body_bytes"]) == (COUNT, COUNT * len(body), COUNT * BODY_BYTES)
        assert consumer.resident_bytes() - before < 16 * BODY_BYTES
        await world.until_progress()
        assert consumer.stop() == 0
