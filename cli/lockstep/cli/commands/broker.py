"""The subcommands of `lockstep broker`, each in a module broker_*.py of its own. `lockstep broker` itself runs a broker (servers.py)."""

import typer

from lockstep.cli.commands.broker_config import get_command, set_command
from lockstep.cli.commands.broker_drain import drain_command, remove_command

app = typer.Typer(
    no_args_is_help=True, help="Run a broker (its options: `lockstep broker --help`), change a running one, or take one away."
)
config_app = typer.Typer(no_args_is_help=True, help="Show and change the settings of running brokers.")
config_app.command("get")(get_command)
config_app.command("set")(set_command)
app.add_typer(config_app, name="config")
app.command("drain")(drain_command)
app.command("remove")(remove_command)
