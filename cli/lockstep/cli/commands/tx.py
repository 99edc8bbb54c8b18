"""lockstep tx ls, tx show. `tx commit` and `tx rollback` are declared in operations/changes/waiting/transaction_end.py."""

import asyncio
from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, print_error, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionRollback
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.messages.find import Found
from lockstep.operations.messages.halves import OpenMessage, half_json, list_halves
from lockstep.operations.messages.transaction_report import (
    COMMITTED_COLUMNS,
    TransactionReport,
    committed_rows,
    headline,
    next_steps,
    read_transaction,
    report_json,
)
from lockstep.operations.progress import SearchProgress
from lockstep.operations.text import format_time
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.runtime.connections.cluster_address import ClusterAddress

SHOWN_MAX = 10_000
"""Committed messages that are shown: a transaction has a few."""
OPEN_COLUMNS = ("sent at", "topic", "queue", "id", "keys", "tag", "sharding key", "producer group", "client", "asked")

app = typer.Typer(no_args_is_help=True, help="List, show and decide transactions of which no producer has said how they have ended.")


@app.command("ls")
def ls_command(
    topic: Annotated[str | None, typer.Argument(help="List the messages to this topic. By default those of all topics.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="List the messages of this producer group.")] = None,
    transaction: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="List the messages of this transaction, or the one with this id.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="List the messages that have this key.")] = None,
    expired: Annotated[bool, typer.Option("--expired", help="List only those that are too old to be asked about.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print at most N messages, the oldest.")] = 100,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List the half messages of transactions that are not decided, the oldest first, without their bodies.

    Brokers ask their producers about them, for 24 hours unless --transaction-hours-max of the broker says otherwise.
    """
    run(_list(ListHalvesHeader(topic, group, transaction, key, expired), limit, nameserver, as_json))


@app.command("show")
def show_command(
    transaction: Annotated[str, typer.Argument(metavar="ID", help="The id of the transaction, or of one of its messages.")],
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show what all brokers know of one transaction: its messages that wait, those that were committed, and what to do next.

    Committed messages are searched for in the logs of the brokers, as by `lockstep message find --key`: nothing is left of what was rolled
    back, or removed by retention. Ctrl-C ends the search and prints what it has found.
    """
    run(_show(transaction, nameserver, as_json))


async def _show(wanted: str, nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    report = TransactionReport(wanted, Found(SHOWN_MAX, SearchProgress(admin.host.clock, reporter=admin.reporter)))
    try:
        await read_transaction(admin, report)
    except asyncio.CancelledError:  # Ctrl-C
        _print_report(report, as_json)
        raise
    finally:
        report.search.progress.end()
    _print_report(report, as_json)
    raise_if_incomplete({**report.search.failed, **report.failed})


def _print_report(report: TransactionReport, as_json: bool) -> None:
    if as_json:
        print_json(report_json(report))
    elif report.open or report.committed:
        print_line(headline(report))
        if report.open:
            print_table(OPEN_COLUMNS, [_open_row(each) for each in report.open])
        if report.committed:
            print_table(COMMITTED_COLUMNS, committed_rows(report.committed))
        for line in next_steps(report):
            print_line(line)
    if report.search.cut:
        print_error(f"these are the newest {SHOWN_MAX:,} committed messages: it has more")
    if report.unread:
        print_error(f"{report.unread} half messages could not be read by their brokers: some may belong to it")


def _open_row(message: OpenMessage) -> tuple[object, ...]:
    row = message.row
    place = f"{message.broker}:{row.queue_id}"
    asked = f"until {format_time(row.expires_ms)}" if not row.expired else "too old"
    names = row.message_id or None, row.keys or None, row.tag, row.sharding_key, row.producer_group, _client(message)
    return format_time(row.sent_ms), row.topic, place, *names, asked


async def _list(wanted: ListHalvesHeader, limit: int, nameserver: ClusterAddress, as_json: bool) -> None:
    listed = await list_halves(admin_client(nameserver), wanted)
    shown = listed.found[:limit]
    if as_json:
        counts = {"open": listed.open, "unread": listed.unread, "failed": listed.failed, "complete": len(shown) == len(listed.found)}
        print_json({"messages": [half_json(each) for each in shown], **counts})
    else:
        columns = ["sent at", "topic", "queue", "transaction", "id", "keys", "producer group", "client", "asked"]
        print_table(columns, [_row(each) for each in shown], empty="no such half message waits")
        if len(shown) < len(listed.found):
            print_line(f"these are the first {len(shown)} of {len(listed.found)}; pass --limit N to list more")
    if listed.unread:
        print_error(f"{listed.unread} half messages could not be read by their brokers, and are left out")
    raise_if_incomplete(listed.failed)


def _row(message: OpenMessage) -> tuple[object, ...]:
    row = message.row
    names = row.transaction_id or None, row.message_id or None, row.keys or None, row.producer_group, _client(message)
    return format_time(row.sent_ms), row.topic, f"{message.broker}:{row.queue_id}", *names, "too old" if row.expired else "yes"


def _client(message: OpenMessage) -> str | None:
    row = message.row
    return (row.client_id if row.connected else f"{row.client_id} (gone)") if row.client_id else None


add_changes(app, (TransactionCommit, TransactionRollback))
