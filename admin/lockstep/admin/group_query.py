"""Groups, asked of every broker. Many groups cost one question for each group and broker, and one for each topic."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from lockstep.admin.client import AdminClient, Answers, absent, by_name, gather
from lockstep.admin.group_report import GroupReport, report, topics_of
from lockstep.protocol.bodies import BrokerAddress, GroupStatus
from lockstep.protocol.errors import SubscriptionGroupNotExistError, TopicNotExistError
from lockstep.protocol.queue import MessageQueue

K = TypeVar("K")
V = TypeVar("V")

READS_MAX = 16
"""Groups, or topics, that are read at the same time."""


async def read_group(admin: AdminClient, group: str) -> tuple[GroupReport | None, Answers[GroupStatus]]:
    """What the brokers that know the group say of it, None where none of them does; and who did not answer.

    TransportError where no nameserver answers.
    """
    return (await read_groups(admin, [group]))[group]


async def read_groups(admin: AdminClient, groups: Sequence[str]) -> Mapping[str, tuple[GroupReport | None, Answers[GroupStatus]]]:
    """As `read_group`, of several groups. The brokers and the layout of each topic are asked for once."""
    async with admin.keep_connections():
        brokers = by_name(await admin.brokers())
        answers = await _each(groups, lambda group: _statuses(admin, brokers.values(), group))
        topics = {group: topics_of(answers[group].given.values()) for group in groups}
        all_topics = list(dict.fromkeys(topic for each in topics.values() for topic in each))
        queues = await _each(all_topics, lambda topic: _queues(admin, topic))
    found = {}
    for group in groups:
        found[group] = _report(group, answers[group], (queue for topic in topics[group] for queue in queues[topic]), brokers)
    return found


def _report(
    group: str, answers: Answers[GroupStatus], queues: Iterable[MessageQueue], brokers: Mapping[str, BrokerAddress]
) -> tuple[GroupReport | None, Answers[GroupStatus]]:
    if not answers.given:
        return None, answers
    known = dict.fromkeys(queues)
    strangers = [name for name in brokers if name not in answers.given and name not in answers.failed]
    answers = Answers(answers.given, {**answers.failed, **absent([queue.broker_name for queue in known], brokers)})
    return report(group, answers.given, known, answers.failed, strangers), answers


async def _each(keys: Sequence[K], read: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """Key → what was read, for at most 16 keys at the same time. The first error ends all."""
    waiting = list(reversed(keys))
    found: dict[K, V] = {}

    async def reader() -> None:
        while waiting:
            key = waiting.pop()
            found[key] = await read(key)

    try:
        await asyncio.gather(*(reader() for _ in range(min(READS_MAX, len(keys)))))
    finally:
        waiting.clear()
    return found


async def _queues(admin: AdminClient, topic: str) -> tuple[MessageQueue, ...]:
    """The topic's queues that can be read; none where it was deleted."""
    try:
        return tuple((await admin.route(topic)).layout.read_queues)
    except TopicNotExistError:
        return ()


async def _statuses(admin: AdminClient, brokers: Iterable[BrokerAddress], group: str) -> Answers[GroupStatus]:
    answers = await gather({broker.name: _status(admin, broker, group) for broker in brokers})
    return Answers({name: status for name, status in answers.given.items() if status is not None}, answers.failed)


async def _status(admin: AdminClient, broker: BrokerAddress, group: str) -> GroupStatus | None:
    """The group at one broker; None where it is not known there."""
    try:
        return (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExistError:
        return None
