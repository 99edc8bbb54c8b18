"""lockstep message find."""

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, print_error, run
from lockstep.cli.render import print_json
from lockstep.cli.reporter import admin_client
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.messages.find import Criteria, Found, check_key, find_id, find_key
from lockstep.operations.messages.message_text import message_json, message_line, next_steps
from lockstep.operations.messages.topic_search import find_in_topic
from lockstep.operations.progress import SearchProgress
from lockstep.operations.targets import parse_period
from lockstep.operations.text import format_bytes, format_time
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX
from lockstep.protocol.messages.properties import check_text
from lockstep.protocol.names import check_topic
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host

LIMIT_MAX = 1_000


def find_command(
    key: Annotated[str | None, typer.Option("--key", "-k", help="Find messages that have this key.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="MSGID", help="Find the message to which its producer gave this id (UNIQ_KEY).")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Search only this topic. By default all.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Find messages that were stored at this time or later: ISO 8601 (UTC if without a zone), a time of day (15:00, UTC), or "
            "a duration ago: 90s, 30m, 2h, 7d.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Find messages that were stored at this time or earlier. By default now.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", "-t", help="Show only messages with this tag, or one of several: 'A || B'.")] = "*",
    sharding_key: Annotated[str | None, typer.Option("--sharding-key", help="Show only messages with this sharding key.")] = None,
    body: Annotated[str | None, typer.Option("--body", metavar="TEXT", help="Show only messages with this text in their body.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LIMIT_MAX, help="Show at most N messages, the newest.")] = 20,
    everywhere: Annotated[
        bool, typer.Option("--all", help="With --id: find also copies that were stored later (retries, dead letters, replays).")
    ] = False,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Find messages by key, by the id that a producer gave, or by time, at all brokers: the newest first.

    There is no index. --key and --id search the logs of the brokers, the newest part first: a GB per second and more of what the machine
    has in memory, the rest as fast as its disk reads. --since and --until shorten the search. --id contains the time of the message, and
    begins there. Without --key and --id the messages of --topic are read from the end.

    Messages that wait for their delay or their next retry are found by --key and --id, with the time at which they are due.

    Ctrl-C ends a search and prints what it has found.
    """
    criteria = Criteria(topic, tags=tag, sharding_key=sharding_key, body=body)
    run(_find(key, message_id, criteria, (since, until), limit, everywhere, nameserver, as_json))


async def _find(
    key: str | None,
    message_id: str | None,
    criteria: Criteria,
    period: tuple[str | None, str | None],
    limit: int,
    everywhere: bool,
    nameserver: ClusterAddress,
    as_json: bool,
) -> None:
    host = Host.current()
    _check(key, message_id, criteria, period, everywhere)
    since_ms, until_ms = parse_period(*period, host.clock.wall_ms())
    criteria = replace(criteria, begin_ms=since_ms or 0, end_ms=TIMESTAMP_MAX if until_ms is None else until_ms)
    admin = admin_client(nameserver)
    by_time = key is None and message_id is None
    found = Found(limit, SearchProgress(host.clock, "messages" if by_time else "bytes", admin.reporter))
    if criteria.topic is not None:
        await admin.route(criteria.topic)  # a misspelt name is reported before all logs are searched
    try:
        if key is not None:
            await find_key(admin, found, key, criteria)
        elif message_id is not None:
            await find_id(admin, found, message_id, criteria, everywhere=everywhere)
        elif criteria.topic is not None:
            await find_in_topic(admin, found, criteria.topic, criteria)
    except asyncio.CancelledError:  # Ctrl-C
        _show(found, as_json)
        raise
    _show(found, as_json)
    raise_if_incomplete(found.failed)


def _check(key: str | None, message_id: str | None, criteria: Criteria, period: tuple[str | None, str | None], everywhere: bool) -> None:
    """Raise ConfigError or LocalProtocolError for options that do not belong together, and for values that no message can have."""
    if key is not None and message_id is not None:
        raise ConfigError("--key and --id exclude each other: use one of them")
    if everywhere and message_id is None:
        raise ConfigError("--all belongs to --id: say which one")
    if key is not None:
        check_key("--key", key)
    for option, value in (("--id", message_id), ("--sharding-key", criteria.sharding_key)):
        if value is not None:
            check_text(option, value)
    if criteria.body == "":
        raise ConfigError("--body is empty: give a text that the body has, or leave it out")
    if criteria.topic is not None:
        check_topic(criteria.topic)
    if key is None and message_id is None:
        filters = (*period, criteria.sharding_key, criteria.body, None if criteria.tags == "*" else criteria.tags)
        if all(value is None for value in filters):
            others = "--since, --until, --tag, --sharding-key or --body"
            raise ConfigError(f"say what to find: --key KEY, --id MSGID, or --topic TOPIC with {others}")
        if criteria.topic is None:
            raise ConfigError("a search without --key and --id reads the messages of a topic: name it with --topic")
    for suspect in TagFilter.parse(criteria.tags).suspicious_tags():
        print_error(f"--tag: {suspect!r} is matched as one tag; write several tags as 'a || b'")


def _show(found: Found, as_json: bool) -> None:
    found.progress.end()
    if as_json:
        print_json(
            {
                "messages": [message_json(each) for each in found.messages],
                "cut": found.cut,
                "complete": found.complete,
                "searched": found.progress.done,
                "total": found.progress.total,
                "unit": found.progress.unit,
                "unread_bytes": found.unread_bytes,
                "failed": found.failed,
            }
        )
    else:
        for each in found.messages:
            print(message_line(each), flush=True)
        for line in next_steps(found.messages):
            print_error(line)
    if found.cut:
        oldest = format_time(found.messages[-1].stored_ms)
        print_error(f"these are the newest {len(found.messages)}: others may be older. To go on, add --until {oldest}, or raise --limit")
    elif not found.complete and not found.failed:
        print_error(f"the search has ended early: {found.progress.describe()} were searched, at each broker the newest")
    elif not found.messages:
        print_error(f"nothing was found; searched: {found.progress.describe()}")
    if found.unread_bytes:
        print_error(f"{format_bytes(found.unread_bytes)} could not be read from the disks of the brokers: `lockstep doctor` names damage")
