"""Checks a command line of lockstep without running it."""

import inspect
import shlex

from typer.core import TyperCommand, TyperGroup

from lockstep.broker.config import BrokerConfig
from lockstep.broker.witness.config import WitnessConfig
from lockstep.cli.servers import runs_server
from lockstep.dashboard.config import DashboardConfig
from lockstep.nameserver.config import NameserverConfig
from support.commands import every_command

SERVERS = {"broker": BrokerConfig, "nameserver": NameserverConfig, "witness": WitnessConfig, "dashboard": DashboardConfig}
OF_THE_LOADER = {"--config", "--show-config"}
"""Options of a server that are not settings."""


def check_command(line: str) -> None:
    """Raise an error unless the line, `lockstep …`, is valid: the command exists and has the options. A line without any arguments is only
    looked up."""
    below: object = every_command()
    words = shlex.split(line)[1:]
    if runs_server(words):
        settings = {f"--{name.replace('_', '-')}" for name in inspect.signature(SERVERS[words[0]]).parameters}
        assert {word for word in words if word.startswith("--")} <= settings | OF_THE_LOADER, line
        return
    path = []
    while isinstance(below, TyperGroup):
        assert words, f"{line}: not a whole command"
        path.append(words.pop(0))
        assert path[-1] in below.commands, f"{line}: there is no such command"
        below = below.commands[path[-1]]
    assert isinstance(below, TyperCommand)
    if words:
        below.make_context(path[-1], words)  # parses them, and calls nothing
