"""lockstep up: a nameserver, brokers and the dashboard in one process, for development."""

import sys
from typing import Annotated

import typer

from lockstep.cli.options import print_error
from lockstep.runtime.daemon import Daemon
from lockstep.runtime.descriptors import DESCRIPTORS
from lockstep.runtime.host import Host
from lockstep.runtime.logs import log
from lockstep.runtime.security.core_files import forbid_core_files

BROKERS_MAX = 26
"""broker-a to broker-z."""


app = typer.Typer(add_completion=False)


@app.command("up")
def up_command(
    store: Annotated[
        str, typer.Option("--store", metavar="DIR", help="Directory of the brokers' stores, each in a subdirectory named like the broker.")
    ] = "./lockstep-up",
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=60_000, help="Port of the nameserver, from which the brokers' ports follow. 0 uses free ports."),
    ] = 9876,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=BROKERS_MAX, help="Number of brokers.")] = 1,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Show the cluster in the browser, on the nameserver's port + 4. Needs the extra \\[dashboard]."),
    ] = False,
    trace_topic: Annotated[
        bool, typer.Option("--trace-topic", help="Take the message traces of RocketMQ's clients: create RMQ_SYS_TRACE_TOPIC.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Require TLS and logins, with certificates and users in DIR/security, made once. Needs the extra \\[secure]."
        ),
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="Least severe events to log: debug, info, warning or error.")] = "warning",
) -> None:
    """Run a nameserver and brokers in this process, for development.

    The first send to a topic creates it. Press Ctrl-C to stop."""
    # Only this command needs the broker's code.
    from lockstep.cli.standalone import StandaloneCluster, load_dashboard, secure_standalone

    if log_level not in log.LEVELS:
        print_error(f"--log-level {log_level}: expected one of {', '.join(log.LEVELS)}")
        raise typer.Exit(2)
    make_dashboard = load_dashboard() if dashboard else None
    # A terminal gets the text on stderr only; a program that reads stdout waits for the JSON events.
    log.configure(log_level, announcing=not sys.stdout.isatty())
    DESCRIPTORS.prepare()
    host = Host.real()
    secured = secure_standalone(store, brokers, host) if secure else None
    if secured is not None:
        forbid_core_files()
    cluster = StandaloneCluster(
        host, store=store, port=port, broker_count=brokers, trace_topic=trace_topic, make_dashboard=make_dashboard, secured=secured
    )
    raise typer.Exit(Daemon("lockstep up").run(cluster))
