"""Computes which queues a consumer wants, from each broker's member list and each topic's layout by `allocate`. Pure.

RocketMQ: RebalanceImpl.

- A list without this member is ignored: the queues of that broker remain wanted, a heartbeat is sent and the list is requested again.
- A broker whose list is not known yet adds no queues and removes none.
- A queue is lost only because of a list or a layout: an unknown layout (a nameserver restarted without state) changes nothing.
- RocketMQ's strategies, and any group with a classic member, share all queues of a topic by ONE broker's list: the first by name that is
  reachable.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from lockstep.protocol.bodies import ListVersion, MemberList
from lockstep.protocol.topics.allocate import AVERAGE, BY_BROKER, Strategy, allocate
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

QueueSet = Mapping[MessageQueue, None]
"""Queues in a fixed order (topic, then layout): a dict serves as an ordered set."""


def version_key(version: ListVersion | None) -> tuple[int, int]:
    return (-1, -1) if version is None else (version.term, version.counter)


class ListChange(IntEnum):
    """How a list differs from the one that was known before."""

    NONE = 0
    KNOWN_MEMBER = 1
    """A member joined that another broker's list had already."""
    NEW_MEMBER = 2
    """A member joined that no list had. No member has left."""
    OTHER = 3
    """It is the first list of this broker, or a member has left, or another strategy is in force, or other members share a topic."""


class MemberLists:
    """The newest member list of one group from each broker, and which lists are to be requested."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._lists: dict[str, MemberList] = {}
        self._latest_versions: dict[str, tuple[int, int]] = {}

    def adopt(self, broker_name: str, members: MemberList) -> ListChange:
        """Adopt a list. One without this member, or an older one, is not adopted."""
        self.record_version(broker_name, members.version)
        if self._me not in members.members:
            return ListChange.NONE
        known = self._lists.get(broker_name)
        if known is not None and version_key(members.version) < version_key(known.version):
            return ListChange.NONE
        change = self._change(known, members)
        self._lists[broker_name] = members
        return change

    def _change(self, known: MemberList | None, members: MemberList) -> ListChange:
        if known is None or known.classic != members.classic or set(known.members) - set(members.members):
            return ListChange.OTHER
        joined = set(members.members) - set(known.members)
        if not joined:
            return ListChange.NONE if (known.shares, known.topic_shares) == (members.shares, members.topic_shares) else ListChange.OTHER
        anywhere = {member for listed in self._lists.values() for member in listed.members}
        return ListChange.NEW_MEMBER if joined - anywhere else ListChange.KNOWN_MEMBER

    def record_version(self, broker_name: str, version: ListVersion | None) -> bool:
        """Record the list version in a notice or a response to LOCK or SYNC. Return whether the list has to be requested: it is older, or
        missing."""
        if version is not None:
            self._latest_versions[broker_name] = max(version_key(version), self.latest_version(broker_name))
        return self.is_outdated(broker_name)

    def latest_version(self, broker_name: str) -> tuple[int, int]:
        """Return the highest known version; (−1, −1) if none is known."""
        return self._latest_versions.get(broker_name, (-1, -1))

    def is_outdated(self, broker_name: str) -> bool:
        known = self._lists.get(broker_name)
        return known is None or version_key(known.version) < self.latest_version(broker_name)

    def get(self, broker_name: str) -> MemberList | None:
        return self._lists.get(broker_name)

    @property
    def any_classic(self) -> bool:
        return any(members.classic for members in self._lists.values())


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The result of one round: the wanted queues, and those that are gained and lost by it."""

    wanted: QueueSet
    gained: tuple[MessageQueue, ...]
    lost: tuple[MessageQueue, ...]


def plan(
    me: str,
    strategy: Strategy,
    layouts: Mapping[str, TopicLayout | None],
    lists: MemberLists,
    *,
    previous: QueueSet,
    reachable: Callable[[str], bool],
) -> RebalancePlan:
    """Run one round over the subscribed topics (`layouts`: the layout of each topic, or None if it is not known).

    `reachable` returns whether the broker is connected now; only RocketMQ's strategies use it, to choose the one list for everything.
    """
    one_list = by_one_list(strategy, lists)
    if one_list and strategy == BY_BROKER:
        strategy = AVERAGE
    wanted: dict[MessageQueue, None] = {}
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in previous:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic, layout in layouts.items():
        before = by_topic.get(topic, [])
        if layout is None:
            wanted.update(dict.fromkeys(before))
        elif not one_list:
            wanted.update(dict.fromkeys(_by_broker(me, layout, lists, before)))
        else:
            wanted.update(dict.fromkeys(_by_one_list(me, strategy, layout, lists, before, reachable)))
    return _plan_of(wanted, previous)


def by_one_list(strategy: Strategy, lists: MemberLists) -> bool:
    """Return whether one broker's list decides over the queues of all brokers: RocketMQ's rule, which also applies if a member is
    classic."""
    return strategy != BY_BROKER or lists.any_classic


def everything(layouts: Mapping[str, TopicLayout | None], *, previous: QueueSet) -> RebalancePlan:
    """Run one round of a broadcasting member, which gets every queue."""
    wanted: dict[MessageQueue, None] = {}
    for topic, layout in layouts.items():
        queues = layout.read_queues if layout is not None else [queue for queue in previous if queue.topic == topic]
        wanted.update(dict.fromkeys(queues))
    return _plan_of(wanted, previous)


def by_hand(queues: QueueSet, layouts: Mapping[str, TopicLayout | None], *, previous: QueueSet) -> RebalancePlan:
    """Run one round of a member with queues that the user has chosen: those that the layouts have."""
    known = {topic: layout.number_of for topic, layout in layouts.items() if layout is not None}
    return _plan_of({queue: None for queue in queues if queue in known.get(queue.topic, previous)}, previous)


def _plan_of(wanted: QueueSet, previous: QueueSet) -> RebalancePlan:
    gained = tuple(queue for queue in wanted if queue not in previous)
    lost = tuple(queue for queue in previous if queue not in wanted)
    return RebalancePlan(wanted, gained, lost)


def _by_broker(me: str, layout: TopicLayout, lists: MemberLists, before: Iterable[MessageQueue]) -> list[MessageQueue]:
    mine: list[MessageQueue] = []
    known = layout.number_of
    without_list: dict[str, list[MessageQueue]] = {}
    for queue in before:
        if lists.get(queue.broker_name) is None and queue in known:
            without_list.setdefault(queue.broker_name, []).append(queue)
    for broker_name in _brokers(layout):
        members = lists.get(broker_name)
        if members is None:
            mine += without_list.get(broker_name, [])
        else:
            mine += allocate(BY_BROKER, broker_name, layout, members.members_of(layout.topic), me)
    return mine


def _by_one_list(
    me: str, strategy: Strategy, layout: TopicLayout, lists: MemberLists, before: Iterable[MessageQueue], reachable: Callable[[str], bool]
) -> list[MessageQueue]:
    for broker_name in sorted(_brokers(layout)):
        members = lists.get(broker_name)
        if members is not None and reachable(broker_name):
            return list(allocate(strategy, None, layout, members.members_of(layout.topic), me))
    return [queue for queue in before if queue in layout.number_of]


def _brokers(layout: TopicLayout) -> list[str]:
    return list(layout.read_brokers)
