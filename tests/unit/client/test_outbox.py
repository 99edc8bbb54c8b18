"""The relay of an outbox: each message is stored once, over crashes at every statement, several relays, refusals and new layouts."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from lockstep.client import Client, ConfigError, LocalProtocolError, Message, StateError
from lockstep.client.outbox import Outbox, Relay
from lockstep.client.outbox.relay import OLD_MS
from lockstep.client.outbox.table import FRAME_COUNT_MAX, WINDOW
from lockstep.protocol.errors import LayoutStaleError, MessageIllegalError, SystemBusyError
from lockstep.testing.simulation.loop import SimLoop
from support.effort import seeds
from support.fake_broker import (
    FakeBroker,
    Sent,
    fake_cluster,
    ignore,
    make_layout,
    refuse,
    store_and_disconnect,
    store_without_response,
    take,
)
from support.outboxes import Fuse, KilledError, Shop, refuse_bodies

pytestmark = pytest.mark.simulated


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with fake_cluster("a", topics={"t": 4}) as cluster:
        yield Shop(tmp_path / "shop.db", cluster)


@asynccontextmanager
async def running(*relays: Relay) -> AsyncIterator[None]:
    """Run relays. A killed one ends alone."""
    tasks = [asyncio.ensure_future(relay.run()) for relay in relays]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError | KilledError):
                raise ended or AssertionError("it has returned")


PAIRS: list[tuple[str | None, bytes]] = [("a", b"a1"), ("b", b"b1"), (None, b"n1"), ("a", b"a2"), (None, b"n2"), ("a", b"a3")]


async def test_message_is_stored_after_the_commit_and_not_after_a_rollback(shop: Shop) -> None:
    with suppress(ConnectionError), shop.connect() as db:
        shop.outbox.add(db, Message("t", b"lost"))
        raise ConnectionError
    async with running(relay := shop.relay()):
        await asyncio.sleep(5)
        assert relay.works
        assert shop.cluster.brokers["a"].sends == []
        shop.add(*PAIRS)
        await shop.empty()
        assert shop.problems() == []
        assert relay.stored_count == len(PAIRS)
    assert not relay.works


async def test_messages_keep_all_that_was_given_and_the_id_that_add_returns(shop: Shop) -> None:
    message = Message("t", b"x" * 10_000, tags="paid", keys="k1 k2", properties={"p": "q"}, sharding_key="a", flag=7)
    with shop.connect() as db:
        message_id = shop.outbox.add(db, message)
    async with running(shop.relay()):
        await shop.empty()
    (sent,) = shop.cluster.brokers["a"].sends
    (stored,) = sent.messages
    assert (stored.body, stored.tags, stored.keys, stored.sharding_key, stored.flag) == (message.body, "paid", ("k1", "k2"), "a", 7)
    assert (stored.message_id, stored.properties["p"], stored.queue_id) == (message_id, "q", sent.header.queue_id)
    assert len(sent.body) < 1_000, "its body is compressed"


# ------------------------------------------------------------------------------------------------------------------- crashes


async def test_relay_that_is_killed_at_any_statement_leaves_each_message_to_be_stored_once(tmp_path: Path) -> None:
    """Law X3. A second relay continues, and the frames of both are the same bytes."""
    point = 0
    while True:
        point += 1
        async with fake_cluster("a", topics={"t": 2}) as cluster:
            shop = Shop(tmp_path / f"{point}.db", cluster)
            shop.add(*PAIRS)
            fuse = Fuse(point)
            async with running(shop.relay(fuse)):
                for _ in range(100):
                    await asyncio.sleep(0.1)
                    if fuse.blown or not shop.left:
                        break
            shop.add(("a", b"a4"), ("b", b"b2"))
            async with running(shop.relay()):
                await shop.empty()
            assert shop.problems() == [], f"killed at point {point}"
            bodies = {(sent.header.producer_epoch, sent.body) for sent in cluster.brokers["a"].sends}
            assert len(bodies) == len({epoch for epoch, _ in bodies}), "a frame is sent again with the same bytes"
            if not fuse.blown:
                break
    assert point > 30


@pytest.mark.parametrize("seed", seeds(15, 100))
async def test_each_message_is_stored_once_whatever_relays_and_brokers_do(seed: int, tmp_path: Path) -> None:
    """Law X3, with several relays, which are killed, a broker that answers late or not at all, and clocks that differ."""
    random, loop = Random(seed), asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)

    def fault(broker: FakeBroker, sent: Sent) -> None:
        late = random.random()
        if late < 0.1:
            loop.call_later(random.choice([0.1, 2, 8, 25]), lambda: None if sent.endpoint.closed else broker.take(sent))
        else:
            random.choice([ignore, store_without_response, store_and_disconnect, take, take, take, take])(broker, sent)

    async with fake_cluster("a", "b", topics={"t": 2}) as cluster:
        shop = Shop(tmp_path / "shop.db", cluster)
        for broker in cluster.brokers.values():
            broker.otherwise = fault
        relays: list[asyncio.Task[None]] = []
        number = 0
        for _ in range(random.choice([10, 30])):
            if sum(not relay.done() for relay in relays) < 3:
                fuse = Fuse(random.randrange(1, 150)) if random.random() < 0.7 else None
                relays.append(asyncio.ensure_future(shop.relay(fuse).run()))
            pairs: list[tuple[str | None, bytes]] = []
            for _ in range(random.choice([1, 5, 60])):
                number += 1
                pairs.append((random.choice(["a", "b", "c", None]), b"%d" % number))
            shop.add(*pairs)
            await asyncio.sleep(random.choice([0, 0.1, 1, 20]))
            if random.random() < 0.2:
                random.choice(relays).cancel()
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        for broker in cluster.brokers.values():
            broker.otherwise = take
        async with running(shop.relay(), shop.relay()):
            await shop.empty()
        assert shop.problems() == []


async def test_one_relay_works_at_a_time_and_another_one_takes_over(shop: Shop) -> None:
    first, second = shop.relay(), shop.relay()
    one, two = asyncio.ensure_future(first.run()), asyncio.ensure_future(second.run())
    await asyncio.sleep(60)
    assert first.works != second.works
    working, ended = (first, one) if first.works else (second, two)
    ended.cancel()
    await asyncio.sleep(3)
    assert not working.works
    assert first.works or second.works, "at once, because the other one has ended in order"
    shop.add(*PAIRS)
    await shop.empty(within_s=5)
    for task in (one, two):
        task.cancel()
    await asyncio.gather(one, two, return_exceptions=True)


async def test_relay_sends_at_once_when_it_is_woken(shop: Shop) -> None:
    async with running(relay := shop.relay(poll_interval=timedelta(seconds=5))):
        relay.wake()
        await asyncio.sleep(1)
        shop.add(*PAIRS)
        await asyncio.sleep(2)
        assert shop.left == len(PAIRS)
        relay.wake()
        await shop.empty(within_s=1)
    relay.wake()


# ------------------------------------------------------------------------------------------------------------------ refusals


async def test_refused_message_is_set_aside_with_the_reason_and_the_others_are_stored(shop: Shop) -> None:
    broker = shop.cluster.brokers["a"]
    broker.otherwise = refuse_bodies(MessageIllegalError("too long for this broker"), b"a2", b"n1")
    shop.add(*PAIRS)
    async with running(relay := shop.relay()):
        await shop.empty()
        assert shop.problems(refused=(b"a2", b"n1")) == []
        assert (relay.stored_count, relay.refused_count, relay.possible_duplicates) == (len(PAIRS) - 2, 2, 0)
        with shop.connect() as db:
            assert {why for (why,) in db.execute("SELECT refused FROM lockstep_outbox")} == {"MESSAGE_ILLEGAL: too long for this broker"}
            broker.otherwise = take
            db.execute("UPDATE lockstep_outbox SET refused = NULL")
        await shop.empty()
    assert len(broker.stored) == len(PAIRS)


async def test_queue_that_takes_nothing_holds_up_no_other(tmp_path: Path) -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        shop = Shop(tmp_path / "shop.db", cluster)
        cluster.brokers["a"].otherwise = refuse(SystemBusyError("the disk is full"))
        async with running(shop.relay()):
            for number in range(20):
                shop.add((f"k{number}", b"%d" % number))
                await asyncio.sleep(2)
            kept = shop.left
            assert 0 < kept < 20
            assert len(cluster.brokers["b"].stored) == 20 - kept
            cluster.brokers["a"].otherwise = take
            await shop.empty()
        assert shop.problems() == []


async def test_messages_of_a_topic_that_does_not_exist_wait_for_it_and_hold_up_no_other(shop: Shop) -> None:
    shop.add(("a", b"early"), topic="new")
    async with running(shop.relay()):
        shop.add(*PAIRS)
        await asyncio.sleep(20)
        assert shop.left == 1
        shop.cluster.put(make_layout("new", "a"))
        await shop.empty()
    assert shop.problems() == []


# -------------------------------------------------------------------------------------------------------- layouts and copies


async def test_frame_of_a_queue_that_was_closed_is_framed_again_only_if_it_is_not_stored(shop: Shop) -> None:
    """The broker is asked first: it may have stored the frame before it closed the queue."""
    broker = shop.cluster.brokers["a"]
    broker.otherwise = store_without_response
    shop.add(*PAIRS)
    with pytest.raises(TimeoutError):
        async with running(shop.relay()):
            await shop.empty(within_s=30)
    stored = len(broker.stored)
    assert stored > 1

    def closed(here: FakeBroker, sent: Sent) -> None:
        again = sent.bodies[0] in here.stored
        (take if again or sent.header.queue_id == 0 else refuse(LayoutStaleError("the queue is closed")))(here, sent)

    shop.add(*((key, body + b"0") for key, body in PAIRS))
    broker.otherwise = closed
    shop.cluster.put(make_layout("t", "a", queues=1, counter=2))
    async with running(relay := shop.relay()):
        await shop.empty()
    assert relay.possible_duplicates == 0
    assert sorted(broker.stored) == sorted(body for _, body in shop.added)
    assert {0} < {queue_id for _, queue_id in broker.bodies}, "what was stored before has stayed"
    late = [body for body in broker.bodies["t", 0] if body.startswith(b"a") and body.endswith(b"0")]
    assert late == [b"a10", b"a20", b"a30"]


async def test_database_that_was_set_back_is_sent_again_and_counted(shop: Shop) -> None:
    """Its messages are not known to be stored, and the frames of its producer id are others."""
    shop.add(*PAIRS)
    with closing(sqlite3.connect(shop.place)) as db, closing(sqlite3.connect(f"{shop.place}.copy")) as copy:
        async with running(shop.relay()):
            shop.cluster.brokers["a"].otherwise = ignore
            await asyncio.sleep(5)
        db.backup(copy)
        shop.cluster.brokers["a"].otherwise = take
        async with running(shop.relay()):
            await shop.empty()
            shop.add(("a", b"a4"), ("b", b"b2"))
            await shop.empty()
        copy.backup(db)
    async with running(relay := shop.relay()):
        await shop.empty()
    assert relay.possible_duplicates > 0
    stored = shop.cluster.brokers["a"].stored
    assert {*stored} == {body for _, body in shop.added}
    assert len(stored) == len(shop.added) + relay.possible_duplicates


async def test_frame_that_is_older_than_brokers_remember_is_sent_and_counted(shop: Shop) -> None:
    shop.cluster.brokers["a"].otherwise = ignore
    shop.add(("a", b"a1"))
    async with running(shop.relay()):
        await asyncio.sleep(5)
    await asyncio.sleep(OLD_MS / 1_000)
    shop.cluster.brokers["a"].otherwise = take
    async with running(relay := shop.relay()):
        await shop.empty()
    assert (relay.possible_duplicates, shop.problems()) == (1, [])


async def test_many_messages_are_divided_into_frames_in_their_order(shop: Shop) -> None:
    shop.add(*((f"k{number % 3}", b"%d" % number) for number in range(WINDOW + 50)))
    shop.add(*(("big", Random(number).randbytes(100_000)) for number in range(8)))
    async with running(shop.relay()):
        await shop.empty()
    assert shop.problems() == []
    sends = shop.cluster.brokers["a"].sends
    assert max(sent.header.count for sent in sends) == FRAME_COUNT_MAX
    assert len(sends) > 8


# -------------------------------------------------------------------------------------------------------------------- errors


async def test_wrong_uses_are_refused(shop: Shop) -> None:
    outbox = shop.outbox
    with closing(sqlite3.connect(shop.place, isolation_level=None)) as db, pytest.raises(StateError, match="committed alone"):
        outbox.add(db, Message("t", b"x"))
    with closing(sqlite3.connect(shop.place)) as db, pytest.raises(LocalProtocolError, match="add got a str: expected a Message"):
        outbox.add(db, "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected letters, digits and _"):
        Outbox("a b")
    with pytest.raises(ConfigError, match="dialect 'mysql': expected sqlite or postgresql"):
        outbox.schema("mysql")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a millisecond to 0:00:05"):
        shop.relay(poll_interval=timedelta(0))
    with pytest.raises(ConfigError, match="give one of them"):
        shop.relay(client=Client(shop.cluster.nameserver))
    with pytest.raises(LocalProtocolError):
        shop.relay(group="a group")
    async with running(relay := shop.relay()):
        await asyncio.sleep(1)
        with pytest.raises(StateError, match="relay outbox-relay runs already"):
            await relay.run()


async def test_connect_that_gives_no_transaction_ends_the_relay(shop: Shop) -> None:
    def relay(connect: object) -> Relay:
        return Relay(shop.outbox, connect, nameserver=shop.cluster.nameserver)  # type: ignore[arg-type]

    @contextmanager
    def uncommitted() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(shop.place)) as db:
            yield db

    with pytest.raises(ConfigError, match=r"connect returned a builtins.int: expected a context manager"):
        await relay(lambda: 5).run()
    with pytest.raises(ConfigError, match="was not committed at the end of the context manager"):
        await relay(uncommitted).run()
    with pytest.raises(StateError, match="committed alone"):
        await relay(lambda: sqlite3.connect(shop.place, isolation_level=None)).run()


async def test_relay_waits_for_a_database_that_is_locked_or_has_no_tables_yet(shop: Shop) -> None:
    shop.add(*PAIRS)
    with closing(sqlite3.connect(shop.place)) as db:
        db.execute("BEGIN EXCLUSIVE")
        async with running(shop.relay()):
            await asyncio.sleep(30)
            db.execute("ALTER TABLE lockstep_outbox_relay RENAME TO away")
            db.commit()
            await asyncio.sleep(30)
            db.execute("ALTER TABLE away RENAME TO lockstep_outbox_relay")
            db.commit()
            await shop.empty()
    assert shop.problems() == []


async def test_plain_connection_of_sqlite3_is_closed_after_each_transaction(shop: Shop) -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(sqlite3.connect(shop.place))
        return made[-1]

    shop.add(*PAIRS)
    async with running(Relay(shop.outbox, connect, nameserver=shop.cluster.nameserver)):
        await shop.empty()
    assert len(made) > 3
    for db in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            db.execute("SELECT 1")
