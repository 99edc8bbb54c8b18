"""Requests in native frames to a real broker or nameserver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    CreateTopicReply,
    GroupStatusReply,
    HeartbeatBody,
    HeartbeatReply,
    LockItem,
    LockResult,
    QueueStatus,
    SessionLockBody,
    SessionLockReply,
    StartPolicy,
    Subscription,
    SyncBody,
    SyncItem,
    SyncReply,
    SyncResult,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupStatusHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity

TIMEOUT_MS = 20_000


class Native:
    """A connection. `inbound` contains the requests of the other end."""

    def __init__(self, endpoint: Endpoint, inbound: "asyncio.Queue[Command]") -> None:
        self.endpoint = endpoint
        self.inbound = inbound

    def send_request(self, code: int, header: object = None, body: bytes = b"") -> "asyncio.Future[Command]":
        """Return the response, whatever its code."""
        fields = header if isinstance(header, dict) else None if header is None else to_plain(header)
        return self.endpoint.request(code, fields, body, timeout_ms=TIMEOUT_MS)

    async def done(self, code: int, header: object = None, body: bytes = b"") -> Command:
        response = await self.send_request(code, header, body)
        assert response.code == ResponseCode.SUCCESS, (ResponseCode(response.code).name, response.remark)
        return response

    async def refused(self, code: int, header: object = None, body: bytes = b"") -> tuple[ResponseCode, str]:
        """Send a request that is refused. Return (code, remark)."""
        response = await self.send_request(code, header, body)
        assert response.code != ResponseCode.SUCCESS, response
        return ResponseCode(response.code), response.remark or ""

    async def create(self, topic: str, queues: int = 1, broker: str = "broker-a", *, writer: int = 7) -> TopicLayout:
        layout = TopicLayout(topic, LayoutVersion(1, writer), (LayoutEntry(broker, queues, queues, 1),))
        response = await self.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic), encode_body(layout))
        return decode_body(CreateTopicReply, response.body).layout

    def send(self, topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> "asyncio.Future[Command]":
        """Send a message as a classic client."""
        return self.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("senders", topic, queue_id, properties=properties), body)

    def pull(self, topic: str, offset: int = 0, queue_id: int = 0, *, group: str = "pullers", **header: Any) -> "asyncio.Future[Command]":
        known = {"sys_flag": SUBSCRIPTION, "max_msg_nums": 1_000, "max_msg_bytes": 1 << 20}
        return self.send_request(RequestCode.PULL_MESSAGE, PullHeader(group, topic, queue_id, offset, **{**known, **header}))

    async def everything(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Return the bodies of a queue from its first message on."""
        found: list[bytes] = []
        while (response := await self.pull(topic, len(found), queue_id)).code == ResponseCode.SUCCESS:
            found += bodies(response)
        assert response.code == ResponseCode.PULL_NOT_FOUND, response.remark
        return found

    async def reported(self, topic: str, queue_id: int = 0) -> tuple[list[bytes], list[int]]:
        """Read a queue as a consumer does, with retries after SYSTEM_BUSY. Return its bodies and the offsets reported as lost."""
        found: list[bytes] = []
        lost: list[int] = []
        while (response := await self.pull(topic, at := len(found) + len(lost), queue_id)).code != ResponseCode.PULL_NOT_FOUND:
            if response.code == ResponseCode.SUCCESS:
                found += bodies(response)
            elif response.code == ResponseCode.PULL_OFFSET_MOVED:
                assert response.fields["nextBeginOffset"] > at, response
                lost += range(at, response.fields["nextBeginOffset"])
            else:
                assert response.code == ResponseCode.SYSTEM_BUSY, response
                await asyncio.sleep(0)
        return found, lost


def bodies(response: Command) -> list[bytes]:
    """Return the message bodies of a pull response."""
    return [RecordView(response.body, start).body for start, _ in split_records(response.body)]


@asynccontextmanager
async def native(address: str, security: ClientSecurity = NO_SECURITY) -> AsyncIterator[Native]:
    """Yield a connection to `address`, closed at the end."""
    inbound: asyncio.Queue[Command] = asyncio.Queue()
    endpoint = await connect(Host.real(), address, security=security, handler=lambda command, _: inbound.put_nowait(command))
    try:
        yield Native(endpoint, inbound)
    finally:
        endpoint.abort("done")
        await endpoint.wait_closed()


class Stream:
    """An idempotent producer of one queue, frame by frame."""

    def __init__(self, topic: str, queue_id: int = 0, producer_id: str = "ab" * 16) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.producer_id = producer_id
        self.next = 0
        self.crc = 0
        self._before = (0, 0)

    def frame(self, *bodies: bytes) -> tuple[SendRecordsHeader, bytes]:
        """Return the next frame, which counts as sent."""
        self._before = self.next, self.crc
        count, first = len(bodies), self.next == 0
        records = [encode_record(self.topic.encode(), self.queue_id, body, b"", born_ms=1) for body in bodies]
        data, sealed = seal_frame(records, FrameSequence(self.producer_id, 0, 1, self.next, count, first, 0), self.crc)
        header = SendRecordsHeader(self.topic, self.queue_id, count, None, None, self.producer_id, 0, 1, self.next, first, sealed.crc)
        self.next, self.crc = sealed.next, sealed.crc
        return header, data

    def withdraw(self) -> None:
        """Withdraw the last, refused frame: the next one reuses its sequence."""
        self.next, self.crc = self._before


class Member:
    """An ordered consumer of one group and topic with a session, request by request."""

    def __init__(self, client: Native, topic: str, group: str = "billing", *, client_id: str = "a@1#0", session: str = "0" * 32) -> None:
        self.client = client
        self.topic = topic
        self.group = group
        self.client_id = client_id
        self.session = session
        self.connection = 0

    async def join(self, client: Native | None = None) -> HeartbeatReply:
        """Send HEART_BEAT on this connection, or on a newer one."""
        self.client = client or self.client
        self.connection += 1
        group = ConsumerGroup(self.group, (Subscription(self.topic),), consume_from_where=ConsumeFromWhere.FIRST_OFFSET, ordered=True)
        body = HeartbeatBody(self.client_id, (group,), session=self.session, connection=self.connection)
        return decode_body(HeartbeatReply, (await self.client.done(RequestCode.HEART_BEAT, body=encode_body(body))).body)

    async def lock(self, queue_id: int = 0, epoch: int | None = None, offset: int | None = None) -> LockResult:
        """Send LOCK of a queue: wanted without an epoch, held with one."""
        item = LockItem(self.group, self.topic, queue_id, epoch, offset)
        body = SessionLockBody((item,), (StartPolicy(self.group, self.topic, ConsumeFromWhere.FIRST_OFFSET),))
        response = await self.client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
        return decode_body(SessionLockReply, response.body).items[0]

    async def commit(self, epoch: int, offset: int, queue_id: int = 0, *, release: bool = False) -> SyncResult:
        """Send SYNC of a queue."""
        item = SyncItem(self.group, self.topic, queue_id, epoch=epoch, offset=offset, release=release)
        response = await self.client.done(RequestCode.SYNC, body=encode_body(SyncBody((item,))))
        return decode_body(SyncReply, response.body).items[0]

    async def status(self, queue_id: int = 0) -> QueueStatus:
        """Return the part of GROUP_STATUS for one queue."""
        response = await self.client.done(RequestCode.GROUP_STATUS, GroupStatusHeader(self.group))
        status = decode_body(GroupStatusReply, response.body).status
        assert status is not None
        return {queue.queue_id: queue for queue in status.queues if queue.topic == self.topic}[queue_id]
