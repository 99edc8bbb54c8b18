"""Clusters of fake brokers: on the test's loop with a fake nameserver, or in a thread with a real one, for commands."""

import copy
import functools
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from lockstep.client.client import Client
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import BrokerAddress, ClusterInfo, DataVersion, RegisterBody, RegisterReply, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import RegisterBrokerHeader
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.loop_thread import LoopThread
from support.fake_broker.groups import Groups
from support.fake_broker.reports import Reports
from support.fake_broker.sends import Sends
from support.frozen_loop import loop_host

T = TypeVar("T")
LOOPBACK = {"internal": ("127.0.0.1", 0)}


@dataclass
class FakeBroker(Sends, Groups, Reports):
    """A broker that serves the wire protocol on loopback as simply as the rules allow."""

    _registry: Endpoint | None = None

    def take_over(self, other: Sends) -> None:
        """Take the messages, sequences, locks and progress of another broker, as its replica."""
        super().take_over(other)
        assert isinstance(other, FakeBroker)
        self.members, self.counters = copy.deepcopy(other.members), copy.deepcopy(other.counters)
        self.locks, self.progress = copy.deepcopy(other.locks), copy.deepcopy(other.progress)

    async def register_at(self, nameserver: str) -> None:
        """Register at a real nameserver, now and after each change of a layout."""
        self._registry = await connect(self.host, nameserver)
        await self.register()

    async def register(self) -> None:
        """Exchange layouts until none is missing here."""
        assert self._registry is not None
        missing: tuple[TopicLayout, ...] | None = None
        while missing != ():
            code, fields, body = self._registration()
            response = await self._registry.request(code, fields, body, timeout_ms=5_000)
            missing = decode_body(RegisterReply, response.body).layouts
            for layout in missing:
                self.adopt(layout)

    def changed(self) -> None:
        if self._registry is not None:
            self._registry.oneway(*self._registration())

    async def stop(self) -> None:
        if self._registry is not None:
            self._registry.close("stopped")
            await self._registry.wait_closed()
        await super().stop()

    def _registration(self) -> tuple[int, dict[str, Any], bytes]:
        header = RegisterBrokerHeader(self.name, "DefaultCluster", self.address, self.name.encode().hex().ljust(32, "0"), 1, "c" * 32, 0)
        body = RegisterBody({"internal": self.address}, tuple(self.layouts.values()), DataVersion(0, 0))
        return RequestCode.REGISTER_BROKER, to_plain(header), encode_body(body)


def make_layout(topic: str, *brokers: str, queues: int = 2, counter: int = 1, writer: int = 7) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(name, queues, queues, counter) for name in brokers))


@dataclass
class FakeCluster:
    """A fake nameserver that knows `brokers` and `layouts`."""

    brokers: dict[str, FakeBroker]
    host: Host = field(default_factory=Host.real)
    layouts: dict[str, TopicLayout] = field(default_factory=dict)
    ready: bool = True
    """A broker has registered since the nameserver's start."""
    requested: int = 0
    """The number of requests."""
    server: Server | None = None
    nameserver: str = ""

    def __getitem__(self, name: str) -> FakeBroker:
        return self.brokers[name]

    @functools.cached_property
    def client(self) -> Client:
        """The Client that the test's consumers and producers share."""
        return Client(self.nameserver, host=self.host)

    async def start(self) -> None:
        self.server = Server(self.host, LOOPBACK, self.handle)
        await self.server.start()
        self.nameserver = self.server.addresses["internal"]

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    def put(self, layout: TopicLayout) -> TopicLayout:
        """Put the layout in force everywhere."""
        self.layouts[layout.topic] = layout
        for broker in self.brokers.values():
            broker.layouts[layout.topic] = layout
        return layout

    async def start_successor(self, name: str) -> FakeBroker:
        """Start an empty broker of this name with the next term. The present one goes on, and stays routed."""
        present = self.brokers[name]
        successor = FakeBroker(name, self.host, present.term + 1, layouts=present.layouts)
        await successor.start()
        return successor

    def handle(self, command: Command, endpoint: Endpoint) -> None:
        self.requested += 1
        known = tuple(
            BrokerAddress(broker.name, "DefaultCluster", broker.address, broker.registered, broker.term, broker.replicas or None)
            for broker in self.brokers.values()
        )
        if not self.ready:
            endpoint.send(command.reply(ResponseCode.ROUTE_NOT_READY, "no broker yet"))
        elif command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            endpoint.send(command.reply(body=encode_body(ClusterInfo(known))))
        else:
            topic = from_plain(TopicHeader, command.fields).topic
            layout = self.layouts.get(topic)
            if layout is not None and not layout.deleted:
                endpoint.send(command.reply(body=encode_body(TopicRoute(layout, known))))
            else:
                body = b"" if layout is None else encode_body(TopicRoute(layout, ()))
                endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic}", body=body))


@asynccontextmanager
async def fake_cluster(*names: str, topics: dict[str, int] | None = None, host: Host | None = None) -> AsyncIterator[FakeCluster]:
    """Run brokers of these names. `topics` is name → queues per broker."""
    journal: list[str] = []
    host = host or Host.real()
    cluster = FakeCluster({name: FakeBroker(name, host, journal=journal) for name in names}, host)
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


@asynccontextmanager
async def frozen_cluster(*names: str, topics: dict[str, int] | None = None) -> AsyncIterator[FakeCluster]:
    """Run brokers (default: a) under the test's frozen clock, each with every topic (default: "orders" with 2 queues)."""
    async with fake_cluster(*(names or ("a",)), topics=topics or {"orders": 2}, host=loop_host()) as cluster:
        yield cluster


class ThreadedCluster:
    """Fake brokers and a real nameserver on a loop in a thread, because commands own the main thread."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = {broker.name: broker for broker in brokers}
        self.nameserver = ""
        self._thread = LoopThread("fake cluster", self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop."""
        return self._thread.call(lambda _: work)

    def hold(self, layout: TopicLayout) -> None:
        """Create the topic on every broker and register it."""
        for broker in self.brokers.values():
            broker.adopt(layout)
            self.run(broker.register())

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        served = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
        await served.start()
        self.nameserver = served.address
        for broker in self.brokers.values():
            await broker.start()
            await broker.register_at(self.nameserver)
        for broker in self.brokers.values():
            await broker.register()
        try:
            yield
        finally:
            for broker in self.brokers.values():
                await broker.stop()
            await served.stop()
