"""One consumer group: its contracts, its members, and which of them share the queues of each topic. RocketMQ: ConsumerGroupInfo."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lockstep.broker.groups.contract import includes
from lockstep.protocol.bodies import ConsumerGroup, Subscription
from lockstep.protocol.names import RETRY_PREFIX

VERSIONS_MIN = 64
"""Number of subscription versions that a group always keeps."""

Shares = tuple[tuple[tuple[str, ...], ...], dict[str, int]]
"""Sets of members, and topic → number of its set."""


@dataclass(slots=True, eq=False)
class Group:
    name: str
    contracts: dict[int, ConsumerGroup] = field(default_factory=dict)
    """`contract_version` → contract: those in force, the one that was announced last is the last. More than one while members of several
    run (ordering.md 11.5)."""
    members: dict[str, str | None] = field(default_factory=dict)
    """Client id → session. None for a classic client."""
    member_versions: dict[str, int] = field(default_factory=dict)
    """Client id → version of its contract, for members whose version is not 0."""
    native_counts: Counter[int] = field(default_factory=Counter)
    """Version of a contract → number of members with a session that have it."""
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

    _subscriptions: dict[int, dict[str, Subscription]] = field(default_factory=dict)
    """The subscriptions of each contract by topic. Looked up for every pull and for each queue of a LOCK."""
    _member_ids: tuple[str, ...] | None = None
    """Cache of `member_ids`. None if it must be computed."""
    _shares: "Shares | None" = None
    """Cache of `shares`. None if it must be computed."""

    # ----------------------------------------------------------------------------------------------------------- contracts

    @property
    def contract(self) -> ConsumerGroup | None:
        """Return the contract that was announced last, or None if there is none."""
        for newest in reversed(self.contracts.values()):
            return newest
        return None

    def contract_of(self, client_id: str) -> ConsumerGroup | None:
        """Return the contract of a member. Return the newest one for a client that is not a member, or is a classic one."""
        if len(self.contracts) < 2 or self.members.get(client_id) is None:
            return self.contract
        return self.contracts.get(self.member_versions.get(client_id, 0), self.contract)

    def put_contract(self, contract: ConsumerGroup) -> None:
        """Put a contract into force, in place of the one of its version."""
        version = contract.contract_version
        self.contracts[version] = contract
        self._subscriptions[version] = {each.topic: each for each in contract.subscriptions}
        self._shares = None

    def remove_contract(self, version: int) -> ConsumerGroup:
        """Remove a contract that is in force, and return it."""
        del self._subscriptions[version]
        self._shares = None
        return self.contracts.pop(version)

    @property
    def unused_versions(self) -> list[int]:
        """Return the versions that no member has, except for the one announced last if no member has any."""
        if len(self.contracts) < 2:
            return []
        unused = [version for version in self.contracts if not self.native_counts[version]]
        return unused if len(unused) < len(self.contracts) else unused[:-1]

    @property
    def topics(self) -> dict[str, None]:
        """Return the topics to which the contracts subscribe."""
        return {topic: None for known in self._subscriptions.values() for topic in known}

    @property
    def consumed_topics(self) -> dict[str, None] | None:
        """Return the topics that the members consume: those to which a contract in force or a classic member subscribes, and that of the
        group's retries. Return None if that is not known (ordering.md 11.6).

        It is not known without members, nor while a contract or a classic member names no other topic than that of the retries: such
        members assign queues by hand, or the broker has started and has not received their HEART_BEAT yet.
        """
        retries = RETRY_PREFIX + self.name
        named = [list(known) for known in self._subscriptions.values()]
        if self.classic_count:
            classic = (client_id for client_id, session in self.members.items() if session is None)
            named += [[each.topic for each in self.member_subscriptions.get(client_id, ())] for client_id in classic]
        if not self.members or not named or any(set(topics) <= {retries} for topics in named):
            return None
        return dict.fromkeys([retries, *(topic for topics in named for topic in topics)])

    def subscribes(self, contract: ConsumerGroup, topic: str) -> bool:
        """Return whether a contract that is in force subscribes to the topic."""
        return topic in self._subscriptions[contract.contract_version]

    def subscription(self, topic: str, client_id: str | None = None) -> Subscription | None:
        """Return the subscription in the member's contract, or in the newest one for other clients. None if there is none."""
        contract = self.contract if client_id is None else self.contract_of(client_id)
        return None if contract is None else self._subscriptions[contract.contract_version].get(topic)

    # ------------------------------------------------------------------------------------------------------------- members

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

    @property
    def shares(self) -> "Shares":
        """Return which members share the topics that only some of them may own. Empty unless contracts with different subscriptions are in
        force.

        A topic is shared by the members that subscribe to it. The topic of the group's retries is shared by the members with the widest
        subscriptions, because a retried message has the tags of its original. With a classic member RocketMQ's rule is in force, and every
        member shares every topic.
        """
        if self._shares is None:
            self._shares = self._compute_shares()
        return self._shares

    def members_of(self, topic: str) -> tuple[str, ...]:
        """Return the members that share the queues of a topic, sorted."""
        if len(self.contracts) < 2:
            return self.member_ids
        members, topics = self.shares
        return members[topics[topic]] if topic in topics else self.member_ids

    def _compute_shares(self) -> "Shares":
        used = [version for version in self.contracts if self.native_counts[version]]
        if len(used) < 2 or self.has_classic_members:
            return (), {}
        numbers: dict[tuple[int, ...], int] = {}
        topics: dict[str, int] = {}
        for topic in {topic: None for version in used for topic in self._subscriptions[version]}:
            if topic == RETRY_PREFIX + self.name:
                sharing = self._widest(used)
            else:
                sharing = tuple(version for version in used if topic in self._subscriptions[version])
            if len(sharing) < len(used):
                topics[topic] = numbers.setdefault(sharing, len(numbers))
        return tuple(self._members_with(sharing) for sharing in numbers), topics

    def _widest(self, versions: Sequence[int]) -> tuple[int, ...]:
        """Return the versions whose subscriptions include those of all the others. Of each two contracts one includes the other."""
        widest = self.contracts[versions[0]]
        for version in versions[1:]:
            if includes(self.contracts[version], widest):
                widest = self.contracts[version]
        return tuple(version for version in versions if includes(self.contracts[version], widest))

    def _members_with(self, versions: Collection[int]) -> tuple[str, ...]:
        """Return the members with a session that have one of these versions, sorted."""
        native = (client_id for client_id in self.member_ids if self.members[client_id] is not None)
        return tuple(client_id for client_id in native if self.member_versions.get(client_id, 0) in versions)

    def put_member(self, client_id: str, session: str | None, version: int = 0) -> None:
        """Add a member. `session` is None for a classic client; `version` is that of its contract."""
        self.members[client_id] = session
        if version:
            self.member_versions[client_id] = version
        if session is None:
            self.classic_count += 1
        else:
            self.native_counts[version] += 1
        self._member_ids = self._shares = None

    def remove_member(self, client_id: str) -> str | None:
        """Remove a member and return its session. Return None if it is a classic client or not a member."""
        if client_id not in self.members:
            return None
        session, version = self.members.pop(client_id), self.member_versions.pop(client_id, 0)
        if session is None:
            self.classic_count -= 1
        else:
            self.native_counts[version] -= 1
        self._member_ids = self._shares = None
        return session

    def prune_sub_versions(self) -> None:
        """Remove versions of topics to which no member and no contract subscribes, if there may be many of them."""
        if len(self.sub_versions) > self.versions_max:
            named = {each.topic for declared in self.member_subscriptions.values() for each in declared} | self.topics.keys()
            self.sub_versions = {topic: version for topic, version in self.sub_versions.items() if topic in named}
            self.versions_max = max(VERSIONS_MIN, 2 * len(self.sub_versions))
