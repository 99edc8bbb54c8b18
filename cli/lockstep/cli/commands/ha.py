"""lockstep ha show. `ha failover` is declared in operations/changes."""

from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.brokers.ha_report import ha_json, sentences
from lockstep.operations.brokers.replica_query import read_named
from lockstep.operations.brokers.replicas import COLUMNS, of_broker
from lockstep.operations.changes.ha_failover import HaFailover
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="Brokers whose copies elect their master by a register: what it says, and planned failovers.")


@app.command("show")
def show_command(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="The broker's name.")],
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Ask the copy at this address too, if no master is routed; may be repeated."),
    ] = None,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show what the register says of a broker, its copies, and what would happen if the master died now."""
    run(_show(broker, address or [], nameserver, as_json))


async def _show(broker: str, addresses: list[str], nameserver: ClusterAddress, as_json: bool) -> None:
    found = of_broker(await read_named(admin_client(nameserver), broker, addresses), broker)
    if as_json:
        print_json(ha_json(broker, found))
        return
    for line in sentences(broker, found):
        print(line)
    print_table(COLUMNS, [each.row for each in found], empty="no copy answers")


add_changes(app, (HaFailover,))
