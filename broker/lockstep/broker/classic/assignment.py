"""QUERY_ASSIGNMENT: which queues of a topic a member of a concurrent group has. RocketMQ: QueryAssignmentProcessor.

Java's consumers of 5.x ask if they have `clientRebalance=false`. The answer is what the member would compute by itself, so that members of
both kinds can share a group: the queues of the topic's route, which has registered brokers only, divided among this broker's list.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.topic import ROUTE_LANE
from lockstep.protocol.bodies import MessageModel, TopicRoute
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import (
    BrokerSystemError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    TopicNotExistError,
    TransportError,
)
from lockstep.protocol.names import check_client_id, check_group, check_topic
from lockstep.protocol.topics.allocate import ROCKETMQ_NAMES, allocate
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import SUB, on_group, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request


@dataclass(frozen=True, slots=True)
class AssignmentQuestion:
    """The body of QUERY_ASSIGNMENT (400). RocketMQ: QueryAssignmentRequestBody."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str
    message_model: MessageModel = MessageModel.CLUSTERING


class AssignmentProcessor:
    """Assigns queues to members that do not choose them by themselves."""

    def __init__(self, coordination: Coordination, route: Callable[[str], Awaitable[TopicRoute | None]]) -> None:
        """`route` returns a topic's route, or None if the topic does not exist. It raises TransportError if no nameserver responds."""
        self._coordination = coordination
        self._route = route

    @handles(
        RequestCode.QUERY_ASSIGNMENT,
        None,
        AssignmentQuestion,
        needs=[on_group(SUB), on_topic(SUB)],
        lane=ROUTE_LANE,
        native=False,
        classic=True,
    )
    async def assignment(self, request: Request) -> HandlerResult:
        """Return the queues. A client that gets an error keeps those that it has."""
        body: AssignmentQuestion = request.body
        check_topic(body.topic)
        check_group(body.consumer_group)
        check_client_id(body.client_id)
        strategy = ROCKETMQ_NAMES.get(body.strategy_name)
        if strategy is None:
            known = ", ".join(ROCKETMQ_NAMES)
            raise RequestCodeNotSupportedError(
                f"the broker does not allocate by {body.strategy_name[:80]!r}: use one of {known}, or clientRebalance=true"
            )
        try:
            route = await self._route(body.topic)
        except (TransportError, RemoteProtocolError) as error:
            raise BrokerSystemError(f"the broker can't learn the route of topic {body.topic}: {error}") from None
        if route is None or route.layout.deleted:
            raise TopicNotExistError(f"no topic {body.topic!r}")
        registered = {broker.name for broker in route.brokers if broker.registered}
        layout = replace(route.layout, entries=tuple(entry for entry in route.layout.entries if entry.broker_name in registered))
        if body.message_model is MessageModel.BROADCASTING:
            return request.reply(body=_assignments(layout.each_read_queue(by_name=True)))
        members = self._coordination.membership.member_list(body.consumer_group)
        if members is None or body.client_id not in members.members:
            raise BrokerSystemError(f"client {body.client_id} is no member of group {body.consumer_group} here: send HEART_BEAT first")
        return request.reply(body=_assignments(allocate(strategy, None, layout, members.members, body.client_id)))


def _assignments(queues: Iterable[MessageQueue]) -> bytes:
    """Return the body: queues that the client pulls itself, as before. RocketMQ: QueryAssignmentResponseBody, MessageRequestMode."""
    found = [
        {"messageQueue": {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}, "mode": "PULL"}
        for queue in queues
    ]
    return write_json({"messageQueueAssignments": found})
