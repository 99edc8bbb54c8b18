"""The outbox in a simulated cluster: relays and brokers that die or pause, and queues that are closed meanwhile."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from lockstep.client import Message, PullConsumer
from lockstep.client.outbox import Outbox, Relay
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.drain import close_queues
from lockstep.runtime.host import Host
from lockstep.testing import Chaos, TestCluster

TOPIC, KEYS = "orders", 6


class Shop:
    """A program that adds messages, and its relays."""

    def __init__(self, cluster: TestCluster, place: Path) -> None:
        self.cluster = cluster
        self.place = str(place)
        self.outbox = Outbox()
        self.dice = Random(0)
        self.count = 0
        with self.connect() as db:
            for statement in self.outbox.schema("sqlite"):
                db.execute(statement)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.place, timeout=0)

    async def relay(self) -> None:
        await Relay(self.outbox, self.connect, nameserver=self.cluster.nameserver).run()

    async def add(self, count: int) -> None:
        for _ in range(count):
            with closing(self.connect()) as db, db:
                for _ in range(self.dice.choice([1, 3])):
                    self.outbox.add(db, Message(TOPIC, b"%d" % self.count, sharding_key=f"k{self.count % KEYS}"))
                    self.count += 1
            await asyncio.sleep(self.dice.choice([0.01, 0.1, 0.3]))

    @property
    def left(self) -> int:
        with closing(self.connect()) as db:
            count: int = db.execute("SELECT COUNT(*) FROM lockstep_outbox").fetchone()[0]
        return count

    async def stored(self) -> list[tuple[str, int]]:
        """Return the key and the number of each message in the topic, those of a queue in their order."""
        await self.cluster.until(lambda: not self.left, "everything is sent", timeout=3_600)
        found: list[tuple[str, int]] = []
        async with PullConsumer("audit", nameserver=self.cluster.nameserver) as consumer:
            await consumer.assign(await consumer.queues(TOPIC))
            while messages := await consumer.poll(timeout_ms=10_000):
                found += [(message.sharding_key or "", int(message.body)) for message in messages]
        return found


@pytest.mark.lockstep(brokers=2, seeds=2)
async def test_each_message_is_stored_once_and_keys_in_order_while_relays_and_brokers_die(
    lockstep_cluster: TestCluster, tmp_path: Path
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    shop = Shop(cluster, tmp_path / "shop.db")
    for name in ("relay-1", "relay-2"):
        await cluster.start(name, shop.relay)
    async with Chaos(cluster, every_seconds=1, faults=["kill_worker", "pause_worker", "stop_worker", "kill_broker"]):
        await shop.add(150)
    stored = await shop.stored()
    assert sorted(number for _, number in stored) == [*range(shop.count)]
    for key in range(KEYS):
        assert [number for name, number in stored if name == f"k{key}"] == [*range(key, shop.count, KEYS)]


@pytest.mark.lockstep(brokers=2)
async def test_each_message_is_stored_once_while_queues_are_closed(lockstep_cluster: TestCluster, tmp_path: Path) -> None:
    """Messages in frames of a closed queue go to the queue that the new layout gives to their key."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=4)
    shop = Shop(cluster, tmp_path / "shop.db")
    await cluster.start("relay-1", shop.relay)
    await shop.add(20)
    adding = asyncio.ensure_future(shop.add(60))
    await cluster.kill("broker-a")
    await cluster.advance(seconds=5)
    await cluster.restart("broker-a")
    await close_queues(AdminClient(Host.current(), cluster.nameserver), TOPIC, "broker-a", None)
    await cluster.kill("relay-1")
    await cluster.start("relay-2", shop.relay)
    await adding
    await shop.add(20)
    stored = await shop.stored()
    assert sorted(number for _, number in stored) == [*range(shop.count)]
