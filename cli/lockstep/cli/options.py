"""Options and arguments that several commands share, and the function that runs a command and reports its errors."""

import logging
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from lockstep.cli.chosen_cluster import LOGIN_VARIABLE, chosen_cluster, origin
from lockstep.cli.interrupt import CommandInterruptedError, run_interruptible
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.client_file import DEFAULT_LOGIN
from lockstep.protocol.errors import AuthenticationError, ConfigError, LocalProtocolError, LockstepError, TransportError
from lockstep.runtime.connections.cluster_address import NAMESERVER_VARIABLE, URL_VARIABLE, ClusterAddress
from lockstep.runtime.logs.safe_text import printable

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
LoginArgument = Annotated[str, typer.Argument(help="The name of the stored login.")]
GroupArgument = Annotated[str, typer.Argument(help="The group's name.")]


def _chosen(context: typer.Context, value: str | ClusterAddress | None) -> ClusterAddress | None:
    try:
        given, default = (value, None) if isinstance(value, str) else (None, value)
        return chosen_cluster(given, default, context)
    except LockstepError as error:
        print_error(error)
        raise typer.Exit(2) from None


def nameserver_option(help_text: str) -> Any:
    """Return the option that names a cluster. Its value is a ClusterAddress: chosen_cluster.py says which. The default may be None."""
    return typer.Option(
        *("--nameserver", "-n"),
        metavar="HOST:PORT[;HOST:PORT]|LOGIN",
        parser=lambda text: text,
        callback=_chosen,
        show_default=False,
        help=help_text,
    )


DEFAULT_CLUSTER = ClusterAddress((DEFAULT_NAMESERVER,))
NameserverOption = Annotated[
    ClusterAddress,
    nameserver_option(
        "Addresses of the nameservers. If one does not respond, the next one is used. With TLS: lockstep://HOST:PORT/?tls_ca=FILE. "
        f"Or the name of a stored login. Default: {URL_VARIABLE}, {NAMESERVER_VARIABLE} or {LOGIN_VARIABLE}, else the login "
        f"`{DEFAULT_LOGIN}`, else {DEFAULT_NAMESERVER}."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")]


def run(work: Coroutine[Any, Any, None], *, interrupted: int = 130, end_s: float | None = None) -> None:
    """Run a command. If it fails, print one line to stderr and exit.

    The exit code is 2 for arguments that are invalid whatever the state of the cluster (a name, a time, an address), `interrupted` after
    Ctrl-C (at once after a second one and, if given, after `end_s` seconds), and 1 for every other error.
    """
    # The line on stderr is complete: what the SDK logs on the way would repeat it.
    logger = logging.getLogger("lockstep")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    try:
        run_interruptible(work, exit_code=interrupted, end_s=end_s)
    except (CommandInterruptedError, KeyboardInterrupt):
        raise typer.Exit(interrupted) from None
    except BrokenPipeError:
        # `lockstep tail … | head`: the reader has exited, which is not a failure. The output that is still buffered is dropped.
        sys.stdout = sys.stderr
        raise typer.Exit(0) from None
    except (LockstepError, OSError) as error:
        source = origin.get() if isinstance(error, TransportError | AuthenticationError) else ""
        print_error(f"{error}{'; ' if source else ''}{source}")
        raise typer.Exit(2 if isinstance(error, ConfigError | LocalProtocolError) else 1) from None


def print_error(error: BaseException | str) -> None:
    """Print one line to stderr."""
    text = printable(" ".join(str(error).split()))
    print(f"lockstep: {text or type(error).__name__}", file=sys.stderr)
