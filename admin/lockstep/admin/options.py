"""Options that several commands share, and the one way in which a command runs and fails."""

import logging
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from lockstep.admin.interrupt import CommandInterruptedError, run_interruptible
from lockstep.protocol.errors import ConfigError, LocalProtocolError, LockstepError
from lockstep.runtime.safe_text import printable

NameserverOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="LOCKSTEP_NAMESERVER",
        metavar="HOST:PORT[;HOST:PORT]",
        help="Nameservers to ask; one that does not answer is left for the next.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class CommandError(LockstepError):
    """The command did what it could, and part of it failed; the message says which part."""


def run(work: Coroutine[Any, Any, None], *, interrupted: int = 130, end_s: float | None = None) -> None:
    """Run a command to its end. One line on stderr where it fails, and exit 2 for what can't be, whatever the state of the cluster (a
    name, a time, an address), 1 for all else; `interrupted` on Ctrl-C, at once on a second one and, if given, after `end_s`."""
    # The line on stderr says it all: what the SDK logs on the way would say it twice.
    logger = logging.getLogger("lockstep")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    try:
        run_interruptible(work, exit_code=interrupted, end_s=end_s)
    except (CommandInterruptedError, KeyboardInterrupt):
        raise typer.Exit(interrupted) from None
    except BrokenPipeError:
        # `lockstep tail … | head`: whoever read has gone, which is no failure. What is still buffered has nowhere to go.
        sys.stdout = sys.stderr
        raise typer.Exit(0) from None
    except (LockstepError, OSError) as error:
        complain(error)
        raise typer.Exit(2 if isinstance(error, ConfigError | LocalProtocolError) else 1) from None


def complain(error: BaseException | str) -> None:
    """One line on stderr."""
    text = printable(" ".join(str(error).split()))
    print(f"lockstep: {text or type(error).__name__}", file=sys.stderr)
