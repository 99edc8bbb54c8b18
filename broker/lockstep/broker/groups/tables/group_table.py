"""Groups: their contracts, their members, the version of the member list. RocketMQ: ConsumerManager.

Every change of a member list goes through `_list_changed`, which raises the version (term, counter) and marks the group for notices. The
counter is one for the whole broker and begins again with each term. So a version never falls, not even for a group that was removed and
came back (ordering.md 5.1).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.subscription_table import SubscriptionTable
from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import read_stored, unknown_change
from lockstep.protocol.bodies import ConsumerGroup, Subscription
from lockstep.protocol.fields import to_plain

GROUP_TOPIC_BYTES = 100
"""Memory of one topic that a group subscribes to, without the subscription itself: equal subscriptions are stored once."""


class GroupTable:
    """A durable table of group name → contracts and members."""

    KINDS = frozenset({"group.contract", "group.contract_ended", "group.member", "group.left"})

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

    def join(self, name: str, client_id: str, session: str | None, version: int = 0) -> bool:
        """Add the client to the list, or give its place to another session or another contract. Return whether the list has changed."""
        group = self._groups.get(name)
        known = group is not None and client_id in group.members
        same_version = group is not None and group.member_versions.get(client_id, 0) == version
        if group is not None and known and group.members[client_id] == session and same_version:
            return False
        was_classic = group is not None and group.has_classic_members
        self._record(("group.member", name, client_id, session, version))
        if known and same_version and self._groups[name].has_classic_members == was_classic:
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

    def put_contract(self, name: str, contract: ConsumerGroup) -> None:
        """Put a contract into force, in place of the one of its version."""
        self._record(("group.contract", name, to_plain(contract)))
        if len(self._groups[name].contracts) > 1:
            self._list_changed(self._groups[name])

    def end_contract(self, name: str, version: int) -> None:
        """End one of several contracts. No member has it, so that the list does not change."""
        self._record(("group.contract_ended", name, version))

    def end_contracts(self, name: str) -> None:
        """End every contract of the group."""
        self._record(("group.contract", name, None))

    def drop_group(self, name: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        group = self._groups.get(name)
        if group is not None:
            for client_id in group.member_ids:
                self._remove_member(group, client_id)
            self._end_contracts(group)
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
            case ("group.contract", name, None):
                self._end_contracts(self._group(name))
            case ("group.contract", name, plain):
                self._put_contract(self._group(name), plain)
            case ("group.contract_ended", name, version):
                self._end_contract(self._group(name), version)
            case ("group.member", name, client_id, session, version):
                self._remove_member(self._group(name), client_id)
                self._put_member(self._group(name), client_id, session, version)
            case ("group.left", name, client_id):
                self._remove_member(self._group(name), client_id)
            case _:
                raise unknown_change(change)
        group = self._groups[change[1]]
        if not group.contracts and not group.members:
            self._forget_group(group)

    def snapshot(self) -> SnapshotRows:
        copies = [
            (name, list(group.contracts.values()), dict(group.members), dict(group.member_versions))
            for name, group in sorted(self._groups.items())
        ]
        return SnapshotRows(
            len(copies),
            lambda: (
                [name, [to_plain(each) for each in contracts], [[*each, versions.get(each[0], 0)] for each in sorted(members.items())]]
                for name, contracts, members, versions in copies
            ),
        )

    def restore(self, plain: Iterable[list[Any]]) -> None:
        for name, contracts, members in plain:
            group = self._groups[name] = Group(name)
            for contract in contracts:
                self._put_contract(group, contract)
            for client_id, session, version in members:
                self._put_member(group, client_id, session, version)

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)

    def _forget_group(self, group: Group) -> None:
        self._topics_count -= len(group.sub_versions)
        del self._groups[group.name]

    def _group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group(name))

    def _put_contract(self, group: Group, plain: Any) -> None:
        """Put a contract into force as it is recorded in the log."""
        contract = read_stored(ConsumerGroup, plain)
        before, topics = group.contracts.get(contract.contract_version), group.topics
        group.put_contract(replace(contract, subscriptions=self.subscriptions.acquire(contract.subscriptions)))
        if before is not None:
            self.subscriptions.release(before.subscriptions)
        self._index_topics(group, topics)

    def _end_contract(self, group: Group, version: int) -> None:
        if version not in group.contracts:
            return
        topics = group.topics
        self.subscriptions.release(group.remove_contract(version).subscriptions)
        self._index_topics(group, topics)

    def _end_contracts(self, group: Group) -> None:
        for version in list(group.contracts):
            self._end_contract(group, version)

    def _index_topics(self, group: Group, before: Mapping[str, None]) -> None:
        """Keep `_of_topic` equal to the topics of the group, which were `before`."""
        after = group.topics
        for topic in before.keys() - after.keys():
            names = self._of_topic[topic]
            del names[group.name]
            if not names:
                del self._of_topic[topic]
        for topic in after:
            self._of_topic.setdefault(topic, {})[group.name] = None

    def _put_member(self, group: Group, client_id: str, session: str | None, version: int) -> None:
        self.member_count += 1
        group.put_member(client_id, session, version)
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
