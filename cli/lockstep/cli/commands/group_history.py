"""lockstep group history."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.groups.group_history import PlacedEvent, hand_overs, in_order, incomplete, known_since, summary
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.ownership import Period
from lockstep.operations.pictures.group import Reported, group_picture
from lockstep.operations.targets import parse_period
from lockstep.operations.text import format_short_duration, format_time
from lockstep.protocol.bodies import GroupEventKind, GroupEvents
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group, check_topic
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host


def history_command(
    group: GroupArgument,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Show only the queues of this topic.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Show only events from this time on: ISO 8601 (UTC if without a zone), a time of day (15:00, UTC), or a duration ago: "
            "90s, 30m, 2h, 7d. By default all.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg",
            metavar="FILE",
            help="Write a picture as well: a lane for each queue that shows who held it when, or for each member if none is locked.",
        ),
    ] = None,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show who joined and left a group, who was granted which queue when, and how long hand-overs took.

    Each broker keeps the last 4,096 events of a group in memory, until it stops. Times are those of its own clock, in UTC.
    """
    run(_history(group, topic, since, svg, nameserver, as_json))


async def _history(group: str, topic: str | None, since: str | None, svg: Path | None, nameserver: ClusterAddress, as_json: bool) -> None:
    host = Host.current()
    check_group(group)
    if topic is not None:
        check_topic(topic)
    since_ms, _ = parse_period(since, None, host.clock.wall_ms())
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        brokers = await admin.brokers()
        report = None if svg is None else (await read_group(admin, group))[0]  # before the events, which show what has changed since
        results = await gather_results({broker.name: admin.group_events(broker, group) for broker in brokers})
        if not results.failed and not any(reply.events for reply in results.values.values()):
            await _check_known(admin, group)
    everything = in_order({name: reply.events for name, reply in results.values.items()})
    moved = [each for each in hand_overs(everything) if each.at_ms >= (since_ms or 0) and topic in (None, each.topic)]
    of_topic = [each for each in everything if topic in (None, each.event.topic or topic)]
    events = [each for each in of_topic if each.event.wall_ms >= (since_ms or 0)]
    notes = incomplete(group, results.values, since_ms)
    if as_json:
        shown = [{"broker": each.broker, **asdict(each.event), "kind": each.event.kind.value, "epoch": _epoch(each)} for each in events]
        print_json({"events": shown, "hand_overs": [asdict(each) for each in moved], "notes": notes, "failed": dict(results.failed)})
    else:
        print_table(["time", "broker", "event", "topic", ">queue", "member", ">epoch", "details"], map(_row, events), empty="no events")
        print_line(summary(moved))
        for line in notes:
            print_line(line)
    if svg is not None:
        now_ms = max((reply.wall_ms for reply in results.values.values()), default=host.clock.wall_ms())
        begin_ms = min((each.event.wall_ms for each in events), default=now_ms) if since_ms is None else since_ms
        period = begin_ms, max(now_ms, begin_ms + 1)
        lines = [] if report is None else [line for line in report.queues if topic in (None, line.topic)]
        unknown = _unknown(group, lines, results.values, period)
        starts = {broker: [reply.began_ms] for broker, reply in results.values.items()}
        _write(
            svg,
            group_picture(
                group, report, lines, of_topic, period, unknown, summary(moved), Reported(None, results.values.keys()), starts=starts
            ).svg,
        )
    raise_if_incomplete(results.failed)


def _unknown(group: str, lines: Sequence[QueueLine], replies: Mapping[str, GroupEvents], period: Period) -> dict[str, list[Period]]:
    """Return for each broker the periods that it does not know, because it has dropped it or did not respond."""
    unknown = {broker: [(0, known_since(group, reply))] for broker, reply in replies.items()}
    return unknown | {line.broker: [(0, period[1])] for line in lines if line.broker not in replies}


def _write(path: Path, picture: str) -> None:
    """Write the picture. Raise ConfigError if that fails."""
    try:
        path.write_text(picture, "utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--svg {str(path)!r}: {error}") from None


async def _check_known(admin: AdminClient, group: str) -> None:
    """Raise OperationError if no broker knows the group."""
    known = await gather_results({broker.name: admin.group_status(broker, None) for broker in await admin.brokers()})
    if not known.failed and not any(group in reply.groups for reply in known.values.values()):
        raise unknown_group(group, {})


def _epoch(placed: PlacedEvent) -> str | None:
    """Return the epoch as a string, because JSON readers that hold numbers as doubles would round it."""
    return None if placed.event.epoch is None else str(placed.event.epoch)


def _row(placed: PlacedEvent) -> tuple[object, ...]:
    event = placed.event
    return (
        format_time(event.wall_ms),
        placed.broker,
        event.kind.value,
        event.topic,
        event.queue_id,
        event.client_id,
        event.epoch,
        _details(placed) or None,
    )


def _details(placed: PlacedEvent) -> str:
    event = placed.event
    parts = [] if event.why is None else [event.why]
    if event.since_ms is not None:
        for_ms = event.wall_ms - event.since_ms
        if event.kind in (GroupEventKind.GRANTED, GroupEventKind.RENEWED):
            parts.append(f"free for {format_short_duration(for_ms)}")
        elif event.kind in (GroupEventKind.LOST, GroupEventKind.DISCONNECTED):
            parts.append(f"last heard {format_short_duration(for_ms)} before")
    return "; ".join(parts)
