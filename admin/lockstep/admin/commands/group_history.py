"""lockstep group history."""

from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, gather_results
from lockstep.admin.group_history import PlacedEvent, hand_overs, in_order, incomplete, summary
from lockstep.admin.options import CommandError, GroupArgument, JsonOption, NameserverOption, raise_if_incomplete, run
from lockstep.admin.render import format_duration, format_time, print_json, print_line, print_table
from lockstep.admin.targets import parse_period
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import GroupEventKind
from lockstep.protocol.names import check_group, check_topic
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
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show who joined and left a group, who was granted which queue when, and how long hand-overs took.

    Each broker keeps the last 4,096 events of a group in memory, until it stops. Times are those of its own clock, in UTC.
    """
    run(_history(group, topic, since, nameserver, as_json))


async def _history(group: str, topic: str | None, since: str | None, nameserver: str, as_json: bool) -> None:
    host = Host.current()
    check_group(group)
    if topic is not None:
        check_topic(topic)
    since_ms, _ = parse_period(since, None, host.clock.wall_ms())
    admin = AdminClient(host, nameserver)
    async with admin.keep_connections():
        brokers = await admin.brokers()
        results = await gather_results({broker.name: admin.group_events(broker, group) for broker in brokers})
        if not results.failed and not any(reply.events for reply in results.values.values()):
            await _check_known(admin, group)
    events = in_order({name: reply.events for name, reply in results.values.items()})
    moved = [each for each in hand_overs(events) if each.at_ms >= (since_ms or 0) and topic in (None, each.topic)]
    events = [each for each in events if each.event.wall_ms >= (since_ms or 0) and each.event.topic in (None, topic or each.event.topic)]
    notes = incomplete(group, results.values, since_ms)
    if as_json:
        told = [{"broker": each.broker, **asdict(each.event), "kind": each.event.kind.value} for each in events]
        print_json({"events": told, "hand_overs": [asdict(each) for each in moved], "notes": notes, "failed": dict(results.failed)})
    else:
        print_table(["time", "broker", "event", "topic", ">queue", "member", ">epoch", "details"], map(_row, events), empty="no events")
        print_line(summary(moved))
        for line in notes:
            print_line(line)
    raise_if_incomplete(results.failed)


async def _check_known(admin: AdminClient, group: str) -> None:
    """Raise CommandError if no broker knows the group."""
    known = await gather_results({broker.name: admin.group_status(broker, None) for broker in await admin.brokers()})
    if not known.failed and not any(group in reply.groups for reply in known.values.values()):
        raise CommandError(f"no broker knows group {group!r}; run `lockstep group list` to list the known groups")


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
            parts.append(f"free for {_text(for_ms)}")
        elif event.kind in (GroupEventKind.LOST, GroupEventKind.DISCONNECTED):
            parts.append(f"last heard {_text(for_ms)} before")
    return "; ".join(parts)


def _text(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1_000 else format_duration(duration_ms) or ""
