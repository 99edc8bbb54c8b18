"""lockstep timer ls. `timer recall` is declared in operations/changes/waiting/timer_recall.py."""

from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, print_error, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.waiting.timer_recall import TimerRecall
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.messages.timers import TimerCriteria, TimerList, WaitingTimer, list_timers, timers_json
from lockstep.operations.targets import parse_due
from lockstep.operations.text import format_time
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host

LIMIT_MAX = 100_000

app = typer.Typer(no_args_is_help=True, help="List and recall messages that wait for any delay or until a time of day.")


@app.command("ls")
def ls_command(
    topic: Annotated[str | None, typer.Argument(help="List the messages of this topic. By default those of all topics.")] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="WHEN",
            help="List messages that are due before this time: a duration from now (90s, 30m, 2h, 7d), ISO 8601 (UTC if without a zone), "
            "or a time of day (15:00, UTC).",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="List messages that have this key.")] = None,
    sharding_key: Annotated[str | None, typer.Option("--sharding-key", "-s", help="List messages with this sharding key.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LIMIT_MAX, help="List at most N messages, those that are due first.")] = 20,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List the messages that wait for a delay of any length or until a time of day, as they are due, without their bodies.

    --key, --sharding-key and TOPIC let the brokers read the records of all that are due before the last one that is listed, ten thousand at
    a time. Messages with a delay level, and retries, are counted by `lockstep delays`.
    """
    run(_list(topic, before, key, sharding_key, limit, nameserver, as_json))


async def _list(
    topic: str | None,
    before: str | None,
    key: str | None,
    sharding_key: str | None,
    limit: int,
    nameserver: ClusterAddress,
    as_json: bool,
) -> None:
    before_ms = None if before is None else parse_due("--before", before, Host.current().clock.wall_ms())
    found = await list_timers(admin_client(nameserver), TimerCriteria(topic, before_ms, key, sharding_key), limit)
    if as_json:
        print_json(timers_json(found))
    else:
        _print(found, topic)
    if found.unread:
        print_error(f"{found.unread} messages that wait could not be read by their brokers, and are left out")
    raise_if_incomplete(found.failed)


def _print(found: TimerList, topic: str | None) -> None:
    columns = ["due", "queue", "id", "tag", "keys", "sharding key", "stored at", "recall handle"]
    rows = [_row(each) for each in found.found]
    if topic is None:
        columns, rows = ["topic", *columns], [(each.row.topic, *row) for each, row in zip(found.found, rows, strict=True)]
    print_table(columns, rows, empty="no such message waits")
    if found.positions:
        print_line(f"these are the first {len(rows)}, others are due later; pass --limit N to list more")


def _row(timer: WaitingTimer) -> tuple[object, ...]:
    row = timer.row
    names = row.message_id or None, row.tag, row.keys or None, row.sharding_key
    return format_time(row.due_ms), f"{timer.broker}:{row.queue_id}", *names, format_time(row.stored_ms), row.handle or None


add_changes(app, (TimerRecall,))
