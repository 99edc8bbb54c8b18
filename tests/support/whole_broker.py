"""A complete broker in this process, on a free port with its own store, and a client that sends native frames."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    CreateTopicReply,
    HeartbeatBody,
    HeartbeatReply,
    LockItem,
    LockVerdict,
    SessionLockBody,
    SessionLockReply,
    StartPolicy,
    Subscription,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from support.native import Native

PRODUCER = "ab" * 16


TOPIC = "orders"


LAYOUT = TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),))


def settings(path: Path, **values: Any) -> BrokerConfig:
    return BrokerConfig(**{"listen": ("127.0.0.1:0",), "store": str(path / "store"), "segment_mib": 4, "disk_reserve_mib": 1, **values})


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[Broker]:
    broker = Broker(config, Host.current())
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def dialled(broker: Broker, security: ClientSecurity = NO_SECURITY) -> AsyncIterator["Client"]:
    inbound: asyncio.Queue[Command] = asyncio.Queue()
    endpoint = await connect(Host.current(), broker.address, security=security, handler=lambda command, _: inbound.put_nowait(command))
    try:
        yield Client(endpoint, inbound)
    finally:
        endpoint.close("done")
        await endpoint.wait_closed()


class Client(Native):
    """A client that uses TOPIC and group g."""

    async def create(self, layout: TopicLayout = LAYOUT) -> TopicLayout:  # type: ignore[override]
        response = await self.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(layout.topic), encode_body(layout))
        return decode_body(CreateTopicReply, response.body).layout

    def pull(  # type: ignore[override]
        self, offset: int = 0, queue_id: int = 0, **header: Any
    ) -> "asyncio.Future[Command]":
        known = {"sys_flag": SUBSCRIPTION, "max_msg_nums": 100, "max_msg_bytes": 1 << 20}
        return self.send_request(RequestCode.PULL_MESSAGE, PullHeader("g", TOPIC, queue_id, offset, **{**known, **header}))


def frame(first: int, count: int, *, crc: int = 0, queue_id: int = 0, body: bytes = b"m") -> tuple[SendRecordsHeader, bytes, int]:
    """Return (header, body, running CRC) of an idempotent frame."""
    records = [encode_record(TOPIC.encode(), queue_id, body + b"%d" % (first + i), b"TAGS\x01a", born_ms=1) for i in range(count)]
    data, sealed = seal_frame(records, FrameSequence(PRODUCER, 0, 1, first, count, first == 0, 0), crc)
    header = SendRecordsHeader(TOPIC, queue_id, count, None, None, PRODUCER, 0, 1, first, first == 0, sealed.crc)
    return header, data, sealed.crc


def place(response: Command) -> SendRecordsReply:
    return from_plain(SendRecordsReply, response.fields)


async def stop(broker: Broker) -> None:
    await broker.stop()


async def kill(broker: Broker) -> None:
    """End the broker as by kill −9: without a flush, a snapshot or an unregistration."""
    store = broker._store
    assert store is not None
    broker._fail(RuntimeError("killed"))
    await broker.stop()


async def heartbeat(client: Client, client_id: str, session: str, connection: int = 1, topic: str = TOPIC) -> HeartbeatReply:
    group = ConsumerGroup("g", (Subscription(topic),), consume_from_where=ConsumeFromWhere.FIRST_OFFSET, ordered=True)
    body = HeartbeatBody(client_id, (group,), session=session, connection=connection)
    return decode_body(HeartbeatReply, (await client.done(RequestCode.HEART_BEAT, body=encode_body(body))).body)


async def reconcile(client: Client, item: LockItem) -> Any:
    body = SessionLockBody((item,), (StartPolicy("g", TOPIC, ConsumeFromWhere.FIRST_OFFSET),))
    reply = decode_body(SessionLockReply, (await client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))).body)
    return reply.items[0]


async def join(client: Client, client_id: str, session: str) -> int:
    """Send HEART_BEAT and LOCK of queue 0. Return the epoch."""
    reply = await heartbeat(client, client_id, session)
    assert reply.groups["g"].list.members == (client_id,)
    response = await reconcile(client, LockItem("g", TOPIC, 0))
    assert response.verdict is LockVerdict.OK
    return int(response.epoch)


async def stored(client: Client, topic: str, queue_id: int = 0, offset: int = 0) -> list[RecordView]:
    """Return the messages of a queue of any topic from `offset` on, or none if the queue does not begin below it."""
    header = PullHeader("g", topic, queue_id, offset, 100, SUBSCRIPTION, max_msg_bytes=1 << 20)
    response = await client.send_request(RequestCode.PULL_MESSAGE, header)
    if response.code != ResponseCode.SUCCESS:
        return []
    return [RecordView(response.body, start) for start, _ in split_records(response.body)]
