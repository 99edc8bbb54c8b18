"""Reads the password that a command needs."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.credentials import password_of_file

PasswordOption = Annotated[
    Path | None,
    typer.Option("--password-file", help="A file whose first line is the password. Without it the command asks, or reads a pipe."),
]


def read_password(name: str, path: Path | None, *, is_new: bool) -> str:
    """Return the password of a user from a file, from a pipe, or from who sits at the terminal, who types a new one twice.

    Raise ConfigError if the file can't be read, or if the two differ.
    """
    if path is not None:
        return password_of_file(path)
    if not sys.stdin.isatty():
        return sys.stdin.readline().partition("\n")[0].rstrip("\r")
    first = getpass.getpass(f"Password of {name}: ")
    if is_new and getpass.getpass("The same again: ") != first:
        raise ConfigError("the passwords differ: nothing was changed")
    return first
