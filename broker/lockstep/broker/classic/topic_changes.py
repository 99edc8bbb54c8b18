"""How RocketMQ's tools create, alter and delete topics. RocketMQ: TopicConfig, AdminBrokerProcessor.

A request names the counts of queues at one broker, and a permission, which is a matter of counts here: a queue that is closed to writers is
not in the count of those to write to.

| request                                | result                                                                                  |
|----------------------------------------|-----------------------------------------------------------------------------------------|
| a new topic, or more queues            | They are added, and closed ones opened.                                                 |
| fewer to write to (perm 4: none)       | They are closed, and still read.                                                        |
| fewer to read                          | They are removed, unless a group has not consumed all of their messages.                |
| perm 2 or 0, a unit topic, attributes  | MESSAGE_ILLEGAL: they don't exist here.                                                 |
| a system topic                         | SYSTEM_ERROR, as in RocketMQ                                                            |

If the number of queues to write to changes, keys move to other queues. So that is refused while a native group consumes the topic in order
and may have messages before it (ordering.md 9.6): the broker knows only its own queues, and does not hold the writes of others. It is also
refused while a group has parked keys in the topic.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from lockstep.broker.classic.admin_bodies import INHERIT, READ, WRITE
from lockstep.broker.groups.coordination import Coordination, QueueBounds
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.errors import BrokerSystemError, MessageIllegalError, NoPermissionError
from lockstep.protocol.names import check_topic, group_of_topic, is_system_topic
from lockstep.protocol.topics.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.topics.queue import TopicLayout

MESSAGE_TYPE = "message.type"
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY")
"""Values of the attribute `message.type` that every topic allows, so that they need not be kept."""


@dataclass(frozen=True, slots=True)
class CreateTopicFields:
    """UPDATE_AND_CREATE_TOPIC (17) of RocketMQ's clients. RocketMQ: CreateTopicRequestHeader."""

    topic: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = READ | WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    attributes: str = ""
    """`+name=value,-name`."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """RocketMQ: TopicConfig."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = READ | WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigList:
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (18). RocketMQ: CreateTopicListRequestBody."""

    topic_config_list: tuple[TopicConfig, ...]


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """What a request asks for."""

    topic: str
    read: int
    write: int


def counts_of(asked: CreateTopicFields | TopicConfig) -> TopicCounts:
    """Check a request, and return its counts. Raise MessageIllegalError for what does not exist here."""
    if isinstance(asked, CreateTopicFields):
        topic, attributes = asked.topic, asked.attributes.split(",") if asked.attributes else []
    else:
        topic, attributes = asked.topic_name, [f"{name}={value}" for name, value in (asked.attributes or {}).items()]
    check_user_topic(topic)
    for attribute in attributes:
        _check_attribute(topic, attribute)
    if asked.topic_filter_type != "SINGLE_TAG" or asked.topic_sys_flag:
        kind = f"topicFilterType {asked.topic_filter_type[:40]!r}, topicSysFlag {asked.topic_sys_flag}"
        raise MessageIllegalError(f"topic {topic}: {kind}: only SINGLE_TAG and 0 are supported")
    if asked.perm & ~INHERIT not in (READ | WRITE, READ):
        raise MessageIllegalError(
            f"topic {topic}: perm {asked.perm}: only 6 and 4 are supported, since what is written must be readable. Use deleteTopic for a "
            "topic that is no longer used"
        )
    read = asked.read_queue_nums
    if not 0 <= asked.write_queue_nums <= QUEUES_PER_BROKER_MAX or not 1 <= read <= QUEUES_PER_BROKER_MAX:
        counts = f"{read} queues to read, {asked.write_queue_nums} to write"
        raise MessageIllegalError(
            f"topic {topic}: {counts}: expected 1 to {QUEUES_PER_BROKER_MAX}, and 0 to {QUEUES_PER_BROKER_MAX}. `lockstep topic alter "
            f"{topic} --broker NAME --queues 0` removes all of a broker"
        )
    if not asked.perm & WRITE:
        return TopicCounts(topic, read, 0)
    # updateTopicPerm sends the counts of the route, which has no queues to write to while the permission is 4.
    return TopicCounts(topic, read, asked.write_queue_nums or read)


def check_user_topic(topic: str) -> None:
    """Raise the error of `check_topic`, or BrokerSystemError for a topic of the broker's own."""
    check_topic(topic)
    if is_system_topic(topic):
        raise BrokerSystemError(f"topic {topic} is the broker's own: it can be neither created, altered nor deleted")


def _check_attribute(topic: str, attribute: str) -> None:
    name, _, value = attribute.removeprefix("+").partition("=")
    if attribute.startswith("-") or (name == MESSAGE_TYPE and value in MESSAGE_TYPES):
        return
    raise MessageIllegalError(
        f"topic {topic}: attribute {attribute[:80]!r} is not supported: only {MESSAGE_TYPE} with {', '.join(MESSAGE_TYPES)}, since every "
        "topic takes all of these"
    )


class TopicChanges:
    """Changes topics for RocketMQ's tools. Each change is complete when the method returns, and becomes durable with the log."""

    def __init__(
        self,
        topics: TopicTable,
        coordination: Coordination,
        holds: WriteHolds,
        check_disk: Callable[[str], None],
        bounds: QueueBounds,
        open_halves: Callable[[], int],
    ) -> None:
        """`check_disk(topic)` raises ServiceNotAvailableError if the topic is new and the disk has no room for it. `open_halves`
        returns how many half messages of all topics are not decided."""
        self._open_halves = open_halves
        self._topics = topics
        self._coordination = coordination
        self._holds = holds
        self._check_disk = check_disk
        self._bounds = bounds

    def put(self, asked: TopicCounts, now_ms: int) -> None:
        """Create the topic with these queues of this broker, or alter it. Raise NoPermissionError, which names the group, if messages would
        be lost or the order of a native group would end."""
        layout = self._topics.find_layout(asked.topic)
        if layout is None:
            self._check_disk(asked.topic)
            self._topics.create_own(asked.topic, asked.read, asked.write)
            return
        if self._holds.holds(asked.topic, now_ms):
            raise NoPermissionError(f"the queues of topic {asked.topic} are being moved by another command: try again when it has ended")
        read, write = self._topics.own_read_count(layout), self._topics.own_write_count(layout)
        if asked.write != write:
            self._check_order(layout, read)
            self._check_not_parked(asked.topic, range(read))
        if asked.read < read:
            self._check_consumed(asked.topic, range(asked.read, read))
            self._check_not_parked(asked.topic, range(asked.read, read))
        self._topics.alter_own(asked.topic, asked.read, asked.write)

    def delete(self, topic: str) -> bool:
        """Delete the topic in the whole cluster. Return False for an unknown topic: as in RocketMQ, that is no error.

        Raise NoPermissionError for a group's retry or dead-letter topic that may hold messages: it has the only copy of them.
        """
        check_user_topic(topic)
        layout = self._topics.find_layout(topic)
        if layout is None:
            return False
        if group_of_topic(topic) is not None:
            self._check_empty(layout)
        self._topics.create(layout.deletion)
        return True

    def _check_empty(self, layout: TopicLayout) -> None:
        topic = layout.topic
        count = sum(end - first for first, end in map(partial(self._stored, topic), range(self._topics.own_read_count(layout))))
        others = [name for name in layout.brokers if name != self._coordination.state.config.broker_name]
        if count or others:
            what = f"holds {count} messages" if count else f"has queues at {', '.join(others[:8])}"
            raise NoPermissionError(
                f"nothing was changed: topic {topic} {what}, and messages that wait for a retry and dead letters have no other copy. "
                f"`lockstep topic delete {topic} --force` deletes it"
            )

    def _check_order(self, layout: TopicLayout, read_count: int) -> None:
        """Raise NoPermissionError if a native group that consumes the topic in order has not consumed all of it, or half messages, whose
        topics the broker does not know at once, are not decided."""
        topic = layout.topic
        elsewhere = set(layout.brokers) != {self._coordination.state.config.broker_name}
        for group in self._consumers(topic):
            contract = self._coordination.status.contract(group)
            unread = elsewhere or self._open_halves() or self._lag(group, topic, range(read_count))
            if contract is not None and contract.ordered and unread:
                raise NoPermissionError(
                    f"nothing was changed: group {group} consumes topic {topic} in order, and keys would move to other queues before it "
                    f"has consumed their messages. `lockstep topic alter {topic}` holds the writes meanwhile"
                )

    def _check_consumed(self, topic: str, removed: Iterable[int]) -> None:
        """Raise NoPermissionError if a group has not consumed all messages of the queues."""
        removed = tuple(removed)
        for group in self._consumers(topic):
            contract = self._coordination.status.contract(group)
            broadcasting = contract is not None and contract.broadcasting
            if broadcasting or (lag := self._lag(group, topic, removed)):
                what = "is broadcasting, so its progress is unknown" if broadcasting else f"has not consumed {lag} messages of them"
                raise NoPermissionError(
                    f"nothing was changed: queues {removed[0]} to {removed[-1]} of topic {topic} would be removed, and group {group} "
                    f"{what}. Wait until it has, or use `lockstep topic alter {topic} --force`"
                )

    def _check_not_parked(self, topic: str, queue_ids: range) -> None:
        """Raise NoPermissionError if a group has parked keys in these queues: progress has passed their messages, which still wait."""
        parks = self._coordination.state.parks
        for group in dict.fromkeys(row.group for row in parks if row.topic == topic):
            if count := sum(parks.waiting_count((group, topic, queue_id)) for queue_id in queue_ids):
                raise NoPermissionError(
                    f"nothing was changed: group {group} has {count} parked keys in queues {queue_ids[0]} to {queue_ids[-1]} of topic "
                    f"{topic}, and their messages would be consumed out of order, or be lost. Replay or drop them "
                    f"(`lockstep park ls {group}`)"
                )

    def _consumers(self, topic: str) -> Iterator[str]:
        """Yield the groups that subscribe to the topic here, and those with progress in it that have not left it."""
        state = self._coordination.state
        subscribed = [group.name for group in state.groups.groups_subscribed_to(topic)]
        begun = [group for group in state.progress.groups_in_topic(topic) if not state.has_left(group, topic)]
        own = group_of_topic(topic)
        yield from dict.fromkeys([*subscribed, *begun, *([] if own is None else [own])])

    def _lag(self, group: str, topic: str, queue_ids: Iterable[int]) -> int:
        """Return the number of messages of these queues that the group has not consumed."""
        lag = 0
        for queue_id in queue_ids:
            progress = self._coordination.state.progress.get((group, topic, queue_id))
            first, end = self._stored(topic, queue_id)
            lag += max(0, end - max(first, 0 if progress is None else progress.offset))
        return lag

    def _stored(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first offset and the next one, after messages that are not visible yet."""
        return self._bounds.bounds(topic, queue_id)[0], self._bounds.end_offset(topic, queue_id)
