"""lockstep tx ls. `tx commit` and `tx rollback` are declared in operations/changes/waiting/transaction_end.py."""

from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, print_error, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionRollback
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.messages.halves import OpenMessage, half_json, list_halves
from lockstep.operations.text import format_time
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="List and decide transactions of which no producer has said how they have ended.")


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
    client = row.client_id if row.connected or not row.client_id else f"{row.client_id} (gone)"
    names = row.transaction_id or None, row.message_id or None, row.keys or None, row.producer_group, client or None
    return format_time(row.sent_ms), row.topic, f"{message.broker}:{row.queue_id}", *names, "too old" if row.expired else "yes"


add_changes(app, (TransactionCommit, TransactionRollback))
