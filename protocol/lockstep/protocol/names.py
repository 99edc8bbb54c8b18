"""Names on the wire: topics, groups, client ids, broker names. RocketMQ: Validators, TopicValidator.

name         length          characters
topic        1 … 127 bytes   % | a-z A-Z 0-9 _ -
group        1 … 255 bytes   % | a-z A-Z 0-9 _ -
client id    1 … 255 bytes   printable ASCII without blanks
broker name  1 … 127 bytes   a-z A-Z 0-9 . _ -   (a cluster's, too); a broker's may be ROOM@NAME (allocate.py: machine_room)
"""

import re

from lockstep.protocol.errors import LocalProtocolError

TOPIC_BYTES_MAX = 127
"""The stored record's topic length is a signed byte."""
GROUP_BYTES_MAX = 255
CLIENT_ID_BYTES_MAX = 255
BROKER_NAME_BYTES_MAX = 127

STATE_TOPIC = "LOCKSTEP_SYS_STATE"
"""The broker's own state records. Clients may neither send to it nor pull it, and it is in no topic list."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait, a queue for each level. RocketMQ: TopicValidator.RMQ_SYS_SCHEDULE_TOPIC."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
SYSTEM_PREFIXES = ("rmq_sys_", "LOCKSTEP_SYS_")

NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        STATE_TOPIC,
    }
)
"""Topics that only the broker writes. RocketMQ: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET."""
SYSTEM_TOPICS = NOT_SENDABLE | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
"""Topics that nobody may create. RocketMQ: TopicValidator.SYSTEM_TOPIC_SET."""

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_CLUSTER = re.compile(r"[a-zA-Z0-9._-]+")
_BROKER = re.compile(r"([a-zA-Z0-9._-]+@)?[a-zA-Z0-9._-]+")
_CLIENT = re.compile(r"[!-~]+")


def is_system_topic(topic: str) -> bool:
    """True for topics that users may not create: RocketMQ's own, `rmq_sys_…`, and lockstep's state topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def is_sendable_topic(topic: str) -> bool:
    """False for the topics that only a broker writes: clients can't send to them or pull them, and they have no layout.

    RocketMQ's brokers take a client's message to `rmq_sys_…` topics too (their own timers and logs); ours don't.
    """
    return topic not in NOT_SENDABLE and not topic.startswith(SYSTEM_PREFIXES)


def retry_topic(group: str) -> str:
    """Where a concurrent group's failed messages come again. LocalProtocolError where the group's name leaves no room for it."""
    return _topic_of(RETRY_PREFIX, group)


def dlq_topic(group: str) -> str:
    """Where a group's messages go that are given up. LocalProtocolError where the group's name leaves no room for it."""
    return _topic_of(DLQ_PREFIX, group)


def group_of_topic(topic: str) -> str | None:
    """The group for which a broker creates this retry or dead letter topic; None: the topic is of another kind."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


def _topic_of(prefix: str, group: str) -> str:
    check_group(group)
    topic = prefix + group
    if len(topic) > TOPIC_BYTES_MAX:
        raise LocalProtocolError(
            f"group {group[:40]}… has {len(group)} characters: {prefix} before it makes a topic, so at most {TOPIC_BYTES_MAX - len(prefix)}"
        )
    return topic


def check_topic(topic: str) -> None:
    """Raises LocalProtocolError unless `topic` is a topic's name (system topics are names too)."""
    _check("topic", topic, _TOPIC, TOPIC_BYTES_MAX, "% | a-z A-Z 0-9 _ -")


def check_group(group: str) -> None:
    """Raises LocalProtocolError unless `group` is the name of a producer or consumer group."""
    _check("group", group, _TOPIC, GROUP_BYTES_MAX, "% | a-z A-Z 0-9 _ -")


def check_client_id(client_id: str) -> None:
    """Raises LocalProtocolError unless `client_id` may name a client."""
    _check("client id", client_id, _CLIENT, CLIENT_ID_BYTES_MAX, "printable ASCII without blanks")


def check_broker_name(name: str) -> None:
    """Raises LocalProtocolError unless `name` may name a broker."""
    _check("broker name", name, _BROKER, BROKER_NAME_BYTES_MAX, "a-z A-Z 0-9 . _ -, and one @ between a room and a name")


def check_cluster_name(name: str) -> None:
    """Raises LocalProtocolError unless `name` may name a cluster."""
    _check("cluster name", name, _CLUSTER, BROKER_NAME_BYTES_MAX, "a-z A-Z 0-9 . _ -")


def _check(what: str, name: object, pattern: re.Pattern[str], bytes_max: int, allowed: str) -> None:
    if not isinstance(name, str):
        raise LocalProtocolError(f"{what} is a {type(name).__name__}: expected str")
    if not name.strip():
        raise LocalProtocolError(f"{what} is blank: give it a name")
    if len(name) > bytes_max:
        raise LocalProtocolError(f"{what} {name[:40]!r}… has {len(name)} characters: longer than {what} max length {bytes_max}")
    if not pattern.fullmatch(name):
        raise LocalProtocolError(f"{what} {name!r} contains illegal characters: allowing only {allowed}")
