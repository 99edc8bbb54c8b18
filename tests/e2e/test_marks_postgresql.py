"""The table of outcomes of local transactions in a real PostgreSQL server, by each library, and with both sides at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from lockstep.client import StateError, TransactionDecidedError
from lockstep.client.marks import Marks
from support.databases import POSTGRESQL, Store, do, postgresql
from unit.client.test_marks import check_marks

pytestmark = pytest.mark.e2e

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    made = Store("psycopg async", server)
    yield made
    made.rows("DROP TABLE IF EXISTS lockstep_marks")


@pytest.mark.parametrize("library", POSTGRESQL)
async def test_marks_work_by_each_library_of_postgresql(library: str, store: Store) -> None:
    await check_marks(Store(library, store.place))


class Sides:
    """The local transaction and the one that decides."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.marks = Marks()

    async def set(self) -> None:
        async with self.store.transaction() as db:
            await self.marks.set(db, "paid")

    async def decide(self) -> bool:
        async with self.store.transaction() as db:
            answer: bool = await self.marks.decide(db, "paid")
            return answer

    @asynccontextmanager
    async def while_open(
        self, first: Callable[[Any, str], Any], second: Callable[[], Coroutine[Any, Any, Any]]
    ) -> AsyncIterator["asyncio.Task[Any]"]:
        """Begin with one side, and yield the task of the other, when it waits for this transaction. Commit at the end."""
        async with self.store.transaction() as db:
            await first(db, "paid")
            async with asyncio.timeout(60):
                other = asyncio.ensure_future(second())
                while await asyncio.to_thread(self.store.rows, WAITING) != [("1",)]:
                    assert not other.done()
            yield other


@pytest.fixture
async def sides(store: Store) -> Sides:
    made = Sides(store)
    async with store.transaction() as db:
        await do(db, made.marks.schema[0])
    return made


async def test_answer_in_the_local_transaction_itself_is_refused(sides: Sides) -> None:
    async with sides.store.transaction() as db:
        await sides.marks.set(db, "paid")
        with pytest.raises(StateError, match="ask in another one"):
            await sides.marks.decide(db, "paid")
    assert await sides.decide() is True


async def test_answer_waits_for_the_local_transaction_in_flight(sides: Sides) -> None:
    async with sides.while_open(sides.marks.set, sides.decide) as answer:
        pass
    assert await answer is True


async def test_answer_that_waits_is_rollback_if_the_local_transaction_is_rolled_back(sides: Sides) -> None:
    with pytest.raises(ConnectionError):
        async with sides.while_open(sides.marks.set, sides.decide) as answer:
            raise ConnectionError("the process was killed")
    assert await answer is False
    with pytest.raises(TransactionDecidedError, match="the broker has asked"):
        await sides.set()


async def test_late_mark_waits_for_the_answer_and_fails(sides: Sides) -> None:
    async with sides.while_open(sides.marks.decide, sides.set) as mark:
        pass
    with pytest.raises(TransactionDecidedError, match="the broker has asked"):
        await mark


@pytest.mark.parametrize("seed", range(5))
async def test_answers_agree_with_the_local_transactions_whatever_runs_side_by_side(sides: Sides, seed: int) -> None:
    """Law X2."""
    dice, marks, names = Random(seed), sides.marks, [f"t{number}" for number in range(8)]
    committed: dict[str, bool] = {}
    answers: dict[str, set[bool]] = {name: set() for name in names}

    async def run_local(name: str) -> None:
        committed[name] = False
        try:
            async with sides.store.transaction() as db:
                await marks.set(db, name)
                for _ in range(dice.randrange(5)):
                    await do(db, "SELECT 1")
                if dice.random() < 0.4:
                    raise ConnectionError
        except (TransactionDecidedError, ConnectionError):
            return
        committed[name] = True

    async def run_asking(name: str) -> None:
        async with sides.store.transaction() as db:
            answer = await marks.decide(db, name)
        answers[name].add(answer)

    work = [run_local(name) for name in names] + [run_asking(name) for name in names for _ in range(3)]
    dice.shuffle(work)
    async with asyncio.timeout(60):
        await asyncio.gather(*work)
    assert answers == {name: {committed[name]} for name in names}


async def test_late_mark_is_made_if_the_answer_was_not_committed(sides: Sides) -> None:
    with pytest.raises(ConnectionError):
        async with sides.while_open(sides.marks.decide, sides.set) as mark:
            raise ConnectionError("the process was killed before it answered")
    await mark
    assert await sides.decide() is True
