"""Change the queues of a topic so that the order of each key is kept (ordering.md 9.6).

    the ordered groups have almost consumed the topic ─▶ hold its writes at every broker ─▶ no transaction of the topic is undecided,
    and they have consumed all of it ─▶ put the new layout into force ─▶ end the hold

Sends wait meanwhile: those of a key for as long as `keyed_send_timeout_ms` (30 s), so the hold is shorter. If the groups do not get there
in time, the hold ends and nothing has changed. It is not begun for a group that can't catch up: one without a member, or that may not
consume. Queues that are removed must have been consumed by every group.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from shlex import quote

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.operations.changes.layouts.write_hold import WriteHold
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_report import forget_command
from lockstep.operations.groups.parked import list_parked
from lockstep.operations.groups.topic_lag import TopicLag, read_lag
from lockstep.operations.messages.halves import OpenMessage, list_halves_at
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

HOLD_MS = 20_000
"""How long the writes are held at the longest."""
HOLD_LAG_MAX = 10_000
"""The lag above which the hold is not begun: the groups would hardly consume so much in time."""
DECIDED_MS = 10_000
"""How long the command waits, before the hold, for transactions that are not decided when it begins."""
STEP_S = 0.05
LOOK_S = 0.5


class NotConsumedError(OperationError):
    """Nothing was changed: groups have not consumed what they must, or have parked keys, or messages wait for their delay or a decision."""

    def __init__(self, text: str, lag: TopicLag, waits_for: str, *, undecided: bool = False) -> None:
        """`undecided`: messages wait for the decision of their transactions."""
        super().__init__(f"nothing was changed: {text}, or use --force")
        self.lag = lag
        self.waits_for = waits_for
        self.undecided = undecided


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be consumed before a new layout may be in force."""

    ordered: frozenset[MessageQueue]
    """By ordered groups: else they would mix old and new messages of a key."""
    every: frozenset[MessageQueue]
    """By every group: queues that are removed."""
    emptied: frozenset[str]
    """Brokers of which all queues are removed. No message may wait there for its delay or a retry: it would open a queue again."""

    def __bool__(self) -> bool:
        return bool(self.ordered or self.every)

    @property
    def why(self) -> str:
        """Return what would go wrong otherwise."""
        return "messages in the removed queues would be lost" if self.every else "messages of a key would be consumed out of order"


def needs_of(before: TopicLayout, after: TopicLayout) -> Needs:
    """Return what groups must have consumed before `after` follows `before`."""
    moves = before.write_queues != after.write_queues and bool(before.write_queues)
    ordered = frozenset(before.read_queues if moves else ())
    return Needs(
        ordered, frozenset(before.read_queues) - frozenset(after.read_queues), frozenset(before.brokers) - frozenset(after.brokers)
    )


async def put_in_order(
    admin: AdminClient, before: TopicLayout, after: TopicLayout, lost: Collection[str] = (), lag_max: int = HOLD_LAG_MAX
) -> int | None:
    """Put `after` into force without breaking the order of a key or losing a message. Return for how long writes were held, in ms; None
    if that was not necessary.

    `lost`: brokers that are gone for good, whose queues can't be consumed. Above a lag of `lag_max` the hold is not begun.

    Raises:
        NotConsumedError: Groups lag, their lag is not known, they have parked keys, or messages wait for their delay, or for the decision
            of their transactions. Nothing was changed.
        NotHeldError: A broker does not hold the writes. Nothing was changed.
        OperationError: See `publish_layout`.
    """
    needs = needs_of(before, after)
    if not needs:
        await publish_layout(admin, after)
        return None
    lag = await _lag_below(admin, before.topic, needs, lost, lag_max)
    owners, clock = frozenset(before.brokers) - frozenset(lost), admin.host.clock
    await _wait_for_decisions(admin, before.topic, needs, owners, lag)
    async with WriteHold(admin, before.topic, owners) as hold:
        begun_ms = clock.monotonic_ms()
        while True:
            undecided = await _undecided(admin, before.topic, owners, lag)
            await hold.confirm()  # what was committed before is counted as lag
            lag = await _lag_below(admin, before.topic, needs, lost, lag_max)
            if not undecided and not lag.lags:
                break
            if clock.monotonic_ms() - begun_ms >= HOLD_MS:
                raise _not_decided(before.topic, undecided, needs, lag) if undecided else _lagging(before.topic, lag, needs)
            await asyncio.sleep(STEP_S)
        await hold.confirm()
        await publish_layout(admin, after, hold)
        return clock.monotonic_ms() - begun_ms


async def _lag_below(admin: AdminClient, topic: str, needs: Needs, lost: Collection[str], lag_max: int) -> TopicLag:
    """Return the lag. Raise NotConsumedError if it is above the limit or unknown, if messages wait at a broker that is emptied, or if keys
    are parked.

    The messages that wait are counted after the lag, and so are parked keys. A call that fails puts its message among them, or parks its
    key, before it commits, and while the writes are held none of them is delivered: so none is missed.
    """
    lag = await read_lag(admin, needs.ordered, needs.every, lost)
    waiting = await _waiting(admin, needs.emptied - frozenset(lost))
    parked, unreached = await _parked(admin, topic, needs.ordered | needs.every, lost)
    if unknown := {**unreached, **lag.unknown}:
        reasons = broker_reasons(unknown)
        text = f"the lag of groups in {topic} is unknown ({reasons}), and if a group lags, {needs.why}. Start the broker again"
        raise NotConsumedError(text, lag, f"{topic}: {reasons}")
    if lag.broadcasting or lag.standing or lag.total > lag_max:
        raise _lagging(topic, lag, needs)
    if waiting:
        places = ", ".join(f"{count} at {name}" for name, count in waiting.items())
        what = "their delay, a retry or a transaction"
        text = f"messages wait for {what} ({places}), and one of {topic} would open a queue there again"
        raise NotConsumedError(f"{text}. Wait until they are delivered", lag, f"messages that wait for {what}: {places}")
    if parked:
        groups = ", ".join(f"{group}: {count}" for group, count in parked.items())
        step = f"Replay or drop them (`lockstep park ls --topic {quote(topic)}` lists them)"
        text = f"groups have parked keys in {topic} ({groups}), and {needs.why}. {step}"
        raise NotConsumedError(text, lag, f"parked keys in {topic}: {groups}")
    return lag


async def _wait_for_decisions(admin: AdminClient, topic: str, needs: Needs, owners: Collection[str], lag: TopicLag) -> None:
    """Wait until the transactions are decided that have messages of the topic now. Raise NotConsumedError if that takes too long.

    The hold lets commits pass, but would hold the other sends meanwhile.
    """
    clock = admin.host.clock
    begun_ms, first = clock.monotonic_ms(), await _undecided(admin, topic, owners, lag)
    while first:
        if any(each.row.expired for each in first.values()) or clock.monotonic_ms() - begun_ms >= DECIDED_MS:
            raise _not_decided(topic, first, needs, lag)
        await asyncio.sleep(LOOK_S)
        found = await _undecided(admin, topic, owners, lag)
        first = {place: each for place, each in found.items() if place in first}


async def _undecided(admin: AdminClient, topic: str, owners: Collection[str], lag: TopicLag) -> dict[tuple[str, int], OpenMessage]:
    """Return the half messages of the topic at its brokers, by broker and offset. Raise NotConsumedError if a broker does not list them."""
    brokers = by_name(await admin.brokers())
    wanted = ListHalvesHeader(topic=topic)
    listed = await gather_results({name: list_halves_at(admin, brokers[name], wanted) for name in sorted(owners) if name in brokers})
    if listed.failed:
        reasons = broker_reasons(listed.failed)
        raise NotConsumedError(f"whether transactions are open in {topic} is unknown ({reasons})", lag, f"{topic}: {reasons}")
    return {(name, each.row.offset): each for name, (found, _, _) in listed.values.items() for each in found}


def _not_decided(topic: str, undecided: Mapping[tuple[str, int], OpenMessage], needs: Needs, lag: TopicLag) -> NotConsumedError:
    groups = ", ".join(sorted({each.row.producer_group for each in undecided.values()}))
    what = f"{len(undecided)} messages of {topic} wait for the decision of their transactions (producer groups {groups})"
    step = f"Wait until they are decided, or decide them (`lockstep tx ls {quote(topic)}` lists them)"
    return NotConsumedError(f"{what}, and {needs.why}. {step}", lag, what, undecided=True)


async def _parked(
    admin: AdminClient, topic: str, queues: Collection[MessageQueue], lost: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the groups with parked keys in these queues of the topic, each with the number of keys, and the brokers of the queues that did
    not respond, each with the reason."""
    listed = await list_parked(admin, topic=topic, lost=lost)
    owners = {queue.broker_name for queue in queues}
    counts = Counter(each.row.group for each in listed.keys if each.queue in queues)
    more = "at least " if owners & set(listed.cut) else ""
    failed = {name: why for name, why in listed.failed.items() if name in owners}
    return {group: f"{more}{count}" for group, count in counts.items()}, failed


async def _waiting(admin: AdminClient, names: Collection[str]) -> dict[str, int]:
    """Return how many messages wait at each of these brokers for their delay or a retry, without those that have none."""
    brokers = by_name(await admin.brokers()) if names else {}
    counts = {name: await waiting_count(admin, brokers[name]) for name in sorted(names) if name in brokers}
    return {name: count for name, count in counts.items() if count}


async def waiting_count(admin: AdminClient, broker: BrokerAddress) -> int:
    """Return how many messages wait at the broker for their delay or a retry."""
    return (await admin.broker_status(broker)).delayed_messages


def _lagging(topic: str, lag: TopicLag, needs: Needs) -> NotConsumedError:
    step, waits_for = "Wait until they have", f"{topic}: {lag}"
    if (group := next(iter(lag.standing), None)) is not None:
        ends = f"`{forget_command(group, topic)}` ends the progress of a group that will not come back"
        step, waits_for = f"Let them consume it ({ends})", f"{waits_for} ({ends})"
    return NotConsumedError(f"some groups have not consumed all of {topic} (lag of {lag}), and {needs.why}. {step}", lag, waits_for)
