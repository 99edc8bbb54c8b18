"""Creates a topic with one layout, even if several clients create it at the same time (ordering.md 9). RocketMQ: MQAdminImpl.createTopic.

The requests are sent to the brokers in the order of their names, and the layout in the first response is sent to the others: of two clients
that create a topic at the same time, the one that reaches the first broker first decides for both.
"""

from collections.abc import Collection, Sequence

from lockstep.client.instance import Instance
from lockstep.protocol.bodies import BrokerAddress, CreateTopicReply, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, RouteNotReadyError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.names import check_topic, is_system_topic
from lockstep.protocol.responses import checked
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import call


def first_layout(topic: str, broker_names: Sequence[str], queue_count: int, writer: int) -> TopicLayout:
    """Return a new topic's layout: `queue_count` queues on each broker, in the order of the broker names."""
    entries = tuple(LayoutEntry(name, queue_count, queue_count, 1) for name in sorted(broker_names))
    return TopicLayout(topic, LayoutVersion(1, writer), entries)


async def create_topic(
    instance: Instance, topic: str, queue_count: int, brokers: Collection[str] = (), *, auto: bool = False
) -> TopicLayout:
    """Create the topic with `queue_count` queues on each registered broker. Return its layout; that of an existing topic is not changed.

    `brokers`: only these get queues. The others know the topic too.
    `auto`: the topic is created by a first send, which brokers refuse (TopicNotExistError) unless they are configured to allow it.

    Raises:
        LocalProtocolError: The name is invalid.
        RouteNotReadyError: One of `brokers` is not registered, or none is.
        TransportError: No broker responds.
    """
    check_topic(topic)
    if is_system_topic(topic):
        raise LocalProtocolError(f"topic {topic} is a system topic: choose another name")
    if queue_count < 1:
        raise LocalProtocolError(f"topic {topic}: {queue_count} queues on each broker, expected at least 1")
    known = await instance.cluster.brokers()
    asked = sorted((broker for broker in known if broker.registered), key=lambda broker: broker.name)
    names = [broker.name for broker in asked]
    if not asked:
        raise RouteNotReadyError("no broker is registered at the nameserver: start one, then create the topic")
    if missing := sorted(set(brokers) - set(names)):
        raise RouteNotReadyError(f"broker {missing[0]} is not registered; the registered ones are {', '.join(names)}")
    writer = int.from_bytes(instance.host.random.token(4), "big")
    layout = first_layout(topic, sorted(brokers) or names, queue_count, writer)
    created = False
    failed: list[str] = []
    for broker in asked:
        try:
            layout = await _request_topic(instance, broker, layout, queue_count, auto=auto)
            created = True
        except TransportError as error:
            failed.append(f"{broker.name}: {error}")
    if not created:
        raise TransportError(f"topic {topic} was not created, no broker responds: {'; '.join(failed)}")
    instance.watch.adopt(TopicRoute(layout, known))
    return layout


async def _request_topic(instance: Instance, broker: BrokerAddress, layout: TopicLayout, queue_count: int, *, auto: bool) -> TopicLayout:
    header = CreateTopicHeader(layout.topic, queue_count, queue_count, auto=auto)
    response = await call(
        instance.host,
        broker.address,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        to_plain(header),
        encode_body(layout),
        security=instance.security,
        timeout_ms=instance.config.request_timeout_ms,
    )
    return decode_body(CreateTopicReply, checked(response).body).layout
