"""Topics that RocketMQ's brokers register by themselves: routes without a layout, for RocketMQ's clients alone (docs/rocketmq.md).

| topic                   | queues of a broker | who asks for it                                                          |
|-------------------------|--------------------|--------------------------------------------------------------------------|
| `TBW102`                | 8                  | producers before the first send to a topic that the broker then creates  |
| a broker's name         | 1                  | pyrocketmq, which finds a broker's address by it                         |
| a cluster's name        | 16                 | tools                                                                    |
| `<cluster>_REPLY_TOPIC` | 1                  | clients that respond to a request of another client                     |
| `SELF_TEST_TOPIC`       | 1                  | tools                                                                    |
"""

from collections.abc import Iterable

from lockstep.nameserver.broker_record import Registration
from lockstep.protocol.names import reply_topic
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout

DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
DEFAULT_QUEUES, CLUSTER_QUEUES = 8, 16


def own_layout(topic: str, registered: Iterable[Registration]) -> TopicLayout | None:
    """Return a layout of such a topic over the registered brokers, or None if it is none of them."""
    counts = {broker.name: _queue_count(topic, broker) for broker in registered}
    entries = tuple(LayoutEntry(name, count, count, 1) for name, count in sorted(counts.items()) if count)
    return TopicLayout(topic, LayoutVersion(1, 0), entries) if entries else None


def _queue_count(topic: str, broker: Registration) -> int:
    if topic == DEFAULT_TOPIC:
        return DEFAULT_QUEUES if broker.auto_create else 0
    if topic == broker.cluster:
        return CLUSTER_QUEUES
    return int(topic in (broker.name, reply_topic(broker.cluster), SELF_TEST_TOPIC))
