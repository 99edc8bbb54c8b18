"""Held pulls, groups and progress of unknown clients: what all of them can use in a broker, and that no other client is affected.

The limits are set low, so that a test reaches them in seconds. A producer and a consumer run through the whole file.
"""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from lockstep.protocol.bodies import LockVerdict, QueueOffset, ResetBody
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from support.background import background
from support.hostile_world import World, metrics_of
from support.native import Member, Native, native

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

MIB = 1 << 20
SERVER_OPTIONS = ("--admin-listen", "127.0.0.1:0")
GROUPS_MAX, PROGRESS_MAX, HELD_MAX, HELD_PER_GROUP_MAX = 200, 500, 4_000, 100
BROKER_OPTIONS = (
    *("--groups-max", str(GROUPS_MAX), "--progress-max", str(PROGRESS_MAX)),
    *("--held-pulls-max", str(HELD_MAX), "--held-pulls-per-group-max", str(HELD_PER_GROUP_MAX)),
)
COMMITS_AT_ONCE = 500


def held(group: str, queue_id: int = 1) -> PullHeader:
    return PullHeader(group, "fuzz", queue_id, 0, max_msg_nums=32, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=30_000)


async def test_held_pulls_are_limited_and_one_message_wakes_them_all(world: World) -> None:
    """Connections hold as many pulls as each may, all of one queue."""
    before, requested = world.broker.resident_bytes(), 3 * HELD_MAX
    clients = [native(world.broker_address) for _ in range(4)]
    strangers: list[Native] = [await client.__aenter__() for client in clients]
    try:
        responses = [strangers[number % 4].send_request(RequestCode.PULL_MESSAGE, held(f"g{number % 100}")) for number in range(requested)]
        early = asyncio.ensure_future(responded(responses, requested - HELD_MAX))
        await asyncio.wait_for(early, 60)
        assert {response.result().code for response in responses if response.done()} == {ResponseCode.PULL_NOT_FOUND}
        assert HELD_MAX - HELD_PER_GROUP_MAX <= (await metrics_of(world.broker, "lockstep_held_pulls"))[0] <= HELD_MAX + 10
        assert (await metrics_of(world.broker, "lockstep_held_pulls_evicted_total"))[0] >= requested - HELD_MAX - 10
        await world.until_progress()
        assert world.broker.resident_bytes() - before < 64 * MIB
        assert (await strangers[0].send("fuzz", b"x", 1)).code == ResponseCode.SUCCESS
        await world.until_progress()
        await asyncio.wait_for(responded(responses, requested), 60)
        assert sum(response.result().code == ResponseCode.SUCCESS for response in responses) >= HELD_MAX - 10
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


async def responded(responses: list["asyncio.Future[Command]"], count: int) -> None:
    for done, response in enumerate(asyncio.as_completed(responses), 1):
        await response
        if done >= count:
            return


async def test_commits_for_invented_groups_are_limited(world: World) -> None:
    """UPDATE_CONSUMER_OFFSET requires no membership."""
    before = world.broker.resident_bytes()
    taken, refused = 0, ""
    async with native(world.broker_address) as stranger:
        for first in range(0, 10_000, COMMITS_AT_ONCE):
            numbers = range(first, first + COMMITS_AT_ONCE)
            requested = [stranger.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, commit(f"invented-{number}")) for number in numbers]
            for response in await asyncio.gather(*requested):
                taken += response.code == ResponseCode.SUCCESS
                assert response.code in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
                refused = response.remark or refused
        assert f"{GROUPS_MAX} are allowed (--groups-max): group invented-9999 is refused" in refused
        assert GROUPS_MAX - 10 <= taken <= GROUPS_MAX
        assert (await metrics_of(world.broker, "rocketmq_consumer_group_number"))[0] == GROUPS_MAX
        assert (await stranger.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, commit("invented-0"))).code == ResponseCode.SUCCESS
    assert world.broker.resident_bytes() - before < 16 * MIB


async def test_progress_of_one_group_in_thousands_of_queues_is_limited(world: World) -> None:
    async with native(world.broker_address) as stranger:
        await stranger.create("wide", 2_000)
        requested = [
            stranger.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, commit("invented-0", "wide", number, 0)) for number in range(2_000)
        ]
        codes = [response.code for response in await asyncio.gather(*requested)]
        assert codes.count(ResponseCode.NO_PERMISSION) >= 2_000 - PROGRESS_MAX
        assert (await metrics_of(world.broker, "lockstep_progress_entries"))[0] == PROGRESS_MAX
        reset = ResetBody("invented-0", "wide", tuple(QueueOffset(number, 0) for number in range(2_000)))
        code, remark = await stranger.refused(RequestCode.RESET_OFFSETS, None, bytes(encode_body(reset)))
        assert (code, "--progress-max" in remark) == (ResponseCode.NO_PERMISSION, True)
        member = Member(stranger, "wide", "invented-0")
        await member.join()
        response = await member.lock(0)  # one queue has progress: the start is resolved for the whole topic
        assert (response.verdict, "--progress-max" in (response.remark or "")) == (LockVerdict.REFUSED, True)
        assert (await metrics_of(world.broker, "lockstep_progress_entries"))[0] == PROGRESS_MAX


async def test_killed_broker_restarts_with_its_groups_and_serves(tmp_path: Path) -> None:
    listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    command = ("-m", "lockstep.broker", *listen, "--store", str(tmp_path / "store"), *BROKER_OPTIONS)
    with background(tmp_path, "before", *command, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as stranger:
            await stranger.create("fuzz", 4)
            requested = [
                stranger.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, commit(f"g{number}")) for number in range(2 * GROUPS_MAX)
            ]
            assert [response.code for response in await asyncio.gather(*requested)].count(ResponseCode.SUCCESS) == GROUPS_MAX
        broker.stop(signal.SIGKILL)
    with background(tmp_path, "again", *command, ready="broker.started") as again:
        assert (await metrics_of(again, "rocketmq_consumer_group_number"))[0] == GROUPS_MAX
        async with native(again.started("broker.started")["address"]) as client:
            assert (await client.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, commit("one-more"))).code == ResponseCode.NO_PERMISSION
            assert (await client.send("fuzz", b"y", 0)).code == ResponseCode.SUCCESS


async def test_nearly_full_disk_rejects_new_groups_and_continues_commits(tmp_path: Path) -> None:
    """Set the reserve above twice the free space."""
    store = str(tmp_path / "store")
    command = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", store, "--disk-used-percent-max", "100")
    with background(tmp_path, "before", *command, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("fuzz", 4)
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, commit("here", offset=0))
    reserve_mib = 3 * shutil.disk_usage(tmp_path).free // MIB
    with background(tmp_path, "full", *command, "--disk-reserve-mib", str(reserve_mib), ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            for number in range(100):
                code, remark = await client.refused(RequestCode.UPDATE_CONSUMER_OFFSET, commit(f"new-{number}", offset=0))
                assert (code, f"progress of group new-{number} in fuzz is new and refused" in remark) == (
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    True,
                )
            code, remark = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("new", 1, 1))
            assert (code, "topic new is new and refused" in remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, commit("here", offset=0))
            response = await client.done(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("here", "fuzz", 0))
            assert response.fields == {"offset": 0}


def commit(group: str, topic: str = "fuzz", queue_id: int = 0, offset: int = 0) -> UpdateConsumerOffsetHeader:
    return UpdateConsumerOffsetHeader(group, topic, queue_id, offset)
