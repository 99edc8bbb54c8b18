"""Databases of tests, by each library that the inbox supports."""

import inspect
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lockstep.client.database import Database, Statement

SQLITE = (
    *("sqlite3", "aiosqlite", "sqlalchemy", "sqlalchemy session", "sqlalchemy async", "sqlalchemy async session"),
    *("django", "django cursor", "django without autocommit"),
)
POSTGRESQL = ("psycopg", "psycopg async", "asyncpg", "asyncpg pool", *SQLITE[2:])
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


async def do(db: object, sql: str, **values: object) -> Any:
    """Execute a statement with parameters `:name`, and return its result."""
    result = Database(db).execute(Statement(sql, values))
    return await result if inspect.isawaitable(result) else result


@dataclass
class Store:
    """A database, and the library by which it is used."""

    library: str
    place: str
    """The file of an SQLite database, or the URL of a PostgreSQL one."""

    @property
    def url(self) -> str:
        """Return SQLAlchemy's URL."""
        if not self.place.startswith("postgresql:"):
            return f"sqlite+aiosqlite:///{self.place}" if "async" in self.library else f"sqlite:///{self.place}"
        return self.place.replace("postgresql:", "postgresql+psycopg:")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Yield a connection or session in a transaction, which is committed at the end, or rolled back after an error."""
        match self.library.split():
            case ["sqlite3"]:
                with closing(sqlite3.connect(self.place, timeout=60)) as db, db:
                    yield db
            case ["aiosqlite"]:
                aiosqlite = pytest.importorskip("aiosqlite")
                async with aiosqlite.connect(self.place, timeout=60) as db:
                    try:
                        yield db
                    except BaseException:
                        await db.rollback()
                        raise
                    await db.commit()
            case ["psycopg", "async"]:
                psycopg = pytest.importorskip("psycopg")
                async with await psycopg.AsyncConnection.connect(self.place) as db:
                    yield db
            case ["psycopg"]:
                psycopg = pytest.importorskip("psycopg")
                with psycopg.connect(self.place) as db:
                    yield db
            case ["asyncpg", "pool"]:
                asyncpg = pytest.importorskip("asyncpg")
                async with asyncpg.create_pool(self.place, min_size=1) as pool, pool.acquire() as db, db.transaction():
                    yield db
            case ["asyncpg"]:
                asyncpg = pytest.importorskip("asyncpg")
                db = await asyncpg.connect(self.place)
                try:
                    async with db.transaction():
                        yield db
                finally:
                    await db.close()
            case ["sqlalchemy", *words]:
                async with self._sqlalchemy(words) as db:
                    yield db
            case ["django", *words]:
                with django_connection(self.place) as db:
                    if "without" in words:
                        db.set_autocommit(False)
                        yield db
                        db.commit()
                        return
                    atomic = pytest.importorskip("django.db.transaction").atomic
                    with atomic(using=db.alias), db.cursor() if "cursor" in words else nullcontext(db) as handle:
                        yield handle
            case _:
                raise AssertionError(self.library)

    @asynccontextmanager
    async def _sqlalchemy(self, words: list[str]) -> AsyncIterator[Any]:
        sqlalchemy = pytest.importorskip("sqlalchemy")
        orm = pytest.importorskip("sqlalchemy.orm")
        if "async" in words:
            aio = pytest.importorskip("sqlalchemy.ext.asyncio")
            pytest.importorskip("psycopg" if self.place.startswith("postgresql:") else "aiosqlite")
            engine = aio.create_async_engine(self.url)
            try:
                if "session" in words:
                    async with aio.AsyncSession(engine) as db, db.begin():
                        yield db
                else:
                    async with engine.begin() as db:
                        yield db
            finally:
                await engine.dispose()
            return
        engine = sqlalchemy.create_engine(self.url)
        try:
            with orm.Session(engine) if "session" in words else engine.connect() as db, db.begin():
                yield db
        finally:
            engine.dispose()

    def rows(self, query: str) -> list[tuple[str, ...]]:
        """Return the rows of a query, as texts."""
        if self.place.startswith("postgresql:"):
            command = [str(PROGRAMS[-1].with_name("psql")), self.place, "--no-psqlrc", "--csv", "--tuples-only", "--command", query]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            return [tuple(line.split(",")) for line in lines]
        with closing(sqlite3.connect(self.place, timeout=60)) as db:
            return [tuple(map(str, row)) for row in db.execute(query)]


@contextmanager
def django_connection(place: str) -> Iterator[Any]:
    """Yield a connection of Django, which has autocommit, as `django.db.connections` has it for a view."""
    django = pytest.importorskip("django.db")
    configuration = pytest.importorskip("django.conf")
    if not configuration.settings.configured:
        configuration.settings.configure(LOGGING_CONFIG=None)
        pytest.importorskip("django").setup()
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the tests run on an event loop, where it would refuse to block
    settings: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place}
    if place.startswith("postgresql:"):
        url = urlsplit(place)
        home = parse_qs(url.query)["host"][0]
        settings = {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username, "HOST": home}
    made = django.ConnectionHandler({"default": settings})["default"]
    alias = made.alias = f"test-{id(made)}"
    django.connections[alias] = made
    try:
        yield made
    finally:
        made.close()
        del django.connections[alias]


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a PostgreSQL server, and yield the URL of its database. Skip the test where it is not installed."""
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    binaries = PROGRAMS[-1].parent
    # It refuses to run as root.
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the path of a socket is short
    try:
        if user:
            shutil.chown(home, "postgres", "postgres")
        data = home / "data"
        run: dict[str, Any] = {"cwd": home, "check": True, "capture_output": True, **user}
        subprocess.run([str(binaries / "initdb"), "-D", str(data), "-U", "lockstep", "-A", "trust", "-E", "UTF8", "--no-sync"], **run)
        options = f"-c listen_addresses='' -c unix_socket_directories='{home}' -c fsync=off -c max_connections=50"
        start = [str(binaries / "pg_ctl"), "-D", str(data), "-w", "-t", "60", "-o", options, "-l", str(home / "log"), "start"]
        subprocess.run(start, **{**run, "capture_output": False, "stdout": subprocess.DEVNULL})
        try:
            yield f"postgresql://lockstep@/postgres?host={home}"
        finally:
            subprocess.run([str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"], **run)
    finally:
        shutil.rmtree(home)
