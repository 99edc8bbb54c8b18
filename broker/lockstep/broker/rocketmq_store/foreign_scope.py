"""Which topics and offsets of RocketMQ's broker a start takes over: those of users, and of their groups."""

from collections.abc import Iterator

from lockstep.broker.rocketmq_store.foreign_config import PERM_INHERIT, ForeignConfig, ForeignTopic
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.protocol.names import REPLY_SUFFIX, is_system_topic

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
CLUSTER_TOPIC, BROKER_TOPIC = "rmq_sys_REVIVE_LOG_", "rmq_sys_SYNC_BROKER_MEMBER_"
"""The names of RocketMQ's own topics that end with the name of its cluster, and of its broker."""


def is_adopted(topic: ForeignTopic, log: ForeignLog) -> bool:
    """Return whether the topic is a user's or a group's. RocketMQ makes others itself, such as those named as brokers."""
    if is_system_topic(topic.topic):
        return False
    own = topic.perm & PERM_INHERIT or topic.topic.endswith(REPLY_SUFFIX)
    return not own or topic.topic in log.topics


def adopted_topics(config: ForeignConfig, log: ForeignLog) -> list[ForeignTopic]:
    return [topic for topic in config.topics.values() if is_adopted(topic, log)]


def adopted_offsets(config: ForeignConfig) -> Iterator[tuple[str, str, dict[int, int]]]:
    """Yield (group, topic, queue id → offset) of the users' groups and topics."""
    for (group, topic), offsets in sorted(config.offsets.items()):
        if group and not group.startswith(SYSTEM_GROUP_PREFIX) and not is_system_topic(topic):
            yield group, topic, offsets


def adopted_settings(config: ForeignConfig) -> Iterator[tuple[str, bool]]:
    """Yield (group, whether it may consume) of the users' groups."""
    for group, enabled in sorted(config.consume_enabled.items()):
        if not group.startswith(SYSTEM_GROUP_PREFIX):
            yield group, enabled


def own_names(config: ForeignConfig) -> tuple[list[str], list[str]]:
    """Return the names of RocketMQ's cluster and of its broker, as far as its topics tell them."""
    cluster, broker = (
        [topic.removeprefix(prefix) for topic in config.topics if topic.startswith(prefix)] for prefix in (CLUSTER_TOPIC, BROKER_TOPIC)
    )
    return cluster, broker
