"""A nameserver and brokers on loopback that answer as the wire says, until a test scripts something else.

A FakeBroker stores idempotent frames once per scope, as a broker does; `script` takes its next answers to SEND_RECORDS out of its hands.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lockstep.protocol.bodies import (
    BrokerAddress,
    ClusterInfo,
    CreateTopicReply,
    HeartbeatBody,
    HeartbeatReply,
    Limits,
    SyncReply,
    TopicRoute,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.server import Server

LOOPBACK = {"internal": ("127.0.0.1", 0)}


def make_layout(topic: str, *brokers: str, queues: int = 2, counter: int = 1, writer: int = 7) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(name, queues, queues, counter) for name in brokers))


@dataclass
class Seen:
    """One SEND_RECORDS as it arrived."""

    header: SendRecordsHeader
    messages: list[MessageExt]
    body: bytes
    endpoint: Endpoint
    command: Command

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def place(self) -> tuple[int, int]:
        return self.header.producer_epoch, self.header.first_sequence


Step = Callable[["FakeBroker", Seen], None]


def lose_answer(broker: "FakeBroker", seen: Seen) -> None:
    """Stored, and the answer never comes."""
    broker.store(seen)


def ignore(broker: "FakeBroker", seen: Seen) -> None:
    """As if it had never arrived."""


def answer_later(held: list[Callable[[], None]]) -> Step:
    """Stored; `held` gets what sends the answer."""

    def step(broker: "FakeBroker", seen: Seen) -> None:
        held.append(lambda: broker.take(seen))

    return step


def store_and_hang_up(broker: "FakeBroker", seen: Seen) -> None:
    broker.store(seen)
    seen.endpoint.abort("scripted")


def hang_up(broker: "FakeBroker", seen: Seen) -> None:
    seen.endpoint.abort("scripted")


def refuse(error: BrokerError, *, next_sequence: int | None = None) -> Step:
    """Not stored, and says so."""

    def step(broker: "FakeBroker", seen: Seen) -> None:
        reply = SendRecordsReply(-1, -1, 0, next_sequence=next_sequence)
        seen.endpoint.send(seen.command.reply(error.code, error.remark, to_plain(reply)))

    return step


@dataclass
class FakeBroker:
    name: str
    term: int = 1
    auto_create: bool = False
    features: tuple[str, ...] = ("records", "sequences", "layouts", "durable_sends")
    heartbeat_error: BrokerError | None = None
    """For heartbeats that name a group, or this one."""
    refused_group: str | None = None
    heartbeats: list[HeartbeatBody] = field(default_factory=list)
    layouts: dict[str, TopicLayout] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    script: deque[Step] = field(default_factory=deque)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """Bodies stored, by (topic, queue id)."""
    oneways: list[Seen] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    scopes: dict[tuple[str, int, str, int], tuple[int, int, int, SendRecordsReply]] = field(default_factory=dict)
    """(producer, partition, topic, queue) → (epoch, first, next, answer)."""
    journal: list[str] | None = None
    """Shared by several brokers: who was asked what, in order."""
    server: Server | None = None
    address: str = ""
    registered: bool = True

    async def start(self, port: int = 0) -> None:
        self.server = Server(Host.real(), {"internal": ("127.0.0.1", port)}, self.handle)
        await self.server.start()
        self.address = self.server.addresses["internal"]

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    @property
    def endpoints(self) -> list[Endpoint]:
        assert self.server is not None
        return list(self.server.endpoints.values())

    @property
    def stored(self) -> list[bytes]:
        return [body for queue in sorted(self.queues) for body in self.queues[queue]]

    def stop_reading(self) -> None:
        for endpoint in self.endpoints:
            assert endpoint._transport is not None
            endpoint._transport.pause_reading()

    def go_on_reading(self) -> None:
        for endpoint in self.endpoints:
            assert endpoint._transport is not None
            endpoint._transport.resume_reading()

    def handle(self, command: Command, endpoint: Endpoint) -> None:
        if self.journal is not None:
            self.journal.append(f"{self.name} {RequestCode(command.code).name}")
        match command.code:
            case RequestCode.HEART_BEAT:
                self._heartbeat(command, endpoint)
            case RequestCode.SEND_RECORDS:
                self._send(command, endpoint)
            case RequestCode.SYNC:
                endpoint.send(command.reply(body=encode_body(SyncReply((), {}))))
            case RequestCode.UNREGISTER_CLIENT:
                self.left.append(str(command.fields.get("consumerGroup")))
                endpoint.send(command.reply())
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self._create(command, endpoint)
            case code:
                raise AssertionError(f"the fake broker was asked {code}")

    def _heartbeat(self, command: Command, endpoint: Endpoint) -> None:
        body = decode_body(HeartbeatBody, command.body)
        self.heartbeats.append(body)
        refused = [group for group in body.consumers if self.refused_group in (None, group.group)]
        if self.heartbeat_error is not None and refused:
            endpoint.send(command.reply(self.heartbeat_error.code, self.heartbeat_error.remark))
            return
        reply = HeartbeatReply(self.name, self.term, self.features, Limits(1 << 24, 1 << 18, 1 << 22), 3_000, 20_000, {})
        endpoint.send(command.reply(body=encode_body(reply)))

    def _create(self, command: Command, endpoint: Endpoint) -> None:
        header = from_plain(CreateTopicHeader, command.fields)
        if header.topic not in self.layouts:
            if header.auto and not self.auto_create:
                endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic} does not exist: create it"))
                return
            self.layouts[header.topic] = decode_body(TopicLayout, command.body)
        endpoint.send(command.reply(body=encode_body(CreateTopicReply(self.layouts[header.topic]))))

    def _send(self, command: Command, endpoint: Endpoint) -> None:
        header = from_plain(SendRecordsHeader, command.fields)
        seen = Seen(header, decode_messages(bytes(command.body), self.name), bytes(command.body), endpoint, command)
        assert len(seen.messages) == header.count
        if command.is_oneway:
            self.oneways.append(seen)
            return
        self.seen.append(seen)
        if self.script:
            self.script.popleft()(self, seen)
        else:
            self.take(seen)

    def take(self, seen: Seen) -> None:
        """Store unless it is stored, and answer."""
        code, reply = self.store(seen)
        seen.endpoint.send(seen.command.reply(code, None, to_plain(reply)))

    def store(self, seen: Seen) -> tuple[ResponseCode, SendRecordsReply]:
        header = seen.header
        assert header.producer_id is not None
        scope = (header.producer_id, header.partition, header.topic, header.queue_id)
        last = self.scopes.get(scope)
        nowhere = SendRecordsReply(-1, -1, 0)
        if last is not None and header.producer_epoch < last[0]:
            return ResponseCode.STALE_EPOCH, nowhere
        if last is not None and header.producer_epoch == last[0]:
            if (header.first_sequence, header.first_sequence + header.count) == (last[1], last[2]):
                return ResponseCode.SUCCESS, last[3]
            if header.first_sequence != last[2]:
                return ResponseCode.OUT_OF_SEQUENCE, SendRecordsReply(-1, -1, 0, next_sequence=last[2])
        elif header.first_sequence != 0:
            return ResponseCode.OUT_OF_SEQUENCE, SendRecordsReply(-1, -1, 0, next_sequence=0)
        layout = self.layouts.get(header.topic)
        counter, writer = header.layout_counter, header.layout_writer
        if layout is not None and counter is not None and writer is not None and LayoutVersion(counter, writer) < layout.version:
            return ResponseCode.LAYOUT_STALE, nowhere
        queue = self.queues.setdefault((header.topic, header.queue_id), [])
        reply = SendRecordsReply(len(queue), 1_000_000 * (header.queue_id + 1) + len(queue), 1, "127.0.0.1:10911")
        queue += seen.bodies
        self.scopes[scope] = (header.producer_epoch, header.first_sequence, header.first_sequence + header.count, reply)
        return ResponseCode.SUCCESS, reply


@dataclass
class FakeCluster:
    """A nameserver that knows `brokers` and the layouts in `topics`."""

    brokers: dict[str, FakeBroker]
    topics: dict[str, TopicLayout] = field(default_factory=dict)
    ready: bool = True
    asked: int = 0
    server: Server | None = None
    address: str = ""

    async def start(self) -> None:
        self.server = Server(Host.real(), LOOPBACK, self.handle)
        await self.server.start()
        self.address = self.server.addresses["internal"]

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    def put(self, layout: TopicLayout) -> TopicLayout:
        """The layout is in force everywhere."""
        self.topics[layout.topic] = layout
        for broker in self.brokers.values():
            broker.layouts[layout.topic] = layout
        return layout

    def handle(self, command: Command, endpoint: Endpoint) -> None:
        self.asked += 1
        known = tuple(
            BrokerAddress(broker.name, "DefaultCluster", broker.address, broker.registered, broker.term) for broker in self.brokers.values()
        )
        if not self.ready:
            endpoint.send(command.reply(ResponseCode.ROUTE_NOT_READY, "no broker yet"))
        elif command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            endpoint.send(command.reply(body=encode_body(ClusterInfo(known))))
        else:
            topic = from_plain(TopicHeader, command.fields).topic
            if topic not in self.topics:
                endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic}"))
                return
            if self.topics[topic].deleted:
                body = encode_body(TopicRoute(self.topics[topic], ()))
                endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic}", body=body))
                return
            endpoint.send(command.reply(body=encode_body(TopicRoute(self.topics[topic], known))))


@asynccontextmanager
async def fake_cluster(*names: str, topics: dict[str, int] | None = None) -> AsyncIterator[FakeCluster]:
    """Running brokers of these names; `topics`: name → queues on each of them."""
    journal: list[str] = []
    cluster = FakeCluster({name: FakeBroker(name, journal=journal) for name in names})
    for broker in cluster.brokers.values():
        await broker.start()
    for topic, queues in (topics or {}).items():
        cluster.put(make_layout(topic, *names, queues=queues))
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
        for broker in cluster.brokers.values():
            await broker.stop()
