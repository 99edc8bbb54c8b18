"""The inbox and the table of seen ids, in SQLite: what takes effect, over crashes, resets, older owners and repeated calls."""

import random
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client import ConfigError, FencedError, LocalProtocolError, MessageExt, OrderlyContext, StateError
from lockstep.client.database import changed_rows
from lockstep.client.inbox import REMOVED_AFTER, Inbox, Seen, lane_of
from lockstep.testing import message, orderly_context
from support.databases import SQLITE, Store, django_connection, do
from support.effort import examples

Order = Literal["queue", "sharding_key"]


def at(offset: int, key: str | None = None, **more: Any) -> MessageExt:
    return message("orders", b"paid", queue_offset=offset, sharding_key=key, **more)


class Books:
    """A database with an inbox, in which the effect of a message is a row."""

    def __init__(self, *, order_by: Order = "queue") -> None:
        self.inbox = Inbox("test")
        self.order_by = order_by
        self.db = sqlite3.connect(":memory:")
        for statement in self.inbox.schema:
            self.db.execute(statement)
        self.db.execute("CREATE TABLE effects (queue_offset BIGINT, key TEXT, epoch BIGINT, generation BIGINT)")
        self.db.commit()

    def context(self, messages: list[MessageExt], epoch: int, generation: int) -> OrderlyContext:
        return orderly_context(messages, epoch=epoch, generation=generation, order_by=self.order_by)

    def call(self, messages: list[MessageExt], epoch: int, generation: int = 1, *, crash: bool = False) -> list[int]:
        """Handle a call of the listener. Return the offsets that took effect."""
        context = self.context(messages, epoch, generation)
        done = []
        try:
            with self.db:
                for each in self.inbox.new(self.db, messages, context):
                    row = (each.queue_offset, each.sharding_key, epoch, generation)
                    self.db.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", row)
                    done.append(each.queue_offset)
                if crash:
                    raise ConnectionError("the process was killed")
        except ConnectionError:
            return []
        return done

    def effects(self) -> list[tuple[int, str | None, int, int]]:
        return self.db.execute("SELECT * FROM effects ORDER BY rowid").fetchall()


@pytest.fixture
def books() -> Iterator[Books]:
    made = Books()
    with closing(made.db):
        yield made


def test_message_takes_effect_once_and_later_ones_after_it(books: Books) -> None:
    assert books.call([at(0), at(1)], 1) == [0, 1]
    assert books.call([at(1)], 1) == [], "a repeated message: its offset is below the next one"
    assert books.call([at(1), at(2), at(3)], 2) == [2, 3], "the next owner gets what was not committed again"
    assert books.call([at(9)], 2) == [9], "offsets between were filtered"


def test_failed_call_takes_effect_when_it_is_repeated(books: Books) -> None:
    assert books.call([at(0), at(1)], 1, crash=True) == []
    assert books.call([at(0), at(1)], 1) == [0, 1]


def test_older_owner_is_fenced_and_changes_nothing(books: Books) -> None:
    books.call([at(0)], 7)
    books.call([at(0)], 8)
    with pytest.raises(FencedError, match=r"test: orders@broker-a:0 has been written under a later epoch than 7"):
        books.call([at(1)], 7)
    assert books.call([at(1)], 8) == [1]
    assert [epoch for _, _, epoch, _ in books.effects()] == [7, 8]


def test_first_message_of_a_lane_may_be_a_newer_owners(books: Books) -> None:
    """The older one has written nothing yet, and is fenced nevertheless."""
    assert books.call([at(0)], 8) == [0]
    with pytest.raises(FencedError):
        books.call([at(0)], 7)


def test_higher_generation_begins_anew(books: Books) -> None:
    """A reset to an earlier message, or to a later one; and offsets of a lost part of the log that are given to other messages."""
    assert books.call([at(0), at(1), at(2)], 1, generation=1) == [0, 1, 2]
    assert books.call([at(1), at(2)], 3, generation=2) == [1, 2]
    assert books.call([at(1), at(2), at(3)], 4, generation=2) == [3], "the owner has changed, the generation has not"
    assert books.call([at(9)], 6, generation=5) == [9]
    with pytest.raises(FencedError):
        books.call([at(3)], 4, generation=2)


@pytest.mark.parametrize("keys", [("a", "b"), ("a", None), ("a", "A"), ("a" * 200, "a" * 201), ("a\0", "a"), ("=a", "#a")])
def test_key_that_was_parked_takes_effect_after_later_ones_of_other_keys(keys: tuple[str, str | None]) -> None:
    """Its replay begins at a lower offset than the last one of the queue."""
    books, (parked, other) = Books(order_by="sharding_key"), keys
    with closing(books.db):
        assert books.call([at(0, parked), at(1, other)], 1) == [0, 1]
        assert books.call([at(3, other), at(5, other)], 1) == [3, 5]
        assert books.call([at(2, parked), at(4, parked)], 1) == [2, 4], "the replay"
        assert books.call([at(4, parked), at(6, other), at(7, parked)], 2) == [6, 7], "the main flow may mix keys"
        assert books.call([at(5, other)], 2) == []


def test_lane_is_named_by_queue_and_key() -> None:
    def lane(each: MessageExt, **fence: Any) -> str:
        return lane_of(orderly_context([each], **fence).fence, each)

    by_key = {"order_by": "sharding_key"}
    assert lane(at(1, "1001")) == "orders@broker-a:0"
    assert lane(at(1, "1001"), **by_key) == "orders@broker-a:0 =1001"
    assert lane(at(1), **by_key) == "orders@broker-a:0 -"
    assert re.fullmatch(r"orders@broker-a:0 #[0-9a-f]{64}", lane(at(1, "x" * 129), **by_key))
    assert re.fullmatch(r"orders@broker-a:0 #[0-9a-f]{64}", lane(at(1, "x\0"), **by_key)), "a text of PostgreSQL takes no NUL"
    with pytest.raises(ConfigError, match=r'no sharding key, and unkeyed="alone": such messages have no order. Use Seen'):
        lane(at(1), **by_key, unkeyed="alone")


def test_message_after_the_end_of_an_iteration_comes_again(books: Books) -> None:
    """What was not reached has not taken effect."""
    batch = [at(0), at(1), at(2)]
    with books.db:
        for each in books.inbox.new(books.db, batch, books.context(batch, 1, 1)):
            if each.queue_offset == 1:
                break
    assert books.call(batch, 1) == [2]


def test_groups_share_a_table() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        first, second = Inbox("first", table="main.inbox"), Inbox("second", table="main.inbox")
        for statement in (*first.schema, *second.schema):
            db.execute(statement)
        for inbox in (first, second):
            assert len(list(inbox.new(db, [at(0)], orderly_context([at(0)], group=inbox.group)))) == 1
        assert db.execute("SELECT consumer_group, lane, next_offset FROM inbox ORDER BY 1").fetchall() == [
            ("first", "orders@broker-a:0", 1),
            ("second", "orders@broker-a:0", 1),
        ]


def test_wrong_uses_are_refused(books: Books) -> None:
    call = [at(0)]
    with pytest.raises(ConfigError, match="the inbox of group test, and the call is of group billing"):
        books.inbox.new(books.db, call, orderly_context(call, group="billing"))
    with pytest.raises(ConfigError, match="group test is broadcasting"):
        books.inbox.new(books.db, call, orderly_context(call, generation=0))
    with pytest.raises(LocalProtocolError, match=r"is not of the queue of the call, orders@broker-a:0"):
        books.inbox.new(books.db, [at(0, queue_id=1)], orderly_context(call))
    with pytest.raises(ConfigError, match=r"builtins.object is no connection or session of sqlite3, aiosqlite, psycopg 3, asyncpg"):
        books.inbox.new(object(), call, orderly_context(call))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        with pytest.raises(StateError, match="no transaction, so each statement is committed alone"):
            books.inbox.new(db, call, orderly_context(call))
        with pytest.raises(StateError):
            Seen("test", keep=timedelta(days=7)).new(db, call)
        db.execute("BEGIN")
        books.inbox.new(db, call, orderly_context(call))
    for wrong in ("", "a b", "inbox;", 'in"box', "a.b.c", "1a"):
        with pytest.raises(ConfigError, match="expected letters, digits and _"):
            Inbox("test", table=wrong)
    with pytest.raises(ConfigError, match="expected at least 0:01:00"):
        Seen("test", keep=timedelta(seconds=59))
    with pytest.raises(LocalProtocolError):
        Inbox("a group")


def test_library_that_does_not_tell_what_a_statement_changed_is_refused() -> None:
    """psycopg does not in pipeline mode. Each statement would seem to have changed rows, so that nothing was fenced or left out."""
    with pytest.raises(StateError, match="as psycopg in pipeline mode: use the inbox outside a pipeline"):
        changed_rows(SimpleNamespace(rowcount=-1))
    assert [changed_rows(each) for each in (SimpleNamespace(rowcount=0), SimpleNamespace(rowcount=2), "UPDATE 3")] == [0, 2, 3]


# -------------------------------------------------------------------------------------------------------------------- law X1


class Broker:
    """What a broker knows of a group's progress in one queue: the finished offsets, under one epoch and one generation."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.epoch = 1
        self.generation = 1
        self.begin = 0
        self.finished: set[int] = set()

    def reset(self, offset: int) -> None:
        self.epoch += 1
        self.generation += 1
        self.begin = offset
        self.finished.clear()


class Owner:
    """A member under one grant, which goes on after the grant has ended: it has not noticed."""

    def __init__(self, broker: Broker, order_by: Order) -> None:
        broker.epoch += 1
        self.broker = broker
        self.epoch, self.generation = broker.epoch, broker.generation
        waiting = [offset for offset in range(broker.begin, len(broker.keys)) if offset not in broker.finished]
        self.lanes: dict[str, list[int]] = defaultdict(list)
        for offset in waiting:
            self.lanes[broker.keys[offset] if order_by == "sharding_key" else ""].append(offset)

    def take(self, dice: random.Random) -> list[int]:
        open_lanes = [lane for lane, offsets in self.lanes.items() if offsets]
        return self.lanes[dice.choice(open_lanes)][: dice.randint(1, 3)] if open_lanes else []

    def finish(self, offsets: list[int], *, committed: bool) -> None:
        for lane in self.lanes.values():
            lane[:] = [offset for offset in lane if offset not in offsets]
        if committed and self.epoch == self.broker.epoch:
            self.broker.finished |= set(offsets)


@examples(400)
@given(st.integers(0, 1 << 32), st.sampled_from(["queue", "sharding_key"]))
def test_message_takes_effect_once_whatever_owners_do(seed: int, order_by: Order) -> None:
    """Law X1: once in each generation, in the order of its lane, and at all: with owners that go on too long, crashes and lost commits."""
    dice = random.Random(seed)
    broker = Broker([dice.choice("abc") for _ in range(8)])
    books = Books(order_by=order_by)
    with closing(books.db):
        owners = [Owner(broker, order_by)]
        for _ in range(40):
            what = dice.random()
            if what < 0.15:
                owners.append(Owner(broker, order_by))
            elif what < 0.2:
                broker.reset(dice.randrange(len(broker.keys)))
                owners.append(Owner(broker, order_by))
            else:
                owner = dice.choice(owners[-3:])
                run(books, owner, dice, may_fail=True)
        last = Owner(broker, order_by)
        while run(books, last, dice, may_fail=False):
            pass
        effects = books.effects()
    counts = Counter((generation, offset) for offset, _, _, generation in effects)
    assert max(counts.values()) == 1, "twice in one generation"
    assert {offset for generation, offset in counts if generation == broker.generation} == set(range(broker.begin, len(broker.keys)))
    for generation, lane in {(generation, key if order_by == "sharding_key" else "") for _, key, _, generation in effects}:
        mine = [offset for offset, key, _, each in effects if each == generation and lane in ("", key)]
        assert mine == sorted(mine)


def run(books: Books, owner: Owner, dice: random.Random, *, may_fail: bool) -> list[int]:
    """Call the owner's listener with its next batch. Return the batch."""
    offsets = owner.take(dice)
    batch = [at(offset, owner.broker.keys[offset]) for offset in offsets]
    crash = may_fail and dice.random() < 0.2
    if batch:
        try:
            books.call(batch, owner.epoch, owner.generation, crash=crash)
        except FencedError:
            crash = True
        if not crash:
            owner.finish(offsets, committed=not may_fail or dice.random() < 0.7)
    return offsets


# --------------------------------------------------------------------------------------------------------------------- seen


def test_message_of_a_concurrent_group_takes_effect_once() -> None:
    seen = Seen("mailing", keep=timedelta(days=7))
    retry = at(5, message_id="first")
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in seen.schema:
            db.execute(statement)
        assert [each.message_id for each in seen.new(db, [at(9, message_id="second"), at(3, message_id="first")])] == ["second", "first"]
        db.commit()
        assert not list(seen.new(db, [retry])), "its id stays the same through retries, its offset does not"
        assert len(list(seen.new(db, [at(6, message_id="third")]))) == 1
        db.rollback()
        assert len(list(seen.new(db, [at(6, message_id="third")]))) == 1, "its effects were rolled back too"
        assert len(list(Seen("other", keep=timedelta(days=1)).new(db, [retry]))) == 1
        assert len(list(seen.new(db, [at(7, message_id="x" * 20_000), at(8, message_id="x" * 20_001)]))) == 2


def test_tables_may_be_named_with_their_schema() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        inbox, seen = Inbox("test", table="main.box"), Seen("test", keep=timedelta(days=7), table="main.ids")
        for statement in (*inbox.schema, *seen.schema, *seen.schema):
            db.execute(statement)
        db.execute("BEGIN")
        batch = [at(0), at(1)]
        assert len([*inbox.new(db, batch, orderly_context(batch))]) == 2
        assert len([*seen.new(db, batch)]) == len([*seen.new(db, batch)]) + 2


def test_old_ids_are_removed_and_others_kept() -> None:
    seen = Seen("mailing", keep=timedelta(days=7))
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in seen.schema:
            db.execute(statement)
        db.execute("INSERT INTO lockstep_seen VALUES ('other', 'old', 0)")
        count = 4 * REMOVED_AFTER
        for number in range(count):
            batch = [at(number, message_id=f"m{number}")]
            assert len(list(seen.new(db, batch))) == 1
        days_ms = 8 * 24 * 3_600_000
        db.execute("UPDATE lockstep_seen SET seen_ms = seen_ms - ? WHERE message_id BETWEEN '=m' AND '=m2'", (days_ms,))
        (old,) = db.execute("SELECT COUNT(*) FROM lockstep_seen WHERE message_id BETWEEN '=m' AND '=m2'").fetchone()
        assert old > 0
        for number in range(count, count + REMOVED_AFTER * 2):
            assert len(list(seen.new(db, [at(number, message_id=f"n{number}")]))) == 1
        left = db.execute("SELECT COUNT(*) FROM lockstep_seen WHERE consumer_group = 'mailing'").fetchone()
        assert left == (count - old + 2 * REMOVED_AFTER,)
        assert db.execute("SELECT COUNT(*) FROM lockstep_seen WHERE consumer_group = 'other'").fetchone() == (1,)


# ---------------------------------------------------------------------------------------------------------------- libraries


@pytest.mark.parametrize("library", SQLITE)
async def test_inbox_and_seen_work_by_each_library_of_sqlite(library: str, tmp_path: Path) -> None:
    await check_library(Store(library, str(tmp_path / "orders.db")))


async def check_library(store: Store) -> None:
    """Check every statement by this library, in this database."""
    inbox, seen = Inbox("test"), Seen("test", keep=timedelta(days=7))
    big = (1 << 62) + 5

    async def call(offsets: list[int], epoch: int, generation: int, *, fail: bool = False) -> list[int]:
        batch, done = [at(offset, "1001") for offset in offsets], []
        async with store.transaction() as db:
            async for each in inbox.new(db, batch, orderly_context(batch, epoch=epoch, generation=generation)):
                await do(db, "INSERT INTO effects VALUES (:at)", at=each.queue_offset)
                done.append(each.queue_offset)
            if fail:
                raise ConnectionError
        return done

    async with store.transaction() as db:
        for statement in (*inbox.schema, *seen.schema, "CREATE TABLE effects (queue_offset BIGINT)"):
            await do(db, statement)
    with pytest.raises(ConnectionError):
        await call([0, 1], 7, 3, fail=True)
    assert await call([0, 1], 7, 3) == [0, 1]
    assert await call([1, 2], 8, 3) == [2]
    with pytest.raises(FencedError):
        await call([3], 7, 3)
    assert await call([0, big], big, big) == [0, big], "numbers of 63 bits, in a new generation"
    assert store.rows("SELECT queue_offset FROM effects ORDER BY 1") == [("0",), ("0",), ("1",), ("2",), (str(big),)]
    assert store.rows("SELECT * FROM lockstep_inbox") == [("test", "orders@broker-a:0", str(big), str(big), str(big + 1))]

    for again in (False, True):
        async with store.transaction() as db:
            batch = [at(number, message_id=f"m{number}") for number in range(REMOVED_AFTER)]
            found = [each.queue_offset async for each in seen.new(db, batch)]
        assert found == ([] if again else [*range(REMOVED_AFTER)])
    async with store.transaction() as db:
        await do(db, "UPDATE lockstep_seen SET seen_ms = 0 WHERE message_id <> :kept", kept="=m3")
    async with store.transaction() as db:
        found = [each.queue_offset async for each in seen.new(db, batch)]
    assert found == [number for number in range(REMOVED_AFTER) if number != 3], "old ones were removed before"


@pytest.mark.parametrize("handle", ["connection", "cursor"])
def test_connection_of_django_outside_of_a_transaction_is_refused(handle: str, tmp_path: Path) -> None:
    """Each statement would be committed alone."""
    refused = pytest.raises(StateError, match="no transaction, so each statement is committed alone")
    with django_connection(str(tmp_path / "orders.db")) as db, db.cursor() as cursor, refused:
        Seen("test", keep=timedelta(days=7)).new(db if handle == "connection" else cursor, [at(0)])


async def test_asynchronous_library_needs_async_for(tmp_path: Path) -> None:
    store = Store("aiosqlite", str(tmp_path / "orders.db"))
    inbox = Inbox("test")
    async with store.transaction() as db:
        await do(db, inbox.schema[0])
        with pytest.raises(TypeError, match="iterate with `async for`"):
            list(inbox.new(db, [at(0)], orderly_context([at(0)])))
