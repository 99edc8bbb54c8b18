"""The outbox by each library of SQLite, and the statements of its tables."""

import asyncio
import inspect
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Message, MessageQueue
from lockstep.client.database import Database, Steps
from lockstep.client.outbox import Outbox, Relay
from lockstep.client.outbox.table import Holder, OutboxFrame
from lockstep.client.outbox.transactions import Connect
from lockstep.protocol.errors import MessageIllegalError
from support.databases import SQLITE, Store, do
from support.fake_broker import fake_cluster, make_layout
from support.loops import until
from support.outboxes import refuse_bodies

BODIES = [b"a1", b"bad", b"a2", b"n1"]


@pytest.mark.parametrize("library", SQLITE)
async def test_outbox_works_by_each_library_of_sqlite(library: str, tmp_path: Path) -> None:
    await check_outbox(Store(library, str(tmp_path / "shop.db")))


async def check_outbox(store: Store, connect: Connect | None = None) -> None:
    """Check every statement by this library, in this database. `connect`: that of the relay."""
    outbox = Outbox()
    async with store.transaction() as db:
        for statement in outbox.schema("postgresql" if store.place.startswith("postgresql:") else "sqlite"):
            await do(db, statement)
    async with store.transaction() as db:
        for body in BODIES:
            added: Any = outbox.add(db, Message("t", body, sharding_key=None if body == b"n1" else "a"))
            assert len(await added if inspect.isawaitable(added) else added) == 32
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        cluster.brokers["a"].otherwise = refuse_bodies(MessageIllegalError("no"), b"bad")
        relay = Relay(outbox, connect or store.transaction, nameserver=cluster.nameserver, poll_interval=timedelta(milliseconds=10))
        task = asyncio.ensure_future(relay.run())
        try:
            await until(lambda: relay.stored_count == 3 and relay.refused_count == 1, timeout_s=60)
            await until(lambda: not store.rows("SELECT id FROM lockstep_outbox WHERE frame IS NOT NULL"), timeout_s=60)
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert sorted(cluster.brokers["a"].stored) == [b"a1", b"a2", b"n1"]
    assert store.rows("SELECT topic, refused FROM lockstep_outbox") == [("t", "MESSAGE_ILLEGAL: no")]
    assert [int(until_ms) for (until_ms,) in store.rows("SELECT until_ms FROM lockstep_outbox_relay")] == [0], "it has left"


QUEUE = MessageQueue("t", "a", 0)
FIRST, SECOND = Holder("first", 1_000, 100), Holder("second", 1_050, 100)


class Tables:
    """The two tables, and the steps of relays on them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.outbox = Outbox()
        for statement in self.outbox.schema("sqlite"):
            db.execute(statement)
        self.do(self.outbox.enter("1" * 32))

    def do(self, steps: Steps[Any]) -> Any:
        return Database(self.db).perform(steps)

    def make(self, holder: Holder) -> list[int] | None:
        """Frame what was added. Return the numbers of all frames, or None if the relay does not hold the outbox."""
        made = self.do(self.outbox.make(holder, {"t": make_layout("t", "a", queues=1)}, (), (), ()))
        return None if made is None else [number for (number,) in self.db.execute("SELECT frame FROM lockstep_outbox ORDER BY id")]


def test_only_the_holder_frames_and_unframes_and_only_what_is_still_there() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        tables = Tables(db)
        outbox = tables.outbox
        tables.do(outbox.enter("2" * 32))
        assert tables.do(outbox.identity()) == "1" * 32
        outbox.add(db, Message("t", b"1"))
        assert tables.make(FIRST) is None
        assert tables.do(outbox.take(FIRST)) == {}
        assert tables.make(FIRST) == [1_000]
        outbox.add(db, Message("t", b"2"))
        assert tables.make(FIRST) == [1_000, 1_001], "numbers rise, though no time has passed"
        assert tables.do(outbox.take(SECOND)) is None, "the lease lasts"
        assert tables.do(outbox.take(FIRST)) == {QUEUE: "1.7"}, "it begins again after an error"
        assert tables.do(outbox.unframe(SECOND, QUEUE, 1_000)) is None
        assert tables.do(outbox.take(later := SECOND._replace(now_ms=1_101))) == {QUEUE: "1.7"}
        assert tables.make(FIRST) is None
        assert tables.do(outbox.unframe(FIRST, QUEUE, 1_000)) is None
        frame = tables.do(outbox.next(QUEUE, None))
        assert (frame.number, len(frame.ids)) == (1_000, 1)
        assert tables.do(outbox.next(QUEUE, 1_000)).number == 1_001
        assert tables.do(outbox.unframe(later, QUEUE, 1_000)) is False, "it is stored: a later one of the queue may be, too"
        assert tables.do(outbox.next(QUEUE, None)).number == 1_001
        assert tables.do(outbox.unframe(later, QUEUE, 1_001))
        assert tables.make(later) == [1_101], "the number of a frame that was sent is used once"
        assert tables.do(outbox.refuse(QUEUE, 1_000, "no")) == 0
        assert tables.do(outbox.refuse(QUEUE, 1_101, "no\0" * 1_000)) == 1
        assert tables.do(outbox.next(QUEUE, None)) is None
        assert not tables.do(outbox.has_work(later, ()))
        assert tables.do(outbox.has_work(later._replace(now_ms=1_152), ())), "the lease ends soon"
        tables.do(outbox.leave("second"))
        assert tables.do(outbox.take(FIRST)) == {}


@pytest.mark.parametrize(("now_ms", "taken"), [(1_100, False), (1_101, True), (900, False), (899, True)])
def test_lease_ends_at_its_time_or_when_it_is_too_far_in_the_future(now_ms: int, taken: bool) -> None:
    """The second is that of a relay whose clock was ahead."""
    with closing(sqlite3.connect(":memory:")) as db:
        tables = Tables(db)
        assert tables.do(tables.outbox.take(FIRST)) == {}
        assert (tables.do(tables.outbox.take(SECOND._replace(now_ms=now_ms))) is not None) is taken


def test_records_of_a_frame_name_its_queue_and_are_the_same_each_time() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        tables = Tables(db)
        for body in BODIES:
            tables.outbox.add(db, Message("t", body))
        tables.do(tables.outbox.take(FIRST))
        tables.make(FIRST)
        frame: OutboxFrame = tables.do(tables.outbox.next(QUEUE, None))
    records, sizes = frame.encoded(MessageQueue("t", "a", 3))
    assert (records, sizes) == frame.encoded(MessageQueue("t", "a", 3))
    assert len(records) == sum(sizes)
    assert records[12:16] == (3).to_bytes(4, "big")


def test_tables_may_be_named_with_their_schema() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        outbox = Outbox("main.box")
        for statement in (*outbox.schema("sqlite"), *outbox.schema("sqlite")):
            db.execute(statement)
        outbox.add(db, Message("t", b"1"))
        assert db.execute("SELECT COUNT(*) FROM box").fetchone() == (1,)
