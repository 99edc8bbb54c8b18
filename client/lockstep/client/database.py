"""Executes SQL statements on a connection or session of the user's database library, within the user's transaction (inbox.py).

    library                                       parameters     in a transaction when
    sqlite3, aiosqlite (Connection)               :name          one is open, or the next change opens one (isolation_level)
    psycopg 3 (Connection, AsyncConnection)       %(name)s       one is open, or autocommit is off
    asyncpg (Connection, also of a pool)          $1             is_in_transaction()
    SQLAlchemy (Connection, Session, async ones)  :name, text()  always; an isolation level AUTOCOMMIT is not noticed

The libraries are recognized by their names and not imported, so none is needed to import this module.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from lockstep.protocol.errors import ConfigError, StateError

DIALECTS = ("sqlite", "postgresql")
_NAME = re.compile(r":(\w+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that changes rows."""

    sql: str
    """With parameters as `:name`. It has no other colons."""
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Library:
    """How a database library is called."""

    execute: Callable[[Any, Statement], Any]
    """Execute the statement; the result may have to be awaited."""
    in_transaction: Callable[[Any], bool]
    """Return whether the next statement is part of a transaction that the user commits."""
    dialect: Callable[[Any], str]


class Database:
    """A connection or session that the user handed over.

    Raises:
        ConfigError: It is not of a library, or not for a database, that is supported.
        StateError: It has no transaction: each statement would be committed alone.
    """

    def __init__(self, handle: Any) -> None:
        library = _library_of(handle)
        if library is None:
            kind = f"{type(handle).__module__}.{type(handle).__qualname__}"
            raise ConfigError(f"{kind} is no connection or session of sqlite3, aiosqlite, psycopg 3, asyncpg or SQLAlchemy")
        self.dialect = library.dialect(handle)
        if self.dialect not in DIALECTS:
            raise ConfigError(f"the database is {self.dialect}: expected {' or '.join(DIALECTS)}")
        if not library.in_transaction(handle):
            raise StateError(
                "the connection has no transaction, so each statement is committed alone: begin one for the messages and their effects"
            )
        self._handle = handle
        self._execute = library.execute

    def execute(self, statement: Statement) -> Any:
        """Return the result of the statement, or an awaitable of it."""
        return self._execute(self._handle, statement)


def changed_rows(result: Any) -> int:
    """Return the number of rows that a statement has changed. Raise StateError if the library does not tell."""
    if isinstance(result, str):
        return int(result.rsplit(" ", 1)[-1])  # asyncpg: "UPDATE 1"
    count = int(result.rowcount)
    if count < 0:
        raise StateError(
            "the library does not tell how many rows a statement has changed, as psycopg in pipeline mode: use the inbox outside a pipeline"
        )
    return count


def _library_of(handle: object) -> _Library | None:
    roots = (cls.__module__.partition(".")[0] for cls in type(handle).__mro__)
    return next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), None)


# ------------------------------------------------------------------------------------------------------------------- sqlite3


def _by_name(handle: Any, statement: Statement) -> Any:
    return handle.execute(statement.sql, dict(statement.values))


def _sqlite_in_transaction(handle: Any) -> bool:
    begins = handle.isolation_level is not None and getattr(handle, "autocommit", None) is not True
    return bool(handle.in_transaction or begins)


# ------------------------------------------------------------------------------------------------------------------- psycopg


@lru_cache(maxsize=256)
def _pyformat(sql: str) -> str:
    return _NAME.sub(r"%(\1)s", sql)


def _by_pyformat(handle: Any, statement: Statement) -> Any:
    return handle.execute(_pyformat(statement.sql), dict(statement.values))


def _psycopg_in_transaction(handle: Any) -> bool:
    return not handle.autocommit or handle.info.transaction_status.name != "IDLE"


# ------------------------------------------------------------------------------------------------------------------- asyncpg


@lru_cache(maxsize=256)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement with `$1` for its first parameter, and the names of the parameters in order."""
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    return _NAME.sub(lambda match: f"${names.index(match[1]) + 1}", sql), names


def _by_number(handle: Any, statement: Statement) -> Any:
    sql, names = _numbered(statement.sql)
    return handle.execute(sql, *(statement.values[name] for name in names))


# ---------------------------------------------------------------------------------------------------------------- SQLAlchemy


@lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    return import_module("sqlalchemy").text(sql)


def _by_text(handle: Any, statement: Statement) -> Any:
    return handle.execute(_text(statement.sql), dict(statement.values))


def _sqlalchemy_dialect(handle: Any) -> str:
    bound = handle if hasattr(handle, "dialect") else handle.get_bind()
    return str(bound.dialect.name)


_SQLITE = _Library(_by_name, _sqlite_in_transaction, lambda handle: "sqlite")
_LIBRARIES = {
    "sqlite3": _SQLITE,
    "aiosqlite": _SQLITE,
    "psycopg": _Library(_by_pyformat, _psycopg_in_transaction, lambda handle: "postgresql"),
    "asyncpg": _Library(_by_number, lambda handle: bool(handle.is_in_transaction()), lambda handle: "postgresql"),
    "sqlalchemy": _Library(_by_text, lambda handle: True, _sqlalchemy_dialect),
}
