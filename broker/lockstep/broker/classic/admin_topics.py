"""Requests of RocketMQ's tools for topics. RocketMQ: AdminBrokerProcessor. The rules of changes are in topic_changes.py."""

from collections.abc import Awaitable, Callable

from lockstep.broker.classic.admin_bodies import LIST_BYTES_MAX, topic_config, topic_stats, versioned_table
from lockstep.broker.classic.topic_changes import CreateTopicFields, TopicChanges, TopicConfigList, TopicCounts, counts_of
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.topic import ROUTE_LANE, TopicProcessor, layout_facts, topic_change
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import TopicList
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import MessageIllegalError, SystemBusyError
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import AUTO_CREATE_TOPIC, SYSTEM_TOPICS, reply_topic
from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import ANY_USER, CREATE, DELETE, GET, LIST, PUB, SUB, UPDATE, inside, on_topic
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.rights import Kind, resource
from lockstep.runtime.turn import TurnBudget

log = get_logger("broker")

TOPICS_MAX = 1_000
"""Topics of one UPDATE_AND_CREATE_TOPIC_LIST."""


class TopicAdminProcessor:
    """Handles requests for topics by RocketMQ's tools."""

    def __init__(
        self,
        creator: TopicProcessor,
        changes: TopicChanges,
        topics: TopicTable,
        store: Store,
        clock: Clock,
        budget: TurnBudget,
        learn: Callable[[], Awaitable[None]],
        place: tuple[str, str],
    ) -> None:
        """`learn` returns when this broker has the layouts that others have registered before, or after a short time.

        A tool asks one broker after the other, and each has to continue on the layout of the one before: of two layouts that were made
        independently one loses its queues. `place`: the names of the broker and of its cluster. `budget` limits what lanes do in one turn.
        """
        self._creator = creator
        self._changes = changes
        self._topics = topics
        self._store = store
        self._clock = clock
        self._budget = budget
        self._learn = learn
        self._broker_name, self._cluster = place

    @handles(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicFields,
        needs=[inside("Create or Update topic", changes=True)],
        lane=ROUTE_LANE,
        native=False,
        classic=True,
    )
    async def put_topic(self, request: Request) -> HandlerResult:
        asked = counts_of(request.header)
        await self._learn()
        self._put(request, asked)
        return self._creator.respond_when_known(request, PendingResponse(request.reply()))

    @handles(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        None,
        TopicConfigList,
        needs=[inside("Create or Update each topic", changes=True)],
        lane=ROUTE_LANE,
        body_bytes_max=LIST_BYTES_MAX,
        native=False,
        classic=True,
    )
    async def put_topics(self, request: Request) -> HandlerResult:
        """Put each topic of the list, in its order. Nothing is changed if one of them can't exist; another refusal ends it there."""
        body: TopicConfigList = request.body
        if len(body.topic_config_list) > TOPICS_MAX:
            raise MessageIllegalError(f"{len(body.topic_config_list)} topics in one request: at most {TOPICS_MAX}")
        every = [counts_of(config) for config in body.topic_config_list]
        await self._learn()
        for asked in every:
            await self._budget.take()
            self._put(request, asked)
        request.change = AuditedChange(", ".join(resource(Kind.TOPIC, asked.topic) for asked in every))
        return self._creator.respond_when_known(request, PendingResponse(request.reply()))

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader, needs=[on_topic(DELETE)], lane=ROUTE_LANE, native=False, classic=True)
    async def delete_topic(self, request: Request) -> HandlerResult:
        header: TopicHeader = request.header
        await self._learn()
        before = self._topics.find_layout(header.topic)
        request.change = change = topic_change(header.topic, before)
        if self._changes.delete(header.topic):
            change.after = layout_facts(self._topics.layouts.get(header.topic))
            log_limited(log, "info", "topic.deleted", topic=header.topic, peer=request.endpoint.peer)
        return self._creator.respond_when_known(request, PendingResponse(request.reply()))

    @handles(RequestCode.GET_TOPIC_CONFIG, TopicHeader, needs=[on_topic(GET, LIST)], native=False, classic=True)
    def topic_config(self, request: Request) -> HandlerResult:
        header: TopicHeader = request.header
        layout = self._topics.require_layout(header.topic)
        counts = self._topics.own_read_count(layout), self._topics.own_write_count(layout)
        return request.reply(body=write_json(topic_config(header.topic, *counts)))

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG, needs=[inside("topics that may be listed")], lane=QUERY_LANE, native=False, classic=True)
    async def all_topic_configs(self, request: Request) -> HandlerResult:
        """Return the topics with queues of this broker."""
        table = {}
        for layout in self._topics.layouts.all():
            if (read_count := self._topics.own_read_count(layout)) and request.user.sees_topic(layout.topic):
                await self._budget.take()
                table[layout.topic] = topic_config(layout.topic, read_count, self._topics.own_write_count(layout))
        return request.reply(body=versioned_table("topicConfigTable", table, self._clock.wall_ms()))

    @handles(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader, needs=[on_topic(PUB, SUB, GET)], lane=QUERY_LANE, native=False, classic=True)
    async def topic_stats(self, request: Request) -> HandlerResult:
        """Return the bounds of this broker's queues, and when the last message of each was stored."""
        header: TopicHeader = request.header
        topic, queues = header.topic, []
        for queue_id in range(self._topics.own_read_count(self._topics.require_layout(topic))):
            await self._budget.take()
            first, end = self._store.bounds(topic, queue_id)
            queues.append((queue_id, first, end, await self._stored_ms(topic, queue_id, end - 1) if end > first else 0))
        return request.reply(body=topic_stats(topic, self._broker_name, queues))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, needs=ANY_USER, native=False, classic=True)
    def system_topics(self, request: Request) -> HandlerResult:
        """Return the topics that clients may not create, and those that have a route without a layout."""
        routed = {self._broker_name, self._cluster, reply_topic(self._cluster)}
        absent = set() if self._creator.auto_create else {AUTO_CREATE_TOPIC}
        return request.reply(body=TopicList(tuple(sorted((SYSTEM_TOPICS | routed) - absent))))

    def _put(self, request: Request, asked: TopicCounts) -> None:
        before = self._topics.find_layout(asked.topic)
        request.user.check_topic(asked.topic, CREATE if before is None else UPDATE)
        request.change = change = topic_change(asked.topic, before)
        self._changes.put(asked, self._clock.boot_ms())
        after = self._topics.require_layout(asked.topic)
        change.after = layout_facts(after)
        if after is not before:
            facts = {"topic": asked.topic, "read": asked.read, "write": asked.write, "counter": after.version.counter}
            log_limited(log, "info", "topic.put", **facts, peer=request.endpoint.peer)

    async def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when the message was stored, or 0 if it can't be read: the offsets are reported all the same."""
        try:
            read = await self._store.read_or_wait(topic, queue_id, offset, 1, 1)
        except (OSError, StoreCorruptError, SystemBusyError):
            return 0
        if not read.parts:
            return 0
        record = RecordView(b"".join(read.parts))
        return self._store.stored_ms(record.physical_offset, record.store_ms)
