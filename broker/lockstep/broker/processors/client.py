"""HEART_BEAT, UNREGISTER_CLIENT, member lists, group status. RocketMQ: ClientManageProcessor, ConsumerManageProcessor."""

from collections.abc import Callable

from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.heartbeats import HeartbeatCache
from lockstep.broker.groups.membership import NONE_DENIED
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.processors.pull_request import check_given, filter_of
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.protocol.bodies import CheckClientConfigBody, ConsumerGroup, GroupStatusReply, HeartbeatBody, QueueStatus
from lockstep.protocol.codec.plain import PackedList, pack_around
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, BrokerSystemError, SubscriptionGroupNotExistError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupHeader, GroupStatusHeader, UnregisterClientHeader
from lockstep.protocol.names import retry_topic
from lockstep.runtime.host import Host
from lockstep.runtime.limits import HEARTBEAT_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.lanes import LANE_ITEMS_PER_TURN
from lockstep.runtime.requests.needs import GET, SUB, inside, on_group, on_topic
from lockstep.runtime.requests.packed_rows import packed_rows
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.authenticated_user import ANYBODY
from lockstep.runtime.turn import TurnBudget

log = get_logger("broker")

TOPICS_SHOWN, EXPRESSION_SHOWN = 8, 100
"""Topics of a subscription, and characters of an expression, that one log line shows."""
TOPICS_PER_ITEM = 4
"""Subscriptions of a member that are as much work as one queue."""


class ClientProcessor:
    """Handles the requests by which clients join and leave groups, and reads of members."""

    def __init__(
        self,
        host: Host,
        coordination: Coordination,
        topics: GroupTopics,
        creator: TopicProcessor,
        budget: TurnBudget | None = None,
        connections: ClientConnections | None = None,
        held_offset: Callable[[QueueKey], int | None] = lambda _: None,
        disk_pulls: Callable[[QueueKey], int] = lambda _: 0,
    ) -> None:
        """`budget` limits what lanes do in one turn of the loop. `connections` keeps what the clients' HEART_BEATs say. `held_offset`
        returns the offset at which a pull of a group is held at a queue, `disk_pulls` how many of them wait for the disk."""
        self._budget = TurnBudget(LANE_ITEMS_PER_TURN) if budget is None else budget
        self._clock = host.clock
        self._coordination = coordination
        self._topics = topics
        self._creator = creator
        self._connections = ClientConnections(coordination) if connections is None else connections
        self._held_offset = held_offset
        self._disk_pulls = disk_pulls
        self._heartbeats = HeartbeatCache()

    @handles(
        RequestCode.HEART_BEAT,
        None,
        bytes,
        needs=[inside("Sub each consumer group, and each topic to which it subscribes")],
        body_bytes_max=HEARTBEAT_BYTES_MAX,
        classic=True,
    )
    def heartbeat(self, request: Request) -> HandlerResult:
        """Take the heartbeat. Requests that the broker sends on this connection use the codec of its heartbeats."""
        endpoint = request.endpoint
        endpoint.codec = request.codec
        heartbeat = self._heartbeats.read(request.body, native=request.is_native)
        body = heartbeat.body
        self._connections.record(request, body, self._clock.wall_ms())
        before = [self._in_force(entry.group) for entry in body.consumers]
        wanted = ((entry.group, (each.topic for each in entry.subscriptions)) for entry in body.consumers)
        denied = NONE_DENIED if request.user is ANYBODY else request.user.denied_groups(wanted)
        reply = self._coordination.membership.heartbeat(endpoint.id, heartbeat, self._clock.boot_ms(), request.user.name, denied)
        for entry, (count, was) in zip(body.consumers, before, strict=True):
            now_count, now = self._in_force(entry.group)
            if now_count > count:
                facts = {"was": expressions(was), "now": expressions(now)}
                facts |= {"effect": "it holds for all members now"}
                log_limited(log, "warning", "subscription.overruled", group=entry.group, client=body.client_id, **facts)
        if request.is_native:
            return NO_RESPONSE if reply is None else request.reply(body=reply)
        return self._classic_reply(request, body)

    def _classic_reply(self, request: Request, body: HeartbeatBody) -> HandlerResult:
        """Respond to a client of RocketMQ, after the topics of its groups' retries exist. It asks for their routes every 20 s only."""
        result, is_new = PendingResponse(request.reply()), False
        for entry in body.consumers:
            if not entry.broadcasting and self._topics.is_missing(topic := retry_topic(entry.group)):
                try:
                    self._topics.create(topic)
                    is_new = True
                except BrokerError as error:
                    log_limited(log, "warning", "topic.refused", topic=topic, reason=error.remark)
        return self._creator.respond_when_known(request, result) if is_new else result

    @handles(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader, needs=[on_group(SUB, optional=True)], classic=True)
    def unregister(self, request: Request) -> HandlerResult:
        """Remove the member from the list at once; its session and locks stay. A producer group has no members to remove."""
        header: UnregisterClientHeader = request.header
        if header.consumer_group:
            now_ms = self._clock.boot_ms()
            if not self._coordination.membership.unregister(request.endpoint.id, header.client_id, header.consumer_group, now_ms):
                return NO_RESPONSE
        return request.reply()

    @handles(
        RequestCode.CHECK_CLIENT_CONFIG,
        None,
        CheckClientConfigBody,
        needs=[on_group(SUB, name="group"), on_topic(SUB, name="subscription_data.topic")],
        classic=True,
    )
    def check_config(self, request: Request) -> HandlerResult:
        """Check that the broker can filter by the subscription: a client of RocketMQ does not start otherwise."""
        body: CheckClientConfigBody = request.body
        subscription = body.subscription_data
        check_given(subscription.expression_type, subscription.expression)
        filter_of(subscription.expression_type, subscription.expression)
        return request.reply()

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader, needs=[on_group(SUB, GET)], classic=True)
    def member_list(self, request: Request) -> HandlerResult:
        header: GroupHeader = request.header
        members = self._coordination.membership.member_list(header.consumer_group)
        if members is None:
            raise BrokerSystemError(f"no consumer for this group, {header.consumer_group}")
        return request.reply(body=members)

    @handles(
        RequestCode.GROUP_STATUS,
        GroupStatusHeader,
        needs=[inside("Sub or Get group; without one, those that may be listed")],
        lane=QUERY_LANE,
    )
    async def group_status(self, request: Request) -> HandlerResult:
        header: GroupStatusHeader = request.header
        if header.consumer_group is None:
            return await self._all_groups(request, summaries=bool(header.summaries))
        coordination, group = self._coordination, header.consumer_group
        request.user.check_group(group, SUB, GET)
        queues = await packed_rows(coordination.status.queue_keys_of(group), self._budget, self._queue_status)
        members = PackedList()
        for client_id in coordination.status.member_ids(group):
            await self._budget.take()
            member = coordination.status.read_member(group, client_id, self._clock.boot_ms(), self._connections.peer)
            if member is not None:
                await self._budget.take(len(member.subscriptions or ()) // TOPICS_PER_ITEM)
                members.append(to_plain(member))
        found = coordination.status.combine(group, [], [], self._clock.boot_ms())
        if found is None:
            raise SubscriptionGroupNotExistError(f"group {group} is unknown at {coordination.state.config.broker_name}")
        plain = to_plain(GroupStatusReply((), found))
        plain["status"] |= {"queues": queues, "members": members}
        return request.reply(body=pack_around(plain))

    def _queue_status(self, key: QueueKey) -> QueueStatus:
        return self._coordination.status.read_queue(key, self._clock.boot_ms(), self._held_offset(key), self._disk_pulls(key))

    async def _all_groups(self, request: Request, *, summaries: bool) -> HandlerResult:
        status = self._coordination.status
        names = tuple(filter(request.user.sees_group, status.groups()))
        if not summaries:
            return request.reply(body=GroupStatusReply(names))
        found = PackedList()
        for name in names:
            await self._budget.take()
            lag = 0
            for key in status.counted_queue_keys(name):
                await self._budget.take()
                lag += status.lag_of(key)
            found.append(to_plain(status.summary(name, lag)))
        return request.reply(body=pack_around({"groups": list(names), "summaries": found}))

    def _in_force(self, group: str) -> tuple[int, ConsumerGroup | None]:
        """Return how often the group's subscriptions were replaced, and its contract."""
        return self._coordination.state.override_counts.get(group, 0), self._coordination.status.contract(group)


def expressions(contract: ConsumerGroup | None) -> str:
    """Return the subscriptions of a contract in one line, topics in their order; the first ones if there are many."""
    if contract is None or not contract.subscriptions:
        return "nothing"
    shown = [f"{each.topic}: {each.expression[:EXPRESSION_SHOWN]}" for each in contract.subscriptions[:TOPICS_SHOWN]]
    more = len(contract.subscriptions) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")
