"""The inbox and the table of seen ids in a real PostgreSQL server, by each library, and with two owners that write at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from lockstep.client import FencedError, StateError
from lockstep.client.inbox import Inbox, Seen
from lockstep.testing import message, orderly_context
from support.databases import POSTGRESQL, Store, do, postgresql
from unit.client.test_inbox import check_library

pytestmark = pytest.mark.e2e

OLDER, NEWER = 7, 8
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    made = Store("psycopg async", server)
    yield made
    made.rows("DROP TABLE IF EXISTS lockstep_inbox, lockstep_seen, effects")


@pytest.mark.parametrize("library", POSTGRESQL)
async def test_inbox_and_seen_work_by_each_library_of_postgresql(library: str, store: Store) -> None:
    await check_library(Store(library, store.place))


class Owners:
    """Two owners of a queue, each with a transaction of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.inbox = Inbox("test")

    async def prepare(self) -> None:
        async with self.store.transaction() as db:
            for statement in (*self.inbox.schema, "CREATE TABLE effects (epoch BIGINT, queue_offset BIGINT)"):
                await do(db, statement)

    async def handle(self, db: Any, epoch: int, *offsets: int) -> list[int]:
        batch = [message("orders", b"paid", queue_offset=offset) for offset in offsets]
        done = []
        async for each in self.inbox.new(db, batch, orderly_context(batch, epoch=epoch, generation=1)):
            await do(db, "INSERT INTO effects VALUES (:epoch, :at)", epoch=epoch, at=each.queue_offset)
            done.append(each.queue_offset)
        return done

    async def call(self, epoch: int, *offsets: int) -> list[int]:
        async with self.store.transaction() as db:
            return await self.handle(db, epoch, *offsets)

    @asynccontextmanager
    async def while_open(self, epoch: int, *offsets: int, waits: int) -> AsyncIterator["asyncio.Task[list[int]]"]:
        """Handle messages, and yield the task of the other owner's call, when it waits for this transaction. Commit at the end."""
        async with self.store.transaction() as db:
            assert await self.handle(db, epoch, *offsets) == [*offsets]
            async with asyncio.timeout(60):
                other = asyncio.ensure_future(self.call(waits, *offsets))
                while await asyncio.to_thread(self.store.rows, WAITING) != [("1",)]:
                    assert not other.done()
            yield other

    def effects(self) -> list[tuple[str, ...]]:
        return self.store.rows("SELECT epoch, queue_offset FROM effects ORDER BY queue_offset, epoch")


@pytest.fixture
async def owners(store: Store) -> Owners:
    made = Owners(store)
    await made.prepare()
    return made


async def test_pipeline_is_refused_because_it_does_not_tell_what_a_statement_changed(owners: Owners) -> None:
    async with owners.store.transaction() as db, db.pipeline():
        with pytest.raises(StateError, match="outside a pipeline"):
            await owners.handle(db, NEWER, 0)
    assert await owners.call(NEWER, 0, 1) == [0, 1]


@pytest.mark.parametrize("known", [False, True])
async def test_older_owner_that_waits_for_the_newer_one_is_fenced(owners: Owners, known: bool) -> None:
    """It waits in its INSERT if the queue is new, else in its UPDATE."""
    if known:
        await owners.call(OLDER, 0)
    async with owners.while_open(NEWER, 5, waits=OLDER) as older:
        pass
    with pytest.raises(FencedError):
        await older
    assert owners.effects() == [(str(OLDER), "0")] * known + [(str(NEWER), "5")]


@pytest.mark.parametrize("known", [False, True])
async def test_newer_owner_waits_for_the_older_one_and_passes_over_what_has_taken_effect(owners: Owners, known: bool) -> None:
    if known:
        await owners.call(OLDER, 0)
    async with owners.while_open(OLDER, 5, waits=NEWER) as newer:
        pass
    assert await newer == []
    with pytest.raises(FencedError):
        await owners.call(OLDER, 6)
    assert await owners.call(NEWER, 5, 6) == [6]


@pytest.mark.parametrize("known", [False, True])
async def test_owner_that_waits_goes_on_if_the_other_is_rolled_back(owners: Owners, known: bool) -> None:
    if known:
        await owners.call(OLDER, 0)
    with pytest.raises(ConnectionError):
        async with owners.while_open(NEWER, 5, waits=OLDER) as older:
            raise ConnectionError("the process of the newer owner was killed")
    assert await older == [5]
    assert await owners.call(NEWER, 5, 6) == [6]


async def test_second_member_that_handles_a_message_waits_for_the_first_and_passes_over_it(store: Store) -> None:
    seen = Seen("mailing", keep=timedelta(days=7))
    batch = [message("orders", b"paid", message_id="first")]

    async def call() -> int:
        async with store.transaction() as db:
            return len([each async for each in seen.new(db, batch)])

    async with store.transaction() as db:
        for statement in seen.schema:
            await do(db, statement)
    async with asyncio.timeout(60):
        async with store.transaction() as db:
            assert len([each async for each in seen.new(db, batch)]) == 1
            second = asyncio.ensure_future(call())
            while await asyncio.to_thread(store.rows, WAITING) != [("1",)]:
                assert not second.done()
        assert await second == 0
