"""Offsets and times of consumption for RocketMQ's tools. RocketMQ: AdminBrokerProcessor, ConsumerOffsetManager."""

from typing import Any

from lockstep.broker.classic.groups import require_group, subscription_data
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.pull_request import Filter, filter_of
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.store import Store
from lockstep.broker.store.queues.predicates import stored_properties
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import Subscription
from lockstep.protocol.codec.fastjson import queue_key, write_fastjson
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import MessageIllegalError, TopicNotExistError
from lockstep.protocol.headers.tools import (
    BrokerConsumeStatsHeader,
    ConsumeQueueHeader,
    ConsumeStatsHeader,
    CorrectionOffsetHeader,
    TopicGroupHeader,
)
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, on_cluster, on_group, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.turn import TurnBudget

QUEUES_MAX = 20_000
"""Queues in one response about all groups: it is encoded in one turn of the loop."""
ENTRIES_MAX = 1_000
"""Entries of a queue that one QUERY_CONSUME_QUEUE returns."""
INT64_MAX = (1 << 63) - 1


class ConsumeStatsProcessor:
    """Handles reads of what groups have consumed. Each takes the queues of this broker alone."""

    def __init__(self, host: Host, coordination: Coordination, store: Store, topics: TopicTable, budget: TurnBudget) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._store = store
        self._topics = topics
        self._budget = budget

    @handles(
        RequestCode.GET_CONSUME_STATS,
        ConsumeStatsHeader,
        needs=[on_group(GET), on_topic(GET, optional=True)],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def consume_stats(self, request: Request) -> HandlerResult:
        """Return the end and the group's offset of each queue of the topics in which it has progress.

        RocketMQ's `consumeTps` is not measured, so it is left out. As in RocketMQ a queue without progress has the offset 0, and while
        members are there, topics to which they no longer subscribe are left out.
        """
        header: ConsumeStatsHeader = request.header
        group = header.consumer_group
        require_group(self._coordination, group)
        if header.topic is not None:
            self._topics.require_layout(header.topic)
        offsets: dict[Any, Any] = {}
        for topic in self._consumed_topics(group) if header.topic is None else [header.topic]:
            offsets |= await self._offsets_in(group, topic)
        return request.reply(body=write_fastjson({"offsetTable": offsets}))

    @handles(
        RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader, needs=[on_cluster(GET)], lane=QUERY_LANE, native=False, classic=True
    )
    async def all_consume_stats(self, request: Request) -> HandlerResult:
        """Return the same for all groups, topic by topic."""
        header: BrokerConsumeStatsHeader = request.header
        status, groups, behind, queue_count = self._coordination.status, [], 0, 0
        for group in status.groups():
            await self._budget.take()
            contract = status.contract(group)
            if header.is_order and (contract is None or not contract.ordered):
                continue
            topics = [await self._offsets_in(group, topic) for topic in self._consumed_topics(group)]
            queue_count += sum(map(len, topics))
            if queue_count > QUEUES_MAX:
                raise MessageIllegalError(
                    f"the groups have progress in more than {QUEUES_MAX} queues: ask for single groups, or use `lockstep group list`"
                )
            if topics:
                groups.append({group: [{"offsetTable": offsets} for offsets in topics]})
                behind += sum(each["brokerOffset"] - each["consumerOffset"] for offsets in topics for each in offsets.values())
        body = {"brokerAddr": request.endpoint.local, "consumeStatsList": groups, "totalDiff": behind}
        return request.reply(body=write_fastjson(body))

    async def _offsets_in(self, group: str, topic: str) -> dict[Any, Any]:
        """Return the end and the group's offset of each queue of a topic. The topic may be deleted meanwhile: then it has none."""
        layout = self._topics.find_layout(topic)
        offsets: dict[Any, Any] = {}
        for queue_id in range(0 if layout is None else self._topics.own_read_count(layout)):
            await self._budget.take()
            offset = self._offset(group, topic, queue_id)
            offsets[self._key(topic, queue_id)] = {
                "brokerOffset": self._store.bounds(topic, queue_id)[1],
                "consumerOffset": offset,
                "lastTimestamp": await self._store.store_time_at(topic, queue_id, offset - 1) or 0,
                "pullOffset": offset,
            }
        return offsets

    @handles(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        TopicGroupHeader,
        needs=[on_group(GET, name="group"), on_topic(GET)],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def time_spans(self, request: Request) -> HandlerResult:
        """Return when the first, the last and the last consumed message of each queue was stored, and how old the next one is."""
        header: TopicGroupHeader = request.header
        self._topics.require_layout(header.topic)
        spans = []
        for queue_id in self._queue_ids(header.topic):
            await self._budget.take()
            spans.append(await self._time_span(header.group, header.topic, queue_id))
        return request.reply(body=write_fastjson({"consumeTimeSpanSet": spans}))

    async def _time_span(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        low, end = self._store.bounds(topic, queue_id)
        offset = self._offset(group, topic, queue_id)
        first_ms = await self._store.store_time_at(topic, queue_id, low) or 0
        next_ms = await self._store.store_time_at(topic, queue_id, max(low, offset))
        return {
            "consumeTimeStamp": await self._store.store_time_at(topic, queue_id, offset - 1) or first_ms,
            "delayTime": 0 if next_ms is None else max(0, self._clock.wall_ms() - next_ms),
            "maxTimeStamp": await self._store.store_time_at(topic, queue_id, end - 1) or 0,
            "messageQueue": dict(self._key(topic, queue_id)),
            "minTimeStamp": first_ms,
        }

    @handles(
        RequestCode.QUERY_CORRECTION_OFFSET,
        CorrectionOffsetHeader,
        needs=[on_group(GET, name="compare_group"), on_topic(GET)],
        native=False,
        classic=True,
    )
    def correction_offsets(self, request: Request) -> HandlerResult:
        """Return the lowest offset of all groups for each queue; Java's highest number where the compared group's is lower still."""
        header: CorrectionOffsetHeader = request.header
        self._topics.require_layout(header.topic)
        progress = self._coordination.state.progress
        left_out = {*(header.filter_groups or "").split(",")}
        lowest: dict[int, int] = {}
        for group in progress.groups_in_topic(header.topic):
            for queue_id, each in progress.progress_in_topic(group, header.topic) if group not in left_out else ():
                lowest[queue_id] = min(each.offset, lowest.get(queue_id, each.offset))
        for queue_id, each in progress.progress_in_topic(header.compare_group, header.topic):
            if lowest.get(queue_id, 0) > each.offset:
                lowest[queue_id] = INT64_MAX
        return request.reply(body=write_fastjson({"correctionOffsets": dict(sorted(lowest.items()))}))

    @handles(RequestCode.QUERY_CONSUME_QUEUE, ConsumeQueueHeader, needs=[on_topic(GET)], lane=QUERY_LANE, native=False, classic=True)
    async def queue_entries(self, request: Request) -> HandlerResult:
        """Return entries of a queue. `eval`: whether the filter of the named group passes it."""
        header: ConsumeQueueHeader = request.header
        if not 1 <= header.count <= ENTRIES_MAX:
            raise MessageIllegalError(f"count {header.count}: expected 1 to {ENTRIES_MAX}")
        if header.queue_id not in self._queue_ids(header.topic):
            raise TopicNotExistError(f"{header.topic} has no readable queue {header.queue_id} at {self._broker_name}")
        low, end = self._store.bounds(header.topic, header.queue_id)
        subscription = self._subscription(header)
        wanted = None if subscription is None else filter_of(subscription.expression_type, subscription.expression)
        first = max(low, header.index if header.index >= 0 else end - header.count)
        entries = []
        for offset in range(first, min(end, first + header.count)):
            await self._budget.take()
            entry = await self._store.queue_entry(header.topic, header.queue_id, offset)
            if entry is not None:
                passes = wanted is not None and await self._passes(wanted, offset, *entry)
                entries.append({"eval": passes, "physicOffset": entry[0], "physicSize": entry[1], "tagsCode": entry[2]})
        body: dict[str, Any] = {"maxQueueIndex": end, "minQueueIndex": low, "queueData": entries}
        if subscription is not None:
            body["subscriptionData"] = subscription_data(subscription)
        return request.reply(body=write_fastjson(body))

    async def _passes(self, wanted: Filter, offset: int, position: int, size: int, tag_hash: int) -> bool:
        if wanted.tag_hashes is not None and tag_hash not in wanted.tag_hashes:
            return False
        if wanted.keep is None:
            return True
        data = await self._store.record_at(position)
        return data is not None and wanted.keep(stored_properties(data, 0, size), offset)

    def _subscription(self, header: ConsumeQueueHeader) -> Subscription | None:
        if not header.consumer_group:
            return None
        return self._coordination.membership.subscription(header.consumer_group, header.topic)

    def _consumed_topics(self, name: str) -> list[str]:
        """Return the topics in which the group has progress, without those that it has left."""
        state = self._coordination.state
        left = state.left_topics(name)
        return [topic for topic in sorted(state.progress.topics_of_group(name)) if topic not in left and self._topics.find_layout(topic)]

    def _queue_ids(self, topic: str) -> range:
        """Return the ids of this broker's readable queues. Raise TopicNotExistError for an unknown topic."""
        return range(self._topics.own_read_count(self._topics.require_layout(topic)))

    def _offset(self, group: str, topic: str, queue_id: int) -> int:
        progress = self._coordination.state.progress.get((group, topic, queue_id))
        return 0 if progress is None else max(0, progress.offset)

    @property
    def _broker_name(self) -> str:
        return self._coordination.state.config.broker_name

    def _key(self, topic: str, queue_id: int) -> tuple[tuple[str, Any], ...]:
        return queue_key(self._broker_name, queue_id, topic)
