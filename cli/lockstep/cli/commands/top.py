"""lockstep top."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.console import ConsoleDimensions, RenderableType
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from lockstep.cli import live
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.overviews import read_overviews
from lockstep.operations.brokers.rates import BrokerRates, ClusterRates, GroupRates, Looks, rates
from lockstep.operations.text import format_duration
from lockstep.protocol.errors import TransportError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.logs.safe_text import printable

TREND_LOOKS = 60
"""Looks whose lag the trend of a group shows."""
TREND_CELLS = 20
BARS = "▁▂▃▄▅▆▇█"
HEAD_LINES = 6
"""Lines of the screen besides the rows: titles, columns and the last line."""


class Sort(StrEnum):
    """What groups are sorted by, the highest first."""

    BEHIND = "behind"
    RATE = "rate"
    MOVES = "moves"


app = typer.Typer(add_completion=False)


@app.command("top")
def top_command(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    sort: Annotated[Sort, typer.Option("--sort", help="What groups are sorted by, the highest first.")] = Sort.BEHIND,
    once: Annotated[bool, typer.Option("--once", help="Print one result after two looks, and end.")] = False,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show brokers and groups as they change: rates, lag and when it will be gone, moves of queues. Ctrl-C ends it.

    A figure that is not known is a dash: that of a broker that does not respond, or a rate over its restart. With --json, or if the output
    is no terminal, it prints one result and ends.
    """
    run(_top(nameserver, interval, sort, once or as_json or not sys.stdout.isatty(), as_json), interrupted=0)


async def _top(nameserver: ClusterAddress, interval_s: float, sort: Sort, once: bool, as_json: bool) -> None:
    admin = admin_client(nameserver)
    before = await read_overviews(admin)
    if not once:
        await live.show(_screens(admin, before, interval_s, sort))
        return
    await asyncio.sleep(interval_s)
    found = rates(before, await read_overviews(admin))
    if as_json:
        print_json(asdict(found))
    else:
        print_table(BROKER_COLUMNS, [broker_row(each) for each in found.brokers], empty="no broker has registered")
        print_table(GROUP_COLUMNS, [group_row(each) for each in ordered(found.groups, sort)], empty="no groups")


async def _screens(admin: AdminClient, before: Looks, interval_s: float, sort: Sort) -> AsyncIterator[live.Screen]:
    """Yield one look after another. Without a nameserver the last figures stay, with the reason."""
    trends: dict[str, deque[int]] = {}
    found, note = rates({}, before), "the first rates come with the next look"
    while True:
        yield partial(_screen, found, sort, trends, note)
        await asyncio.sleep(interval_s)
        try:
            now = await read_overviews(admin)
        except TransportError as error:
            note = f"these figures are old: {error}"
            continue
        found, before, note = rates(before, now), now, f"every {interval_s:g} s; Ctrl-C ends it"
        keep_trends(trends, found.groups)


def keep_trends(trends: dict[str, deque[int]], groups: Sequence[GroupRates]) -> None:
    """Add the lag of each group to its trend, and forget groups that are gone."""
    for gone in trends.keys() - {each.group for each in groups}:
        del trends[gone]
    for each in groups:
        trends.setdefault(each.group, deque(maxlen=TREND_LOOKS)).append(each.lag or 0)


def trend_text(lags: Sequence[int]) -> str:
    """Return the course of a lag as bars, the newest last; the highest one of these is the full bar."""
    if not lags:
        return ""
    step = max(1, -(-len(lags) // TREND_CELLS))
    cells = [max(lags[at : at + step]) for at in range(0, len(lags), step)]
    highest = max(cells)
    return "".join(BARS[cell * (len(BARS) - 1) // highest] if highest else BARS[0] for cell in cells)


def ordered(groups: Sequence[GroupRates], sort: Sort) -> list[GroupRates]:
    """Return the groups in the order in which they are shown."""
    keys = {Sort.BEHIND: lambda each: each.lag, Sort.RATE: lambda each: each.given_s, Sort.MOVES: lambda each: each.grants_min}
    return sorted(groups, key=lambda each: -(keys[sort](each) or 0))


BROKER_COLUMNS = ["broker", ">in/s", ">out/s", ">behind", ">connections", ">p99 append", ">unsynced", ">free disk", ">up", "remark"]
GROUP_COLUMNS = ["group", "kind", ">members", ">held", ">behind", ">in time", ">out/s", ">gone in", ">moves/min", "remark"]


def broker_row(broker: BrokerRates) -> list[object]:
    """Return the cells of BROKER_COLUMNS."""
    free = None if not broker.total_bytes or broker.free_bytes is None else f"{broker.free_bytes * 100 // broker.total_bytes}%"
    unsynced = None if broker.unsynced_bytes is None else f"{broker.unsynced_bytes >> 10:,} KiB"
    return [
        broker.broker,
        _rate(broker.stored_s),
        _rate(broker.given_s),
        _count(broker.lag),
        _count(broker.connections),
        broker.append_p99,
        unsynced,
        free,
        format_duration(broker.up_ms),
        "; ".join(broker.remarks) or None,
    ]


def group_row(group: GroupRates) -> list[object]:
    """Return the cells of GROUP_COLUMNS."""
    return [
        group.group,
        group.kind,
        group.members,
        _count(group.held),
        _count(group.lag),
        format_duration(group.oldest_ms),
        _rate(group.given_s),
        format_duration(group.gone_ms),
        _rate(group.grants_min),
        "; ".join(group.remarks) or None,
    ]


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _screen(found: ClusterRates, sort: Sort, trends: Mapping[str, Sequence[int]], note: str, size: ConsoleDimensions) -> RenderableType:
    groups = ordered(found.groups, sort)
    room = max(1, size.height - HEAD_LINES - len(found.brokers))
    brokers = _table(BROKER_COLUMNS, [(broker_row(each), bool(each.remarks)) for each in found.brokers])
    rows = []
    for each in groups[:room]:
        *cells, remark = group_row(each)
        rows.append(([*cells, trend_text(tuple(trends.get(each.group, ()))), remark], bool(each.remarks)))
    columns = [*GROUP_COLUMNS[:-1], "trend", GROUP_COLUMNS[-1]]
    left = f"; {len(groups) - room} more groups" if len(groups) > room else ""
    return Stack(brokers, Text(), _table(columns, rows), Text(printable(note + left), style="dim"))


def _table(columns: Sequence[str], rows: Sequence[tuple[Sequence[object], bool]]) -> Table:
    """Return a table without folded cells. A row that needs attention is red."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True, overflow="ellipsis")
    for row, needs_attention in rows:
        cells = [Text("-" if cell is None else printable(str(cell))) for cell in row]
        table.add_row(*cells, style="red" if needs_attention else None)
    return table
