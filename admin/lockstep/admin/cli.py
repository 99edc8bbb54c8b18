"""The command `lockstep`. Exit 0 done, 1 refused or failed, 2 bad usage; daemons have codes of their own."""

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130

SERVERS = ("broker", "nameserver")
"""Commands that are programs of their own: their arguments are theirs, --help too."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit. The servers start without loading what only tables and help pages need."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in SERVERS:
            sys.exit(serve(arguments[0], arguments[1:]))
        from lockstep.admin.app import app

        app(arguments, prog_name="lockstep")
    except KeyboardInterrupt:  # while loading: a running command or server takes the signal itself
        sys.exit(EXIT_INTERRUPTED)


def serve(name: str, argv: Sequence[str]) -> int:
    """A server in this process until it is told to stop; its exit code."""
    if name == "nameserver":
        from lockstep.nameserver.__main__ import main as nameserver

        return nameserver(argv)
    from lockstep.broker.__main__ import main as broker

    return broker(argv)


if __name__ == "__main__":
    main()
