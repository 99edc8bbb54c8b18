"""Parked keys of ordered groups: list them, read what waits for their replay, and let them be replayed or dropped (ordering.md 15)."""

import asyncio
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from lockstep.operations.admin_client import AdminClient, by_name, gather_results
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import list_groups, read_group, read_groups, unknown_group
from lockstep.operations.groups.group_report import GroupReport
from lockstep.operations.messages.queue_reader import PAGE_COUNT, Pick, QueueReader
from lockstep.protocol.bodies import BrokerAddress, ParkAction, ParkControlBody, ParkedKey
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.topics.queue import MessageQueue

COUNTED_MAX = 10_000
"""The number of waiting messages of one queue that are counted."""
PULLS_MAX = 1_000
"""The number of pulls that read the waiting messages of one queue. Each one makes the broker examine up to 1 MiB of its log."""
READS_MAX = 16
"""Queues that are read concurrently."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked key, and the broker of its queue."""

    broker: BrokerAddress
    row: ParkedKey

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.row.topic, self.broker.name, self.row.queue_id)

    @property
    def place(self) -> tuple[str, MessageQueue, str]:
        """Return the group, the queue and the key, which no other row has."""
        return self.row.group, self.queue, self.row.key


@dataclass(frozen=True, slots=True)
class ParkedReport:
    """Parked keys of several brokers."""

    keys: tuple[Parked, ...]
    """Sorted by group, topic, broker, queue and offset."""
    cut: tuple[str, ...]
    """The brokers that have more than they list."""
    failed: Mapping[str, str]
    """Broker → why its request failed."""


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """How many messages of a parked key wait."""

    count: int
    complete: bool
    """False: there may be more, because counting has ended at a limit."""

    def __str__(self) -> str:
        return str(self.count) if self.complete else f"{self.count}+"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Parked keys that a deletion or a reset forgets: they are not replayed, and not in the dead-letter topic."""

    keys: int
    groups: tuple[str, ...]
    waiting: WaitingCount
    """The messages that wait for the replay of these keys."""
    failed: Mapping[str, str]
    """Broker → why its keys, or what waits for them, is not known."""

    @property
    def sentences(self) -> list[str]:
        """Return the sentences that an operator has to read before, without full stops; nothing if no key is parked."""
        found = [] if not self.keys else [forgotten_text(self.keys, self.waiting, f" of {', '.join(self.groups)}")]
        return found + [f"broker {name} does not say what is parked there: {why}" for name, why in self.failed.items()]

    def as_json(self) -> dict[str, Any]:
        return {"parked_keys": self.keys, "waiting": self.waiting.count, "waiting_complete": self.waiting.complete and not self.failed}


NOTHING_FORGOTTEN = Forgotten(0, (), WaitingCount(0, True), {})


def forgotten_text(keys: int, waiting: WaitingCount, whose: str = "") -> str:
    """Return how many parked keys are forgotten, as a sentence without a full stop."""
    return f"{keys} parked keys{whose} are forgotten, with {waiting} messages that wait for them"


async def list_parked(
    admin: AdminClient, group: str | None = None, topic: str | None = None, key: str | None = None, *, lost: Iterable[str] = ()
) -> ParkedReport:
    """Return the parked keys of all brokers except `lost`: those of one group, in one topic and of this name, or all.

    Raise TransportError if no nameserver responds.
    """
    brokers = {name: broker for name, broker in by_name(await admin.brokers()).items() if name not in lost}
    return await _control(admin, brokers, ParkControlBody(ParkAction.LIST, group, topic, key))


async def change_parked(admin: AdminClient, listed: ParkedReport, body: ParkControlBody) -> ParkedReport:
    """Replay or drop keys at the brokers that have listed some. Return those that `body` names, as they are then."""
    return await _control(admin, {each.broker.name: each.broker for each in listed.keys}, body)


async def _control(admin: AdminClient, brokers: Mapping[str, BrokerAddress], body: ParkControlBody) -> ParkedReport:
    results = await gather_results({name: admin.control_parked(broker, body) for name, broker in brokers.items()})
    found = [Parked(brokers[name], row) for name, reply in results.values.items() for row in reply.keys]
    found.sort(key=lambda each: (each.row.group, each.row.topic, each.broker.name, each.row.queue_id, each.row.next, each.row.key))
    return ParkedReport(tuple(found), tuple(name for name, reply in results.values.items() if reply.more), results.failed)


async def count_waiting(admin: AdminClient, keys: Sequence[Parked]) -> tuple[dict[Parked, WaitingCount], Mapping[str, str]]:
    """Return how many messages of each key wait, whatever the group's filter, and why queues could not be read, by broker."""
    queues: dict[tuple[str, MessageQueue], list[Parked]] = {}
    for each in keys:
        queues.setdefault((each.row.group, each.queue), []).append(each)
    turns = asyncio.Semaphore(READS_MAX)

    async def count(rows: list[Parked]) -> dict[Parked, WaitingCount]:
        async with turns:
            return await _count_in_queue(admin, rows)

    async with admin.keep_connections():
        results = await gather_results({f"{group} {queue}": count(rows) for (group, queue), rows in queues.items()})
    failed = {queue.broker_name: results.failed[f"{group} {queue}"] for group, queue in queues if f"{group} {queue}" in results.failed}
    return {each: waiting for counted in results.values.values() for each, waiting in counted.items()}, failed


async def _count_in_queue(admin: AdminClient, rows: Sequence[Parked]) -> dict[Parked, WaitingCount]:
    """Count the waiting messages of parked keys of one group in one queue."""
    broker, row = rows[0].broker, rows[0].row
    first = {each.row.key: each.row.next for each in rows}
    counts = dict.fromkeys(first, 0)
    reader = QueueReader(admin, broker, row.topic, row.queue_id, min(first.values()), pick=Pick(group=row.group, key=""), count=PAGE_COUNT)
    total = 0
    for _ in range(PULLS_MAX):
        page = None if total >= COUNTED_MAX else await reader.next()
        if page is None:
            break
        for message in page.messages:
            key = message.sharding_key
            total += 1
            if key in first and message.queue_offset >= first[key]:
                counts[key] += 1
    return {each: WaitingCount(counts[each.row.key], reader.ended) for each in rows}


async def count_forgotten(
    admin: AdminClient, group: str | None = None, topic: str | None = None, queues: Container[MessageQueue] | None = None
) -> Forgotten:
    """Return the parked keys that are forgotten if the keys of a group, of a topic or of some queues of these are.

    Raise TransportError if no nameserver responds.
    """
    listed = await list_parked(admin, group, topic)
    keys = [each for each in listed.keys if queues is None or each.queue in queues]
    waiting, unread = await count_waiting(admin, keys)
    counts = waiting.values()
    total = WaitingCount(sum(each.count for each in counts), all(each.complete for each in counts) and not listed.cut and not unread)
    more = await count_unlisted(admin, listed, group, topic) if listed.cut else {}
    left = sum(count for (_, queue), count in more.items() if queues is None or queue in queues)
    groups = {each.row.group for each in keys} | {name for name, _ in more}
    return Forgotten(len(keys) + left, tuple(sorted(groups)), total, {**unread, **listed.failed})


async def count_unlisted(
    admin: AdminClient, listed: ParkedReport, group: str | None = None, topic: str | None = None
) -> dict[tuple[str, MessageQueue], int]:
    """Return how many keys of each group and queue the brokers in `cut` have not listed, as far as they say so.

    A response has no place for more keys, and a request can't ask for the next ones: the state of the groups has their number.
    Raise TransportError if no nameserver responds.
    """
    groups = [line.group for line in (await list_groups(admin))[0]] if group is None else [group]
    reports = await read_groups(admin, groups)
    shown = Counter((each.row.group, each.queue) for each in listed.keys)
    found = {}
    for name, (report, _) in reports.items():
        for line in () if report is None else report.queues:
            left = (line.parked or 0) - shown[name, line.queue]
            if line.broker in listed.cut and topic in (None, line.topic) and left > 0:
                found[name, line.queue] = left
    return found


async def read_waiting(admin: AdminClient, parked: Parked, limit: int) -> tuple[list[MessageExt], bool]:
    """Return the first waiting messages of a key, at most `limit`, in order, and whether these are all."""
    broker, row = parked.broker, parked.row
    found: list[MessageExt] = []
    pick = Pick(group=row.group, key=row.key)
    reader = QueueReader(admin, broker, row.topic, row.queue_id, row.next, pick=pick, count=min(PAGE_COUNT, limit + 1))
    for _ in range(PULLS_MAX):
        page = None if len(found) > limit else await reader.next()
        if page is None:
            break
        found += page.messages
    return found[:limit], reader.ended and len(found) <= limit


def replay_waits_for(report: GroupReport | None, queues: Iterable[MessageQueue]) -> list[str]:
    """Return what keeps the replay of keys in these queues from beginning: one sentence each, without a full stop."""
    found = []
    if report is not None and report.settings is not None and not report.settings.consume_enable:
        found.append(f"group {report.group} may not consume: allow it with `lockstep group update {report.group} --consume`")
    if report is None or not any(member.connected and member.session is not None for member in report.members):
        name = "" if report is None else f"of group {report.group} "
        found.append(f'no member {name}that replays keys is connected: start one with on_exhausted="park"')
    wanted = frozenset(queues)
    for line in () if report is None else report.queues:
        if line.classic_lease_left_ms is not None and line.queue in wanted:
            place = f"{line.topic} {line.broker}:{line.queue_id}"
            found.append(f"{place} is held by {line.owner}, a client of RocketMQ, which replays no keys")
    return found


def check_names(group: str | None, topic: str | None, key: str | None = None) -> None:
    """Raise LocalProtocolError or ConfigError for what can be no group, topic or parked key."""
    if group is not None:
        check_group(group)
    if topic is not None:
        check_topic(topic)
    if key is None:
        return
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"key {key[:40]!r} is not UTF-8: no such key can be parked") from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise ConfigError(f"key {key[:40]!r} has {size} bytes: parked keys have 1 to {KEY_BYTES_MAX}")


async def check_group_known(admin: AdminClient, group: str | None, topic: str | None) -> None:
    """Raise OperationError if no broker knows the group, TopicNotExistError if there is no such topic."""
    if topic is not None:
        await admin.route(topic)
    if group is None:
        return
    report, statuses = await read_group(admin, group)
    if report is None:
        raise unknown_group(group, statuses.failed)


async def not_parked(admin: AdminClient, group: str, topic: str | None, key: str, incomplete: str | None) -> OperationError:
    """Return the error for a key that no broker has listed. Raises that of `check_group_known`."""
    if incomplete is None:
        await check_group_known(admin, group, topic)
    where = "" if topic is None else f" in {topic}"
    return OperationError(
        f"key {key!r} of group {group} is not parked{where}{' at the brokers that responded' if incomplete else ''}; "
        f"{incomplete or f'run `lockstep park ls {quote(group)}` to list the parked keys'}"
    )
