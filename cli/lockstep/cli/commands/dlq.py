"""lockstep dlq ls | show. `dlq replay` is declared in operations/changes/replay.py."""

from itertools import chain
from typing import Annotated, Any

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import AdminClient, BrokerResults, failure_summary, gather_results
from lockstep.operations.changes.replay import DeadLetterReplay
from lockstep.operations.errors import OperationError, raise_if_incomplete
from lockstep.operations.messages.dead_letters import DeadLetter, DeadLetterQueue, find_dead_letter_queues, read_dead_letters, read_newest
from lockstep.operations.messages.message_text import message_json
from lockstep.operations.text import body_text, format_time
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, check_group
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="List, show and replay dead letters: messages that a group has given up on.")

add_changes(app, (DeadLetterReplay,))

BODY_LENGTH_SHOWN = 60
DeadLetterGroupArgument = Annotated[str, typer.Argument(help="The group that gave up on the messages.")]


@app.command("ls")
def ls_command(
    group: Annotated[str | None, typer.Argument(help="List this group's dead letters instead of the groups that have some.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most N dead letters of each broker, the newest.")] = 20,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List the groups that have dead letters, or the dead letters of one group."""
    run(_list_groups(nameserver, as_json) if group is None else _list_dead_letters(group, limit, nameserver, as_json))


@app.command("show")
def show_command(
    group: DeadLetterGroupArgument,
    message_id: Annotated[
        str, typer.Argument(metavar="MSGID", help="An id of the dead letter, as `dlq ls` prints it, or of its original message.")
    ],
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: its original topic, the number of attempts, the reason of the failure, and the message."""
    run(_show(group, message_id, nameserver, as_json))


async def _list_groups(nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    rows = []
    failed: dict[str, str] = {}
    for topic in [topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]:
        results = await find_dead_letter_queues(admin, topic.removeprefix(DLQ_PREFIX))
        queues = list(chain.from_iterable(results.values.values()))
        stored = sum(queue.stored_count for queue in queues)
        rows.append((topic.removeprefix(DLQ_PREFIX), stored, sum(queue.pending_count for queue in queues)))
        failed |= results.failed
    if as_json:
        lines = [{"group": group, "stored": stored, "not_replayed": pending} for group, stored, pending in rows]
        print_json({"groups": lines, "failed": failed})
    else:
        print_table(["group", ">dead letters", ">not replayed"], rows, empty="no group has dead letters")
    raise_if_incomplete(failed)


async def _queues_by_broker(admin: AdminClient, group: str) -> BrokerResults[list[DeadLetterQueue]]:
    check_group(group)
    try:
        return await find_dead_letter_queues(admin, group)
    except TopicNotExistError:
        raise OperationError(f"group {group} has no dead letters; run `lockstep dlq ls` to list the groups that have some") from None


async def _list_dead_letters(group: str, limit: int, nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    results = await _queues_by_broker(admin, group)
    newest = await read_newest(admin, group, results, limit)
    if as_json:
        shown = [{**_json(dead_letter), "replayed": replayed} for dead_letter, replayed in newest.letters]
        print_json({"group": group, "stored": newest.stored_count, "dead_letters": shown, "failed": newest.failed})
    else:
        rows = [
            (
                dead_letter.message.offset_message_id,
                format_time(dead_letter.message.stored_ms),
                dead_letter.origin_topic,
                dead_letter.message.reconsume_times,
                replayed,
                dead_letter.reason,
                body_text(dead_letter.message)[:BODY_LENGTH_SHOWN],
            )
            for dead_letter, replayed in newest.letters
        ]
        print_table(["id", "given up at", "topic", ">attempts", "replayed", "reason", "body"], rows, empty="no dead letters")
        if newest.stored_count > len(newest.letters):
            count = f"the newest {len(newest.letters)} of {newest.stored_count}"
            print_line(f"{count}, at most {limit} of each broker; pass --limit N to list more")
    raise_if_incomplete(newest.failed)


def _json(dead_letter: DeadLetter) -> dict[str, Any]:
    origin = {"origin_topic": dead_letter.origin_topic, "origin_message_id": dead_letter.origin_id, "reason": dead_letter.reason}
    return {**origin, **message_json(dead_letter.message)}


async def _show(group: str, message_id: str, nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    results = await _queues_by_broker(admin, group)
    read = await gather_results({broker: _find(admin, group, queues, message_id.upper()) for broker, queues in results.values.items()})
    dead_letter = next((found for found in read.values.values() if found is not None), None)
    if dead_letter is None:
        incomplete = failure_summary({**results.failed, **read.failed})
        raise OperationError(
            f"group {group} has no dead letter {message_id}{' at the brokers that responded' if incomplete else ''}; "
            f"{incomplete or f'run `lockstep dlq ls {group}` to list their ids'}"
        )
    if as_json:
        print_json(_json(dead_letter))
    else:
        for name, value in _json(dead_letter).items():
            print_line(f"{name:18} {body_text(dead_letter.message) if name == 'body' else value}")


async def _find(admin: AdminClient, group: str, queues: list[DeadLetterQueue], message_id: str) -> DeadLetter | None:
    for queue in queues:
        async for dead_letter in read_dead_letters(admin, queue, group, queue.offsets.min_offset):
            if message_id in (dead_letter.message.offset_message_id, dead_letter.message.message_id, dead_letter.origin_id):
                return dead_letter
    return None
