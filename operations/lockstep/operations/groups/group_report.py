"""Combine the brokers' reports about one group into its queues, its members and the inconsistencies. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from shlex import quote
from typing import Any

from lockstep.operations.text import format_duration
from lockstep.protocol.bodies import ConsumerGroup, GroupSettings, GroupStatus, JoinRefusal, MemberStatus, QueueStatus, Subscription
from lockstep.protocol.done_ranges import count
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueLine:
    topic: str
    broker: str
    queue_id: int
    reached: bool
    """False if the broker did not respond; then every field below is None."""
    owner: str | None
    epoch: str | None
    """A string, because JSON readers that hold numbers as doubles would round it."""
    classic_lease_left_ms: int | None
    committed_offset: int | None
    """None if the group has no progress in this queue."""
    max_offset: int | None
    lag: int | None
    """None too for a topic that the group has left."""
    committed_ago_ms: int | None
    attempts: int | None
    generation: str | None
    """A string, like the epoch."""
    failing_ms: int | None = None
    """How long the batch at the committed offset has been failing, as reported to the broker since it started."""
    error: str | None = None
    done: tuple[int, ...] = ()
    """Finished offsets above the committed one: bounds of ranges, as in done_ranges.py. They do not count as lag."""
    parked: int | None = None
    """The number of parked keys."""
    listed_owner: str | None = None
    """The member to which the broker's member list gives the queue; None if there is none, or that list does not decide."""
    owner_grace_ms: int | None = None
    """How long the owner, whose connection is lost, may still come back; None while it is connected."""
    held_offset: int | None = None
    """The offset at which a pull of the group is held; None if none is."""
    gap_first: int | None = None
    """The first of the last messages that retention or a purge removed before the group consumed them; None if none are known."""
    gap_end: int | None = None
    """The offset after these messages."""
    gap_ago_ms: int | None = None
    """How long ago they were removed; None if that is not known."""
    disk_pulls: int | None = None
    """The number of pulls of the group that wait for the disk."""
    left: bool = False
    """Whether the group has left the topic: it has members, and none of them consumes it (ordering.md 11.6)."""

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def loss(self) -> str | None:
        """Return what retention or a purge took from the group, as a clause; None if nothing is known."""
        if self.gap_first is None or self.gap_end is None:
            return None
        when = "at a time that is not known" if self.gap_ago_ms is None else f"{format_duration(self.gap_ago_ms)} ago"
        removed = f"retention or a purge removed offsets {self.gap_first:,} to {self.gap_end - 1:,} {when}"
        return f"{removed}, before the group had consumed them all"


@dataclass(frozen=True, slots=True)
class MemberLine:
    client_id: str
    session: str | None
    """The first 8 digits of the session id; None for a classic client."""
    address: str
    connected: bool
    """False if it is in its grace period at any broker that lists it."""
    heard_ago_ms: int
    topics: tuple[str, ...]
    subscription: Mapping[str, str]
    """Topic → expression, as the member declares it. If the group's policy is classic, `GroupReport.subscription` applies to it instead."""
    missing_at: tuple[str, ...]
    """Brokers that have queues of the group's topics and don't list this member: it gets none of their queues."""
    contract_version: int = 0
    """The version of its contract."""
    grace_left_ms: int | None = None
    """How long the member, which some broker has lost, may still come back; None while every broker that lists it is connected to it."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    group: str
    ordered: bool | None
    """None if no broker has a contract, because the group has no members."""
    broadcasting: bool | None
    """True if each member consumes every queue and keeps its own progress, so no broker knows offsets or lag. None as for `ordered`."""
    queues: tuple[QueueLine, ...]
    members: tuple[MemberLine, ...]
    conflicts: tuple[str, ...]
    """Brokers whose contract differs from the first one's, and the fields that differ."""
    unequal_settings: tuple[str, ...] = ()
    """Brokers whose settings differ from the first one's."""
    subscription: Mapping[str, str] = field(default_factory=dict)
    """Topic → expression, of the contract in force for all members. Empty if no broker has a contract."""
    settings: GroupSettings | None = None
    """None if the group has none."""
    overruled_count: int = 0
    """How often a member's subscriptions replaced those of others: the highest count of any broker."""
    contract_version: int = 0
    """The version of the newest contract."""
    refusals: tuple[JoinRefusal, ...] = ()
    """The last clients that a broker did not admit, the newest first."""
    grants: Mapping[str, int] = field(default_factory=dict)
    """Broker → grants of the group's queues since its start."""
    suspended_ms: Mapping[str, int] = field(default_factory=dict)
    """Broker → how long it does not grant any queue yet, because its last start may have lost grants."""
    consumed: tuple[str, ...] = ()
    """The topics to which a contract that is in force at some broker subscribes, or a member by its own declaration."""

    @property
    def left(self) -> tuple[str, ...]:
        """Return the topics that the group has left and has progress in."""
        return tuple(dict.fromkeys(queue.topic for queue in self.queues if queue.left))

    @property
    def lag(self) -> int | None:
        """Return the lag over the queues that were reached, without topics that the group has left, or None for a broadcasting group."""
        return None if self.broadcasting else sum(queue.lag or 0 for queue in self.queues)

    @property
    def members_by_version(self) -> dict[int, int]:
        """Return the number of members by the version of their contract, the lowest first."""
        return dict(sorted(Counter(member.contract_version for member in self.members).items()))

    @property
    def update_command(self) -> str:
        """Return the shell command that gives every broker `settings`."""
        return update_command(self.settings or GroupSettings(self.group))

    @property
    def unreached(self) -> tuple[str, ...]:
        """Return the brokers with queues of the group's topics that did not respond."""
        return tuple(dict.fromkeys(queue.broker for queue in self.queues if not queue.reached))


def report(
    group: str,
    statuses: Mapping[str, GroupStatus],
    layout_queues: Collection[MessageQueue],
    unreached: Collection[str] = (),
    without_group: Collection[str] = (),
) -> GroupReport:
    """Return the group's report.

    Args:
        group: The group's name.
        statuses: Broker name → the group's state there.
        layout_queues: Every readable queue of the group's topics.
        unreached: The brokers that did not respond.
        without_group: The brokers that don't know the group: no member has ever registered there.
    """
    contracts = {broker: status.contract for broker, status in statuses.items() if status.contract is not None}
    first = next(iter(contracts.values()), None)
    expected = [name for name in dict.fromkeys(queue.broker_name for queue in layout_queues) if name in statuses or name in without_group]
    broadcasting = first is not None and first.broadcasting
    left = _left_topics(statuses, unreached)
    known = [_queue(broker, queue, broadcasting, queue.topic in left) for broker, status in statuses.items() for queue in status.queues]
    unknown = [_unreached_queue(queue) for queue in layout_queues if queue.broker_name in unreached]
    listed: dict[str, dict[str, MemberStatus]] = {}
    for broker, status in statuses.items():
        for member in status.members:
            listed.setdefault(member.client_id, {})[broker] = member
    return GroupReport(
        group,
        None if first is None else first.ordered,
        None if first is None else first.broadcasting,
        tuple(sorted(known + unknown, key=_sort_key)),
        tuple(_member(listed[client_id], expected, contracts) for client_id in sorted(listed)),
        _conflicts(contracts),
        _unequal_settings(statuses),
        {} if first is None else _expressions(first.subscriptions),
        next((status.settings for status in statuses.values() if status.settings is not None), None),
        max((status.overruled_count for status in statuses.values()), default=0),
        0 if first is None else first.contract_version,
        _refusals(statuses.values()),
        {broker: status.grants for broker, status in statuses.items()},
        {broker: status.suspended_ms for broker, status in statuses.items() if status.suspended_ms is not None},
        _consumed(statuses.values()),
    )


def _consumed(statuses: Collection[GroupStatus]) -> tuple[str, ...]:
    """Return every topic that a broker knows to be consumed."""
    topics = {topic for status in statuses for topic in status.consumed or ()}
    topics |= {each.topic for status in statuses if status.contract is not None for each in status.contract.subscriptions}
    return tuple(sorted(topics | {each.topic for status in statuses for member in status.members for each in member.subscriptions or ()}))


def _left_topics(statuses: Mapping[str, GroupStatus], unreached: Collection[str]) -> frozenset[str]:
    """Return the topics that the group has left: it has members, every broker that lists some knows what they consume, and none of them
    consumes the topic or holds a queue of it. None is known to be left if a broker did not respond.

    The members of a broker that has no queue of what they consume are at other brokers (ordering.md 11.6).
    """
    consumed = [status.consumed for status in statuses.values() if status.members]
    if unreached or not consumed or any(each is None for each in consumed):
        return frozenset()
    queues = [queue for status in statuses.values() for queue in status.queues]
    kept = {topic for each in consumed for topic in each or ()} | {queue.topic for queue in queues if queue.owner is not None}
    return frozenset(queue.topic for queue in queues) - kept


def group_json(found: GroupReport, failed: Mapping[str, str]) -> dict[str, Any]:
    """Return what `lockstep group show --json` prints. `failed`: broker name → why it did not respond."""
    settings = None
    if found.settings is not None:
        settings = {"subscription_policy": found.settings.subscription_policy.value, "consume": found.settings.consume_enable}
    return {**asdict(found), "settings": settings, "lag": found.lag, "left": list(found.left), "failed": dict(failed)}


def _refusals(statuses: Collection[GroupStatus]) -> tuple[JoinRefusal, ...]:
    """Return the newest refusal of each client that is no member anywhere."""
    members = {member.client_id for status in statuses for member in status.members}
    newest: dict[str, JoinRefusal] = {}
    for each in sorted((each for status in statuses for each in status.refusals), key=lambda each: each.ago_ms):
        if each.client_id not in members:
            newest.setdefault(each.client_id, each)
    return tuple(newest.values())


def update_command(settings: GroupSettings) -> str:
    """Return the shell command that gives every broker these settings."""
    consume = "--consume" if settings.consume_enable else "--no-consume"
    version = settings.next_contract_version
    announced = "" if version is None else f" --next-contract-version {version}"
    return f"lockstep group update {quote(settings.group)} --subscription-policy {settings.subscription_policy.value} {consume}{announced}"


def forget_command(group: str, topic: str) -> str:
    """Return the shell command that ends the group's progress in a topic."""
    return f"lockstep group forget {quote(group)} --topic {quote(topic)}"


def topics_of(statuses: Iterable[GroupStatus]) -> tuple[str, ...]:
    """Return every topic that the group subscribes to or has progress in, sorted."""
    topics: dict[str, None] = {}
    for status in statuses:
        topics.update(dict.fromkeys(queue.topic for queue in status.queues))
        if status.contract is not None:
            topics.update(dict.fromkeys(subscription.topic for subscription in status.contract.subscriptions))
    return tuple(sorted(topics))


def _sort_key(line: QueueLine) -> tuple[str, str, int]:
    return line.topic, line.broker, line.queue_id


def _queue(broker: str, queue: QueueStatus, broadcasting: bool, left: bool) -> QueueLine:
    committed = queue.committed_offset if queue.committed_offset >= 0 and not broadcasting else None
    return QueueLine(
        queue.topic,
        broker,
        queue.queue_id,
        True,
        queue.owner,
        str(queue.epoch),
        queue.classic_lease_left_ms,
        committed,
        queue.max_offset,
        None if broadcasting or left else max(0, queue.max_offset - (queue.begins_at or committed or 0) - count(queue.done or ())),
        queue.committed_ago_ms,
        queue.attempts,
        str(queue.generation),
        queue.failing_ms,
        queue.error,
        queue.done or (),
        queue.parked,
        queue.listed_owner,
        queue.owner_grace_ms,
        queue.held_offset,
        queue.gap_first,
        queue.gap_end,
        queue.gap_ago_ms,
        queue.disk_pulls,
        left,
    )


def _unreached_queue(queue: MessageQueue) -> QueueLine:
    return QueueLine(queue.topic, queue.broker_name, queue.queue_id, False, None, None, None, None, None, None, None, None, None)


def _member(by_broker: Mapping[str, MemberStatus], expected: Iterable[str], contracts: Mapping[str, ConsumerGroup]) -> MemberLine:
    first = next(iter(by_broker.values()))
    broker, status = next(((broker, status) for broker, status in by_broker.items() if broker in contracts), next(iter(by_broker.items())))
    declared = status.subscriptions
    if declared is None:
        declared = contracts[broker].subscriptions if broker in contracts else ()
    subscription = _expressions(declared)
    return MemberLine(
        first.client_id,
        first.session,
        first.address,
        all(member.connected for member in by_broker.values()),
        min(member.heard_ago_ms for member in by_broker.values()),
        tuple(sorted(subscription)),
        subscription,
        tuple(broker for broker in expected if broker not in by_broker),
        max(member.contract_version for member in by_broker.values()),
        max((member.grace_left_ms for member in by_broker.values() if member.grace_left_ms is not None), default=None),
    )


def _expressions(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    return {each.topic: each.shown for each in subscriptions}


def _conflicts(contracts: Mapping[str, ConsumerGroup]) -> tuple[str, ...]:
    brokers = list(contracts)
    found = []
    for broker in brokers[1:]:
        expected, actual = _contract_fields(contracts[brokers[0]]), _contract_fields(contracts[broker])
        fields = [name for name in expected if expected[name] != actual[name]]
        if fields:
            found.append(f"{broker} and {brokers[0]} have different contracts: {', '.join(fields)}")
    return tuple(found)


def _unequal_settings(statuses: Mapping[str, GroupStatus]) -> tuple[str, ...]:
    """Return the differences: a broker that was added later does not have the settings that were made before."""
    brokers = list(statuses)
    return tuple(
        f"{broker} and {brokers[0]} have different settings"
        for broker in brokers[1:]
        if _lasting(statuses[broker].settings) != _lasting(statuses[brokers[0]].settings)
    )


def _lasting(settings: GroupSettings | None) -> GroupSettings | None:
    """Return the settings without what each broker forgets by itself when it has been used."""
    return None if settings is None else replace(settings, next_contract_version=None)


def _contract_fields(contract: ConsumerGroup) -> dict[str, object]:
    """Return a contract's fields by the names that messages use. The version of a subscription is not part of the contract."""
    return {
        "subscriptions": {each.topic: (each.expression_type, each.expression) for each in contract.subscriptions},
        "message model": contract.message_model,
        "consume type": contract.consume_type,
        "start policy": (contract.consume_from_where, contract.consume_timestamp_ms),
        "ordered": contract.ordered,
        "allocate": contract.allocate,
        "order by": contract.order_by,
        "retry": contract.retry,
        "version": contract.contract_version,
    }
