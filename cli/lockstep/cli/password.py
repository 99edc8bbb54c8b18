"""Reads the password that a command needs."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.watched_files import read_file

PasswordOption = Annotated[
    Path | None,
    typer.Option("--password-file", help="A file whose first line is the password. Without it the command asks, or reads a pipe."),
]


def read_password(name: str, path: Path | None, *, is_new: bool) -> str:
    """Return the password of a user from a file, from a pipe, or from who sits at the terminal, who types a new one twice.

    Raise ConfigError if the file can't be read, or if the two differ.
    """
    if path is not None:
        return _first_line(read_file(str(path)).decode("utf-8", "surrogateescape"))
    if not sys.stdin.isatty():
        return _first_line(sys.stdin.readline())
    first = getpass.getpass(f"Password of {name}: ")
    if is_new and getpass.getpass("The same again: ") != first:
        raise ConfigError("the passwords differ: nothing was changed")
    return first


def _first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip("\r")
