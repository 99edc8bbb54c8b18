"""A real nameserver, and brokers that only answer what they were given, on a loop in a thread: commands own the main thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import (
    CreateTopicReply,
    DataVersion,
    GroupStatus,
    GroupStatusReply,
    OffsetRange,
    RegisterBody,
    RegisterReply,
    TopicOffsets,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, QueryNotFoundError, SubscriptionGroupNotExistError, TopicNotExistError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import DeleteGroupHeader, GroupStatusHeader
from lockstep.protocol.headers.offsets import TopicHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import PullHeader, PullReply
from lockstep.protocol.headers.routes import CreateTopicHeader, RegisterBrokerHeader
from lockstep.protocol.layouts import LayoutTable
from lockstep.protocol.message import Message, encode_message
from lockstep.protocol.queue import TopicLayout
from lockstep.protocol.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, STORE_HOST_AT, STORE_TIMESTAMP_AT, pack_host
from lockstep.runtime.dispatch import Dispatcher, handles
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.link import connect
from lockstep.runtime.request import NO_RESPONSE, Outcome, Request
from lockstep.runtime.server import Server

T = TypeVar("T")
STORED_MS = 1_700_000_000_000
STORE_HOST = "10.9.8.7:10911"
"""What records carry: an address that nobody can dial from here."""


def stored(message: Message, queue_id: int, queue_offset: int, physical_offset: int, *, store_host: str = STORE_HOST) -> bytes:
    """A record as a broker stores it."""
    record = bytearray(encode_message(message, queue_id, f"{physical_offset:032X}", STORED_MS - 5))
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = queue_offset.to_bytes(8, "big")
    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = physical_offset.to_bytes(8, "big")
    record[STORE_TIMESTAMP_AT : STORE_TIMESTAMP_AT + 8] = STORED_MS.to_bytes(8, "big")
    record[STORE_HOST_AT : STORE_HOST_AT + 8] = pack_host(store_host)
    return bytes(record)


@dataclass
class FakeBroker:
    """Answers from its fields."""

    name: str
    layouts: LayoutTable = field(default_factory=LayoutTable)
    groups: dict[str, GroupStatus] = field(default_factory=dict)
    offsets: dict[str, list[OffsetRange]] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    by_position: dict[int, bytes] = field(default_factory=dict)
    created: list[TopicLayout] = field(default_factory=list)
    refusal: BrokerError | None = None
    """Its answer to requests for a layout and for the deletion of a group."""

    async def start(self, nameserver: str) -> None:
        self._server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, Dispatcher([self]))
        await self._server.start()
        self._link: Endpoint = await connect(Host.real(), nameserver)
        await self.register()

    async def stop(self) -> None:
        self._link.close("stopped")
        await self._link.wait_closed()
        await self._server.close()

    @property
    def address(self) -> str:
        return self._server.addresses["internal"]

    async def register(self) -> None:
        """Until nothing is left to learn."""
        missing: tuple[TopicLayout, ...] | None = None
        while missing != ():
            code, fields, body = self._registration()
            answer = await self._link.request(code, fields, body, timeout_ms=5_000)
            missing = decode_body(RegisterReply, answer.body).layouts
            for layout in missing:
                self.layouts.adopt(layout)

    @handles(RequestCode.GROUP_STATUS, GroupStatusHeader)
    def group_status(self, request: Request) -> Outcome:
        group = request.header.consumer_group
        if group is not None and group not in self.groups:
            raise SubscriptionGroupNotExistError(f"group {group} is unknown")
        return request.reply(body=GroupStatusReply(tuple(self.groups), self.groups.get(group or "")))

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader)
    def delete_group(self, request: Request) -> Outcome:
        if self.refusal is not None:
            raise self.refusal
        assert request.header.clean_offset
        self.groups.pop(request.header.group, None)
        return request.reply()

    @handles(RequestCode.TOPIC_OFFSETS, TopicHeader)
    def topic_offsets(self, request: Request) -> Outcome:
        if request.header.topic not in self.offsets:
            raise TopicNotExistError(f"no topic {request.header.topic}")
        return request.reply(body=TopicOffsets(tuple(self.offsets[request.header.topic])))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader)
    def view(self, request: Request) -> Outcome:
        if request.header.offset not in self.by_position:
            raise QueryNotFoundError(f"no message at {request.header.offset}")
        return request.reply(body=self.by_position[request.header.offset])

    @handles(RequestCode.PULL_MESSAGE, PullHeader)
    def pull(self, request: Request) -> Outcome:
        header: PullHeader = request.header
        queue = self.queues.get((header.topic, header.queue_id), [])
        if header.queue_offset >= len(queue):
            return NO_RESPONSE
        reply = PullReply(len(queue), 0, len(queue))
        return request.reply(reply, b"".join(queue[header.queue_offset :]))

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, bytes)
    def create(self, request: Request) -> Outcome:
        if self.refusal is not None:
            raise self.refusal
        layout = decode_body(TopicLayout, request.body)
        self.created.append(layout)
        here = self.layouts.get(layout.topic)
        if here is None or layout.version.counter > here.version.counter:
            self.layouts.adopt(layout)
        self._link.oneway(*self._registration())
        in_force = self.layouts.get(layout.topic)
        assert in_force is not None
        return request.reply(body=CreateTopicReply(in_force))

    def _registration(self) -> tuple[int, dict[str, Any], bytes]:
        header = RegisterBrokerHeader(self.name, "DefaultCluster", self.address, self.name.encode().hex().ljust(32, "0"), 1)
        body = RegisterBody({"internal": self.address}, self.layouts.all(), DataVersion(0, 0))
        return RequestCode.REGISTER_BROKER, to_plain(header), encode_body(body)


class FakeCluster:
    """What a test holds: `nameserver` is its address, `run` runs something on the cluster's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, brokers: dict[str, FakeBroker]) -> None:
        self.brokers = brokers
        self.nameserver = ""
        self._loop = loop
        self._served = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=20)

    def hold(self, layout: TopicLayout) -> None:
        """Every broker has this topic, and the nameserver knows it."""
        for broker in self.brokers.values():
            broker.layouts.adopt(layout)
            self.run(broker.register())

    async def start(self) -> None:
        await self._served.start()
        self.nameserver = self._served.address
        for broker in self.brokers.values():
            await broker.start(self.nameserver)
        for broker in self.brokers.values():
            await broker.register()

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self._served.stop()


@contextmanager
def fake_cluster(*brokers: FakeBroker) -> Iterator[FakeCluster]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake cluster")
    thread.start()
    cluster = FakeCluster(loop, {broker.name: broker for broker in brokers})
    try:
        cluster.run(cluster.start())
        yield cluster
    finally:
        cluster.run(cluster.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
