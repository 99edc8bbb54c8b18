"""Resets of progress by RocketMQ's tools. RocketMQ: Broker2Client.resetOffset, ConsumerOffsetManager.cloneOffset.

The broker resets the group itself, as `lockstep group reset-offset` does. The members learn of it:

| member                            | by                                                             |
|-----------------------------------|----------------------------------------------------------------|
| lockstep's SDK                    | the end of its grant                                           |
| a RocketMQ client before 5.0      | RESET_CONSUMER_CLIENT_OFFSET, in the form of its language      |
| a RocketMQ client of 5.0 or later | PULL_OFFSET_MOVED, the response to its next pull               |
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.classic.groups import require_group
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.group_changes import reset_progress
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.store import Store
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.fastjson import queue_key, write_fastjson
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import VERSION_5_0
from lockstep.protocol.errors import ConsumerNotOnlineError, LocalProtocolError, TopicNotExistError
from lockstep.protocol.headers.tools import CloneOffsetHeader, ResetClientHeader, ResetOffsetHeader
from lockstep.protocol.names import RETRY_PREFIX, check_group
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, UPDATE, inside, on_group, on_topic
from lockstep.runtime.requests.request import HandlerResult, PendingResponse, Request
from lockstep.runtime.turn import TurnBudget


class ResetProcessor:
    """Handles resets and copies of progress in this broker's queues."""

    def __init__(
        self, coordination: Coordination, connections: ClientConnections, store: Store, topics: TopicTable, budget: TurnBudget
    ) -> None:
        self._coordination = coordination
        self._connections = connections
        self._store = store
        self._topics = topics
        self._budget = budget

    @handles(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetHeader,
        needs=[on_group(UPDATE, name="group"), on_topic(SUB, UPDATE)],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def reset(self, request: Request) -> HandlerResult:
        """Reset the group to a time or an offset. Nothing is reset if no member is connected: tools then write the offsets themselves."""
        header: ResetOffsetHeader = request.header
        queue_ids = self._queue_ids(header)
        require_group(self._coordination, header.group)
        if not self._connections.members(header.group):
            raise ConsumerNotOnlineError(f"group {header.group} has no member that is connected to this broker: nothing was reset")
        targets = {}
        for queue_id in queue_ids:
            await self._budget.take()
            targets[queue_id] = await self._target(header, queue_id)
        moved = self._moved(header, targets)
        if moved:
            reset_progress(self._coordination, ResetBody(header.group, header.topic, moved), request)
            told = {queue.queue_id: queue.offset for queue in moved}
            self._store.writer.when_confirmed(partial(self._tell_members, header, told))
        kept = targets | {queue_id: self._offset(header.group, header.topic, queue_id) for queue_id in queue_ids}
        return PendingResponse(request.reply(body=write_fastjson({"offsetTable": self._table(header.topic, kept)})))

    @handles(
        RequestCode.CLONE_GROUP_OFFSET,
        CloneOffsetHeader,
        needs=[on_group(SUB, GET, name="src_group"), on_group(UPDATE, name="dest_group"), inside("Sub or Update each topic")],
        native=False,
        classic=True,
    )
    def clone(self, request: Request) -> HandlerResult:
        """Reset the destination group to the offsets of the source group, in one topic or in all but that of its retries."""
        header: CloneOffsetHeader = request.header
        check_group(header.dest_group)
        require_group(self._coordination, header.src_group)
        progress = self._coordination.state.progress
        if header.topic:
            self._topics.require_layout(header.topic)
        topics = [header.topic] if header.topic else sorted(progress.topics_of_group(header.src_group))
        for topic in topics:
            request.user.check_topic(topic, SUB, UPDATE)
        for topic in topics:
            found = sorted(progress.progress_in_topic(header.src_group, topic))
            here = [pair for pair in found if self._coordination.state.has_queue(topic, pair[0])]
            if here and not topic.startswith(RETRY_PREFIX):
                queues = tuple(QueueOffset(queue_id, each.offset) for queue_id, each in here)
                reset_progress(self._coordination, ResetBody(header.dest_group, topic, queues), request)
        return PendingResponse(request.reply())

    def _queue_ids(self, header: ResetOffsetHeader) -> list[int]:
        count = self._topics.own_read_count(self._topics.require_layout(header.topic))
        if header.queue_id < 0:
            if header.offset >= 0:
                raise LocalProtocolError(f"offset {header.offset} without a queueId: an offset is one of a queue")
            return list(range(count))
        if header.queue_id >= count:
            name = self._coordination.state.config.broker_name
            raise TopicNotExistError(f"{header.topic} has no readable queue {header.queue_id} at {name}")
        return [header.queue_id]

    async def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return the offset that the request names, by itself or by a time."""
        if header.offset >= 0:
            return header.offset
        if header.timestamp < 0:
            return self._store.bounds(header.topic, queue_id)[1]
        return await self._store.offset_by_time(header.topic, queue_id, header.timestamp)

    def _moved(self, header: ResetOffsetHeader, targets: Mapping[int, int]) -> tuple[QueueOffset, ...]:
        """Return the queues whose offset changes, or whose messages above it do not wait. Without force an offset does not rise."""
        moved = []
        for queue_id, target in targets.items():
            now = self._coordination.state.progress.get((header.group, header.topic, queue_id))
            if now is None or target < now.offset or (header.is_force and target != now.offset):
                moved.append(QueueOffset(queue_id, target))
            elif now.done and target < now.done[-1]:
                moved.append(QueueOffset(queue_id, now.offset))  # what is finished above it comes again
        return tuple(moved)

    def _offset(self, group: str, topic: str, queue_id: int) -> int:
        progress = self._coordination.state.progress.get((group, topic, queue_id))
        return 0 if progress is None else progress.offset

    def _table(self, topic: str, offsets: Mapping[int, int]) -> dict[Any, Any]:
        name = self._coordination.state.config.broker_name
        return {queue_key(name, queue_id, topic): offset for queue_id, offset in offsets.items()}

    def _tell_members(self, header: ResetOffsetHeader, offsets: Mapping[int, int]) -> None:
        """Send RESET_CONSUMER_CLIENT_OFFSET to the members that do not learn of the reset otherwise."""
        asked = ResetClientHeader(header.topic, header.group, header.timestamp, header.is_force)
        table = self._table(header.topic, offsets)
        listed = [{**dict(key), "offset": offset} for key, offset in table.items()]
        for _, client in self._connections.members(header.group):
            if not client.is_native and client.version < VERSION_5_0:
                body = {"offsetTable": listed if client.language == "CPP" else table}
                fields = CODECS[client.endpoint.codec].write_fields(asked)
                client.endpoint.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, write_fastjson(body))
