"""The outbox in a real PostgreSQL server, by each library, and the order of a key whose transactions run side by side."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.client import Message
from lockstep.client.outbox import Outbox
from support.databases import POSTGRESQL, Store, do, postgresql
from unit.client.test_outbox_libraries import check_outbox

pytestmark = pytest.mark.e2e
psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")
aio = pytest.importorskip("sqlalchemy.ext.asyncio")

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    made = Store("asyncpg", server)
    yield made
    made.rows("DROP TABLE IF EXISTS lockstep_outbox, lockstep_outbox_relay")


@pytest.mark.parametrize("library", POSTGRESQL)
async def test_outbox_works_by_each_library_of_postgresql(library: str, store: Store) -> None:
    await check_outbox(Store(library, store.place))


@pytest.mark.parametrize("form", ["psycopg", "psycopg async", "sqlalchemy", "sqlalchemy async"])
async def test_relay_takes_what_libraries_have_for_a_transaction(form: str, store: Store) -> None:
    """As the guide names them: blocking ones, which run in threads, and asynchronous ones."""
    url = Store("sqlalchemy", store.place).url
    match form.split():
        case ["psycopg"]:
            await check_outbox(store, lambda: psycopg.connect(store.place))
        case ["psycopg", _]:
            await check_outbox(store, lambda: psycopg.AsyncConnection.connect(store.place))
        case ["sqlalchemy"]:
            engine = sqlalchemy.create_engine(url)
            await check_outbox(store, engine.begin)
            engine.dispose()
        case _:
            asynchronous = aio.create_async_engine(url)
            await check_outbox(store, asynchronous.begin)
            await asynchronous.dispose()


async def test_second_transaction_of_a_key_waits_so_that_ids_are_in_the_order_of_the_commits(store: Store) -> None:
    outbox = Outbox()

    async def add(db: Any, key: str | None) -> str:
        added: str = await outbox.add(db, Message("t", b"x", sharding_key=key))
        return added

    async def second(key: str | None) -> str:
        async with store.transaction() as db:
            return await add(db, key)

    async with store.transaction() as db:
        for statement in (*outbox.schema("postgresql"), *outbox.schema("postgresql")):
            await do(db, statement)
    async with asyncio.timeout(60):
        async with store.transaction() as db:
            await add(db, "a")
            await second("b")
            await second(None)
            late = asyncio.ensure_future(second("a"))
            while await asyncio.to_thread(store.rows, WAITING) != [("1",)]:
                assert not late.done()
            first = await add(db, "a")
        last = await late
    assert store.rows("SELECT message_id FROM lockstep_outbox ORDER BY id")[-2:] == [(first,), (last,)]
