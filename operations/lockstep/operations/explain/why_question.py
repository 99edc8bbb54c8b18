"""What `lockstep why` is asked about: a group, some of its queues, a sharding key or a message. How each is examined."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from shlex import quote

from lockstep.client.producer.machines.routing import number_of_key
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError
from lockstep.operations.explain.why import key_explanation
from lockstep.operations.explain.why_query import Diagnosis, diagnose
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.parked import list_parked
from lockstep.operations.messages.message_query import brokers_to_search, find_by_id
from lockstep.operations.messages.message_track import track_text
from lockstep.operations.messages.tracking import parked_row, track_with_copies
from lockstep.operations.messages.waiting import home_queue, waiting_of
from lockstep.operations.targets import parse_topic_queue
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import ConfigError, SubscriptionGroupNotExistError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.names import check_group, check_topic, retry_topic
from lockstep.protocol.topics.queue import MessageQueue

Examine = Callable[[], Awaitable[Diagnosis]]
"""Examines the subject of the question, as it is now. Raises OperationError if there is nothing of it, and the errors of requests."""


class NothingToExplainError(OperationError):
    """The group has no such queue, message or key."""


async def ask(admin: AdminClient, group: str, target: str | None, key: str | None, topic: str | None) -> Examine:
    """Return what examines the target (TOPIC[@BROKER]:QUEUE or the id of a message), the key, or all queues of the group or the topic.

    A message is searched for here, once, and again when its delay is over. Raise ConfigError or LocalProtocolError for what can't be asked
    about, and OperationError for a message that was not found or a key whose topic is not known.
    """
    check_group(group)
    if topic is not None:
        check_topic(topic)
    if target is not None and (key is not None or topic is not None):
        raise ConfigError("name a queue or message, or use --key and --topic: not both")
    if key == "":
        raise ConfigError("--key is empty: no message has an empty sharding key")
    if key is not None:
        name = await _topic_of(admin, group, topic)
        return lambda: _examine_key(admin, group, name, key)
    if target is None:
        return lambda: _examine_topic(admin, group, topic)
    place = parse_topic_queue(target)
    if place is not None:
        check_topic(place[0])
        return lambda: _examine_place(admin, group, *place)
    message, broker = await find_by_id(admin, brokers_to_search(await admin.brokers(), None), target)

    async def examine() -> Diagnosis:
        nonlocal message, broker
        waiting = waiting_of(message)
        if waiting is not None and waiting.due_ms is not None and waiting.due_ms <= admin.host.clock.wall_ms():
            message, broker = await find_by_id(admin, [broker], message.message_id)
        return await _examine_message(admin, group, target, message, broker)

    return examine


async def _topic_of(admin: AdminClient, group: str, topic: str | None) -> str:
    """Return the topic of a key: the named one, or the only one to which the group subscribes."""
    if topic is not None:
        return topic
    report, results = await read_group(admin, group)
    if report is None:
        raise unknown_group(group, results.failed)
    topics = sorted({line.topic for line in report.queues if line.topic != retry_topic(group)})
    if len(topics) != 1:
        raise OperationError(f"group {group} has queues of {len(topics)} topics ({', '.join(topics) or 'none'}): name one with --topic")
    return topics[0]


async def _examine(admin: AdminClient, group: str, wanted: Callable[[QueueLine], bool], absent: str) -> Diagnosis:
    """Raise NothingToExplainError if the group has no such queue. `absent` says so."""
    found = await diagnose(admin, group, wanted)
    if not found.states:
        raise NothingToExplainError(f"group {group} {absent}")
    return found


async def _examine_topic(admin: AdminClient, group: str, topic: str | None) -> Diagnosis:
    of = "" if topic is None else f" of {topic}"
    absent = f"has no queue{of}: no member has subscribed to it, and it has no progress"
    return await _examine(admin, group, lambda line: topic in (None, line.topic), absent)


async def _examine_place(admin: AdminClient, group: str, topic: str, broker: str | None, queue_id: int) -> Diagnosis:
    def wanted(line: QueueLine) -> bool:
        return (line.topic, line.queue_id) == (topic, queue_id) and broker in (None, line.broker)

    where = f"queue {queue_id}" if broker is None else f"queue {broker}:{queue_id}"
    absent = f"has no {where} of topic {topic}: run `lockstep group show {quote(group)}` to list its queues"
    return await _examine(admin, group, wanted, absent)


async def _examine_queue(admin: AdminClient, group: str, queue: MessageQueue) -> Diagnosis:
    absent = f"has nothing to do with {queue}: no member subscribes to its topic, and it has no progress there"
    return await _examine(admin, group, lambda line: line.queue == queue, absent)


async def _examine_key(admin: AdminClient, group: str, topic: str, key: str) -> Diagnosis:
    layout = (await admin.route(topic)).layout
    if not layout.write_queues:
        raise OperationError(f"topic {topic} has no writable queue: no key belongs to one")
    queue = layout.write_queues[number_of_key(key, len(layout.write_queues))]
    rows = [each.row for each in (await list_parked(admin, group, topic, key)).keys if each.queue == queue]
    parked = key_explanation(group, queue, rows)
    found = await _examine_queue(admin, group, queue) if parked is None else Diagnosis((parked,), {})
    return replace(found, note=f"key {key} of topic {topic} belongs to {queue}")


async def _examine_message(admin: AdminClient, group: str, message_id: str, message: MessageExt, broker: BrokerAddress) -> Diagnosis:
    queue, waits = home_queue(message), waiting_of(message) is not None
    note = f"message {message_id} goes to {queue}" if waits else f"message {message_id} is at offset {message.queue_offset:,} of {queue}"
    row = await parked_row(admin, broker, group, message)
    if row is not None and (parked := key_explanation(group, queue, [row])) is not None:
        return Diagnosis((parked,), {}, note=note)
    try:
        status = (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExistError:
        status = None
    if status is not None:
        track = await track_with_copies(admin, broker, status, message, parked=False)
        behind = "" if track.committed_offset is None else f"; the group's progress is {track.committed_offset:,}"
        note = f"{note}: {track_text(track, admin.host.clock.wall_ms())}{behind}"
    return replace(await _examine_queue(admin, group, queue), note=note)
