"""Messages sent back and settings for invented groups: the memory and disk that they can use at a broker and its nameservers.

The limits are set low, so that a test reaches them in seconds.
"""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from lockstep.protocol.bodies import GroupSettings
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.clients import DeleteGroupHeader
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.send import SendBackHeader
from support.background import background
from support.hostile_world import World, checked_world, hostile_world, metrics_of
from support.native import Native, native

pytestmark = pytest.mark.e2e

MIB = 1 << 20
GROUPS_MAX, TOPICS_MAX, ASKED = 50, 10, 3_000
LIMITS = ("--groups-max", str(GROUPS_MAX), "--topics-max", str(TOPICS_MAX))


async def store_message(client: Native, topic: str) -> int:
    """Store a message and return its log position."""
    response = await client.send(topic, b"x")
    assert response.code == ResponseCode.SUCCESS, response.remark
    return int(response.fields["msgId"][16:], 16)


async def send_back(client: Native, offset: int, count: int, level: int) -> list[tuple[int, str]]:
    """Return (code, remark) of a request for each of `count` invented groups."""
    found = []
    for first in range(0, count, 500):
        requested = [SendBackHeader(offset, f"invented-{number}", level) for number in range(first, min(count, first + 500))]
        responses = await asyncio.gather(*(client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, header) for header in requested))
        found += [(response.code, response.remark or "") for response in responses]
    return found


async def test_send_backs_for_invented_groups_create_a_limited_number_of_topics(tmp_path: Path) -> None:
    """One connection and one stored message made 133,500 topics once, and the nameserver rejected the broker."""
    with hostile_world(tmp_path, "--admin-listen", "127.0.0.1:0", of_broker=LIMITS) as world:
        async with checked_world(world):
            await send_back_for_invented_groups(world)
            await world.until_progress()
        with world.restarted_broker() as again:
            async with native(again.started("broker.started")["address"]) as client:
                responses = await send_back(client, await store_message(client, "fuzz"), 200, -1)
                assert sum(code == ResponseCode.SUCCESS for code, _ in responses) <= GROUPS_MAX


async def send_back_for_invented_groups(world: World) -> None:
    before = world.broker.resident_bytes()
    async with native(world.broker_address) as stranger:
        offset = await store_message(stranger, "fuzz")
        for level in (-1, 3):
            responses = await send_back(stranger, offset, ASKED, level)
            refused = [remark for code, remark in responses if code == ResponseCode.NO_PERMISSION]
            assert len(refused) + sum(code == ResponseCode.SUCCESS for code, _ in responses) == ASKED
            assert len(refused) >= ASKED - GROUPS_MAX
            assert all(f"{GROUPS_MAX} are allowed (--groups-max)" in remark for remark in refused)
    groups, topics, names = await metrics_of(
        world.broker, "rocketmq_consumer_group_number", "rocketmq_topic_number", "lockstep_topic_names"
    )
    assert groups == GROUPS_MAX
    assert 2 < topics <= 2 * GROUPS_MAX + 2
    assert names == topics
    assert world.broker.resident_bytes() - before < 32 * MIB


async def test_send_backs_on_a_full_disk_create_and_write_nothing(tmp_path: Path) -> None:
    """Set the reserve above twice the free space."""
    listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    command = ("-m", "lockstep.broker", *listen, "--store", str(tmp_path / "store"), "--disk-used-percent-max", "100", "--segment-mib", "8")
    with background(tmp_path, "before", *command, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("fuzz")
            offset = await store_message(client, "fuzz")
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("here", "fuzz", 0, 0))
    reserve_mib = 3 * shutil.disk_usage(tmp_path).free // MIB
    with background(tmp_path, "full", *command, "--disk-reserve-mib", str(reserve_mib), ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            before = await metrics_of(broker, "rocketmq_topic_number", "rocketmq_consumer_group_number", "rocketmq_storage_size")
            for level in (-1, 3):
                assert {code for code, _ in await send_back(client, offset, 200, level)} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            after = await metrics_of(broker, "rocketmq_topic_number", "rocketmq_consumer_group_number", "rocketmq_storage_size")
            assert after == before
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("here", "fuzz", 0, 1))


async def test_groups_with_settings_use_the_group_limit_until_an_operator_deletes_them(tmp_path: Path) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP for invented groups: groups with settings are never forgotten, not even by a restart."""
    listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    command = ("-m", "lockstep.broker", *listen, "--store", str(tmp_path / "store"), "--segment-mib", "8", *LIMITS)
    with background(tmp_path, "before", *command, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            bodies = [bytes(encode_body(GroupSettings(f"invented-{number}"))) for number in range(2 * GROUPS_MAX)]
            requested = [client.send_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body) for body in bodies]
            assert [response.code for response in await asyncio.gather(*requested)].count(ResponseCode.SUCCESS) == GROUPS_MAX
            assert await metrics_of(broker, "lockstep_groups_configured") == [GROUPS_MAX]
            deleted = [DeleteGroupHeader(f"invented-{number}", clean_offset=True) for number in range(2 * GROUPS_MAX)]
            responses = await asyncio.gather(*(client.send_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, each) for each in deleted[1:]))
            assert {response.code for response in responses} == {ResponseCode.SUCCESS}
        broker.stop(signal.SIGKILL)
    with background(tmp_path, "again", *command, ready="broker.started") as again:
        assert await metrics_of(again, "lockstep_groups_configured", "rocketmq_consumer_group_number") == [1, 1]
        async with native(again.started("broker.started")["address"]) as client:
            await client.create("fuzz")
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("new", "fuzz", 0, 0))
