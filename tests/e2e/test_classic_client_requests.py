"""A client without a session, request by request in native frames against a broker process: RocketMQ's own rules (ordering.md 12).

The end of 60 s leases and 120 s memberships is tested in unit/broker/test_classic_client_locks.py, where time is passed in.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.bodies import (
    ConsumerGroup,
    CreateTopicReply,
    HeartbeatBody,
    HeartbeatReply,
    LockBatchBody,
    LockBatchReply,
    LockVerdict,
    MemberList,
    ProducerGroup,
    QueueRef,
    Subscription,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.clients import GroupHeader, UnregisterClientHeader
from lockstep.protocol.headers.offsets import (
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from lockstep.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullReply
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.messages.ids import parse_offset_message_id
from lockstep.protocol.messages.message import decode_messages
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.tags import java_string_hash
from support.background import Background, background
from support.native import Member, Native, bodies, native

pytestmark = pytest.mark.e2e

QUEUES = 4
NAMES = count()


@dataclass
class Served:
    broker: Background
    address: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("classic")
    command = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(folder / "s"), "--auto-create-topics")
    with background(folder, "broker", *command, ready="broker.started") as broker:
        yield Served(broker, broker.started("broker.started")["address"])
        assert broker.complained.read_text() == ""
        assert broker.find("request.failed") == []


@dataclass
class Classic:
    """One client id on one connection."""

    client: Native
    client_id: str
    group: str
    topic: str

    async def beat(self, expression: str = "*", *, version: int = 1) -> HeartbeatReply:
        """Send HEART_BEAT without a session."""
        group = ConsumerGroup(self.group, (Subscription(self.topic, expression, sub_version=version),), ordered=True)
        body = HeartbeatBody(self.client_id, (group,), (ProducerGroup("shop"),))
        return decode_body(HeartbeatReply, (await self.client.done(RequestCode.HEART_BEAT, body=encode_body(body))).body)

    async def members(self) -> tuple[str, ...]:
        return decode_body(
            MemberList, (await self.client.done(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self.group))).body
        ).members

    async def lock(self, *queue_ids: int, broker: str = "broker-a") -> list[int]:
        """Return the queue ids that this client holds now."""
        response = await self.client.done(RequestCode.LOCK_BATCH_MQ, body=self._batch(queue_ids, broker))
        return [ref.queue_id for ref in decode_body(LockBatchReply, response.body).lock_ok_mq_set]

    async def unlock(self, *queue_ids: int) -> None:
        await self.client.done(RequestCode.UNLOCK_BATCH_MQ, body=self._batch(queue_ids, "broker-a"))

    def _batch(self, queue_ids: tuple[int, ...], broker: str) -> bytes:
        return encode_body(LockBatchBody(self.client_id, self.group, tuple(QueueRef(self.topic, broker, each) for each in queue_ids)))

    async def update(self, offset: int, queue_id: int = 0) -> Command:
        return await self.client.send_request(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(self.group, self.topic, queue_id, offset)
        )

    async def query(self, queue_id: int = 0) -> Command:
        return await self.client.send_request(
            RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(self.group, self.topic, queue_id)
        )

    async def committed(self, queue_id: int = 0) -> int:
        response = await self.query(queue_id)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return int(response.fields["offset"])

    def pull(self, offset: int = 0, queue_id: int = 0, **header: object) -> "asyncio.Future[Command]":
        known = {"max_msg_nums": 32, "max_msg_bytes": None}
        return self.client.pull(self.topic, offset, queue_id, group=self.group, **{**known, **header})


@asynccontextmanager
async def clients(served: Served, *names: str, messages: int = 10) -> AsyncIterator[list[Classic]]:
    """Connect classic clients of a new group and a new topic with `messages` messages in queue 0, each on its own connection."""
    number = next(NAMES)
    topic, group = f"orders-{number}", f"billing-{number}"
    made: list[Classic] = []
    async with native(served.address) as sender:
        await sender.create(topic, QUEUES)
        for message in range(messages):
            await sender.done(RequestCode.SEND_MESSAGE, {"producerGroup": "shop", "topic": topic, "queueId": 0}, b"%d" % message)
        connections = [native(served.address) for _ in names]
        try:
            for name, connection in zip(names, connections, strict=True):
                made.append(Classic(await connection.__aenter__(), name, group, topic))
                await made[-1].beat()
            yield made
        finally:
            for connection in connections:
                await connection.__aexit__(None, None, None)


# ------------------------------------------------------------------------------------------------------------- membership


async def test_heartbeat_without_a_session_is_a_member_until_its_connection_closes(served: Served) -> None:
    async with clients(served, "b@1", "a@1") as (b, a):
        assert await a.members() == ("a@1", "b@1")
        reply = await a.beat()
        assert reply.broker_name == "broker-a"
        assert reply.groups[a.group].list.classic
        b.client.endpoint.abort("gone")
        await b.client.endpoint.wait_closed()
        while await a.members() != ("a@1",):
            pass
        await a.client.done(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("a@1", consumer_group=a.group))
        code, remark = await a.client.refused(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(a.group))
        assert (code, remark) == (ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {a.group}")


async def test_members_are_notified_when_the_list_changes(served: Served) -> None:
    async with clients(served, "a@1", "b@1") as (a, b):
        while (await a.client.inbound.get()).fields["consumerGroup"] != a.group:
            pass
        b.client.endpoint.abort("gone")
        notice = await a.client.inbound.get()
        assert (notice.code, notice.fields["consumerGroup"]) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, a.group)


# ---------------------------------------------------------------------------------------------------- RebalanceLockManager


async def test_lock_is_granted_renewed_rejected_released_and_taken_over(served: Served) -> None:
    async with clients(served, "a@1", "b@1") as (a, b):
        assert await a.lock(0, 1) == [0, 1]
        assert await a.lock(0, 1, 2) == [0, 1, 2]
        assert await b.lock(0, 1, 2, 3) == [3]
        await b.unlock(0)
        assert await b.lock(0) == []
        await a.unlock(0, 3)
        assert await b.lock(0, 3) == [0, 3]
        assert await a.lock(0, 1, 2, 3) == [1, 2]
        assert await a.lock(1, broker="broker-b") == []
        assert await a.lock(QUEUES, -1) == []


async def test_lock_survives_its_connection_and_is_renewed_on_the_next(served: Served) -> None:
    async with clients(served, "a@1", "b@1") as (a, b):
        assert await a.lock(0) == [0]
        a.client.endpoint.abort("gone")
        await a.client.endpoint.wait_closed()
        assert await b.lock(0) == []
        async with native(served.address) as again:
            a.client = again
            assert await a.lock(0) == [0]
            await a.unlock(0)
        assert await b.lock(0) == [0]


async def test_lock_by_a_non_member_is_granted(served: Served) -> None:
    async with clients(served, "a@1") as (a,):
        stranger = Classic(a.client, "stranger", "unheard-of", a.topic)
        assert await stranger.lock(0) == [0]


async def test_queue_is_never_held_by_a_session_and_a_classic_client(served: Served) -> None:
    async with clients(served, "a@1") as (a,), native(served.address) as connection:
        member = Member(connection, a.topic, a.group, client_id="n@1#0", session=f"{next(NAMES):032x}")
        await member.join()
        grant = await member.lock(0)
        assert grant.verdict is LockVerdict.OK
        assert await a.lock(0, 1) == [1]
        assert (await member.lock(1, epoch=None)).verdict is LockVerdict.HELD
        await a.unlock(1)
        assert (await member.lock(1)).verdict is LockVerdict.OK


async def test_locks_and_members_survive_kill_9(tmp_path: Path) -> None:
    command = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s"))
    for life in range(2):
        with background(tmp_path, f"broker-{life}", *command, ready="broker.started") as broker:
            served = Served(broker, broker.started("broker.started")["address"])
            async with native(served.address) as one, native(served.address) as two:
                a, b = Classic(one, "a@1", "billing", "orders"), Classic(two, "b@1", "billing", "orders")
                if life == 0:
                    await one.create("orders", QUEUES)
                    await a.beat()
                    assert await a.lock(0) == [0]
                    assert (await a.update(0)).code == ResponseCode.SUCCESS
                else:
                    assert await b.members() == ("a@1",)
                    assert await b.lock(0) == []
                    assert await a.lock(0) == [0]
                    assert await b.committed() == 0


# ------------------------------------------------------------------------------------- the table: requests without an epoch


async def free_queue(asker: Classic, other: Classic, session: Member) -> None:
    """The queue is free."""


async def held_by_itself(asker: Classic, other: Classic, session: Member) -> None:
    assert await asker.lock(0) == [0]


async def held_by_another(asker: Classic, other: Classic, session: Member) -> None:
    assert await other.lock(0) == [0]


async def held_by_a_session(asker: Classic, other: Classic, session: Member) -> None:
    await session.join()
    assert (await session.lock(0)).verdict is LockVerdict.OK


@pytest.mark.parametrize(
    ("hold", "applied", "frees", "holder"),
    [
        (free_queue, True, None, None),
        (held_by_itself, True, None, None),
        (held_by_another, False, "b@1", "b@1"),
        (held_by_a_session, False, "n@1#0", "n@1#0"),
    ],
)
async def test_requests_without_an_epoch_follow_the_table_of_ordering_12_3(
    served: Served, hold: object, applied: bool, frees: str | None, holder: str | None
) -> None:
    """PULL is always served; its commit, an update and an unlock count unless another client holds the queue."""
    async with clients(served, "a@1", "b@1") as (a, b), native(served.address) as connection:
        session = Member(connection, a.topic, a.group, client_id="n@1#0", session=f"{next(NAMES):032x}")
        assert (await a.update(5)).code == ResponseCode.SUCCESS
        before = await Member(connection, a.topic, a.group).status()
        await hold(a, b, session)  # type: ignore[operator]

        pulled = await a.pull(3, sys_flag=SUBSCRIPTION | COMMIT_OFFSET, commit_offset=6)
        assert bodies(pulled) == [b"%d" % number for number in range(3, 10)]
        assert await a.committed() == (6 if applied else 5)

        response = await a.update(8)
        if applied:
            assert response.code == ResponseCode.SUCCESS
            assert await a.committed() == 8
            assert (await session.status()).generation == before.generation
            assert (await a.update(2)).code == ResponseCode.SUCCESS
            assert await a.committed() == 2
            assert (await session.status()).generation > before.generation
        else:
            assert response.code == ResponseCode.NO_PERMISSION
            assert f"held by {holder} of group {a.group}" in (response.remark or "")
            assert await a.committed() == 5
            assert (await a.update(2)).code == ResponseCode.NO_PERMISSION

        await a.unlock(0)
        assert (await session.status()).owner == frees


async def test_offset_beyond_the_end_or_below_0_is_rejected(served: Served) -> None:
    async with clients(served, "a@1") as (a,):
        assert (await a.update(10)).code == ResponseCode.SUCCESS
        for offset in (11, -1):
            response = await a.update(offset)
            assert response.code != ResponseCode.SUCCESS
            assert "0 to 10" in (response.remark or "")
        assert await a.committed() == 10


# ----------------------------------------------------------------------------------------------------------------- offsets


async def test_young_queue_without_a_commit_has_offset_0(served: Served) -> None:
    """RocketMQ's rule: nothing was removed from the queue and its first message is recent. It includes queues without a message."""
    async with clients(served, "a@1") as (a,):
        assert [await a.committed(queue_id) for queue_id in range(QUEUES)] == [0, 0, 0, 0]
        assert (await a.update(7)).code == ResponseCode.SUCCESS
        assert await a.committed() == 7


async def test_bounds_and_search_by_time_match_the_stored_messages(served: Served) -> None:
    async with clients(served, "a@1", messages=3) as (a,):
        send_request = a.client.done
        assert (await send_request(RequestCode.GET_MAX_OFFSET, QueueHeader(a.topic, 0))).fields == {"offset": 3}
        assert (await send_request(RequestCode.GET_MIN_OFFSET, QueueHeader(a.topic, 0))).fields == {"offset": 0}
        assert (await send_request(RequestCode.GET_MAX_OFFSET, QueueHeader(a.topic, 99))).fields == {"offset": 0}
        assert (await send_request(RequestCode.GET_MIN_OFFSET, QueueHeader(a.topic, 99))).fields == {"offset": -1}
        stored = [message.stored_ms for message in decode_messages(bytes((await a.pull()).body), "broker-a")]
        for offset, at in enumerate(stored):
            found = (await send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(a.topic, 0, at))).fields["offset"]
            assert found == stored.index(at), offset
        assert (await send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(a.topic, 0, 1))).fields == {"offset": 0}


# -------------------------------------------------------------------------------------------------------------------- pull


async def tagged(classic: Classic, *tags: str) -> None:
    """Send a message for each tag ("-" is none); its body is the tag."""
    for tag in tags:
        response = await classic.client.send(classic.topic, tag.encode(), properties="" if tag == "-" else f"TAGS\x01{tag}\x02")
        assert response.code == ResponseCode.SUCCESS


async def test_tag_expression_of_a_pull_filters_by_hash(served: Served) -> None:
    """ "Aa" and "BB" have one hash in Java: the broker lets both pass, the client compares the tags themselves."""
    assert java_string_hash("Aa") == java_string_hash("BB")
    async with clients(served, "a@1", messages=0) as (a,):
        await tagged(a, "Aa", "paid", "-", "BB", "created", "Aa")
        for expression, expected in {
            "*": [b"Aa", b"paid", b"-", b"BB", b"created", b"Aa"],
            "Aa": [b"Aa", b"BB", b"Aa"],
            "paid || created": [b"paid", b"created"],
        }.items():
            response = await a.pull(subscription=expression)
            assert bodies(response) == expected
            assert from_plain(PullReply, response.fields).next_begin_offset == 6
        nothing = await a.pull(subscription="shipped")
        assert (nothing.code, nothing.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 6)
        bad = await a.pull(subscription="|| ||")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (await a.pull(expression_type="XPATH", subscription="a > 1")).code == ResponseCode.SYSTEM_ERROR


async def test_pull_without_an_expression_uses_that_of_the_heartbeat(served: Served) -> None:
    async with clients(served, "a@1", messages=0) as (a,):
        await tagged(a, "paid", "created")
        await a.beat("created", version=7)
        assert bodies(await a.pull(sys_flag=0, sub_version=7)) == [b"created"]
        assert bodies(await a.pull(sys_flag=0, sub_version=6)) == [b"created"]
        newer = await a.pull(sys_flag=0, sub_version=8)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await a.beat("paid", version=6)
        assert bodies(await a.pull(sys_flag=0, sub_version=6)) == [b"created"]
        stranger = Classic(a.client, "s@1", "unheard-of", a.topic)
        assert (await stranger.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_classic_pull_returns_at_most_32_messages_and_256_kib(served: Served) -> None:
    async with clients(served, "a@1", messages=40) as (a,):
        assert len(bodies(await a.pull(max_msg_nums=1_000))) == 32
        for _ in range(5):
            assert (await a.client.send(a.topic, bytes(100_000), 1)).code == ResponseCode.SUCCESS
        assert len(bodies(await a.pull(0, 1))) == 2


@pytest.mark.parametrize(
    ("queue_id", "offset", "code", "following"),
    [
        (0, 10, ResponseCode.PULL_NOT_FOUND, 10),
        (0, 11, ResponseCode.PULL_OFFSET_MOVED, 10),
        (0, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (1, 0, ResponseCode.PULL_NOT_FOUND, 0),
        (1, 5, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
async def test_pull_outside_the_queue_gets_rocketmqs_code_and_next_offset(
    served: Served, queue_id: int, offset: int, code: ResponseCode, following: int
) -> None:
    async with clients(served, "a@1") as (a,):
        response = await a.pull(offset, queue_id)
        assert (response.code, response.fields["nextBeginOffset"]) == (code, following)


async def test_long_poll_is_woken_only_by_a_matching_message(served: Served) -> None:
    async with clients(served, "a@1", "b@1", messages=0) as (a, b):
        held = a.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20_000, subscription="paid")
        for _ in range(2):
            await a.members()  # a pull is served after the other frames of its loop turn: it is held now
        await tagged(b, "created")
        await b.members()
        assert not held.done()
        await tagged(b, "paid")
        assert bodies(await held) == [b"paid"]


# ------------------------------------------------------------------------------------------------- messages and topics


async def test_message_is_found_only_by_its_exact_position(served: Served) -> None:
    async with clients(served, "a@1", messages=0) as (a,):
        sent = await a.client.send(a.topic, b"hello", 2, "TAGS\x01paid\x02KEYS\x01k\x02WAIT\x01true\x02")
        assert sent.code == ResponseCode.SUCCESS
        host, place = parse_offset_message_id(sent.fields["msgId"])
        assert host == served.address
        record = RecordView((await a.client.done(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(place))).body)
        assert (record.body, record.topic.decode(), record.queue_id, record.physical_offset) == (b"hello", a.topic, 2, place)
        assert record.properties == b"TAGS\x01paid\x02KEYS\x01k"
        for elsewhere in (place + 1, place - 1, -1, 0, 1 << 40, 2**63 - 1):
            code, remark = await a.client.refused(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(elsewhere))
            assert (code, str(elsewhere) in remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_state_records_are_hidden(served: Served) -> None:
    """The log's first record is the term."""
    async with native(served.address) as client:
        code, _ = await client.refused(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(0))
        assert code == ResponseCode.SYSTEM_ERROR


async def test_topic_created_without_a_layout_gets_queues_of_this_broker(served: Served) -> None:
    topic = f"made-{next(NAMES)}"
    async with native(served.address) as client:

        async def make(**counts: Any) -> Command:
            return await client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, **counts))

        made = decode_body(CreateTopicReply, (await make(read_queue_nums=2, write_queue_nums=2)).body).layout
        assert (made.read_count("broker-a"), made.write_count("broker-a"), made.version.counter) == (2, 2, 1)
        assert decode_body(CreateTopicReply, (await make(read_queue_nums=2, write_queue_nums=2)).body).layout == made
        grown = decode_body(CreateTopicReply, (await make(read_queue_nums=5, write_queue_nums=5)).body).layout
        assert (grown.read_count("broker-a"), grown.version.counter) == (5, 2)
        assert [each.queue_id for each in grown.write_queues] == [0, 1, 2, 3, 4]
        assert (await client.send(topic, b"x", 4)).code == ResponseCode.SUCCESS
        smaller = await make(read_queue_nums=3, write_queue_nums=3)
        assert smaller.code == ResponseCode.NO_PERMISSION
        assert "order per key would break" in (smaller.remark or "")
        for counts in ({"read_queue_nums": 0, "write_queue_nums": 0}, {"read_queue_nums": -1, "write_queue_nums": 4}):
            assert (await make(**counts)).code != ResponseCode.SUCCESS
        usual = await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(f"usual-{next(NAMES)}"))
        assert decode_body(CreateTopicReply, usual.body).layout.write_count("broker-a") == 8


async def test_first_send_creates_its_topic_if_permitted(served: Served) -> None:
    topic = f"auto-{next(NAMES)}"
    async with native(served.address) as client:
        header = {"producerGroup": "shop", "topic": topic, "queueId": -1, "defaultTopicQueueNums": 3}
        placed = {(await client.done(RequestCode.SEND_MESSAGE, header, b"x")).fields["queueId"] for _ in range(40)}
        assert placed == {0, 1, 2}
