"""The subcommands of `lockstep broker`. `lockstep broker` itself runs a broker (servers.py)."""

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.commands.broker_config import get_command
from lockstep.operations.changes.broker_drain import BrokerDrain, BrokerRemove
from lockstep.operations.changes.broker_settings import BrokerConfigSet

app = typer.Typer(
    no_args_is_help=True, help="Run a broker (its options: `lockstep broker --help`), change a running one, or take one away."
)
config_app = typer.Typer(no_args_is_help=True, help="Show and change the settings of running brokers.")
config_app.command("get")(get_command)
add_changes(config_app, (BrokerConfigSet,))
app.add_typer(config_app, name="config")
add_changes(app, (BrokerDrain, BrokerRemove))
