"""One group as all its brokers see it. Pure: what each broker answered → queues, members, and what does not fit together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockstep.protocol.bodies import ConsumerGroup, GroupStatus, MemberStatus, QueueStatus


@dataclass(frozen=True, slots=True)
class QueueLine:
    topic: str
    broker: str
    queue_id: int
    owner: str | None
    epoch: str
    """A string: JSON readers that hold numbers as doubles would round it."""
    classic_lease_left_ms: int | None
    committed_offset: int | None
    """None: the group has no progress here."""
    max_offset: int
    lag: int
    committed_ago_ms: int | None
    attempts: int
    generation: str
    """A string, as the epoch."""


@dataclass(frozen=True, slots=True)
class MemberLine:
    client_id: str
    session: str | None
    """Its first 8 digits; None: a classic client."""
    address: str
    connected: bool
    """At every broker that lists it; False: somewhere it is in its grace."""
    heard_ago_ms: int
    topics: tuple[str, ...]
    subscription: Mapping[str, str]
    """Topic → expression."""
    missing_at: tuple[str, ...]
    """Brokers that have queues of the group's topics and do not list this member: none of their queues go to it."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    group: str
    ordered: bool | None
    """None: no broker has a contract (no member)."""
    queues: tuple[QueueLine, ...]
    members: tuple[MemberLine, ...]
    conflicts: tuple[str, ...]
    """Brokers whose contract differs from the first one's, and in what."""

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


def report(group: str, statuses: Mapping[str, GroupStatus], layout_brokers: Iterable[str]) -> GroupReport:
    """`statuses`: broker name → its answer. `layout_brokers`: every broker with queues of the group's topics."""
    contracts = {broker: status.contract for broker, status in statuses.items() if status.contract is not None}
    first = next(iter(contracts.values()), None)
    wanted = [broker for broker in dict.fromkeys(layout_brokers) if broker in statuses]
    listed: dict[str, dict[str, MemberStatus]] = {}
    for broker, status in statuses.items():
        for member in status.members:
            listed.setdefault(member.client_id, {})[broker] = member
    return GroupReport(
        group,
        None if first is None else first.ordered,
        tuple(sorted((_queue(broker, queue) for broker, status in statuses.items() for queue in status.queues), key=_place)),
        tuple(_member(listed[client_id], wanted, contracts) for client_id in sorted(listed)),
        _conflicts(contracts),
    )


def topics_of(statuses: Iterable[GroupStatus]) -> tuple[str, ...]:
    """Every topic that the group subscribes to or has progress in, sorted."""
    topics: dict[str, None] = {}
    for status in statuses:
        topics.update(dict.fromkeys(queue.topic for queue in status.queues))
        if status.contract is not None:
            topics.update(dict.fromkeys(subscription.topic for subscription in status.contract.subscriptions))
    return tuple(sorted(topics))


def _place(line: QueueLine) -> tuple[str, str, int]:
    return line.topic, line.broker, line.queue_id


def _queue(broker: str, queue: QueueStatus) -> QueueLine:
    committed = queue.committed_offset if queue.committed_offset >= 0 else None
    return QueueLine(
        queue.topic,
        broker,
        queue.queue_id,
        queue.owner,
        str(queue.epoch),
        queue.classic_lease_left_ms,
        committed,
        queue.max_offset,
        max(0, queue.max_offset - (committed or 0)),
        queue.committed_ago_ms,
        queue.attempts,
        str(queue.generation),
    )


def _member(at: Mapping[str, MemberStatus], wanted: Iterable[str], contracts: Mapping[str, ConsumerGroup]) -> MemberLine:
    any_of_them = next(iter(at.values()))
    contract = next((contracts[broker] for broker in at if broker in contracts), None)
    subscription = {} if contract is None else {one.topic: one.expression for one in contract.subscriptions}
    return MemberLine(
        any_of_them.client_id,
        any_of_them.session,
        any_of_them.address,
        all(member.connected for member in at.values()),
        min(member.heard_ago_ms for member in at.values()),
        tuple(sorted(subscription)),
        subscription,
        tuple(broker for broker in wanted if broker not in at),
    )


def _conflicts(contracts: Mapping[str, ConsumerGroup]) -> tuple[str, ...]:
    brokers = list(contracts)
    found = []
    for broker in brokers[1:]:
        here, there = _fields(contracts[brokers[0]]), _fields(contracts[broker])
        fields = [name for name in here if here[name] != there[name]]
        if fields:
            found.append(f"{broker} and {brokers[0]} have different contracts: {', '.join(fields)}")
    return tuple(found)


def _fields(contract: ConsumerGroup) -> dict[str, object]:
    """A contract's fields under the names that people know; a subscription's version is no part of it."""
    return {
        "subscriptions": {one.topic: (one.expression_type, one.expression) for one in contract.subscriptions},
        "message model": contract.message_model,
        "consume type": contract.consume_type,
        "start policy": (contract.consume_from_where, contract.consume_timestamp_ms),
        "ordered": contract.ordered,
        "allocate": contract.allocate,
        "order by": contract.order_by,
    }
