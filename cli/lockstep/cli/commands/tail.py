"""lockstep tail."""

from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, NameserverOption, TopicArgument, print_error, run
from lockstep.cli.reporter import admin_client
from lockstep.cli.tail import Selection, Tail
from lockstep.operations.messages.message_text import message_json, message_line
from lockstep.operations.targets import Target, parse_queue, parse_since
from lockstep.operations.text import json_text
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host

END_S = 3
"""Ctrl-C ends it after this at the latest, even during a name lookup or when the reader of its output has stopped reading."""
OFFSET_MAX = 2**63 - 1


app = typer.Typer(add_completion=False)


@app.command("tail")
def tail_command(
    topic: TopicArgument,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first stored message of every queue.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Begin with the first message that was stored at this time or later: ISO 8601 (UTC if without a zone), a time of day "
            "(15:00, UTC), or a duration ago: 90s, 30m, 2h, 7d.",
        ),
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, max=OFFSET_MAX, help="Begin at this offset of the queue that --queue selects.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="BROKER:NUMBER", help="Read only this queue; may be repeated. By default all.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Print only messages that have this key, or this id (a producer's or the broker's)."),
    ] = None,
    tag: Annotated[
        str, typer.Option("--tag", "-t", help="Print only messages with this tag, or one of several: 'A || B'. * matches all.")
    ] = "*",
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Exit after N messages. By default run until Ctrl-C.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for further messages, or exit after the last one that is stored now.")
    ] = True,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Print a topic's messages as they are stored, beginning at the end of every queue. Press Ctrl-C to stop.

    --key and --tag select among the messages that are read: with --since, --offset or --from-start those that are stored already, too.
    """
    run(_tail(topic, (from_start, since, offset), queue or [], tag, key, count, follow, nameserver, as_json), interrupted=0, end_s=END_S)


async def _tail(
    topic: str,
    start: tuple[bool, str | None, int | None],
    queues: list[str],
    tag: str,
    key: str | None,
    count: int | None,
    follow: bool,
    nameserver: ClusterAddress,
    as_json: bool,
) -> None:
    for suspect in TagFilter.parse(tag).suspicious_tags():
        print_error(f"--tag: {suspect!r} is matched as one tag; write several tags as 'a || b'")
    host = Host.current()
    selected = frozenset(map(parse_queue, queues))
    selection = Selection(parse_start(*start, host.clock.wall_ms(), len(selected)), selected, tag, key, follow)
    await Tail(admin_client(nameserver), topic, selection, _show_json if as_json else _show_line).run(count)


def parse_start(from_start: bool, since: str | None, offset: int | None, now_ms: int, queue_count: int) -> Target:
    """Return where each queue is begun. Raise ConfigError for options that exclude each other, and for an invalid time."""
    if from_start + (since is not None) + (offset is not None) > 1:
        raise ConfigError("--from-start, --since and --offset exclude each other: use one of them")
    if since is not None:
        return parse_since(since, now_ms)
    if offset is not None:
        if queue_count != 1:
            raise ConfigError("--offset is an offset of one queue: select it by --queue BROKER:NUMBER")
        return Target("offset", offset)
    return Target("beginning" if from_start else "end")


def _show_json(message: MessageExt) -> None:
    print(json_text(message_json(message)), flush=True)


def _show_line(message: MessageExt) -> None:
    print(message_line(message), flush=True)
