"""One group as all its brokers see it. Pure: what each broker answered → queues, members, and what does not fit together."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from shlex import quote

from lockstep.protocol.bodies import ConsumerGroup, GroupSettings, GroupStatus, MemberStatus, QueueStatus, Subscription
from lockstep.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueLine:
    topic: str
    broker: str
    queue_id: int
    reached: bool
    """False: the broker did not answer, and nothing below is known."""
    owner: str | None
    epoch: str | None
    """A string: JSON readers that hold numbers as doubles would round it."""
    classic_lease_left_ms: int | None
    committed_offset: int | None
    """None: the group has no progress here."""
    max_offset: int | None
    lag: int | None
    committed_ago_ms: int | None
    attempts: int | None
    generation: str | None
    """A string, as the epoch."""
    failing_ms: int | None = None
    """How long the batch at the committed offset has been failing, as far as the broker was told since it started."""
    error: str | None = None


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
    """Topic → expression, as it says itself. Where the group's policy is classic, `GroupReport.subscription` holds for it all the same."""
    missing_at: tuple[str, ...]
    """Brokers that have queues of the group's topics and do not list this member: none of their queues go to it."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    group: str
    ordered: bool | None
    """None: no broker has a contract (no member)."""
    broadcasting: bool | None
    """Each member consumes every queue and keeps its own progress: no broker knows offsets or lag. None: as of `ordered`."""
    queues: tuple[QueueLine, ...]
    members: tuple[MemberLine, ...]
    conflicts: tuple[str, ...]
    """Brokers whose contract differs from the first one's, and in what."""
    unequal_settings: tuple[str, ...] = ()
    """Brokers whose settings differ from the first one's."""
    subscription: Mapping[str, str] = field(default_factory=dict)
    """What holds for all members, topic → expression. Empty: no broker has a contract."""
    settings: GroupSettings | None = None
    """None: nobody has set any."""
    overruled_count: int = 0
    """Members whose subscriptions replaced those of others, at the broker where it happened most."""

    @property
    def lag(self) -> int | None:
        """Of the queues that are known; None: of a broadcasting group it is not."""
        return None if self.broadcasting else sum(queue.lag or 0 for queue in self.queues)

    @property
    def update_command(self) -> str:
        """What to type so that every broker has `settings`."""
        return update_command(self.settings or GroupSettings(self.group))

    @property
    def unreached(self) -> tuple[str, ...]:
        """Brokers with queues of the group's topics that did not answer."""
        return tuple(dict.fromkeys(queue.broker for queue in self.queues if not queue.reached))


def report(
    group: str,
    statuses: Mapping[str, GroupStatus],
    layout_queues: Collection[MessageQueue],
    unreached: Collection[str] = (),
    strangers: Collection[str] = (),
) -> GroupReport:
    """`statuses`: broker name → its answer. `layout_queues`: every queue of the group's topics. `unreached`: brokers without an answer.

    `strangers`: brokers that know nothing of the group: no member has ever come there.
    """
    contracts = {broker: status.contract for broker, status in statuses.items() if status.contract is not None}
    first = next(iter(contracts.values()), None)
    wanted = [name for name in dict.fromkeys(queue.broker_name for queue in layout_queues) if name in statuses or name in strangers]
    silent = first is not None and first.broadcasting
    known = [_queue(broker, queue, silent) for broker, status in statuses.items() for queue in status.queues]
    unknown = [_unknown(queue) for queue in layout_queues if queue.broker_name in unreached]
    listed: dict[str, dict[str, MemberStatus]] = {}
    for broker, status in statuses.items():
        for member in status.members:
            listed.setdefault(member.client_id, {})[broker] = member
    return GroupReport(
        group,
        None if first is None else first.ordered,
        None if first is None else first.broadcasting,
        tuple(sorted(known + unknown, key=_place)),
        tuple(_member(listed[client_id], wanted, contracts) for client_id in sorted(listed)),
        _conflicts(contracts),
        _unequal_settings(statuses),
        {} if first is None else _expressions(first.subscriptions),
        next((status.settings for status in statuses.values() if status.settings is not None), None),
        max((status.overruled_count for status in statuses.values()), default=0),
    )


def update_command(settings: GroupSettings) -> str:
    """What to type so that every broker has these settings."""
    consume = "--consume" if settings.consume_enable else "--no-consume"
    return f"lockstep group update {quote(settings.group)} --subscription-policy {settings.subscription_policy.value} {consume}"


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


def _queue(broker: str, queue: QueueStatus, broadcasting: bool) -> QueueLine:
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
        None if broadcasting else max(0, queue.max_offset - (committed or 0)),
        queue.committed_ago_ms,
        queue.attempts,
        str(queue.generation),
        queue.failing_ms,
        queue.error,
    )


def _unknown(queue: MessageQueue) -> QueueLine:
    return QueueLine(queue.topic, queue.broker_name, queue.queue_id, False, None, None, None, None, None, None, None, None, None)


def _member(at: Mapping[str, MemberStatus], wanted: Iterable[str], contracts: Mapping[str, ConsumerGroup]) -> MemberLine:
    any_of_them = next(iter(at.values()))
    broker, there = next(((broker, member) for broker, member in at.items() if broker in contracts), next(iter(at.items())))
    said = there.subscriptions
    if said is None:
        said = contracts[broker].subscriptions if broker in contracts else ()
    subscription = _expressions(said)
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


def _expressions(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    return {one.topic: one.expression for one in subscriptions}


def _conflicts(contracts: Mapping[str, ConsumerGroup]) -> tuple[str, ...]:
    brokers = list(contracts)
    found = []
    for broker in brokers[1:]:
        here, there = _fields(contracts[brokers[0]]), _fields(contracts[broker])
        fields = [name for name in here if here[name] != there[name]]
        if fields:
            found.append(f"{broker} and {brokers[0]} have different contracts: {', '.join(fields)}")
    return tuple(found)


def _unequal_settings(statuses: Mapping[str, GroupStatus]) -> tuple[str, ...]:
    """A broker that came later was not there when the group was set up."""
    brokers = list(statuses)
    return tuple(
        f"{broker} and {brokers[0]} have different settings"
        for broker in brokers[1:]
        if statuses[broker].settings != statuses[brokers[0]].settings
    )


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
        "retry": contract.retry,
    }
