"""on_exhausted="park": a poisoned key is set aside, every other key goes on, and a replay brings the key back in order."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep.admin.client import AdminClient
from lockstep.client import (
    Backoff,
    ConfigError,
    ConsumerEvent,
    KeyParked,
    KeyResumed,
    Message,
    MessageExt,
    MessageModel,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
    QueueBlocked,
)
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkState
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

GROUP, TOPIC = "billing", "orders"
PARK = OrderedRetry(max_attempts=3, on_exhausted="park", backoff=Backoff(first_ms=100, max_ms=100))


@dataclass
class Poison:
    """What fails, for all members."""

    keys: set[str] = field(default_factory=set)


@dataclass
class Worker:
    """A member, with what its listener accepted."""

    cluster: TestCluster
    poison: Poison
    order_by: str
    work_s: float = 0.01
    settings: dict[str, Any] = field(default_factory=dict)
    got: list[MessageExt] = field(default_factory=list)
    events: list[ConsumerEvent] = field(default_factory=list)

    async def listen(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(self.work_s)
        if any(message.sharding_key in self.poison.keys for message in messages):
            raise RuntimeError("poisoned")
        self.got += messages

    async def run(self) -> None:
        settings = {"order_by": self.order_by, "retry": PARK, **self.settings}
        consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **settings).subscribe(TOPIC)
        consumer.on_event(self.events.append)
        consumer.orderly(self.listen)
        async with consumer:
            await consumer.wait_closed()

    @property
    def parked(self) -> list[tuple[str, int]]:
        return [(each.key, each.offset) for each in self.events if isinstance(each, KeyParked)]

    def of_key(self, key: str | None) -> list[int]:
        return [int(message.body) for message in self.got if message.sharding_key == key]


async def send(cluster: TestCluster, count: int, keys: int, *, start: int = 0) -> None:
    """Send the numbers from `start` on; number n has the key k(n mod keys)."""
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n, sharding_key=f"k{n % keys}") for n in range(start, start + count)])


async def drop(cluster: TestCluster, key: str) -> None:
    admin = AdminClient(Host.current(), cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.control_parked(broker, ParkControlBody(ParkAction.DROP, GROUP, None, key))


both_orders = pytest.mark.parametrize("order_by", ["queue", "sharding_key"])


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_poisoned_key_is_set_aside_and_comes_back_in_order(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k3"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90, "every other key")
    await cluster.settled(GROUP)
    (row,) = await cluster.parked(GROUP)
    assert (row.key, row.state, row.attempts, row.error) == ("k3", ParkState.PARKED, 3, "RuntimeError: poisoned")
    assert worker.parked == [("k3", 3)]

    poison.keys.clear()
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.got) == 108, "new messages of every other key")
    assert not worker.of_key("k3"), "new messages of a parked key wait as well"
    await cluster.replay(GROUP, "k3")
    await cluster.until(lambda: len(worker.got) == 120, "the replay")
    await send(cluster, 20, 10, start=120)
    await cluster.until(lambda: len(worker.got) == 140, "the key in the main flow")
    for key in range(10):
        assert worker.of_key(f"k{key}") == list(range(key, 140, 10))
    assert [each.key for each in worker.events if isinstance(each, KeyResumed)] == ["k3"]
    assert not await cluster.parked(GROUP)


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_dropped_key_goes_to_the_dead_letter_topic_and_continues_after_it(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k3"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90 and worker.parked, "every other key")
    poison.keys.clear()
    await drop(cluster, "k3")
    await cluster.until(lambda: any(isinstance(each, KeyResumed) for each in worker.events), "the end of the drop")
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.got) == 110, "the key in the main flow")
    assert worker.of_key("k3") == [103, 113]
    letters: list[int] = []
    reader = PushConsumer("letters", nameserver=cluster.nameserver).subscribe(f"%DLQ%{GROUP}")

    @reader.orderly
    async def read(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        letters.extend(int(message.body) for message in messages)

    async with reader:
        await cluster.until(lambda: len(letters) >= 10, "the dead letters")
    assert letters == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_key_that_fails_again_is_parked_again_where_it_fails(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 40, 4)
    await cluster.until(lambda: len(worker.got) == 30 and worker.parked, "every other key")
    poison.keys.clear()
    worker.work_s = 1.0
    await cluster.replay(GROUP, "k0")
    await cluster.until(lambda: len(worker.of_key("k0")) == 3, "a part of the replay")
    poison.keys.add("k0")
    await cluster.until(lambda: len(worker.parked) == 2, "the second time")
    (row,) = await cluster.parked(GROUP)
    assert (row.state, row.next) == (ParkState.PARKED, 12)
    poison.keys.clear()
    await cluster.replay(GROUP, "k0")
    await cluster.until(lambda: len(worker.of_key("k0")) == 10, "the rest")
    assert worker.of_key("k0") == list(range(0, 40, 4))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_next_owner_goes_on_with_a_replay(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    one, other = (Worker(cluster, poison, order_by, work_s=0.2) for _ in range(2))
    await cluster.start("one", one.run)
    await send(cluster, 80, 4)
    await cluster.until(lambda: len(one.got) == 60 and one.parked, "every other key")
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(one.of_key("k0")) == 5, "a part of the replay")
    await cluster.kill("one")
    await cluster.start("other", other.run)
    await cluster.until(lambda: 76 in other.of_key("k0"), "the rest of the replay")
    await send(cluster, 8, 4, start=80)
    await cluster.until(lambda: 84 in other.of_key("k0"), "the key in the main flow")
    accepted = other.of_key("k0")
    assert accepted == list(range(accepted[0], 88, 4))
    assert one.of_key("k0") == list(range(0, 20, 4)), "the killed member did nothing more"
    assert accepted[0] <= 20, "nothing is left out"


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_broker_that_is_killed_in_a_replay_knows_how_far_it_was(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    worker = Worker(cluster, poison, order_by, work_s=0.2)
    await cluster.start("a", worker.run)
    await send(cluster, 80, 4)
    await cluster.until(lambda: len(worker.got) == 60 and worker.parked, "every other key")
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.of_key("k0")) == 5, "a part of the replay")
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await send(cluster, 8, 4, start=80)
    await cluster.until(lambda: 84 in worker.of_key("k0"), "the key in the main flow")
    accepted = worker.of_key("k0")
    assert [n for at, n in enumerate(accepted) if n not in accepted[:at]] == list(range(0, 88, 4))


@pytest.mark.lockstep(brokers=1)
async def test_message_without_a_key_blocks(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    failing = True
    events: list[ConsumerEvent] = []
    consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, retry=PARK).subscribe(TOPIC)
    consumer.on_event(events.append)
    got: list[bytes] = []

    @consumer.orderly
    async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if failing:
            raise RuntimeError("poisoned")
        got.extend(message.body for message in messages)

    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"0"))
        await producer.send(Message(TOPIC, b"1"))
    async with consumer:
        await cluster.until(lambda: any(isinstance(each, QueueBlocked) for each in events), "the block")
        assert not any(isinstance(each, KeyParked) for each in events)
        await cluster.advance(seconds=60)
        assert not got
        failing = False
        consumer.resume()
        await cluster.until(lambda: got == [b"0", b"1"], "both")


@pytest.mark.lockstep(brokers=1)
async def test_failed_batch_is_repeated_message_by_message_so_that_the_right_key_is_parked(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 100, 10)
    worker = Worker(cluster, Poison({"k7"}), "queue", settings={"batch_count": 32})
    await cluster.start("a", worker.run)
    await cluster.until(lambda: len(worker.got) == 90, "every other key")
    assert worker.parked == [("k7", 7)]
    for key in range(10):
        assert worker.of_key(f"k{key}") == ([] if key == 7 else list(range(key, 100, 10)))


def test_settings_that_contradict_park_are_refused() -> None:
    for settings in ({"message_model": MessageModel.BROADCASTING}, {"commit": "each"}):
        with pytest.raises(ConfigError, match='on_exhausted "park"'):
            PushConsumer(GROUP, nameserver="127.0.0.1:1", retry=PARK, **settings)
