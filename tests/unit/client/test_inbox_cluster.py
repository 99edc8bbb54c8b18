"""Each message takes effect once (law X1): the inbox in a simulated cluster, with members and a broker that die, parked keys and resets."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.client import Backoff, ConcurrentlyContext, Message, MessageExt, OrderedRetry, OrderlyContext, Producer, PushConsumer
from lockstep.client.inbox import Inbox, Seen
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.runtime.host import Host
from lockstep.testing import Chaos, TestCluster

GROUP, TOPIC, KEYS = "billing", "orders", 6
PARK = OrderedRetry(max_attempts=2, on_exhausted="park", backoff=Backoff(first_ms=50, max_ms=50))


class Books:
    """The members of a group, which write to one database: the effect of a message is a row."""

    def __init__(self, cluster: TestCluster, place: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.place = str(place)
        self.settings = settings
        self.inbox, self.seen = Inbox(GROUP), Seen(GROUP, keep=timedelta(days=7))
        self.dice = Random(0)
        self.poisoned = False
        self.calls = 0
        """The number of messages in all calls that were not failed."""
        with closing(sqlite3.connect(self.place)) as db, db:
            for statement in (*self.inbox.schema, *self.seen.schema):
                db.execute(statement)
            db.execute("CREATE TABLE effects (key TEXT, number INTEGER, attempt INTEGER)")

    def write(self, messages: Sequence[MessageExt], new: Callable[[sqlite3.Connection], Iterator[MessageExt]]) -> None:
        """Write the effects of a call, in one turn of the loop: a process is killed before it or after it."""
        self.calls += len(messages)
        with closing(sqlite3.connect(self.place)) as db, db:
            for each in new(db):
                db.execute("INSERT INTO effects VALUES (?, ?, 0)", (each.sharding_key, int(each.body)))

    async def ordered(self) -> None:
        consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **self.settings).subscribe(TOPIC)

        @consumer.orderly
        async def book(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            await asyncio.sleep(self.dice.random() * 0.1)
            if self.poisoned and any(message.sharding_key == "k3" for message in messages):
                raise ValueError("no such account")
            self.write(messages, lambda db: iter(self.inbox.new(db, messages, context)))
            await asyncio.sleep(self.dice.random() * 0.6)

        async with consumer:
            await consumer.wait_closed()

    async def concurrent(self) -> None:
        consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **self.settings).subscribe(TOPIC)

        @consumer.concurrently
        async def book(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
            await asyncio.sleep(self.dice.random() * 0.1)
            self.write(messages, lambda db: iter(self.seen.new(db, messages)))
            if self.dice.random() < 0.2:
                raise ConnectionError("it has taken effect, and comes again as a retry")

        async with consumer:
            await consumer.wait_closed()

    def effects(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.place)) as db:
            return db.execute("SELECT key, number FROM effects ORDER BY rowid").fetchall()

    def of_key(self, key: int) -> list[int]:
        return [number for name, number in self.effects() if name == f"k{key}"]

    async def send(self, first: int, count: int) -> None:
        async with Producer("shop", nameserver=self.cluster.nameserver) as producer:
            for number in range(first, first + count):
                await producer.send(Message(TOPIC, b"%d" % number, sharding_key=f"k{number % KEYS}"))
                await asyncio.sleep(0.05)


@pytest.mark.lockstep(brokers=1)
@pytest.mark.parametrize(
    "settings",
    [{"batch_count": 3}, {"order_by": "sharding_key", "concurrency": 5, "batch_count": 2}, {"retry": PARK, "batch_count": 2}],
    ids=["queue", "sharding_key", "park"],
)
async def test_message_of_an_ordered_group_takes_effect_once_while_members_and_a_broker_die(
    lockstep_cluster: TestCluster, tmp_path: Path, settings: dict[str, Any]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    books = Books(cluster, tmp_path / "orders.db", **settings)
    for name in ("worker-1", "worker-2", "worker-3"):
        await cluster.start(name, books.ordered)
    async with Chaos(cluster, every_seconds=1, faults=["kill_worker", "pause_worker", "stop_worker", "kill_broker"]):
        await books.send(0, 150)
        await cluster.advance(seconds=20)
    await cluster.settled(GROUP, timeout=600)
    for key in range(KEYS):
        assert books.of_key(key) == [*range(key, 150, KEYS)]
    assert books.calls > 150 or cluster.seed, "some came again, with the usual seed"


@pytest.mark.lockstep(brokers=1)
@pytest.mark.parametrize("order_by", ["queue", "sharding_key"])
async def test_parked_key_takes_effect_in_its_replay(lockstep_cluster: TestCluster, tmp_path: Path, order_by: str) -> None:
    """Its offsets are below those of the other keys that have taken effect meanwhile."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    books = Books(cluster, tmp_path / "orders.db", retry=PARK, order_by=order_by)
    books.poisoned = True
    await cluster.start("worker-1", books.ordered)
    await books.send(0, 60)
    await cluster.until(lambda: len(books.effects()) == 50, "the other keys")
    books.poisoned = False
    await cluster.replay(GROUP, "k3")
    await cluster.until(lambda: len(books.of_key(3)) > 3, "a part of the replay")
    await cluster.kill("worker-1")
    await cluster.start("worker-2", books.ordered)
    await books.send(60, 12)
    await cluster.until(lambda: len(books.effects()) == 72, "the replay, and the key in the main flow")
    await cluster.settled(GROUP)
    for key in range(KEYS):
        assert books.of_key(key) == [*range(key, 72, KEYS)]


@pytest.mark.lockstep(brokers=1)
async def test_message_takes_effect_again_after_a_reset_and_only_then(lockstep_cluster: TestCluster, tmp_path: Path) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    books = Books(cluster, tmp_path / "orders.db")
    await cluster.start("worker-1", books.ordered)
    await books.send(0, 12)
    await cluster.settled(GROUP)
    admin = AdminClient(Host.current(), cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.reset(broker, ResetBody(GROUP, TOPIC, (QueueOffset(0, 8),)))
    await cluster.until(lambda: len(books.effects()) == 16, "the last four again")
    await cluster.settled(GROUP)
    await cluster.kill("worker-1")
    await cluster.start("worker-2", books.ordered)
    await books.send(12, 2)
    await cluster.settled(GROUP)
    assert [number for _, number in books.effects()] == [*range(12), *range(8, 14)]


@pytest.mark.lockstep(brokers=1)
async def test_message_of_a_concurrent_group_takes_effect_once_while_members_and_a_broker_die(
    lockstep_cluster: TestCluster, tmp_path: Path
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    books = Books(cluster, tmp_path / "orders.db", concurrency=5)
    for name in ("worker-1", "worker-2"):
        await cluster.start(name, books.concurrent)
    async with Chaos(cluster, every_seconds=1, faults=["kill_worker", "pause_worker", "stop_worker", "kill_broker"]):
        await books.send(0, 100)
    await cluster.settled(GROUP, timeout=3_600)
    await cluster.until(lambda: len(books.effects()) == 100, "the retries", timeout=3_600)
    assert sorted(number for _, number in books.effects()) == [*range(100)]
    assert books.calls > 100 or cluster.seed, "some came again, with the usual seed"
