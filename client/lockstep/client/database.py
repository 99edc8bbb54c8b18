"""Executes SQL statements on a connection or session of the user's database library, within the user's transaction (inbox.py, marks.py,
outbox/table.py).

    library                                       parameters     in a transaction when
    sqlite3, aiosqlite (Connection)               :name          one is open, or the next change opens one (isolation_level)
    psycopg 3 (Connection, AsyncConnection)       %(name)s       one is open, or autocommit is off
    asyncpg (Connection, also of a pool)          $1             is_in_transaction()
    SQLAlchemy (Connection, Session, async ones)  :name, text()  always; an isolation level AUTOCOMMIT is not noticed
    Django (connection, its cursor)               %s             within `atomic()`, or autocommit is off

The libraries are recognized by their names and not imported, so none is needed to import this module.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from lockstep.protocol.errors import ConfigError, StateError

Dialect = Literal["sqlite", "postgresql"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgresql")
NAME_LENGTH_MAX = 128
"""Keys and ids that are longer, or not printable, are stored as their SHA-256: an index of PostgreSQL takes no long values, and a text no
NUL."""
_NAME = re.compile(r":(\w+)")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, which changes rows or reads some."""

    sql: str
    """With parameters as `:name`. It has no other colons, and no percent signs."""
    values: Mapping[str, object]
    reads: bool = False
    """Whether its rows are wanted, and not the number of those that it has changed."""


Steps = Generator[Statement, Any, T]
"""Yields the statements to execute, is sent the number of rows that each has changed, or the rows that it has read, and returns a
result."""


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
            raise ConfigError(f"{kind} is no connection or session of sqlite3, aiosqlite, psycopg 3, asyncpg, SQLAlchemy or Django")
        name = library.dialect(handle)
        dialect = next((each for each in DIALECTS if each == name), None)
        if dialect is None:
            raise ConfigError(f"the database is {name}: expected {' or '.join(DIALECTS)}")
        self.dialect: Dialect = dialect
        if not library.in_transaction(handle):
            raise StateError(
                "the connection has no transaction, so each statement is committed alone: begin one for the messages and their effects"
            )
        self._handle = handle
        self._execute = library.execute

    def execute(self, statement: Statement) -> Any:
        """Return the result of the statement, or an awaitable of it."""
        return self._execute(self._handle, statement)

    def perform(self, steps: Steps[T]) -> T | Awaitable[T]:
        """Execute the statements of these steps. Return the steps' result, or an awaitable of it if the library is asynchronous."""
        answer: Any = None
        while True:
            try:
                statement = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self.execute(statement)
            if inspect.isawaitable(answer):
                return self._await(steps, statement, answer)
            answer = _rows(answer) if statement.reads else changed_rows(answer)

    async def _await(self, steps: Steps[T], statement: Statement, answer: Any) -> T:
        while True:
            answer = await answer
            if statement.reads:
                answer = _rows(answer)
                answer = await answer if inspect.isawaitable(answer) else answer
            else:
                answer = changed_rows(answer)
            try:
                statement = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self.execute(statement)


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


def _rows(result: Any) -> Any:
    """Return the rows that a statement has read, or an awaitable of them."""
    return result if isinstance(result, list) else result.fetchall()


def table_name(table: str) -> str:
    """Return the name of a table. Raise ConfigError if it is no SQL name."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table, re.ASCII):
        raise ConfigError(f"table {table!r}: expected letters, digits and _, with a schema before a dot if there is one")
    return table


def stored_name(text: str) -> str:
    """Return a key or an id as it is stored."""
    return f"={text}" if len(text) <= NAME_LENGTH_MAX and text.isprintable() else f"#{sha256(text.encode()).hexdigest()}"


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
    return (handle.fetch if statement.reads else handle.execute)(sql, *(statement.values[name] for name in names))


# ---------------------------------------------------------------------------------------------------------------- SQLAlchemy


@lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    return import_module("sqlalchemy").text(sql)


def _by_text(handle: Any, statement: Statement) -> Any:
    return handle.execute(_text(statement.sql), dict(statement.values))


def _sqlalchemy_dialect(handle: Any) -> str:
    bound = handle if hasattr(handle, "dialect") else handle.get_bind()
    return str(bound.dialect.name)


# -------------------------------------------------------------------------------------------------------------------- Django


def _django_connection(handle: Any) -> Any:
    """Return the connection of a handle, which is itself one or a cursor."""
    return handle if hasattr(handle, "vendor") else handle.db


def _by_position(handle: Any, statement: Statement) -> Any:
    values = [statement.values[name] for name in _NAME.findall(statement.sql)]
    with handle.cursor() if hasattr(handle, "vendor") else nullcontext(handle) as cursor:
        cursor.execute(_NAME.sub("%s", statement.sql), values)
        return list(cursor.fetchall()) if statement.reads else SimpleNamespace(rowcount=cursor.rowcount)


def _django_in_transaction(handle: Any) -> bool:
    connection = _django_connection(handle)
    return bool(connection.in_atomic_block or not connection.get_autocommit())


_SQLITE = _Library(_by_name, _sqlite_in_transaction, lambda handle: "sqlite")
_LIBRARIES = {
    "sqlite3": _SQLITE,
    "aiosqlite": _SQLITE,
    "psycopg": _Library(_by_pyformat, _psycopg_in_transaction, lambda handle: "postgresql"),
    "asyncpg": _Library(_by_number, lambda handle: bool(handle.is_in_transaction()), lambda handle: "postgresql"),
    "sqlalchemy": _Library(_by_text, lambda handle: True, _sqlalchemy_dialect),
    "django": _Library(_by_position, _django_in_transaction, lambda handle: str(_django_connection(handle).vendor)),
}
