"""lockstep replica ls. `replica promote` and `replica forget` are declared in operations/changes."""

from collections.abc import Sequence
from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.brokers.replica_query import read_named
from lockstep.operations.brokers.replicas import COLUMNS, copies_json
from lockstep.operations.changes.replica_forget import ReplicaForget
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="List the copies of brokers' logs, and say which of them is the master.")


@app.command("ls")
def ls_command(
    broker: Annotated[str | None, typer.Option("--broker", metavar="NAME", help="Only the copies of this broker.")] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Ask the copy at this address too, if its master is down; may be repeated."),
    ] = None,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List every copy of each broker's log: its role, whether the master waits for it, how far it is behind, and what is wrong with it.

    Masters are those that the nameservers know; each names its replicas, which are asked themselves. Any replica names the others."""
    run(_ls(broker, address or (), nameserver, as_json))


async def _ls(broker: str | None, addresses: Sequence[str], nameserver: ClusterAddress, as_json: bool) -> None:
    found = await read_named(admin_client(nameserver), broker, addresses)
    if as_json:
        print_json(copies_json(found))
    else:
        print_table(COLUMNS, [each.row for each in found], empty="no broker has registered")


add_changes(app, (ReplicaPromote, ReplicaForget))
