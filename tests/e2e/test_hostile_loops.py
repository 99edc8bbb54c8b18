"""Pending requests and heartbeats of the largest size: the memory that one connection can use, and that the loop continues.

A producer and a consumer run through the whole file, and afterwards the broker starts again on its store.
"""

from typing import Any

import pytest

from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.runtime.limits import REQUEST_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from support.background import background
from support.hostile_world import World
from support.native import Native, native

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

MIB = 1 << 20
SERVER_OPTIONS = ("--admin-listen", "127.0.0.1:0")
PULLS = 2_000


def hold_pulls(client: Native, count: int, body: bytes = b"", unknown: str = "") -> dict[str, Any]:
    """Send `count` pulls that are held; return the header fields of the last one."""
    fields: dict[str, Any] = {}
    for number in range(count):
        header = PullHeader(f"g{number}", "fuzz", 1, 0, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=30_000)
        fields = {**to_plain(header), "unknown": unknown}
        requested = client.send_request(RequestCode.PULL_MESSAGE, fields, body)
        requested.add_done_callback(lambda done: done.cancelled() or done.exception())  # some get no response before the connection closes
    return fields


@pytest.mark.parametrize("what", ["body", "unknown field"])
async def test_held_pull_keeps_no_unknown_fields_of_its_frame(world: World, what: str) -> None:
    before = world.broker.resident_bytes()
    body, unknown = (bytes(REQUEST_BYTES_MAX), "") if what == "body" else (b"", "x" * (REQUEST_HEADER_BYTES_MAX - 400))
    async with native(world.broker_address) as stranger:
        for _ in range(0, PULLS, 100):
            fields = hold_pulls(stranger, 100, body, unknown)
            await stranger.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "fuzz", "queueId": 0})
        await world.until_progress()
        # Their frames have 125 MiB (body) or 7 MiB.
        assert world.broker.resident_bytes() - before < 24 * MIB
        fields["unknown"] = "x" * 200_000
        code, remark = await stranger.refused(RequestCode.PULL_MESSAGE, fields)
        assert (code, "a header of 200" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True), remark
        assert (await stranger.send("fuzz", b"x", 1)).code == ResponseCode.SUCCESS
        await world.until_progress()


async def test_members_with_invented_client_ids_on_one_connection_are_limited(world: World) -> None:
    before = world.broker.resident_bytes()
    async with native(world.broker_address) as stranger:
        requested = [stranger.send_request(RequestCode.HEART_BEAT, None, invented_heartbeat(number, 1)) for number in range(2_000)]
        codes = [(await response).code for response in requested]
        assert codes == [ResponseCode.SUCCESS] * 256 + [ResponseCode.NO_PERMISSION] * (2_000 - 256)
        await world.until_progress()
    async with native(world.broker_address) as stranger:
        requested = [stranger.send_request(RequestCode.HEART_BEAT, None, invented_heartbeat(number, 250)) for number in range(200)]
        codes = [(await response).code for response in requested]
        assert codes.count(ResponseCode.SUCCESS) < 50
        code, remark = await stranger.refused(RequestCode.HEART_BEAT, None, invented_heartbeat(1_000, 500))
        assert (code, "2000 topics in its subscriptions, 1024 allowed" in remark) == (ResponseCode.SYSTEM_ERROR, True), remark
        await world.until_progress()
    assert world.broker.resident_bytes() - before < 128 * MIB


def invented_heartbeat(number: int, topics: int) -> bytes:
    """Return a heartbeat of an absent client, in four groups if it names many topics."""
    named = tuple(Subscription(f"t{topic}-{number}", "a||b||c||d") for topic in range(topics))
    groups = tuple(ConsumerGroup(f"invented-{group}", named) for group in range(1 if topics == 1 else 4))
    return bytes(encode_body(HeartbeatBody(f"invented-{number}", groups)))


async def test_broker_restarts_on_its_store_after_large_requests(world: World) -> None:
    options = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(world.folder / "second"))
    with background(world.folder / "first-run", "broker", *options, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("fuzz", 2)
            hold_pulls(client, 100, bytes(REQUEST_BYTES_MAX))
            assert (await client.send("fuzz", b"x")).code == ResponseCode.SUCCESS
        broker.process.kill()
        broker.process.wait()
    with background(world.folder / "second-run", "broker", *options, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            assert len((await client.pull("fuzz")).body) > 0
            assert (await client.send("fuzz", b"y")).code == ResponseCode.SUCCESS
