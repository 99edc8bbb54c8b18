"""Options and arguments that several commands share, and the function that runs a command and reports its errors."""

import logging
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from lockstep.cli.interrupt import CommandInterruptedError, run_interruptible
from lockstep.protocol.errors import ConfigError, LocalProtocolError, LockstepError
from lockstep.runtime.logs.safe_text import printable

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
GroupArgument = Annotated[str, typer.Argument(help="The group's name.")]
NameserverOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="LOCKSTEP_NAMESERVER",
        metavar="HOST:PORT[;HOST:PORT]",
        help="Addresses of the nameservers. If one does not respond, the next one is used. With TLS: lockstep://HOST:PORT/?tls_ca=FILE",
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
        print_error(error)
        raise typer.Exit(2 if isinstance(error, ConfigError | LocalProtocolError) else 1) from None


def print_error(error: BaseException | str) -> None:
    """Print one line to stderr."""
    text = printable(" ".join(str(error).split()))
    print(f"lockstep: {text or type(error).__name__}", file=sys.stderr)
