"""The typer application: every command under its name. A module of `lockstep.cli.commands` is imported when its command is looked up:
importing all of them takes most of the time of a short command."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lockstep.cli.servers import serve
from lockstep.cli.version import describe_version

PASS_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
MODULES = (
    "up",
    "topic",
    "group",
    "dlq",
    "park",
    "cluster",
    "send",
    "tail",
    "message",
    "bench",
    "doctor",
    "why",
    "top",
    "delays",
    "timer",
    "tx",
    "store",
    "broker",
    "replica",
    "ha",
    "access.security",
    "access.user",
    "access.acl",
    "access.login",
    "access.logout",
)
"""Modules of `lockstep.cli.commands`, each of which has the command of its name as `app`, in the order of `lockstep --help`."""
COMMANDS = {module.rpartition(".")[2]: module for module in MODULES}


class DocumentedCommand(TyperCommand):
    """Names arguments in the usage line as the documentation does: TOPIC. Typer writes {topic}."""

    def collect_usage_pieces(self, context: typer.Context) -> list[str]:  # type: ignore[override]
        pieces = super().collect_usage_pieces(context)
        return [piece[1:].replace("}", "").upper() if piece.startswith("{") else piece for piece in pieces]


class ImportingGroup(TyperGroup):
    """Imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(name for name in self.commands if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            self._import(cmd_name)
        elif cmd_name not in self.commands:
            for name in COMMANDS:  # typer looks in `commands` for what it suggests instead of an unknown command
                self._import(name)
        return super().get_command(ctx, cmd_name)

    def _import(self, name: str) -> None:
        if name not in self.commands:
            below: typer.Typer = import_module(f"lockstep.cli.commands.{COMMANDS[name]}").app
            _document(below)
            alone = not below.registered_groups and len(below.registered_commands) == 1 and below.registered_callback is None
            command = typer.main.get_command(below) if alone else typer.main.get_group(below)
            command.name = name
            self.add_command(command, name)


def _document(below: typer.Typer) -> None:
    for command in below.registered_commands:
        command.cls = DocumentedCommand
    for group in below.registered_groups:
        if group.typer_instance is not None:
            _document(group.typer_instance)


app = typer.Typer(
    cls=ImportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run and administer lockstep, a message broker with RocketMQ semantics and end-to-end fenced ordered consumption.",
)


def print_version(wanted: bool) -> None:
    """Print the version, and whether the native kernels run."""
    if wanted:
        print(describe_version())
        raise typer.Exit


@app.callback()
def take_options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and whether native kernels run.")
    ] = False,
) -> None:
    """Take the options of `lockstep` itself."""


@app.command("nameserver", context_settings=PASS_ARGUMENTS)
def nameserver_command(context: typer.Context) -> None:
    """Run a nameserver. `lockstep nameserver --help` lists its options."""
    raise typer.Exit(serve("nameserver", context.args))


@app.command("witness", context_settings=PASS_ARGUMENTS)
def witness_command(context: typer.Context) -> None:
    """Run a witness, which knows the masters of replicated brokers. `lockstep witness --help` lists its options."""
    raise typer.Exit(serve("witness", context.args))


@app.command("dashboard", context_settings=PASS_ARGUMENTS)
def dashboard_command(context: typer.Context) -> None:
    """Run a dashboard of the cluster for browsers. `lockstep dashboard --help` lists its options."""
    raise typer.Exit(serve("dashboard", context.args))


_document(app)
