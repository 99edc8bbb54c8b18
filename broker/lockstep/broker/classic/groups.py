"""What RocketMQ's tools ask about members, producers, and who consumes which topic. RocketMQ: AdminBrokerProcessor.

Bodies are JSON as RocketMQ's broker writes it.
"""

from typing import Any

from lockstep.broker.classic.connections import ClassicConnection, ClientConnections, Consumption
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.protocol.bodies import ConsumerGroup, Subscription
from lockstep.protocol.codec.fastjson import write_fastjson
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import (
    BrokerSystemError,
    ConsumerNotOnlineError,
    LocalProtocolError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from lockstep.protocol.headers.clients import GroupHeader
from lockstep.protocol.headers.tools import GroupNameHeader, ProducerGroupHeader, TopicGroupHeader, TopicNameHeader
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, inside, on_cluster, on_group, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.turn import TurnBudget


class GroupsProcessor:
    """Handles reads of members and producers."""

    def __init__(self, coordination: Coordination, connections: ClientConnections, budget: TurnBudget) -> None:
        self._coordination = coordination
        self._connections = connections
        self._budget = budget

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader, needs=[on_group(GET)], native=False, classic=True)
    def consumer_connections(self, request: Request) -> HandlerResult:
        header: GroupHeader = request.header
        group = self._coordination.state.groups.get(header.consumer_group)
        members = self._connections.members(header.consumer_group)
        if group is None or not members:
            raise ConsumerNotOnlineError(f"group {header.consumer_group} has no member that is connected to this broker")
        return request.reply(body=write_fastjson(connections_body(group, members, self._subscriptions(group))))

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader, needs=[on_cluster(GET)], native=False, classic=True)
    def producer_connections(self, request: Request) -> HandlerResult:
        header: ProducerGroupHeader = request.header
        clients = self._connections.producers(header.producer_group)
        if not clients:
            raise BrokerSystemError(f"the producer group {header.producer_group} has no client that is connected to this broker")
        return request.reply(body=write_fastjson({"connectionSet": [_connection(client.client_id, client) for client in clients]}))

    @handles(RequestCode.GET_ALL_PRODUCER_INFO, needs=[on_cluster(GET)], lane=QUERY_LANE, native=False, classic=True)
    async def all_producers(self, request: Request) -> HandlerResult:
        groups: dict[str, list[dict[str, Any]]] = {}
        for client in self._connections:
            await self._budget.take()
            for group in client.producers:
                groups.setdefault(group, []).append(_producer(client))
        return request.reply(body=write_fastjson({"data": groups}))

    @handles(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        TopicNameHeader,
        needs=[on_topic(GET), inside("groups that may be listed")],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def groups_of_topic(self, request: Request) -> HandlerResult:
        """Return the groups with a member that subscribes to the topic, and those with progress in it."""
        header: TopicNameHeader = request.header
        state = self._coordination.state
        self._require_topic(header.topic)
        found = dict.fromkeys(state.progress.groups_in_topic(header.topic))
        for group in state.groups:
            await self._budget.take()
            if group.members and (header.topic in group.topics or header.topic in group.classic_subscriptions):
                found[group.name] = None
        return request.reply(body=write_fastjson({"groupList": sorted(filter(request.user.sees_group, found))}))

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupNameHeader, needs=[on_group(GET, name="group")], native=False, classic=True)
    def topics_of_group(self, request: Request) -> HandlerResult:
        """Return the topics in which the group has progress."""
        header: GroupNameHeader = request.header
        require_group(self._coordination, header.group)
        topics = sorted(self._coordination.state.progress.topics_of_group(header.group))
        return request.reply(body=write_fastjson({"topicList": topics}))

    @handles(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        TopicGroupHeader,
        needs=[on_group(GET, name="group"), on_topic(GET)],
        native=False,
        classic=True,
    )
    def subscription(self, request: Request) -> HandlerResult:
        """Return the group's subscription of a topic; without `subscriptionData` if it has none."""
        header: TopicGroupHeader = request.header
        require_group(self._coordination, header.group)
        found = self._coordination.membership.subscription(header.group, header.topic)
        body: dict[str, Any] = {"group": header.group}
        if found is not None:
            body["subscriptionData"] = subscription_data(found)
        return request.reply(body=write_fastjson({**body, "topic": header.topic}))

    def _subscriptions(self, group: Group) -> list[Subscription]:
        """Return the subscriptions in force, by topic."""
        found = {}
        for topic in sorted({**group.topics, **group.classic_subscriptions}):
            subscription = self._coordination.membership.subscription(group.name, topic)
            if subscription is not None:
                found[topic] = subscription
        return list(found.values())

    def _require_topic(self, topic: str) -> None:
        layout = self._coordination.state.layouts.get(topic)
        if layout is None or layout.deleted:
            raise TopicNotExistError(f"no topic {topic!r}")


def require_group(coordination: Coordination, group: str) -> None:
    """Raise SubscriptionGroupNotExistError if the broker knows nothing of the group."""
    if group not in coordination.state.activity:
        raise SubscriptionGroupNotExistError(f"group {group} is unknown at {coordination.state.config.broker_name}")


def connections_body(group: Group, members: list[tuple[str, ClassicConnection]], subscriptions: list[Subscription]) -> dict[str, Any]:
    """Return the group's members. The ways to consume are those of the first one that has named them. RocketMQ: ConsumerConnection."""
    named = (client.consumers[group.name] for _, client in members if group.name in client.consumers)
    how = next(named, None) or Consumption.of(group.contract or ConsumerGroup(group.name, ()))
    return {
        "connectionSet": [_connection(client_id, client) for client_id, client in members],
        "consumeFromWhere": how.consume_from_where.value,
        "consumeType": how.consume_type.value,
        "messageModel": how.message_model.value,
        "subscriptionTable": {each.topic: subscription_data(each) for each in subscriptions},
    }


def subscription_data(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as RocketMQ's clients declare it. RocketMQ: SubscriptionData."""
    tags: list[str] = []
    hashes: list[int] = []
    if subscription.expression_type in ("", "TAG"):
        try:
            parsed = TagFilter.parse(subscription.expression)
            tags, hashes = sorted(parsed.tags), sorted(parsed.hashes)
        except LocalProtocolError:
            pass  # stored as it was declared; its pulls are refused
    return {
        "classFilterMode": False,
        "codeSet": hashes,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.sub_version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }


def _connection(client_id: str, client: ClassicConnection) -> dict[str, Any]:
    return {"clientAddr": client.endpoint.peer, "clientId": client_id, "language": client.language, "version": client.version}


def _producer(client: ClassicConnection) -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": client.heard_ms,
        "remoteIP": client.endpoint.peer,
        "version": client.version,
    }
