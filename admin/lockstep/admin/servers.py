"""The commands that run servers. Each parses its own arguments, including --help."""

from collections.abc import Sequence

SERVERS = ("broker", "nameserver")


def serve(name: str, argv: Sequence[str]) -> int:
    """Run a server in this process until it stops, and return its exit code. Imports only that server."""
    if name == "nameserver":
        from lockstep.nameserver.__main__ import main as nameserver

        return nameserver(argv)
    from lockstep.broker.__main__ import main as broker

    return broker(argv)
