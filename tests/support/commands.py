"""The tree of all commands of `lockstep`, as typer has it. Importing this module imports them and what typer imports when it parses
arguments (pydantic), for tests/support/fork_server.py."""

from functools import cache

import typer
from typer.core import TyperGroup

from lockstep.cli.app import app


@cache
def every_command() -> TyperGroup:
    """Return the command `lockstep` with every command below it imported, in `commands` of its groups."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name in group.list_commands(None):  # type: ignore[arg-type]
        group.get_command(None, name)  # type: ignore[arg-type]
    return group


every_command().make_context("lockstep", ["topic"])
