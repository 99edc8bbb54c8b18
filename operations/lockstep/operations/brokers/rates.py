"""Rates and totals of a cluster from two looks at its brokers (OVERVIEW). Pure.

A rate is the difference of two counters of one broker by that broker's own clock. If it was started again in between, a counter has
fallen, or a look is missing, there is no rate: None, never 0 and never a negative one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep.operations.brokers.append_latency import bound_name, counted, quantile
from lockstep.protocol.bodies import FlowFigures, GroupFigures, NameserverStanding, Overview, TopicFigures
from lockstep.protocol.names import DLQ_PREFIX, REPLAY_GROUP, RETRY_PREFIX, group_of_topic, is_tool_group

MINUTE_MS = 60_000
ACCEPTED = "accepted"
"""The standing of a broker at a nameserver that has registered it."""


@dataclass(frozen=True, slots=True)
class BrokerRates:
    """One broker."""

    broker: str
    reason: str | None
    """Why it did not respond; None if it did. Then everything below is None."""
    stored_s: float | None = None
    """Messages stored per second."""
    given_s: float | None = None
    """Messages returned to consumers per second."""
    lag: int | None = None
    connections: int | None = None
    unsynced_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserve_bytes: int | None = None
    """Sends are refused that would leave less free."""
    append_p99: str | None = None
    """The time in which 99 of 100 appends between the looks ended, to the next bound of their histogram; None if there was none."""
    refusal: str | None = None
    """Why sends are refused."""
    damaged_messages: int = 0
    """Messages that were stored and lost to damage of the log."""
    nameservers: tuple[NameserverStanding, ...] = ()
    up_ms: int | None = None
    term: int | None = None

    @property
    def remarks(self) -> list[str]:
        """Return what needs the attention of an operator."""
        found = [] if self.reason is None else [self.reason]
        found += [f"sends are refused: {self.refusal}"] if self.refusal else []
        found += [f"messages lost to damage: {self.damaged_messages:,}"] if self.damaged_messages else []
        for each in self.nameservers:
            if each.standing != ACCEPTED:
                found.append(f"nameserver {each.address}: {each.standing}" + (f", {each.remark}" if each.remark else ""))
        return found


@dataclass(frozen=True, slots=True)
class GroupRates:
    """One group, over all brokers that responded."""

    group: str
    kind: str
    """ordered, concurrent or broadcasting; "-" if no broker knows, because it has no members."""
    members: int
    """At the broker that lists most."""
    held: int | None
    """Queues that are held; None for a group without locks."""
    lag: int | None
    """None for a broadcasting group."""
    oldest_ms: int | None
    given_s: float | None
    """Messages returned to its consumers per second."""
    stored_s: float | None
    """Messages stored per second in the topics that it consumes."""
    gone_ms: int | None
    """When the lag is gone at the present rates; None if it grows, or is 0."""
    grants_min: float | None
    """Grants of its queues per minute."""
    failing: int
    parked: int
    dead_letters: int
    """Dead letters that are stored and were not replayed."""
    consume_enable: bool

    @property
    def is_growing(self) -> bool:
        """Return whether more is stored than consumed while messages wait."""
        return bool(self.lag) and self.given_s is not None and self.stored_s is not None and self.stored_s > self.given_s

    @property
    def remarks(self) -> list[str]:
        """Return what needs the attention of an operator."""
        found = [f"queues that fail: {self.failing}"] if self.failing else []
        found += [f"parked keys: {self.parked}"] if self.parked else []
        found += [f"dead letters: {self.dead_letters:,}"] if self.dead_letters else []
        found += [] if self.consume_enable else ["consumption is switched off"]
        found += ["no member"] if not self.members and self.lag else []
        return found


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """The cluster at one moment."""

    brokers: tuple[BrokerRates, ...]
    groups: tuple[GroupRates, ...]
    """The one with the largest lag first; those of the tools are left out."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the brokers that sums are without, because they did not respond."""
        return tuple(each.broker for each in self.brokers if each.reason is not None)

    def total(self, figure: Callable[[BrokerRates], float | None]) -> float | None:
        """Return the sum of a figure over the brokers that responded; None if none did, or one of them has no such rate yet."""
        known = [figure(each) for each in self.brokers if each.reason is None]
        return total(known) if known else None

    @property
    def grants_min(self) -> float | None:
        """Return the grants of queues per minute; None if no broker responded, or one of them has no rate yet."""
        return None if self.total(lambda each: each.lag) is None else total(each.grants_min for each in self.groups)


@dataclass(frozen=True, slots=True)
class TopicRates:
    """One topic, over all brokers that responded."""

    topic: str
    brokers: int
    """Brokers that have a queue of it with messages."""
    queues: int
    """Queues that have ever had a message."""
    messages: int
    """Messages that are stored."""
    stored_s: float | None
    """Messages stored per second."""
    size_s: float | None
    """Bytes stored per second."""
    lag: int | None
    """Of the group that is furthest behind, without broadcasting groups and those of the tools; None if no other has progress in it."""
    behind: int
    """How many of these groups lag."""

    @property
    def kind(self) -> str:
        """Return "retry" or "dead letters" for a topic of a group, and "topic" for another one."""
        return "dead letters" if self.topic.startswith(DLQ_PREFIX) else "retry" if self.topic.startswith(RETRY_PREFIX) else "topic"


Looks = Mapping[str, Overview | str]
"""Broker → its figures, or why it did not respond."""


def rates(before: Looks, now: Looks) -> ClusterRates:
    """Return the rates between two looks, and the totals of the second."""
    return _cluster(_pairs(before, now), now)


def rates_with_topics(before: Looks, now: Looks) -> tuple[ClusterRates, tuple[TopicRates, ...]]:
    """Return the same, and the topics that any broker has messages of, sorted by name."""
    pairs = _pairs(before, now)
    return _cluster(pairs, now), _topics(pairs.values())


def appends(before: Looks, now: Looks) -> dict[str, Sequence[int]]:
    """Return what each broker has counted of its appends between the looks, by their latency, as far as it is known."""
    found: dict[str, Sequence[int]] = {}
    for name, figures in now.items():
        if isinstance(figures, Overview) and (counts := _appends(_same_run(before.get(name), figures), figures)) is not None:
            found[name] = counts
    return found


def _appends(before: Overview | None, now: Overview) -> Sequence[int] | None:
    return None if before is None else counted(before.append_counts, now.append_counts)


def _same_run(before: Overview | str | None, now: Overview) -> Overview | None:
    """Return the look before, if the broker has not been started since."""
    if not isinstance(before, Overview) or before.status.term != now.status.term or before.status.up_ms >= now.status.up_ms:
        return None
    return before


def _pairs(before: Looks, now: Looks) -> dict[str, "_Pair"]:
    """Return the two looks at each broker that has responded now."""
    return {name: _Pair(_figures(before.get(name)), figures) for name, figures in now.items() if isinstance(figures, Overview)}


def _cluster(pairs: Mapping[str, "_Pair"], now: Looks) -> ClusterRates:
    broadcasting = _broadcasting(pair.now for pair in pairs.values())
    brokers = [_broker(name, pairs.get(name), now[name], broadcasting) for name in sorted(now)]
    names = sorted({each.group for pair in pairs.values() for each in pair.now.groups if not is_tool_group(each.group)})
    groups = [_group(name, list(pairs.values())) for name in names]
    groups.sort(key=lambda each: (-(each.lag or 0), each.group))
    return ClusterRates(tuple(brokers), tuple(groups))


def _topics(pairs: Collection["_Pair"]) -> tuple[TopicRates, ...]:
    overviews = [pair.now for pair in pairs]
    lags: dict[str, list[int]] = {}
    for (topic, _), flow in _flows(overviews).items():
        if flow.lag is not None:
            lags.setdefault(topic, []).append(flow.lag)
    here: dict[str, list[tuple[_Pair, TopicFigures]]] = {}
    for pair in pairs:
        for each in pair.now.topics:
            here.setdefault(each.topic, []).append((pair, each))
    return tuple(
        TopicRates(
            topic=topic,
            brokers=len(parts),
            queues=sum(each.queues for _, each in parts),
            messages=sum(each.stored for _, each in parts),
            stored_s=total(pair.stored_in(each) for pair, each in parts),
            size_s=total(pair.bytes_in(each) for pair, each in parts),
            lag=max(lags.get(topic, ()), default=None),
            behind=sum(lag > 0 for lag in lags.get(topic, ())),
        )
        for topic, parts in sorted(here.items())
    )


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """One group in one topic, over all brokers that responded."""

    lag: int | None
    """None for a broadcasting group, whose members keep their progress themselves."""
    oldest_ms: int | None
    """Milliseconds since the oldest message that waits was stored, as far as it was looked up."""


def groups_of_topic(looks: Looks, topic: str) -> dict[str, TopicGroup]:
    """Return the groups that have consumed a topic, by name, without those of the tools."""
    overviews = [look for look in looks.values() if isinstance(look, Overview)]
    return {group: flow for (_, group), flow in sorted(_flows(overviews, topic).items())}


def _flows(overviews: Sequence[Overview], topic: str | None = None) -> dict[tuple[str, str], TopicGroup]:
    """Return what groups consume of topics, or of one `topic`, by (topic, group)."""
    broadcasting = _broadcasting(overviews)
    found: dict[tuple[str, str], TopicGroup] = {}
    for overview in overviews:
        for flow in overview.flows:
            if topic not in (None, flow.topic) or is_tool_group(flow.group):
                continue
            known = found.get((flow.topic, flow.group), TopicGroup(None, None))
            if flow.group not in broadcasting:
                known = TopicGroup(_plus(known.lag, flow.lag), _most(known.oldest_ms, flow.oldest_ms))
            found[flow.topic, flow.group] = known
    return found


def _broadcasting(overviews: Iterable[Overview]) -> frozenset[str]:
    """Return the groups that are broadcasting at any broker. They may have progress from before."""
    return frozenset(each.group for overview in overviews for each in overview.groups if each.broadcasting)


def _plus(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def _most(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _known_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if any value is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _figures(look: Overview | str | None) -> Overview | None:
    return look if isinstance(look, Overview) else None


class _Pair:
    """Two looks at one broker."""

    def __init__(self, before: Overview | None, now: Overview) -> None:
        self.now = now
        self.before = _same_run(before, now)
        self.took_ms = 0 if before is None else now.status.up_ms - before.status.up_ms
        self.topics = {each.topic: each for each in now.topics}
        self.groups = {each.group: each for each in now.groups}
        self.flows = _by_group(now.flows)
        self.unreplayed = {each.topic: each.lag for each in self.flows.get(REPLAY_GROUP, ()) if each.lag is not None}
        """Topic of dead letters → how many were not replayed, after a first replay."""
        self.groups_before = {} if self.before is None else {each.group: each for each in self.before.groups}
        self.flows_before = {} if self.before is None else {(each.topic, each.group): each for each in self.before.flows}
        self.topics_before = {} if self.before is None else {each.topic: each for each in self.before.topics}

    def rate(self, before: int | None, now: int) -> float | None:
        """Return the rise of a counter per second."""
        if self.before is None or before is None or now < before:
            return None
        return (now - before) * 1000 / self.took_ms

    def given(self, flows: Iterable[FlowFigures]) -> float | None:
        """Return the messages of these flows per second. A flow that is new has begun at 0."""
        if self.before is None:
            return None
        known = [(self.flows_before.get((each.topic, each.group)), each) for each in flows]
        return total(self.rate(0 if before is None else before.given, each.given) for before, each in known)

    def dead_letters(self, group: str) -> int:
        """Return how many dead letters of the group are stored and were not replayed."""
        topic = self.topics.get(DLQ_PREFIX + group)
        if topic is None:
            return 0
        return min(topic.stored, self.unreplayed.get(topic.topic, topic.stored))

    def stored(self, topics: Iterable[str]) -> float | None:
        """Return the messages stored in these topics per second."""
        if self.before is None:
            return None
        known = [self.topics[topic] for topic in dict.fromkeys(topics) if topic in self.topics]
        return total(self.stored_in(each) for each in known)

    def stored_in(self, topic: TopicFigures) -> float | None:
        """Return the messages stored in one topic per second. A topic that is new has begun at 0."""
        before = self.topics_before.get(topic.topic)
        return self.rate(0 if before is None else before.messages, topic.messages)

    def bytes_in(self, topic: TopicFigures) -> float | None:
        """Return the bytes stored in one topic per second."""
        before = self.topics_before.get(topic.topic)
        return self.rate(0 if before is None else before.size, topic.size)


def _by_group(flows: Iterable[FlowFigures]) -> dict[str, list[FlowFigures]]:
    found: dict[str, list[FlowFigures]] = {}
    for each in flows:
        found.setdefault(each.group, []).append(each)
    return found


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if any value is not known."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _broker(name: str, pair: _Pair | None, look: Overview | str, broadcasting: Collection[str]) -> BrokerRates:
    if pair is None:
        return BrokerRates(name, look if isinstance(look, str) else None)
    now, status = pair.now, pair.now.status
    return BrokerRates(
        broker=name,
        reason=None,
        stored_s=pair.stored(each.topic for each in now.topics if group_of_topic(each.topic) is None),
        given_s=pair.given(each for each in now.flows if not is_tool_group(each.group)),
        lag=sum(each.lag or 0 for each in now.flows if each.group not in broadcasting and not is_tool_group(each.group)),
        connections=now.connections,
        unsynced_bytes=now.unsynced_bytes,
        free_bytes=status.disk_free_bytes,
        total_bytes=status.disk_total_bytes,
        reserve_bytes=status.disk_reserve_bytes,
        append_p99=bound_name(quantile(_appends(pair.before, now) or (), 99)),
        refusal=status.disk_refusal,
        damaged_messages=status.damaged_messages,
        nameservers=status.nameservers,
        up_ms=status.up_ms,
        term=status.term,
    )


def _group(name: str, pairs: list[_Pair]) -> GroupRates:
    here = [(pair, pair.groups[name]) for pair in pairs if name in pair.groups]
    flows = [(pair, pair.flows.get(name, [])) for pair, _ in here]
    broadcasting = any(each.broadcasting for _, each in here)
    lag = None if broadcasting else sum(flow.lag or 0 for _, each in flows for flow in each)
    given_s = total(pair.given(each) for pair, each in flows)
    stored_s = total(pair.stored(flow.topic for flow in each if flow.lag is not None) for pair, each in flows)
    held = [each.held for _, each in here if each.held is not None]
    return GroupRates(
        group=name,
        kind=_kind([each for _, each in here]),
        members=max(each.members for _, each in here),
        held=sum(held) if held else None,
        lag=lag,
        oldest_ms=None if broadcasting else max((flow.oldest_ms for _, each in flows for flow in each if flow.oldest_ms), default=None),
        given_s=given_s,
        stored_s=stored_s,
        gone_ms=_gone_ms(lag, given_s, stored_s),
        grants_min=_grants_min(here),
        failing=sum(each.failing for _, each in here),
        parked=sum(each.parked for _, each in here),
        dead_letters=sum(pair.dead_letters(name) for pair in pairs),
        consume_enable=all(each.consume_enable for _, each in here),
    )


def _kind(figures: Iterable[GroupFigures]) -> str:
    known = next((each for each in figures if each.ordered is not None), None)
    if known is None:
        return "-"
    return "broadcasting" if known.broadcasting else "ordered" if known.ordered else "concurrent"


def _gone_ms(lag: int | None, given_s: float | None, stored_s: float | None) -> int | None:
    if not lag or given_s is None or stored_s is None or given_s <= stored_s:
        return None
    return int(lag * 1000 / (given_s - stored_s))


def _grants_min(here: Iterable[tuple[_Pair, GroupFigures]]) -> float | None:
    known = [(pair, pair.groups_before.get(each.group), each) for pair, each in here]
    rate = total(pair.rate(0 if before is None else before.grants, each.grants) if pair.before else None for pair, before, each in known)
    return None if rate is None else rate * MINUTE_MS / 1000
