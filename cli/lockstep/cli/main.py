"""The command `lockstep`. Exit 0 on success, 1 on failure, 2 on invalid usage or without an extra; servers have further exit codes."""

import os
import sys
from collections.abc import Sequence

from lockstep.cli.early_signal import EXIT_INTERRUPTED, EarlySignal
from lockstep.cli.servers import runs_server, serve


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit. Servers start without importing the modules that only the other commands need, and `--version` needs
    no extra of the distribution."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    try:
        if arguments == ["--version"]:
            from lockstep.cli.version import describe_version

            print(describe_version())
            sys.exit(0)
        if runs_server(arguments):
            sys.exit(serve(arguments[0], arguments[1:]))
        command(arguments)
    except KeyboardInterrupt:  # during the imports: a running command or server handles the signal itself
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        from lockstep.runtime.extras import installation_advice

        advice = installation_advice(error)
        if advice is None:
            raise
        print(f"lockstep: {advice}", file=sys.stderr)
        sys.exit(2)


def open_closed_streams() -> None:
    """Open /dev/null for each closed standard stream: sys has None for it, and the next opened file would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 until the process ends


def command(arguments: Sequence[str]) -> None:
    """Run one command. Always raise SystemExit, or KeyboardInterrupt if SIGINT is received before the command has begun."""
    early = EarlySignal()
    previous = early.install()
    try:
        from lockstep.cli.app import app

        app(arguments, prog_name="lockstep")
    finally:
        early.restore(previous)


if __name__ == "__main__":
    main()
