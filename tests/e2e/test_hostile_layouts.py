"""Invalid layouts and registrations are rejected one by one, other clients continue, and every server restarts.

Each test runs with a nameserver, a broker, a producer and an ordered consumer. Afterwards the broker is killed and started again: it
registers, and serves.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lockstep.protocol.bodies import ClusterInfo, DataVersion, RegisterBody, RegisterReply, TopicList
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import CreateTopicHeader, RegisterBrokerHeader
from lockstep.protocol.topics.layouts import COUNTER_MAX, PART_LAYOUTS_MAX, QUEUES_PER_BROKER_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.hostile_world import World, checked_world, hostile_world
from support.native import Member, Native, native

pytestmark = pytest.mark.e2e

MIB = 1 << 20
TOPICS_MAX = 4_500
"""More layouts than one part of a registration has."""
PROOF = "d" * 32
INVENTED = 3_000
"""Brokers that do not exist."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hostile_world(tmp_path, of_broker=("--segment-mib", "8", "--topics-max", str(TOPICS_MAX))) as made:
        yield made


@pytest.fixture(autouse=True)
async def undisturbed(world: World) -> AsyncIterator[None]:
    """Check that producer and consumer continued without an error, and that the broker, killed, starts again and registers."""
    async with checked_world(world):
        yield
    with world.restarted_broker() as again:
        assert again.find("layout.refused") == []
        async with native(world.nameserver_address) as client:
            found = decode_body(ClusterInfo, (await client.done(RequestCode.GET_BROKER_CLUSTER_INFO)).body).brokers
            assert [each.address for each in found if each.registered] == [again.started("broker.started")["address"]]


def layout(topic: str, counter: int, *brokers: str, queues: int = 1) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, 7), tuple(LayoutEntry(name, queues, queues, 1) for name in brokers))


def create(client: Native, wanted: TopicLayout) -> "asyncio.Future[object]":
    return client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(wanted.topic), encode_body(wanted))  # type: ignore[return-value]


async def test_no_sequence_of_counters_blocks_a_topic_or_its_broker(world: World) -> None:
    """The highest counter, its deletion, and the topic again."""
    async with native(world.broker_address) as client:
        for wanted in (
            layout("t", COUNTER_MAX - 1, "broker-a"),
            layout("t", COUNTER_MAX, "broker-a"),
            layout("t", (1 << 20) + 1, "broker-a"),
        ):
            code, remark = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("t"), encode_body(wanted))
            assert (code, "1048576 above 0" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        for wanted in (layout("t", 1 << 20, "broker-a"), layout("t", (1 << 20) + 1), layout("t", 1, "broker-a")):
            await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("t"), encode_body(wanted))
        await client.create("after")
        assert (await client.send("t", b"x")).code == ResponseCode.SUCCESS


async def test_topic_above_the_limit_is_rejected_by_name(world: World) -> None:
    async with native(world.broker_address) as client:
        responses = await asyncio.gather(*(create(client, layout(f"t-{number}", 1, "broker-a")) for number in range(TOPICS_MAX - 1)))
        refused = [response for response in responses if response.code != ResponseCode.SUCCESS]  # type: ignore[attr-defined]
        assert [response.code for response in refused] == [ResponseCode.NO_PERMISSION]  # type: ignore[attr-defined]
        assert f"topic t-{TOPICS_MAX - 2} was not created: the cluster has {TOPICS_MAX} topics" in refused[0].remark  # type: ignore[attr-defined]
    async with native(world.nameserver_address) as client:
        while len(decode_body(TopicList, (await client.done(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body).topics) < TOPICS_MAX:
            await world.until_progress()


async def test_layout_of_many_brokers_costs_a_broker_only_its_own_queues(world: World) -> None:
    foreign = tuple(f"broker-{number}" for number in range(3))
    huge = TopicLayout(
        "huge",
        LayoutVersion(1, 7),
        (*layout("huge", 1, *foreign, queues=QUEUES_PER_BROKER_MAX).entries, LayoutEntry("broker-a", 4, 4, 1)),
    )
    too_many = layout("more", 1, *foreign, "broker-3", "broker-a", queues=QUEUES_PER_BROKER_MAX)
    before = world.broker.resident_bytes()
    async with native(world.broker_address) as client:
        code, remark = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("more"), encode_body(too_many))
        assert (code, "81920 queues over all brokers, 65536 allowed" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("huge"), encode_body(huge))
        member = Member(client, "huge", "readers")
        await member.join()
        assert (await member.lock(3)).epoch > 0
    assert world.broker.resident_bytes() - before < 16 * MIB


async def test_invented_brokers_use_bounded_memory_and_are_forgotten(world: World) -> None:
    before = world.nameserver.resident_bytes()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(native(world.nameserver_address))
        responses = []
        for number in range(INVENTED):
            header = RegisterBrokerHeader(f"b-{number}", "DefaultCluster", "127.0.0.1:1", f"{number:032x}", 1, PROOF, 0)
            body = RegisterBody({"internal": "127.0.0.1:1"}, (), DataVersion(1, 1))
            responses.append(client.send_request(RequestCode.REGISTER_BROKER, header, encode_body(body)))
        codes = [response.code for response in await asyncio.gather(*responses)]
        assert (codes.count(ResponseCode.SUCCESS), codes.count(ResponseCode.SERVICE_NOT_AVAILABLE)) == (1_023, INVENTED - 1_023)
        long = RegisterBody({"internal": "h" * 300 + ":1"}, (), DataVersion(1, 1))
        _, remark = await client.refused(
            RequestCode.REGISTER_BROKER, RegisterBrokerHeader("b", "c", "h:1", "e" * 32, 1, PROOF, 0), encode_body(long)
        )
        assert "at most 255 characters" in remark
    async with native(world.nameserver_address) as client:
        while len(decode_body(ClusterInfo, (await client.done(RequestCode.GET_BROKER_CLUSTER_INFO)).body).brokers) > 1:
            await world.until_progress()
        last = RegisterBrokerHeader("b-last", "DefaultCluster", "127.0.0.1:1", "e" * 32, 1, PROOF, 0)
        response = await client.done(
            RequestCode.REGISTER_BROKER, last, encode_body(RegisterBody({"internal": "h:1"}, (), DataVersion(1, 1)))
        )
        assert decode_body(RegisterReply, response.body).layouts != ()
    assert world.nameserver.resident_bytes() - before < 16 * MIB


async def test_topics_of_strangers_leave_space_for_others(world: World) -> None:
    """16,384 topics under two names, and a registration of 3,000 invalid layouts: it is accepted, and 1,024 of them are named."""

    def brings(name: str, layouts: tuple[TopicLayout, ...], part: int = 0, parts: int = 1) -> tuple[RegisterBrokerHeader, bytes]:
        header = RegisterBrokerHeader(name, "DefaultCluster", "127.0.0.1:1", f"{name:0>32}", 1, PROOF, 0)
        return header, encode_body(RegisterBody({"internal": "127.0.0.1:1"}, layouts, DataVersion(1, 1), part, parts))

    before = world.broker.resident_bytes(), world.nameserver.resident_bytes()
    async with native(world.nameserver_address) as client:
        for name in ("s-1", "s-2"):
            for part in range(2):
                many = tuple(layout(f"{name}-{part}-{number}", 1, name) for number in range(PART_LAYOUTS_MAX))
                await client.done(RequestCode.REGISTER_BROKER, *brings(name, many, part, 2))
                await world.until_progress()
        wrong = tuple(layout(f"wrong-{number}", 1, "s-3", queues=0) for number in range(3_000))
        response = decode_body(RegisterReply, (await client.done(RequestCode.REGISTER_BROKER, *brings("s-3", wrong))).body)
        assert (len(response.refused), response.refused_more) == (1_024, 3_000 - 1_024)
    async with native(world.broker_address) as client:
        while (
            await client.send_request(RequestCode.TOPIC_OFFSETS, TopicHeader(f"s-2-1-{PART_LAYOUTS_MAX - 1}"))
        ).code != ResponseCode.SUCCESS:
            await world.until_progress()
        code, remark = await client.refused(
            RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("t"), encode_body(layout("t", 1, "broker-a"))
        )
        assert (code, f"topics_max allows {TOPICS_MAX}" in remark) == (ResponseCode.NO_PERMISSION, True)
    after = world.broker.resident_bytes(), world.nameserver.resident_bytes()
    assert all(now - then < 64 * MIB for now, then in zip(after, before, strict=True))
