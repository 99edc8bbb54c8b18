"""Requests of Spark's planners and tasks to a cluster, over one client of the SDK: layouts, bounds, offsets, pages of records.

All reads happen without membership in a group. A request that fails is retried until its timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lockstep.client.client import Client
from lockstep.client.instance import Instance
from lockstep.client.patience import patiently
from lockstep.client.topics import create_topic
from lockstep.protocol.bodies import TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, ConfigError, QueryNotFoundError, TopicNotExistError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import (
    OffsetReply,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.responses import PULLED, SUCCEEDED, Pulled, pulled
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.host import Host
from lockstep.runtime.security.watched_files import read_file
from lockstep.spark.options import SourceOptions, files_of

T = TypeVar("T")

ROUTED_PAUSE_MS = 20
"""Pause between two requests for the route of a new topic: brokers register it within milliseconds."""


@dataclass(frozen=True, slots=True)
class QueuePull:
    """A pull from one queue."""

    group: str
    queue: MessageQueue
    offset: int
    options: SourceOptions

    def header(self) -> PullHeader:
        """Return the request's header. It contains the subscription, because the group may have no members."""
        return PullHeader(
            self.group,
            self.queue.topic,
            self.queue.queue_id,
            self.offset,
            max_msg_nums=self.options.fetch_max_messages,
            sys_flag=SUBSCRIPTION,
            subscription=self.options.sub_expression,
            expression_type="TAG",
            max_msg_bytes=self.options.fetch_max_bytes,
        )


class Cluster:
    """Sends requests through a client in the running loop. Made by `connected(…)`."""

    def __init__(self, instance: Instance, timeout_ms: int) -> None:
        self._instance = instance
        self._timeout_ms = timeout_ms

    async def topics(self) -> tuple[str, ...]:
        """Return every topic of the cluster except deleted and system ones."""
        return await self._instance.cluster.topics()

    async def layout(self, topic: str) -> TopicLayout:
        """Request the topic's present layout. Raise TopicNotExistError."""
        layout = await self._instance.watch.route(topic, refresh=True)
        if layout is None:
            raise TopicNotExistError(f"topic {topic} does not exist: create it with `lockstep topic create {topic}`")
        return layout

    async def cached_layout(self, topic: str) -> TopicLayout:
        """Return the topic's layout from this client's cache, or request it. Raise TopicNotExistError."""
        return await self._instance.watch.route(topic) or await self.layout(topic)

    async def create(self, topic: str, queue_count: int) -> TopicLayout:
        """Create a topic with this number of queues on each broker, and wait until a nameserver has it. An existing topic is unchanged."""
        layout = await create_topic(self._instance, topic, queue_count)
        clock = self._instance.host.clock
        until_ms = clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                if (await self._instance.cluster.route(topic, deleted=True)).layout.version >= layout.version:
                    return layout
            except TopicNotExistError:
                if clock.monotonic_ms() >= until_ms:
                    raise
            await asyncio.sleep(ROUTED_PAUSE_MS / 1_000)

    async def bounds(self, layouts: Iterable[TopicLayout]) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first stored and the next offset of every readable queue."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for layout in layouts:
            brokers = list(dict.fromkeys(queue.broker_name for queue in layout.read_queues))
            responses = await asyncio.gather(*(self._call(name, RequestCode.TOPIC_OFFSETS, TopicHeader(layout.topic)) for name in brokers))
            for name, response in zip(brokers, responses, strict=True):
                for range_ in decode_body(TopicOffsets, response.body).queues:
                    found[MessageQueue(layout.topic, name, range_.queue_id)] = (range_.min_offset, range_.max_offset)
        return found

    async def offset_at(self, queue: MessageQueue, store_ms: int) -> int:
        """Return the offset of the first message stored at or after the time, else the queue's next offset."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, store_ms)
        response = await self._call(queue.broker_name, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return from_plain(OffsetReply, response.fields).offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None if it has none."""
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id)
        try:
            response = await self._call(queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except QueryNotFoundError:
            return None
        return from_plain(OffsetReply, response.fields).offset

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int], idle_days: int | None = None) -> list[BrokerError]:
        """Publish the group's offsets. Return the errors of queues that rejected it, for example because a running consumer owns them.

        `idle_days`: forget the group after so many days without a commit or a member, if that is sooner than the broker's setting.
        """
        requests = [
            self._call(
                queue.broker_name,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset, idle_days),
            )
            for queue, offset in offsets.items()
        ]
        responses = await asyncio.gather(*requests, return_exceptions=True)
        for response in responses:
            if isinstance(response, BaseException) and not isinstance(response, BrokerError):
                raise response
        return [response for response in responses if isinstance(response, BrokerError)]

    async def pull(self, pull: "QueuePull", begun: "asyncio.Future[Command] | None" = None) -> Pulled:
        """Return the records of one pull. `begun`: the same pull, if `begin` has sent it already."""
        response = None
        if begun is not None:
            try:
                response = await begun
            except TransportError:
                response = None
        if response is None or response.code not in PULLED:
            response = await self._call(
                pull.queue.broker_name, RequestCode.PULL_MESSAGE, pull.header(), accepted=PULLED, timeout_ms=pull.options.fetch_timeout_ms
            )
        return pulled(response)

    async def begin(self, pull: "QueuePull") -> "asyncio.Future[Command] | None":
        """Send the request of a pull without waiting for the response. Return None if the broker is not connected."""
        link = self._instance.link(pull.queue.broker_name)
        if link is None or not link.up:
            return None
        begun = link.request(RequestCode.PULL_MESSAGE, pull.header(), timeout_ms=pull.options.fetch_timeout_ms)
        begun.add_done_callback(_retrieve_exception)
        # The loop does not run between two calls: one more turn writes the request.
        await asyncio.sleep(0)
        return begun

    async def _call(
        self, broker: str, code: int, header: object, *, accepted: Container[int] = SUCCEEDED, timeout_ms: int | None = None
    ) -> Command:
        """Send a request, and retry it while it fails with a retriable error. Raise the last error after the timeout."""
        clock = self._instance.host.clock
        until_ms = clock.monotonic_ms() + (timeout_ms or self._timeout_ms)
        return await patiently(clock, until_ms, partial(self._request, broker, code, header, until_ms), accepted)

    async def _request(self, broker: str, code: int, header: object, until_ms: int) -> Command:
        """Send a request once, when the broker is connected."""
        clock = self._instance.host.clock
        link = self._instance.link(broker)
        if link is None:
            raise TransportError(f"no address of broker {broker} is known: it has not registered since the nameserver started")
        if not link.up:
            await link.wait_up(max(1, until_ms - clock.monotonic_ms()))
        return await link.request(code, header, timeout_ms=max(1, until_ms - clock.monotonic_ms()))


def _retrieve_exception(begun: "asyncio.Future[Command]") -> None:
    """Mark an exception as retrieved: the reader may have read enough and never await this pull."""
    if not begun.cancelled():
        begun.exception()


def _client(address: ClusterAddress) -> Client:
    """Return a client. Raise ConfigError that names this host and the option, if a file is missing: each executor needs it."""
    for option, path in files_of(address).items():
        try:
            read_file(path)
        except ConfigError as error:
            raise ConfigError(f'host {Host.current().name}: option "{option}", or its parameter in "nameserver": {error}') from None
    return Client(address)


@asynccontextmanager
async def connected(nameserver: ClusterAddress, timeout_ms: int) -> AsyncIterator[Cluster]:
    """Connect a client for the duration of the block. Raise TransportError if no nameserver responds."""
    instance = _client(nameserver).instance()
    try:
        await instance.start()
        yield Cluster(instance, timeout_ms)
    finally:
        await instance.close()


def run_once(nameserver: ClusterAddress, timeout_ms: int, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a new connection in a new event loop."""

    async def run() -> T:
        async with connected(nameserver, timeout_ms) as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


class CachedCluster:
    """Keeps an event loop and a connection between calls, for a stream's planner or a task that reads."""

    def __init__(self, nameserver: ClusterAddress, timeout_ms: int) -> None:
        self._nameserver = nameserver
        self._timeout_ms = timeout_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: Instance | None = None

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run `work`. Connect at the first call, and again if the connection was lost; the loop does not run between calls."""
        return self._get_loop().run_until_complete(self._run(work))

    def pause(self, ms: int) -> None:
        """Run the loop for `ms`, which keeps connections alive. Sends no request, so it can't fail."""
        self._get_loop().run_until_complete(asyncio.sleep(ms / 1_000))

    def close(self) -> None:
        if self._loop is not None:
            if self._instance is not None:
                self._loop.run_until_complete(self._instance.close())
            self._loop.close()
        self._loop = self._instance = None

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = new_event_loop()
        return self._loop

    async def _run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        if self._instance is None:
            instance = _client(self._nameserver).instance()
            try:
                await instance.start()
            except BaseException:  # re-raised
                await instance.close()
                raise
            self._instance = instance
        return await work(Cluster(self._instance, self._timeout_ms))
