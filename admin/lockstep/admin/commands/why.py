"""lockstep why."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, failure_summary
from lockstep.admin.group_query import read_group
from lockstep.admin.group_report import QueueLine
from lockstep.admin.message_query import brokers_to_search, find_by_id
from lockstep.admin.options import CommandError, GroupArgument, JsonOption, NameserverOption, raise_if_incomplete, run
from lockstep.admin.parked import list_parked
from lockstep.admin.render import print_json, print_line
from lockstep.admin.targets import parse_topic_queue
from lockstep.admin.tracking import MEANINGS, track_with_copies
from lockstep.admin.why import Cause, Explanation, QueueState, key_explanation
from lockstep.admin.why_query import Diagnosis, diagnose, diagnosis_json
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.client.producer.routing import number_of_key
from lockstep.protocol.errors import ConfigError, LockstepError, SubscriptionGroupNotExistError
from lockstep.protocol.names import check_group, check_topic, retry_topic
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.host import Host


def why_command(
    group: GroupArgument,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[@BROKER]:QUEUE | MSGID]",
            help="A queue (orders:3, or orders@broker-a:3), or the id of a message. By default all queues of the group.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The queue of this sharding key.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The topic of --key, if the group subscribes to several; or all queues of one topic.")
    ] = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Explain why a group does not get on: the cause first, then what adds to it, then the next step.

    The facts come from the brokers, which are looked at twice a second apart, and from the member that holds the queue, which its broker
    asks: what its listener is doing, and where. A member that does not respond within 3 s is itself the finding.

    Exit 0 if every queue moves, has nothing to do, or is explained; otherwise 1.
    """
    run(_why(group, target, key, topic, nameserver, as_json))


async def _why(group: str, target: str | None, key: str | None, topic: str | None, nameserver: str, as_json: bool) -> None:
    check_group(group)
    if topic is not None:
        check_topic(topic)
    if target is not None and (key is not None or topic is not None):
        raise ConfigError("name a queue or message, or use --key and --topic: not both")
    if key == "":
        raise ConfigError("--key is empty: no message has an empty sharding key")
    admin = AdminClient(Host.current(), nameserver)
    async with admin.keep_connections():
        question = await _question(admin, group, target, key, topic)
        if question.parked is not None:
            found = Diagnosis((question.parked,), {}, {})
        else:
            found = await diagnose(admin, group, question.wanted, lambda failed: _unknown_group(group, failed))
            if not found.states:
                raise CommandError(f"group {group} {question.absent}")
    if as_json:
        print_json(diagnosis_json(group, found, question.note))
    else:
        _print(group, found, question.note)
    raise_if_incomplete(found.failed)
    if not all(each.explained for each in found.explanations):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Question:
    """What the command is asked about."""

    wanted: Callable[[QueueLine], bool]
    """Returns whether a queue of the group is part of it."""
    absent: str
    """What is to be said of the group if it has no such queue."""
    note: str | None = None
    """What is known of the message."""
    parked: Explanation | None = None
    """The whole explanation: the key is parked."""


async def _question(admin: AdminClient, group: str, target: str | None, key: str | None, topic: str | None) -> _Question:
    if key is not None:
        return await _about_key(admin, group, await _topic_of(admin, group, topic), key)
    if target is None:
        of = "" if topic is None else f" of {topic}"
        return _Question(
            lambda line: topic in (None, line.topic), f"has no queue{of}: no member has subscribed to it, and it has no progress"
        )
    place = parse_topic_queue(target)
    if place is None:
        return await _about_message(admin, group, target)
    name, broker, queue_id = place
    check_topic(name)

    def wanted(line: QueueLine) -> bool:
        return (line.topic, line.queue_id) == (name, queue_id) and broker in (None, line.broker)

    where = f"queue {queue_id}" if broker is None else f"queue {broker}:{queue_id}"
    return _Question(wanted, f"has no {where} of topic {name}: run `lockstep group show {quote(group)}` to list its queues")


async def _topic_of(admin: AdminClient, group: str, topic: str | None) -> str:
    """Return the topic of a key: the named one, or the only one to which the group subscribes."""
    if topic is not None:
        return topic
    report, results = await read_group(admin, group)
    if report is None:
        raise _unknown_group(group, results.failed)
    topics = sorted({line.topic for line in report.queues if line.topic != retry_topic(group)})
    if len(topics) != 1:
        raise CommandError(f"group {group} has queues of {len(topics)} topics ({', '.join(topics) or 'none'}): name one with --topic")
    return topics[0]


async def _about_key(admin: AdminClient, group: str, topic: str, key: str) -> _Question:
    layout = (await admin.route(topic)).layout
    if not layout.write_queues:
        raise CommandError(f"topic {topic} has no writable queue: no key belongs to one")
    queue = layout.write_queues[number_of_key(key, len(layout.write_queues))]
    question = _of_queue(group, queue)
    rows = [each.row for each in (await list_parked(admin, group, topic, key)).keys if each.queue == queue]
    return replace(question, note=f"key {key} of topic {topic} belongs to {queue}", parked=key_explanation(group, queue, rows))


async def _about_message(admin: AdminClient, group: str, message_id: str) -> _Question:
    message, broker = await find_by_id(admin, brokers_to_search(await admin.brokers(), None), message_id, printed=True)
    queue = MessageQueue(message.stored_topic, broker.name, message.queue_id)
    question = _of_queue(group, queue)
    note = f"message {message_id} is at offset {message.queue_offset:,} of {queue}"
    if message.sharding_key is not None:
        listed = await list_parked(admin, group, queue.topic, message.sharding_key)
        rows = [each.row for each in listed.keys if each.queue == queue and each.row.next <= message.queue_offset]
        if (parked := key_explanation(group, queue, rows)) is not None:
            return replace(question, note=note, parked=parked)
    try:
        status = (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExistError:
        status = None
    if status is None:
        return replace(question, note=note)
    found = await track_with_copies(admin, broker, status, message, printed=True)
    behind = "" if found.committed_offset is None else f", which is {found.committed_offset:,}"
    return replace(question, note=f"{note}: {MEANINGS[found.type]}{behind}")


def _of_queue(group: str, queue: MessageQueue) -> _Question:
    return _Question(
        lambda line: line.queue == queue, f"has nothing to do with {queue}: no member subscribes to its topic, and it has no progress there"
    )


def _unknown_group(group: str, failed: Mapping[str, str]) -> LockstepError:
    return CommandError(
        failure_summary(failed)
        or f"no broker knows group {group}: no member has ever connected; run `lockstep group list` to list the known groups"
    )


def _print(group: str, found: Diagnosis, note: str | None) -> None:
    if note is not None:
        print_line(note)
    if len(found.states) > 1:
        counts = Counter(state for state in found.states.values())
        print_line(f"group {group}: {', '.join(f'{name}: {counts[state]}' for state, name in _COUNTED.items() if counts[state])}")
    shown = found.explanations if len(found.states) == 1 else [each for each in found.explanations if each.state in _SHOWN]
    for each, alike in _by_cause(shown):
        _print_one(each, alike)
    left = sum(state in _SHOWN for state in found.states.values()) - sum(each.state in _SHOWN for each in found.explanations)
    if left > 0:
        print_line(f"{left} more queues stand and were not looked at: name one, as in `lockstep why {quote(group)} TOPIC@BROKER:QUEUE`")


_COUNTED = {
    QueueState.STANDS: "queues that stand",
    QueueState.UNKNOWN: "queues of which nothing is known",
    QueueState.MOVES: "queues that move",
    QueueState.IDLE: "queues with nothing to do",
}
_SHOWN = (QueueState.STANDS, QueueState.UNKNOWN)


def _by_cause(found: Iterable[Explanation]) -> list[tuple[Explanation, list[Explanation]]]:
    """Return one explanation of each cause, and the further ones of the same."""
    by_cause: dict[object, list[Explanation]] = {}
    for each in found:
        by_cause.setdefault(each if each.because is None else each.because, []).append(each)
    return [(first, alike) for first, *alike in by_cause.values()]


def _print_one(found: Explanation, alike: Sequence[Explanation]) -> None:
    print_line(found.summary)
    if alike:
        print_line(f"  {'and so':8} {', '.join(f'{each.topic}@{each.broker}:{each.queue_id}' for each in alike)}")
    if found.because is not None:
        _print_cause("because", found.because)
    elif not found.explained:
        print_line("  because  unknown: nothing of what the brokers and the member report explains it")
    for cause in found.also:
        _print_cause("also", cause)
    for step in dict.fromkeys(cause.step for cause in (found.because, *found.also) if cause is not None and cause.step is not None):
        print_line(f"  {'next':8} {step}")


def _print_cause(word: str, cause: Cause) -> None:
    print_line(f"  {word:8} {cause.text}")
    for place in reversed(cause.stack):
        print_line(f"  {'':8} at {place}")
