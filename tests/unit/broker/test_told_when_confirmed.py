"""A broker tells nothing that its log may still lose: neither to nameservers nor to members of groups (ordering.md 8.9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from support.java_requests import heartbeat
from support.java_wire import JSON, java_wire
from support.native import Member, Native, native
from support.power_cuts import Machine, hold_syncs
from support.until import until

TOPIC = "orders"


@asynccontextmanager
async def nameserver() -> AsyncIterator[Nameserver]:
    served = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


def changed(layout: TopicLayout | None) -> tuple[int, int]:
    return (0, 0) if layout is None else (layout.version.counter, layout.read_count("broker-a"))


async def settle(client: Native) -> None:
    """Let the broker do what it can do without the disk."""
    for _ in range(5):
        await client.send_request(RequestCode.GET_BROKER_RUNTIME_INFO)


@pytest.mark.parametrize("deleted", [False, True])
async def test_nameserver_learns_a_layout_or_a_deletion_when_the_disk_has_it(deleted: bool) -> None:
    async with nameserver() as served:
        machine = Machine(flush="sync", nameserver=served.address)
        async with machine.serving() as broker, native(broker.address) as client:
            here = await client.create(TOPIC)
            await until(lambda: changed(served.table.layouts.get(TOPIC)) == (1, 1))
            asked = here.deletion if deleted else TopicLayout(TOPIC, LayoutVersion(2, 7), (LayoutEntry("broker-a", 3, 3, 2),))
            with hold_syncs(broker):
                done = client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC), encode_body(asked))
                await settle(client)
                (peer,) = broker.running.registration._peers
                peer.wake.set()  # the period is over
                await settle(client)
                assert changed(broker.state.layouts.get(TOPIC)) == changed(asked)
                assert changed(served.table.layouts.get(TOPIC)) == (1, 1)
            await done
            await until(lambda: changed(served.table.layouts.get(TOPIC)) == changed(asked))


async def test_members_learn_lists_layouts_and_free_queues_when_the_disk_has_them() -> None:
    machine = Machine(flush="sync")
    async with machine.serving() as broker, native(broker.address) as one, native(broker.address) as two, native(broker.address) as tool:
        await tool.create(TOPIC, 2)
        first, second = Member(one, TOPIC), Member(two, TOPIC, client_id="b@1#0", session="1" * 32)
        await first.join()
        await first.lock(0)
        await settle(one)
        while not one.inbound.empty():
            one.inbound.get_nowait()
        layout = TopicLayout(TOPIC, LayoutVersion(2, 7), (LayoutEntry("broker-a", 2, 2, 1), LayoutEntry("broker-a", 1, 1, 2)))
        with hold_syncs(broker):
            joining = asyncio.ensure_future(second.join())
            altering = tool.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC), encode_body(layout))
            await settle(tool)
            assert one.inbound.empty()
            assert two.inbound.empty()
        await joining
        await altering
        await until(lambda: one.inbound.qsize() >= 2)
        told = {one.inbound.get_nowait().code for _ in range(one.inbound.qsize())}
        assert {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.LAYOUTS_CHANGED} <= told


async def test_classic_member_learns_of_a_reset_when_the_disk_has_it() -> None:
    machine = Machine(flush="sync")
    async with machine.serving() as broker, native(broker.address) as client, java_wire(broker.address, JSON) as member:
        await client.create(TOPIC)
        await client.send(TOPIC, b"one")
        assert (await member.call(RequestCode.HEART_BEAT, body=heartbeat("billing", "c@1"))).code == 0
        fields = {"topic": TOPIC, "group": "billing", "timestamp": "-1", "isForce": "true"}
        async with java_wire(broker.address, JSON) as tool:
            with hold_syncs(broker):
                resetting = asyncio.ensure_future(tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields))
                await until(lambda: broker.state.coordination.state.progress.get(("billing", TOPIC, 0)) is not None)
                await settle(client)
                assert (await member.call(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})).code == 0
                assert RequestCode.RESET_CONSUMER_CLIENT_OFFSET not in {pushed.code for _, _, pushed in member.pushed}
            assert (await resetting).code == 0
            while (await member.next_request())[2].code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                pass
