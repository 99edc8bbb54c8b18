"""The typer application: every command under its name."""

from typing import Annotated

import typer
from typer.core import TyperCommand

from lockstep.cli.change_command import add_changes
from lockstep.cli.commands import broker, dlq, group, message, park, store, topic
from lockstep.cli.commands.bench import bench_command
from lockstep.cli.commands.cluster import cluster_command
from lockstep.cli.commands.delays import delays_command
from lockstep.cli.commands.doctor import doctor_command
from lockstep.cli.commands.tail import tail_command
from lockstep.cli.commands.top import top_command
from lockstep.cli.commands.up import up_command
from lockstep.cli.commands.why import why_command
from lockstep.cli.servers import serve
from lockstep.cli.version import describe_version
from lockstep.operations.changes.send import MessageSend

PASS_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class DocumentedCommand(TyperCommand):
    """Names arguments in the usage line as the documentation does: TOPIC. Typer writes {topic}."""

    def collect_usage_pieces(self, context: typer.Context) -> list[str]:  # type: ignore[override]
        pieces = super().collect_usage_pieces(context)
        return [piece[1:].replace("}", "").upper() if piece.startswith("{") else piece for piece in pieces]


app = typer.Typer(
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


app.command("up")(up_command)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(park.app, name="park")
app.command("cluster")(cluster_command)
add_changes(app, (MessageSend,))
app.command("tail")(tail_command)
app.add_typer(message.app, name="message")
app.command("bench")(bench_command)
app.command("doctor")(doctor_command)
app.command("why")(why_command)
app.command("top")(top_command)
app.command("delays")(delays_command)
app.add_typer(store.app, name="store")
app.add_typer(broker.app, name="broker")


@app.command("nameserver", context_settings=PASS_ARGUMENTS)
def nameserver_command(context: typer.Context) -> None:
    """Run a nameserver. `lockstep nameserver --help` lists its options."""
    raise typer.Exit(serve("nameserver", context.args))


@app.command("dashboard", context_settings=PASS_ARGUMENTS)
def dashboard_command(context: typer.Context) -> None:
    """Run a dashboard of the cluster for browsers. `lockstep dashboard --help` lists its options."""
    raise typer.Exit(serve("dashboard", context.args))


for each in (app, broker.app, broker.config_app, topic.app, group.app, dlq.app, park.app, message.app, store.app):
    for command in each.registered_commands:
        command.cls = DocumentedCommand
