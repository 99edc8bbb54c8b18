"""lockstep park ls | show. The changes are declared in operations/changes/park_change.py."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import failure_summary, gather_results
from lockstep.operations.changes.park_change import ParkDrop, ParkReplay
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.groups.parked import (
    Parked,
    WaitingCount,
    check_group_known,
    check_names,
    count_unlisted,
    count_waiting,
    list_parked,
    not_parked,
    read_waiting,
)
from lockstep.operations.messages.message_text import message_json
from lockstep.operations.text import body_text, format_time
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(
    no_args_is_help=True, help="List, show, replay and drop parked keys: sharding keys that an ordered group has set aside after failures."
)

ParkingGroupArgument = Annotated[str, typer.Argument(help="The group that has parked the key.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="Only what is parked in this topic. By default in all topics.")]
BODY_LENGTH_SHOWN = 60
PLACES_SHOWN = 8
"""Queues with further keys that are named."""


@app.command("ls")
def ls_command(
    group: Annotated[str | None, typer.Argument(help="List the parked keys of this group. By default those of all groups.")] = None,
    topic: TopicOption = None,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List the parked keys, why each was parked, and how many messages wait for its replay.

    At most 10,000 waiting messages of a queue are counted; 37+ means that there may be more than 37. A broker lists at most 10,000 keys,
    fewer if they are long; of more, their number is printed.
    """
    run(_list(group, topic, nameserver, as_json))


@app.command("show")
def show_command(
    group: ParkingGroupArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The sharding key, as `park ls` prints it.")],
    topic: TopicOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most N messages of each queue, the first ones.")] = 20,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show the messages of a parked key that wait for its replay, in order. The first one is the message that failed, or is tried now."""
    run(_show(group, key, topic, limit, nameserver, as_json))


add_changes(app, (ParkReplay, ParkDrop))


async def _list(group: str | None, topic: str | None, nameserver: ClusterAddress, as_json: bool) -> None:
    check_names(group, topic)
    admin = admin_client(nameserver)
    listed = await list_parked(admin, group, topic)
    if not listed.keys and not listed.failed:
        await check_group_known(admin, group, topic)
    unlisted = await count_unlisted(admin, listed, group, topic) if listed.cut else {}
    waiting, unread = await count_waiting(admin, listed.keys)
    failed = {**unread, **listed.failed}
    if as_json:
        keys = [{**_json(each), **_waiting_json(waiting.get(each))} for each in listed.keys]
        print_json({"keys": keys, "cut": list(listed.cut), "unlisted": _unlisted_json(unlisted), "failed": failed})
    else:
        columns = ["key", "topic", "queue", "state", "since", ">waiting", ">attempts", "error"]
        rows = [_row(each, waiting.get(each)) for each in listed.keys]
        if group is None:
            columns, rows = ["group", *columns], [(each.row.group, *row) for each, row in zip(listed.keys, rows, strict=True)]
        print_table(columns, rows, empty="no keys are parked" if group is None else f"no keys of group {group} are parked")
        for line in _unlisted_lines(listed.cut, unlisted):
            print_line(line)
    raise_if_incomplete(failed)


def _unlisted_lines(brokers: Sequence[str], unlisted: Mapping[tuple[str, MessageQueue], int]) -> Iterator[str]:
    """Yield the queues with keys that are not listed: one response of a broker holds no more keys."""
    for name in brokers:
        places = {place: count for place, count in unlisted.items() if place[1].broker_name == name}
        shown = [f"{count} of group {group} in {queue.topic}:{queue.queue_id}" for (group, queue), count in places.items()]
        listed = ", ".join(shown[:PLACES_SHOWN]) + (", …" if len(shown) > PLACES_SHOWN else "")
        count = f"{sum(places.values())} more keys, which are not listed: {listed}" if places else "more keys, which are not listed"
        yield f"broker {name} has {count}. Name a group, or a topic with --topic"


def _unlisted_json(unlisted: Mapping[tuple[str, MessageQueue], int]) -> list[dict[str, Any]]:
    return [
        {"group": group, "topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id, "count": count}
        for (group, queue), count in unlisted.items()
    ]


def _row(parked: Parked, waiting: WaitingCount | None) -> tuple[object, ...]:
    row = parked.row
    queue, since = f"{parked.broker.name}:{row.queue_id}", format_time(row.since_ms)
    return row.key, row.topic, queue, row.state.value, since, waiting, row.attempts, row.error or None


def _json(parked: Parked) -> dict[str, Any]:
    row = parked.row
    return {
        "group": row.group,
        "key": row.key,
        "topic": row.topic,
        "broker": parked.broker.name,
        "queue_id": row.queue_id,
        "state": row.state.value,
        "next_offset": row.next,
        "since": format_time(row.since_ms),
        "attempts": row.attempts,
        "error": row.error,
    }


def _waiting_json(waiting: WaitingCount | None) -> dict[str, Any]:
    if waiting is None:
        return {"waiting": None, "waiting_complete": False}
    return {"waiting": waiting.count, "waiting_complete": waiting.complete}


async def _show(group: str, key: str, topic: str | None, limit: int, nameserver: ClusterAddress, as_json: bool) -> None:
    check_names(group, topic, key)
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        listed = await list_parked(admin, group, topic, key)
        read = await gather_results({str(each.queue): read_waiting(admin, each, limit) for each in listed.keys})
    unread = {each.broker.name: read.failed[str(each.queue)] for each in listed.keys if str(each.queue) in read.failed}
    failed = {**unread, **listed.failed}
    if not listed.keys:
        raise await not_parked(admin, group, topic, key, failure_summary(failed))
    if as_json:
        queues = [{**_json(each), **_messages_json(read.values.get(str(each.queue)))} for each in listed.keys]
        print_json({"group": group, "key": key, "queues": queues, "failed": failed})
    else:
        for each in listed.keys:
            _print_messages(each, read.values)
    raise_if_incomplete(failed)


def _messages_json(read: tuple[list[MessageExt], bool] | None) -> dict[str, Any]:
    messages, complete = ([], False) if read is None else read
    return {"messages": [message_json(message) for message in messages], "complete": complete}


def _print_messages(parked: Parked, read: Mapping[str, tuple[list[MessageExt], bool]]) -> None:
    row = parked.row
    why = f"{row.attempts} failed calls" + (f", the last one with {row.error}" if row.error else "")
    place = f"{row.topic} {parked.broker.name}:{row.queue_id}"
    print_line(f"key {row.key!r} of group {row.group} in {place}: {row.state.value}, set aside at {format_time(row.since_ms)} after {why}")
    if str(parked.queue) not in read:
        return
    messages, complete = read[str(parked.queue)]
    rows = [
        (
            message.queue_offset,
            message.offset_message_id,
            format_time(message.stored_ms),
            message.tags,
            " ".join(message.keys) or None,
            body_text(message)[:BODY_LENGTH_SHOWN],
        )
        for message in messages
    ]
    print_table([">offset", "id", "stored at", "tag", "keys", "body"], rows, empty="none of its messages waits")
    if not complete:
        print_line(f"the first {len(messages)}, there may be more; pass --limit N to show more")
