"""Groups: their contract, their members, the version of the member list. RocketMQ: ConsumerManager, ConsumerGroupInfo.

Every change of a member list goes through `_list_changed`, which raises the version (term, counter) and marks the group for notices. The
counter is one for the whole broker and begins again with each term. So a version never falls, not even for a group that was removed and
came back (ordering.md 5.1).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.tables.subscription_table import SubscriptionTable
from lockstep.protocol.bodies import ConsumerGroup, Subscription
from lockstep.protocol.errors import StoreError
from lockstep.protocol.fields import from_plain, to_plain

VERSIONS_MIN = 64
"""Number of subscription versions that a group always keeps."""
GROUP_TOPIC_BYTES = 100
"""Memory of one topic that a group subscribes to, without the subscription itself: equal subscriptions are stored once."""


@dataclass(slots=True, eq=False)
class Group:
    name: str
    contract: ConsumerGroup | None = None
    contract_subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """The contract's subscriptions by topic. Looked up for every pull and for each queue of a LOCK."""
    members: dict[str, str | None] = field(default_factory=dict)
    """Client id → session. None for a classic client."""
    classic_count: int = 0
    """Number of members that are classic clients."""
    version: int = 0
    classic_subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """Topic → subscription of the classic members by RocketMQ's rule: a newer version replaces an older one. Not durable."""
    member_subscriptions: dict[str, tuple[Subscription, ...]] = field(default_factory=dict)
    """Client id → the subscriptions that it last declared, even if others are in force for the group. Shown to operators; not durable."""
    sub_versions: dict[str, int] = field(default_factory=dict)
    """Topic → the highest version that any member has named. A pull with a higher one arrived before its HEART_BEAT. Not durable."""
    versions_max: int = VERSIONS_MIN
    """Number of entries of `sub_versions` above which `prune_sub_versions` removes those that are not needed."""

    _member_ids: tuple[str, ...] | None = None
    """Cache of `member_ids`. None if it must be computed."""

    @property
    def has_classic_members(self) -> bool:
        """Return whether a classic client is among the members."""
        return self.classic_count > 0

    @property
    def member_ids(self) -> tuple[str, ...]:
        """Return the client ids, sorted. They are needed for each queue of the group, so they are sorted once for each change."""
        if self._member_ids is None:
            self._member_ids = tuple(sorted(self.members))
        return self._member_ids

    def put_member(self, client_id: str, session: str | None) -> None:
        """Add a member. `session` is None for a classic client."""
        self.members[client_id] = session
        self.classic_count += session is None
        self._member_ids = None

    def remove_member(self, client_id: str) -> str | None:
        """Remove a member and return its session. Return None if it is a classic client or not a member."""
        if client_id not in self.members:
            return None
        session = self.members.pop(client_id)
        self.classic_count -= session is None
        self._member_ids = None
        return session

    def set_contract(self, contract: ConsumerGroup | None) -> None:
        self.contract = contract
        self.contract_subscriptions = {} if contract is None else {each.topic: each for each in contract.subscriptions}

    def prune_sub_versions(self) -> None:
        """Remove versions of topics to which no member and no contract subscribes, if there may be many of them."""
        if len(self.sub_versions) > self.versions_max:
            named = {
                each.topic for declared in self.member_subscriptions.values() for each in declared
            } | self.contract_subscriptions.keys()
            self.sub_versions = {topic: version for topic, version in self.sub_versions.items() if topic in named}
            self.versions_max = max(VERSIONS_MIN, 2 * len(self.sub_versions))


class GroupTable:
    """A durable table of group name → contract and members."""

    KINDS = frozenset({"group.contract", "group.member", "group.left"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, Group] = {}
        self._of_session: dict[str, dict[tuple[str, str], None]] = {}
        self._of_topic: dict[str, dict[str, None]] = {}
        """Topic → names of the groups with a contract that subscribes to it."""
        self.subscriptions = SubscriptionTable()
        """The subscriptions of all contracts and members."""
        self.member_count = 0
        """Number of members of all groups."""
        self._topics_count = 0
        """Number of entries of `sub_versions` of all groups."""
        self._counter = 0
        self._changed: dict[str, None] = {}

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def groups_of_session(self, session: str) -> list[Group]:
        """Return the groups that this session is a member of."""
        return [self._groups[name] for name in dict.fromkeys(name for name, _ in self._of_session.get(session, ()))]

    def groups_subscribed_to(self, topic: str) -> list[Group]:
        """Return the groups with a contract that subscribes to the topic."""
        return [self._groups[name] for name in self._of_topic.get(topic, ())]

    def join(self, name: str, client_id: str, session: str | None) -> bool:
        """Add the client to the list, or give its place to another session. Return whether the list has changed."""
        group = self._groups.get(name)
        known = group is not None and client_id in group.members
        if group is not None and known and group.members[client_id] == session:
            return False
        was_classic = group is not None and group.has_classic_members
        self._record(("group.member", name, client_id, session))
        if known and self._groups[name].has_classic_members == was_classic:
            return False
        self._list_changed(self._groups[name])
        return True

    def leave(self, name: str, client_id: str) -> None:
        group = self._groups.get(name)
        if group is not None and client_id in group.members:
            self._record(("group.left", name, client_id))
            self._list_changed(group)

    def record_subscriptions(self, group: Group, client_id: str, declared: tuple[Subscription, ...]) -> None:
        """Keep the subscriptions that a member of the group last declared. Not durable."""
        before = group.member_subscriptions.get(client_id)
        if before != declared:
            group.member_subscriptions[client_id] = self.subscriptions.acquire(declared)
            if before is not None:
                self.subscriptions.release(before)

    def record_subscription_versions(self, group: Group, declared: Iterable[Subscription]) -> None:
        """Keep the highest version of each subscription that a member has named. Not durable."""
        before = len(group.sub_versions)
        for each in declared:
            group.sub_versions[each.topic] = max(each.sub_version, group.sub_versions.get(each.topic, 0))
        group.prune_sub_versions()
        self._topics_count += len(group.sub_versions) - before

    @property
    def subscription_bytes(self) -> int:
        """Return the estimated memory of the subscriptions of all groups and members."""
        return self.subscriptions.bytes + GROUP_TOPIC_BYTES * self._topics_count

    def additional_bytes(self, name: str, declared: tuple[Subscription, ...]) -> int:
        """Return by how much `subscription_bytes` grows if a member of the group declares these subscriptions."""
        group = self._groups.get(name)
        known = {} if group is None else group.sub_versions
        return self.subscriptions.additional_bytes(declared) + GROUP_TOPIC_BYTES * sum([each.topic not in known for each in declared])

    def set_contract(self, name: str, contract: ConsumerGroup | None) -> None:
        """Record the group's contract. None drops it."""
        self._record(("group.contract", name, None if contract is None else to_plain(contract)))

    def drop_group(self, name: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        group = self._groups.get(name)
        if group is not None:
            for client_id in group.member_ids:
                self._remove_member(group, client_id)
            self._put_contract(group, None)
            self._forget_group(group)

    @property
    def has_changed_lists(self) -> bool:
        """Return whether `take_changed_lists` would return a group."""
        return bool(self._changed)

    def take_changed_lists(self) -> list[str]:
        """Return the groups with lists that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("group.contract", name, plain):
                self._put_contract(self._group(name), plain)
            case ("group.member", name, client_id, session):
                self._remove_member(self._group(name), client_id)
                self._put_member(self._group(name), client_id, session)
            case ("group.left", name, client_id):
                self._remove_member(self._group(name), client_id)
            case _:
                raise StoreError(f"state change {change[:1]} is unknown to the group table")
        group = self._groups[change[1]]
        if group.contract is None and not group.members:
            self._forget_group(group)

    def snapshot(self) -> SnapshotRows:
        copies = [(name, group.contract, dict(group.members)) for name, group in sorted(self._groups.items())]
        return SnapshotRows(
            len(copies),
            lambda: (
                [name, None if contract is None else to_plain(contract), [list(each) for each in sorted(members.items())]]
                for name, contract, members in copies
            ),
        )

    def restore(self, plain: Iterable[list[Any]]) -> None:
        for name, contract, members in plain:
            group = self._groups[name] = Group(name)
            self._put_contract(group, contract)
            for client_id, session in members:
                self._put_member(group, client_id, session)

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)

    def _forget_group(self, group: Group) -> None:
        self._topics_count -= len(group.sub_versions)
        del self._groups[group.name]

    def _group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group(name))

    def _put_contract(self, group: Group, plain: Any) -> None:
        """Put a contract into force as it is recorded in the log. None drops it."""
        for topic in group.contract_subscriptions:
            names = self._of_topic[topic]
            del names[group.name]
            if not names:
                del self._of_topic[topic]
        before = group.contract
        contract = None if plain is None else from_plain(ConsumerGroup, plain)
        group.set_contract(contract and replace(contract, subscriptions=self.subscriptions.acquire(contract.subscriptions)))
        if before is not None:
            self.subscriptions.release(before.subscriptions)
        for topic in group.contract_subscriptions:
            self._of_topic.setdefault(topic, {})[group.name] = None

    def _put_member(self, group: Group, client_id: str, session: str | None) -> None:
        self.member_count += 1
        group.put_member(client_id, session)
        if session is not None:
            self._of_session.setdefault(session, {})[group.name, client_id] = None

    def _remove_member(self, group: Group, client_id: str) -> None:
        self.member_count -= client_id in group.members
        session = group.remove_member(client_id)
        if (declared := group.member_subscriptions.pop(client_id, None)) is not None:
            self.subscriptions.release(declared)
        if session is not None:
            places = self._of_session[session]
            del places[group.name, client_id]
            if not places:
                del self._of_session[session]

    def _list_changed(self, group: Group) -> None:
        self._counter += 1
        group.version = self._counter
        self._changed[group.name] = None
