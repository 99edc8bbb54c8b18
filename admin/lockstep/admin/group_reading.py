"""One group, asked of every broker."""

from collections.abc import Iterable

from lockstep.admin.client import AdminClient, Answers, absent, by_name, gather
from lockstep.admin.group_report import GroupReport, report, topics_of
from lockstep.protocol.bodies import BrokerAddress, GroupStatus
from lockstep.protocol.errors import SubscriptionGroupNotExistError, TopicNotExistError
from lockstep.protocol.queue import MessageQueue


async def read_group(admin: AdminClient, group: str) -> tuple[GroupReport | None, Answers[GroupStatus]]:
    """What the brokers that know the group say of it, None where none of them does; and who did not answer.

    TransportError where no nameserver answers.
    """
    brokers = by_name(await admin.brokers())
    answers = await _statuses(admin, brokers.values(), group)
    if not answers.given:
        return None, answers
    queues: dict[MessageQueue, None] = {}
    for topic in topics_of(answers.given.values()):
        try:
            queues.update(dict.fromkeys((await admin.route(topic)).layout.read_queues))
        except TopicNotExistError:
            continue
    strangers = [name for name in brokers if name not in answers.given and name not in answers.failed]
    answers = Answers(answers.given, {**answers.failed, **absent([queue.broker_name for queue in queues], brokers)})
    return report(group, answers.given, queues, answers.failed, strangers), answers


async def _statuses(admin: AdminClient, brokers: Iterable[BrokerAddress], group: str) -> Answers[GroupStatus]:
    answers = await gather({broker.name: _status(admin, broker, group) for broker in brokers})
    return Answers({name: status for name, status in answers.given.items() if status is not None}, answers.failed)


async def _status(admin: AdminClient, broker: BrokerAddress, group: str) -> GroupStatus | None:
    """The group at one broker; None where it is not known there."""
    try:
        return (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExistError:
        return None
