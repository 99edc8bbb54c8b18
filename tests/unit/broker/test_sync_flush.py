"""Sync flush seen by clients: no response and no message is visible before it is on the disk (store.md: State is log)."""

import pytest

from lockstep.broker.app import Broker
from lockstep.protocol.bodies import LockBatchBody, LockItem, QueueRef, SessionLockBody, SyncBody, SyncItem
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import OffsetReply, QueueHeader, UpdateConsumerOffsetHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.native import Member, Native, Stream, native
from support.power_cuts import Machine, hold_syncs

TOPIC = "orders"
RECORD = encode_record(TOPIC.encode(), 0, b"x", b"", born_ms=1)


def plain() -> tuple[RequestCode, object, bytes]:
    return RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1), RECORD


def keyed(counter: int) -> tuple[RequestCode, object, bytes]:
    return RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1, counter, 7), RECORD


def wider(counter: int, queues: int) -> tuple[RequestCode, object, bytes]:
    layout = TopicLayout(TOPIC, LayoutVersion(counter, 7), (LayoutEntry("broker-a", queues, queues, counter),))
    return RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC), encode_body(layout)


async def check_handled(client: Native) -> None:
    """Wait until everything sent earlier on this connection has been handled: the response to an empty SYNC is sent at once."""
    await client.done(RequestCode.SYNC, body=encode_body(SyncBody(())))


async def responses_after_the_disk(broker: Broker, client: Native, *requested: tuple[RequestCode, object, bytes]) -> list[int]:
    """Return the codes of the responses, none of which arrived before the disk had everything."""
    with hold_syncs(broker):
        responses = [client.send_request(*one) for one in requested]
        await check_handled(client)
        await check_handled(client)
        assert [response.done() for response in responses] == [False] * len(requested)
    return [(await response).code for response in responses]


@pytest.fixture
def machine() -> Machine:
    return Machine(flush="sync")


async def test_sends_repeats_and_rejections_that_reveal_state_wait_for_the_disk(machine: Machine) -> None:
    async with machine.serving() as broker, native(broker.address) as client:
        await client.create(TOPIC, 2)
        member = Member(client, TOPIC)
        await member.join()
        stream = Stream(TOPIC)
        old = RequestCode.SEND_RECORDS, *stream.frame(b"older")
        await client.done(*old)
        last = RequestCode.SEND_RECORDS, *stream.frame(b"a", b"b")
        gap = Stream(TOPIC)
        gap.next = 9
        classic = RequestCode.SEND_MESSAGE, SendMessageHeader("senders", TOPIC, 1), b"classic"
        codes = await responses_after_the_disk(
            broker, client, last, last, old, (RequestCode.SEND_RECORDS, *gap.frame(b"z")), plain(), classic, wider(2, 3), keyed(1)
        )
        assert codes == [
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
            ResponseCode.DUPLICATE,
            ResponseCode.OUT_OF_SEQUENCE,
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
            ResponseCode.LAYOUT_STALE,
        ]


async def test_locks_and_commits_wait_for_the_disk_even_without_a_change(machine: Machine) -> None:
    async with machine.serving() as broker, native(broker.address) as client:
        await client.create(TOPIC, 2)
        member = Member(client, TOPIC)
        await member.join()
        grant = await member.lock()
        await client.done(*plain())
        renew = RequestCode.LOCK_BATCH_MQ, None, encode_body(SessionLockBody((LockItem("billing", TOPIC, 0, grant.epoch),)))
        commit = SyncItem("billing", TOPIC, 0, epoch=grant.epoch, offset=1)
        stale = SyncItem("billing", TOPIC, 0, epoch=1, offset=1)
        sync = RequestCode.SYNC, None, encode_body(SyncBody((commit, stale)))
        assert await responses_after_the_disk(broker, client, sync, sync, renew) == [ResponseCode.SUCCESS] * 3


async def test_classic_locks_and_commits_wait_for_the_disk(machine: Machine) -> None:
    async with machine.serving() as broker, native(broker.address) as client:
        await client.create(TOPIC, 2)
        await client.done(*plain())
        batch = encode_body(LockBatchBody("c@1#0", "classics", (QueueRef(TOPIC, "broker-a", 0),)))
        with hold_syncs(broker):
            responses = [
                client.send_request(RequestCode.LOCK_BATCH_MQ, body=batch),
                client.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("classics", TOPIC, 1, 0)),
                client.send_request(RequestCode.UNLOCK_BATCH_MQ, body=batch),
            ]
            await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
            assert not any(response.done() for response in responses)
        assert [(await response).code for response in responses] == [ResponseCode.SUCCESS] * 3


async def test_readers_see_no_record_before_it_is_on_the_disk(machine: Machine) -> None:
    async with machine.serving() as broker, native(broker.address) as client, native(broker.address) as reader:
        await client.create(TOPIC)
        held = reader.send_request(
            RequestCode.PULL_MESSAGE,
            PullHeader("g", TOPIC, 0, 0, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=15_000, max_msg_bytes=1_000),
        )
        await reader.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        with hold_syncs(broker):
            end = broker._store._log.end  # type: ignore[union-attr]
            sent = client.send_request(*plain())
            for _ in range(3):
                response = await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
                assert from_plain(OffsetReply, response.fields).offset == 0
            fresh = await reader.send_request(RequestCode.PULL_MESSAGE, PullHeader("g", TOPIC, 0, 0, sys_flag=SUBSCRIPTION))
            assert fresh.code == ResponseCode.PULL_NOT_FOUND
            assert (await reader.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(end))).code == ResponseCode.SYSTEM_ERROR
            assert not held.done()
            assert not sent.done()
        assert (await sent).code == (await held).code == ResponseCode.SUCCESS
        await reader.done(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(end))
