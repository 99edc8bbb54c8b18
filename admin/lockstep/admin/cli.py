"""The command `lockstep`. Exit 0 done, 1 refused or failed, 2 bad usage; daemons have codes of their own."""

import os
import sys
from collections.abc import Sequence

from lockstep.admin.early_signal import EXIT_INTERRUPTED, EarlySignal
from lockstep.admin.servers import SERVERS, serve


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit. The servers start without loading what only tables and help pages need."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    try:
        if arguments and arguments[0] in SERVERS:
            sys.exit(serve(arguments[0], arguments[1:]))
        command(arguments)
    except KeyboardInterrupt:  # while loading: a running command or server takes the signal itself
        sys.exit(EXIT_INTERRUPTED)


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed: Python has None there, and the next file would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 until the process ends


def command(arguments: Sequence[str]) -> None:
    """Runs one command, and ends with SystemExit; KeyboardInterrupt where SIGINT comes before it has begun."""
    early = EarlySignal()
    before = early.listen()
    try:
        from lockstep.admin.app import app

        app(arguments, prog_name="lockstep")
    finally:
        early.end(before)


if __name__ == "__main__":
    main()
