"""Names on the wire: topics, groups, client ids, broker names. RocketMQ: Validators, TopicValidator.

name         length          characters
topic        1 … 127 bytes   % | a-z A-Z 0-9 _ -
group        1 … 255 bytes   % | a-z A-Z 0-9 _ -
client id    1 … 255 bytes   printable ASCII without blanks
broker name  1 … 127 bytes   a-z A-Z 0-9 . _ -   (also of a cluster); a broker name may be ROOM@NAME (allocate.py: machine_room)
"""

import re
from shlex import quote

from lockstep.protocol.errors import LocalProtocolError

TOPIC_BYTES_MAX = 127
"""The stored record has the topic length in a signed byte."""
GROUP_BYTES_MAX = 255
CLIENT_ID_BYTES_MAX = 255
BROKER_NAME_BYTES_MAX = 127
REPLICAS_MAX = 16
"""The maximum number of other copies of one broker's log in a registration."""

STATE_TOPIC = "LOCKSTEP_SYS_STATE"
"""The topic of the broker's own state records. Clients may neither send to it nor pull from it, and no topic list has it."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""The topic of pending delayed messages, with a queue for each delay. RocketMQ: TopicValidator.RMQ_SYS_SCHEDULE_TOPIC."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""The waiting room of messages with any delay, or until a time of day: queue 0. RocketMQ: TimerMessageStore.TIMER_TOPIC."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The waiting room of half messages, whose transaction is not decided: queue 0. RocketMQ: TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC."""
WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
"""Topics of messages that wait until they are due, or until their transaction is decided."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""The topic to which RocketMQ's clients send their traces. Only brokers create it (`--trace-topic`)."""
REPLY_SUFFIX = "_REPLY_TOPIC"
READER_GROUP = "LOCKSTEP_TAIL"
"""The group that tools name in pulls. It commits nothing, so it has no progress."""
REPLAY_GROUP = "LOCKSTEP_REPLAY"
"""The group whose progress in a dead-letter topic is what tools have replayed of it."""
SYSTEM_PREFIXES = ("rmq_sys_", "LOCKSTEP_SYS_")

INTERNAL_LISTENER = "internal"
"""The listener that every broker has: the name of a listener without a name, and the one used if a broker has none of a requested name."""

NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        STATE_TOPIC,
    }
)
"""Topics to which only the broker writes. RocketMQ: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET."""
SYSTEM_TOPICS = NOT_SENDABLE | {AUTO_CREATE_TOPIC, "BenchmarkTest", TRACE_TOPIC}
"""Topics that clients may not create. RocketMQ: TopicValidator.SYSTEM_TOPIC_SET."""

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_CLUSTER = re.compile(r"[a-zA-Z0-9._-]+")
_BROKER = re.compile(r"([a-zA-Z0-9._-]+@)?[a-zA-Z0-9._-]+")
_CLIENT = re.compile(r"[!-~]+")


def is_system_topic(topic: str) -> bool:
    """Return True for topics that users may not create: RocketMQ's own, `rmq_sys_…`, and lockstep's state topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def is_tool_group(group: str) -> bool:
    """Return whether the group is one of the tools' own: it has no members, so it is not watched as groups are."""
    return group in (READER_GROUP, REPLAY_GROUP)


def is_sendable_topic(topic: str) -> bool:
    """Return False for topics to which only a broker writes: clients can't send to them or pull them, and they have no layout.

    RocketMQ's brokers also accept a client's message to `rmq_sys_…` topics (their own timers and logs); lockstep's don't.
    """
    return topic not in NOT_SENDABLE and not topic.startswith(SYSTEM_PREFIXES)


def retry_topic(group: str) -> str:
    """Return the retry topic of a concurrent group. Raise LocalProtocolError if the group's name is too long for the prefix."""
    return _topic_of(RETRY_PREFIX, group)


def dlq_topic(group: str) -> str:
    """Return the dead letter topic of a group. Raise LocalProtocolError if the group's name is too long for the prefix."""
    return _topic_of(DLQ_PREFIX, group)


def reply_topic(cluster: str) -> str:
    """Return the topic to which the replies to requests are sent. It has a route, and stores nothing."""
    return cluster + REPLY_SUFFIX


def group_of_topic(topic: str) -> str | None:
    """Return the group of a retry or dead letter topic, or None if the topic is of another kind."""
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


def how_to_create(topic: str, or_else: str = "") -> str:
    """Return how a topic that does not exist comes to exist: the command, with what else helps (`or_else`), or who creates it instead."""
    group = group_of_topic(topic)
    if topic == TRACE_TOPIC:
        return "a broker that is started with --trace-topic creates it"
    if is_system_topic(topic):
        return "it is one of RocketMQ's or of the brokers' own, and nobody creates it here"
    if group is not None:
        first = "first member" if topic.startswith(RETRY_PREFIX) else "first message on which it gives up"
        return f"a broker creates it for group {group} with its {first}"
    try:
        check_topic(topic)
    except LocalProtocolError as error:
        return str(error)
    return f"create it with `lockstep topic create {quote(topic)}`{or_else}"


def check_topic(topic: str) -> None:
    """Raise LocalProtocolError unless `topic` is a topic's name (system topics included)."""
    _check("topic", topic, _TOPIC, TOPIC_BYTES_MAX, "% | a-z A-Z 0-9 _ -")


def check_group(group: str) -> None:
    """Raise LocalProtocolError unless `group` is the name of a producer or consumer group."""
    _check("group", group, _TOPIC, GROUP_BYTES_MAX, "% | a-z A-Z 0-9 _ -")


def check_client_id(client_id: str) -> None:
    """Raise LocalProtocolError unless `client_id` is a valid client id."""
    _check("client id", client_id, _CLIENT, CLIENT_ID_BYTES_MAX, "printable ASCII without blanks")


def check_broker_name(name: str) -> None:
    """Raise LocalProtocolError unless `name` is a valid broker name."""
    _check("broker name", name, _BROKER, BROKER_NAME_BYTES_MAX, "a-z A-Z 0-9 . _ -, and one @ between a room and a name")


def check_cluster_name(name: str) -> None:
    """Raise LocalProtocolError unless `name` is a valid cluster name."""
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
