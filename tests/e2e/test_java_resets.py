"""Progress of RocketMQ's clients: commits on other connections than that of the heartbeats, and resets while members run."""

import asyncio
import json

import pytest

from support.cluster import Cluster
from support.java_requests import CLIENT, GROUP, heartbeat, java_broker, pull, send
from support.java_wire import JSON, java_wire, records

pytestmark = pytest.mark.e2e

QUEUES = [{"brokerName": "broker-a", "queueId": 0, "topic": "orders"}]
LOCK = json.dumps({"clientId": CLIENT, "consumerGroup": "cg", "mqSet": QUEUES}).encode()


async def test_locked_queue_takes_commits_on_connections_without_a_heartbeat(cluster: Cluster) -> None:
    async with java_broker(cluster) as member:
        for _ in range(3):
            await member.call(310, send(), b"x")
        await member.call(34, None, heartbeat())
        assert json.loads((await member.call(41, None, LOCK)).body) == {"lockOKMQSet": QUEUES}
        async with java_wire(cluster.addresses["broker-a"], JSON) as other:
            assert (await other.call(15, {**GROUP, "commitOffset": "2"})).code == 0
            assert (await member.call(14, GROUP)).fields == {"offset": "2"}
            await other.call(34, None, heartbeat(client_id="10.0.0.2@1"))
            refused = await other.call(15, {**GROUP, "commitOffset": "3"})
            assert (refused.code, f"held by {CLIENT}" in (refused.remark or "")) == (16, True)
        assert (await member.call(14, GROUP)).fields == {"offset": "2"}


async def test_reset_moves_a_running_member_and_its_old_commits_do_not_undo_it(cluster: Cluster) -> None:
    async with java_broker(cluster) as member:
        for number in range(4):
            await member.call(310, send(), b"%d" % number)
        await member.call(34, None, heartbeat())
        assert (await member.call(15, {**GROUP, "commitOffset": "4"})).code == 0
        async with java_wire(cluster.addresses["broker-a"], JSON) as pulling:
            held = asyncio.create_task(pulling.call(11, pull(4, suspend=True)))
            await cluster.command("group", "reset-offset", "cg", "--topic", "orders", "--queue", "broker-a:0", "--to", "1")
            told = await held
            assert (told.code, told.fields["nextBeginOffset"], told.fields["maxOffset"]) == (21, "1", "4")
            late = await member.call(15, {**GROUP, "commitOffset": "4"})
            assert (late.code, "was reset to 1" in (late.remark or "")) == (16, True)
            assert (await member.call(14, GROUP)).fields == {"offset": "1"}
            again = await pulling.call(11, pull(1))
            assert [body for _, body, _ in records(again.body)] == [b"1", b"2", b"3"]
            assert (await member.call(15, {**GROUP, "commitOffset": "3"})).code == 0
            assert (await member.call(14, GROUP)).fields == {"offset": "3"}


async def test_reader_is_moved_back_after_a_power_cut(cluster: Cluster) -> None:
    """The member had read 4 messages and committed 2. No queue is locked: an earlier holder may trust a lock that was lost."""
    async with java_broker(cluster) as member:
        for number in range(4):
            await member.call(310, send(), b"%d" % number)
        await member.call(34, None, heartbeat())
        assert json.loads((await member.call(41, None, LOCK)).body) == {"lockOKMQSet": QUEUES}
        assert (await member.call(15, {**GROUP, "commitOffset": "2"})).code == 0
        await cluster.kill("broker-a")
    boot = cluster.folder / "store-broker-a" / "lockstep" / "boot"
    _, flush = boot.read_text().split()
    boot.write_text(f"another-boot {flush}")
    await cluster.broker("broker-a")
    async with java_wire(cluster.addresses["broker-a"], JSON) as member:
        await member.call(34, None, heartbeat())
        assert json.loads((await member.call(41, None, LOCK)).body) == {"lockOKMQSet": []}
        late = await member.call(15, {**GROUP, "commitOffset": "4"})
        assert (late.code, "by a start that may have lost messages" in (late.remark or "")) == (16, True)
        told = await member.call(11, pull(4))
        assert (told.code, told.fields["nextBeginOffset"]) == (21, "2")
        again = await member.call(11, pull(2))
        assert [body for _, body, _ in records(again.body)] == [b"2", b"3"]
        assert (await member.call(15, {**GROUP, "commitOffset": "4"})).code == 0


async def test_reset_is_told_after_the_brokers_restart_as_well(cluster: Cluster) -> None:
    async with java_broker(cluster) as member:
        for number in range(4):
            await member.call(310, send(), b"%d" % number)
        await member.call(34, None, heartbeat())
        assert (await member.call(15, {**GROUP, "commitOffset": "4"})).code == 0
        await cluster.command("group", "reset-offset", "cg", "--topic", "orders", "--queue", "broker-a:0", "--to", "1")
        await cluster.kill("broker-a")
    await cluster.broker("broker-a")
    async with java_wire(cluster.addresses["broker-a"], JSON) as member:
        await member.call(34, None, heartbeat())
        assert (await member.call(15, {**GROUP, "commitOffset": "4"})).code == 16
        told = await member.call(11, pull(4))
        assert (told.code, told.fields["nextBeginOffset"]) == (21, "1")
