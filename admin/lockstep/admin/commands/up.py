"""lockstep up: a nameserver and brokers in one process, for a laptop."""

import sys
from typing import Annotated

import typer

from lockstep.admin.options import complain
from lockstep.runtime import log
from lockstep.runtime.daemon import Daemon
from lockstep.runtime.descriptors import DESCRIPTORS
from lockstep.runtime.host import Host

BROKERS_MAX = 26
"""broker-a to broker-z."""


def up_command(
    store: Annotated[
        str, typer.Option("--store", metavar="DIR", help="Where the brokers keep their logs, each in a folder of its own.")
    ] = "./lockstep-up",
    port: Annotated[int, typer.Option("--port", min=0, max=60_000, help="Port of the nameserver; 0: any free ones.")] = 9876,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=BROKERS_MAX, help="How many brokers.")] = 1,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Start a nameserver and brokers in this process. Topics are created by the first send; Ctrl-C stops everything cleanly."""
    # Only this command needs the broker's code.
    from lockstep.admin.standalone import StandaloneCluster

    if log_level not in log.LEVELS:
        complain(f"--log-level {log_level}: expected one of {', '.join(log.LEVELS)}")
        raise typer.Exit(2)
    # On a terminal the words for people say it all; a program that reads stdout waits for the events.
    log.configure(log_level, announcing=not sys.stdout.isatty())
    DESCRIPTORS.prepare()
    raise typer.Exit(Daemon("lockstep up").run(StandaloneCluster(Host.real(), store=store, port=port, broker_count=brokers)))
