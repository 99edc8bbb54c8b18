"""The commands that run servers. Each parses its own arguments, including --help.

`lockstep broker` with nothing or an option after it runs a broker; with a word, that is a subcommand: commands/broker.py.
"""

from collections.abc import Sequence
from importlib import import_module

SERVERS = {"broker": "broker", "nameserver": "nameserver", "witness": "broker.witness", "dashboard": "dashboard"}
"""Command → package."""


def runs_server(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of `lockstep` run a server, rather than a subcommand that is named after it."""
    return bool(arguments) and arguments[0] in SERVERS and (len(arguments) == 1 or arguments[1].startswith("-"))


def serve(name: str, argv: Sequence[str]) -> int:
    """Run a server in this process until it stops, and return its exit code. Imports only that server.

    By its name, because the dashboard is made of commands' code: it imports this package.
    """
    code: int = import_module(f"lockstep.{SERVERS[name]}.__main__").main(argv)
    return code
