"""The commands that are programs of their own: their arguments are theirs, --help too."""

from collections.abc import Sequence

SERVERS = ("broker", "nameserver")


def serve(name: str, argv: Sequence[str]) -> int:
    """Run a server in this process until it is told to stop. Returns its exit code. Loads only that server."""
    if name == "nameserver":
        from lockstep.nameserver.__main__ import main as nameserver

        return nameserver(argv)
    from lockstep.broker.__main__ import main as broker

    return broker(argv)
