"""What Spark's planners and tasks ask of a cluster, over one client of the SDK: layouts, bounds, offsets, pages of records.

Everything here reads without being a member of any group. A question that a broker does not answer is asked again until its time is over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from lockstep.client.broker_link import BrokerLink
from lockstep.client.client import Client
from lockstep.client.instance import Instance
from lockstep.client.topics import create_topic
from lockstep.protocol.bodies import TopicList, TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import RETRY_AFTER_FIELD, Command
from lockstep.protocol.errors import BrokerError, LockstepError, QueryNotFoundError, TopicNotExistError, TransportError, broker_error
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import (
    OffsetReply,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader, PullReply
from lockstep.protocol.queue import MessageQueue, TopicLayout
from lockstep.runtime.daemon import new_event_loop
from lockstep.spark.options import SourceOptions

T = TypeVar("T")

PAUSE_MS = 100
"""Between two tries of a question that was not answered."""
PAUSE_MS_MAX = 1_000
KNOWN_PAUSE_MS = 20
"""Between two questions for a topic that was just made: brokers register it within milliseconds."""


PULLED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True)
class Pull:
    """What is asked of one queue."""

    group: str
    queue: MessageQueue
    offset: int
    options: SourceOptions

    def header(self) -> PullHeader:
        """Native limits; the expression comes along, so that the group need not have members."""
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


@dataclass(frozen=True, slots=True)
class Pulled:
    """One pull's answer."""

    data: bytes
    """Records as stored; none where there is nothing at the offset (now)."""
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool
    """The offset lies outside of what is stored."""


class Cluster:
    """Asks through the running loop's client. Get one by `connected(…)`."""

    def __init__(self, instance: Instance, timeout_ms: int) -> None:
        self._instance = instance
        self._timeout_ms = timeout_ms

    async def topics(self) -> tuple[str, ...]:
        """Every topic of the cluster but deleted and system ones."""
        answer = await self._instance.nameservers.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_body(TopicList, answer.body).topics

    async def layout(self, topic: str) -> TopicLayout:
        """The topic's layout now; TopicNotExistError."""
        layout = await self._instance.watch.route(topic, refresh=True)
        if layout is None:
            raise TopicNotExistError(f"topic {topic} does not exist: create it with `lockstep topic create {topic}`")
        return layout

    async def known(self, topic: str) -> TopicLayout:
        """The topic's layout as this client knows it; asked for where it does not."""
        return await self._instance.watch.route(topic) or await self.layout(topic)

    async def create(self, topic: str, queue_count: int) -> TopicLayout:
        """The topic with so many queues on each broker, once a nameserver knows it; one that is there stays as it is."""
        layout = await create_topic(self._instance, topic, queue_count)
        clock = self._instance.host.clock
        until_ms = clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                if (await self._instance.nameservers.route(topic)).layout.version >= layout.version:
                    return layout
            except TopicNotExistError:
                if clock.monotonic_ms() >= until_ms:
                    raise
            await asyncio.sleep(KNOWN_PAUSE_MS / 1_000)

    async def bounds(self, layouts: Iterable[TopicLayout]) -> dict[MessageQueue, tuple[int, int]]:
        """First stored and next offset of every readable queue."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for layout in layouts:
            brokers = list(dict.fromkeys(queue.broker_name for queue in layout.read_queues))
            answers = await asyncio.gather(*(self._call(name, RequestCode.TOPIC_OFFSETS, TopicHeader(layout.topic)) for name in brokers))
            for name, answer in zip(brokers, answers, strict=True):
                for range_ in decode_body(TopicOffsets, answer.body).queues:
                    found[MessageQueue(layout.topic, name, range_.queue_id)] = (range_.min_offset, range_.max_offset)
        return found

    async def offset_at(self, queue: MessageQueue, store_ms: int) -> int:
        """The first message stored at or after the time, else the next offset."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, store_ms)
        answer = await self._call(queue.broker_name, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return from_plain(OffsetReply, answer.fields).offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Where the group is; None: nowhere yet."""
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id)
        try:
            answer = await self._call(queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except QueryNotFoundError:
            return None
        return from_plain(OffsetReply, answer.fields).offset

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> list[BrokerError]:
        """Publish the group's offsets; what was refused, as where a running consumer holds the queue."""
        questions = [
            self._call(
                queue.broker_name,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset),
            )
            for queue, offset in offsets.items()
        ]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, BrokerError):
                raise answer
        return [answer for answer in answers if isinstance(answer, BrokerError)]

    async def pull(self, pull: "Pull", begun: "asyncio.Future[Command] | None" = None) -> Pulled:
        """The records from the pull's offset on, as many as one pull brings. `begun`: of this same pull."""
        answer = None
        if begun is not None:
            try:
                answer = await begun
            except TransportError:
                answer = None
        if answer is None or answer.code not in PULLED:
            answer = await self._call(
                pull.queue.broker_name, RequestCode.PULL_MESSAGE, pull.header(), accepted=PULLED, timeout_ms=pull.options.fetch_timeout_ms
            )
        reply = from_plain(PullReply, answer.fields)
        data = bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""
        moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
        return Pulled(data, reply.next_begin_offset, reply.min_offset, reply.max_offset, moved)

    async def begin(self, pull: "Pull") -> "asyncio.Future[Command] | None":
        """Write the request of a pull, and wait for nothing; None where the broker is not connected."""
        link = self._instance.link(pull.queue.broker_name)
        if link is None or not link.up:
            return None
        begun = link.request(RequestCode.PULL_MESSAGE, pull.header(), timeout_ms=pull.options.fetch_timeout_ms)
        begun.add_done_callback(_seen)
        # The loop stands still between two questions: one turn more, and the request is written.
        await asyncio.sleep(0)
        return begun

    async def _call(
        self, broker: str, code: int, header: object, *, accepted: tuple[int, ...] = (ResponseCode.SUCCESS,), timeout_ms: int | None = None
    ) -> Command:
        """Ask until there is an answer that is none of "later"; TransportError or the last refusal when the time is over."""
        clock = self._instance.host.clock
        until_ms = clock.monotonic_ms() + (timeout_ms or self._timeout_ms)
        pause_ms = PAUSE_MS
        while True:
            try:
                link = await self._link(broker, until_ms)
                left_ms = max(1, until_ms - clock.monotonic_ms())
                answer = await link.request(code, header, timeout_ms=left_ms)
                if answer.code in accepted:
                    return answer
                refusal = broker_error(answer.code, answer.remark)
                if not refusal.retriable:
                    raise refusal
                error: LockstepError = refusal
                hint_ms = answer.fields.get(RETRY_AFTER_FIELD)
                wait_ms = hint_ms if type(hint_ms) is int else pause_ms
            except TransportError as lost:
                error, wait_ms = lost, pause_ms
            if clock.monotonic_ms() + wait_ms >= until_ms:
                raise error
            await asyncio.sleep(wait_ms / 1_000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    async def _link(self, broker: str, until_ms: int) -> BrokerLink:
        link = self._instance.link(broker)
        if link is None:
            raise TransportError(f"no address of broker {broker} is known: it has not registered since the nameserver started")
        if not link.up:
            await link.wait_up(max(1, until_ms - self._instance.host.clock.monotonic_ms()))
        return link


def _seen(begun: "asyncio.Future[Command]") -> None:
    """Nobody may ask for it any more: the reader has enough."""
    if not begun.cancelled():
        begun.exception()


@asynccontextmanager
async def connected(nameserver: tuple[str, ...], timeout_ms: int) -> AsyncIterator[Cluster]:
    """A client for as long as the block lasts; TransportError where no nameserver answers."""
    instance = Client(nameserver).instance()
    try:
        await instance.start()
        yield Cluster(instance, timeout_ms)
    finally:
        await instance.close()


def ask(nameserver: tuple[str, ...], timeout_ms: int, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """One question from where no loop runs: a planner's."""

    async def run() -> T:
        async with connected(nameserver, timeout_ms) as cluster:
            return await question(cluster)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


class CachedCluster:
    """A connection that is kept between questions, for those who ask again and again: a stream's planner, a task that reads."""

    def __init__(self, nameserver: tuple[str, ...], timeout_ms: int) -> None:
        self._nameserver = nameserver
        self._timeout_ms = timeout_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: Instance | None = None

    def ask(self, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Connects at the first one. Between two questions nothing runs; a connection that was lost meanwhile is made again."""
        return self._own_loop().run_until_complete(self._run(question))

    def pause(self, ms: int) -> None:
        """Let time pass, with the connections alive that there are. Asks nothing, so nothing can fail."""
        self._own_loop().run_until_complete(asyncio.sleep(ms / 1_000))

    def close(self) -> None:
        if self._loop is not None:
            if self._instance is not None:
                self._loop.run_until_complete(self._instance.close())
            self._loop.close()
        self._loop = self._instance = None

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = new_event_loop()
        return self._loop

    async def _run(self, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        if self._instance is None:
            instance = Client(self._nameserver).instance()
            try:
                await instance.start()
            except BaseException:  # re-raised
                await instance.close()
                raise
            self._instance = instance
        return await question(Cluster(self._instance, self._timeout_ms))
