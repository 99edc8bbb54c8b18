"""order_by="sharding_key": the keys of a queue are consumed side by side, and each key in its order, over failures, moves and kills."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep.client import (
    ConfigError,
    ConsumerEvent,
    Message,
    MessageDeadLettered,
    MessageExt,
    MessageModel,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
    QueueBlocked,
    SubscriptionConflictError,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.protocol.topics.allocate import AVERAGE
from lockstep.runtime.host import Host
from lockstep.testing import Chaos, OrderChecker, TestCluster
from support.effort import seed_count

GROUP, TOPIC = "billing", "orders"
Handle = Callable[[Sequence[MessageExt], OrderlyContext], Awaitable[Any]]


@dataclass
class Worker:
    """A member, with what its listener got and which calls ran side by side."""

    cluster: TestCluster
    handle: Handle | None = None
    work_s: float = 0.05
    settings: dict[str, Any] = field(default_factory=dict)
    got: list[MessageExt] = field(default_factory=list)
    events: list[ConsumerEvent] = field(default_factory=list)
    running: Counter[str | None] = field(default_factory=Counter)
    most: int = 0
    consumer: PushConsumer | None = None

    async def listen(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        keys = {message.sharding_key for message in messages}
        assert len(keys) == 1
        key = keys.pop()
        assert not self.running[key], "calls of one key never overlap"
        self.running[key] += 1
        self.most = max(self.most, self.running.total())
        try:
            await asyncio.sleep(self.work_s)
            result = None if self.handle is None else await self.handle(messages, context)
        finally:
            self.running[key] -= 1
        self.got += messages
        return result

    async def run(self) -> None:
        settings = {"order_by": "sharding_key", "concurrency": 50, **self.settings}
        self.consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **settings).subscribe(TOPIC)
        self.consumer.on_event(self.events.append)
        self.consumer.orderly(self.listen)
        async with self.consumer:
            await self.consumer.wait_closed()

    def of_key(self, key: str | None) -> list[int]:
        return [int(message.body) for message in self.got if message.sharding_key == key]


async def send(cluster: TestCluster, count: int, keys: int, *, start: int = 0) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n, sharding_key=f"k{n % keys}") for n in range(start, start + count)])


@pytest.mark.lockstep(brokers=1)
async def test_keys_of_one_queue_are_consumed_side_by_side_and_each_in_its_order(lockstep_cluster: TestCluster) -> None:
    """1 queue, a listener of 50 ms, 50 calls at a time: at least 30 times the rate of order_by="queue"."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 2_000, 1_000)
    durations = {}
    for order_by, count in (("sharding_key", 2_000), ("queue", 60)):
        worker = Worker(cluster, settings={"order_by": order_by})
        await cluster.start(order_by, worker.run)
        await cluster.until(lambda worker=worker: worker.got, "the first message")  # type: ignore[misc]
        began = cluster.now
        if order_by == "queue":
            await send(cluster, count, 1_000)
        await cluster.until(lambda worker=worker, count=count: len(worker.got) >= count, "all messages", timeout=600)  # type: ignore[misc]
        durations[order_by] = (cluster.now - began) / count
        for key in range(1_000 if order_by == "sharding_key" else 0):
            assert worker.of_key(f"k{key}") == [key, key + 1_000]
        assert worker.most == (50 if order_by == "sharding_key" else 1)
        if order_by == "sharding_key":
            await cluster.settled(GROUP)
            await cluster.stop(order_by)
            await send(cluster, 1, 1)
    assert durations["queue"] / durations["sharding_key"] > 30


@pytest.mark.lockstep(brokers=1)
async def test_failing_key_holds_up_no_other_key(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    broken = True

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if broken and messages[0].sharding_key == "k3":
            raise ValueError("no such account")

    worker = Worker(cluster, handle)
    await cluster.start("worker", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90, "the other keys")
    await cluster.until(lambda: any(isinstance(event, QueueBlocked) for event in worker.events), "QueueBlocked")
    blocked = next(event for event in worker.events if isinstance(event, QueueBlocked))
    assert (blocked.key, blocked.offset, blocked.attempts) == ("k3", 3, 3)
    assert worker.consumer is not None
    (queue,) = worker.consumer.health().queues
    assert queue.lanes is not None
    assert (queue.lanes.count, queue.lanes.oldest_offset, queue.lanes.oldest_key, queue.offset) == (1, 3, "k3", 3)
    broken = False
    await cluster.settled(GROUP)
    assert worker.of_key("k3") == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
async def test_exhausted_key_is_blocked_until_resume_and_the_others_go_on(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    calls: list[int] = []
    broken = True

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if broken and messages[0].sharding_key == "k3":
            calls.append(context.attempt)
            raise ValueError("no such account")

    worker = Worker(cluster, handle, settings={"retry": OrderedRetry(max_attempts=2)})
    await cluster.start("worker", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(calls) == 2, "both attempts")
    await cluster.until(lambda: len(worker.got) == 90, "the other keys")
    await cluster.advance(seconds=120)
    assert calls == [0, 1]
    assert worker.consumer is not None
    (queue,) = worker.consumer.health().queues
    assert queue.lanes is not None
    assert (queue.lanes.blocked_keys, queue.blocked, worker.consumer.health().ok) == (("k3",), True, False)
    broken = False
    worker.consumer.resume()
    await cluster.settled(GROUP)
    assert worker.of_key("k3") == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
async def test_health_is_not_ok_while_any_key_fails_again_and_again(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            await asyncio.sleep(3_600)
        elif messages[0].sharding_key == "k3":
            raise ValueError("no such account")

    worker = Worker(cluster, handle)
    await cluster.start("worker", worker.run)
    await send(cluster, 10, 10)
    await cluster.until(lambda: any(isinstance(event, QueueBlocked) for event in worker.events), "QueueBlocked")
    assert worker.consumer is not None
    health = worker.consumer.health()
    (queue,) = health.queues
    assert queue.lanes is not None
    assert (queue.lanes.oldest_key, queue.lanes.attempts, queue.attempts, queue.blocked, health.ok) == ("k0", 3, 0, True, False)
    assert queue.running_ms is not None
    assert queue.running_ms >= 3_000, "the call of k0, not the last one"
    await cluster.kill("worker")


@pytest.mark.lockstep(brokers=1)
async def test_dead_lettered_message_leaves_its_key_and_the_key_goes_on(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].body in (b"3", b"5"):
            raise ValueError("no such account")

    worker = Worker(cluster, handle, settings={"retry": OrderedRetry(max_attempts=2, on_exhausted="dlq")})
    await cluster.start("worker", worker.run)
    await send(cluster, 30, 10)
    await cluster.settled(GROUP)
    assert worker.of_key("k3") == [13, 23]
    letters = [event for event in worker.events if isinstance(event, MessageDeadLettered)]
    assert sorted((letter.offset, letter.attempts) for letter in letters) == [(3, 2), (5, 2)]
    dead: list[MessageExt] = []

    async def read() -> None:
        consumer = PushConsumer("inspection", nameserver=cluster.nameserver).subscribe(f"%DLQ%{GROUP}")

        @consumer.orderly
        async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            dead.extend(messages)

        async with consumer:
            await consumer.wait_closed()

    await cluster.start("inspector", read)
    await cluster.until(lambda: len(dead) == 2, "the dead letters")
    assert {message.body for message in dead} == {b"3", b"5"}


@pytest.mark.lockstep(brokers=1, seeds=seed_count(1, 3))
async def test_next_owner_passes_over_what_was_finished_above_the_committed_offset(lockstep_cluster: TestCluster) -> None:
    """A key is stuck at the head of the queue while 99 others are finished; the member is killed, and the next one repeats nothing."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    stuck = asyncio.Event()

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0" and not stuck.is_set():
            raise ValueError("not yet")

    first, second = Worker(cluster, handle, 0.01), Worker(cluster, handle, 0.01)
    await send(cluster, 200, 20)
    await cluster.start("first", first.run)
    await cluster.until(lambda: len(first.got) == 190, "the other keys")
    await cluster.advance(seconds=1)
    await cluster.kill("first")
    await cluster.start("second", second.run)
    await send(cluster, 20, 20, start=200)
    await cluster.until(lambda: len(second.got) == 19, "the other keys' new messages")
    stuck.set()
    await cluster.settled(GROUP)
    bodies = [int(message.body) for worker in (first, second) for message in worker.got]
    assert sorted(bodies) == list(range(220)), "nothing is lost, nothing is handled twice"
    assert second.of_key("k0") == list(range(0, 220, 20))


@pytest.mark.lockstep(brokers=1)
async def test_done_ranges_outlive_the_broker_and_apply_to_a_group_that_has_become_ordered_by_queue(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            raise ValueError("not yet")

    first, second = Worker(cluster, handle, 0.01), Worker(cluster, None, 0.01, {"order_by": "queue"})
    await send(cluster, 40, 4)
    await cluster.start("first", first.run)
    await cluster.until(lambda: len(first.got) == 30, "the other keys")
    await cluster.stop("first")
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await cluster.start("second", second.run)
    await cluster.settled(GROUP)
    assert [int(message.body) for message in second.got] == list(range(0, 40, 4))


@pytest.mark.lockstep(brokers=1)
async def test_reset_forgets_what_was_finished(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    broken = True

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if broken and messages[0].sharding_key == "k0":
            raise ValueError("not yet")

    worker = Worker(cluster, handle, 0.01)
    await send(cluster, 40, 4)
    await cluster.start("worker", worker.run)
    await cluster.until(lambda: len(worker.got) == 30, "the other keys")
    await cluster.advance(seconds=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.reset(broker, ResetBody(GROUP, TOPIC, (QueueOffset(0, 0),)))
    broken = False
    await cluster.settled(GROUP)
    assert Counter(int(message.body) for message in worker.got) == {n: 1 if n % 4 == 0 else 2 for n in range(40)}


@pytest.mark.lockstep(brokers=1)
async def test_queue_moves_only_when_all_calls_of_its_keys_have_ended(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    workers = [Worker(cluster, None, 2.0, {"allocate": AVERAGE}) for _ in range(2)]
    await send(cluster, 200, 40)
    await cluster.start("first", workers[0].run)
    await cluster.until(lambda: workers[0].running.total() > 30, "calls of both queues")
    await cluster.start("second", workers[1].run)
    seen: list[tuple[int, int]] = []
    while len(workers[0].got) + len(workers[1].got) < 200:
        both = [{key for key, count in worker.running.items() if count} for worker in workers]
        assert not both[0] & both[1], "a key is called by one member at a time"
        seen.append((len(both[0]), len(both[1])))
        await asyncio.sleep(0.1)
    assert any(mine and theirs for mine, theirs in seen)
    for key in range(40):
        handled = [*workers[0].of_key(f"k{key}"), *workers[1].of_key(f"k{key}")]
        assert handled == list(range(key, 200, 40)), "each message once, in order"


@pytest.mark.lockstep(brokers=2, seeds=seed_count(2, 6))
async def test_order_of_each_key_is_kept_under_chaos(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=3)
    checker = OrderChecker(cluster)

    def main(number: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, order_by="sharding_key", concurrency=8).subscribe(TOPIC)
            failures = Counter[bytes]()

            @consumer.orderly
            @checker.watch
            async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
                await asyncio.sleep(0.02)
                if int(messages[0].body) % 7 == number and not failures[messages[0].body]:
                    failures[messages[0].body] += 1
                    raise ValueError("once")

            async with consumer:
                await consumer.wait_closed()

        return run

    for number in range(3):
        await cluster.start(f"worker-{number}", main(number))
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        async with Chaos(cluster, every_seconds=2):
            for step in range(60):
                await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % (step * 8 + n), sharding_key=f"k{n}")) for n in range(8)))
                await asyncio.sleep(0.5)
        await cluster.settled(GROUP)
    checker.verify(max_repeats=400)


@pytest.mark.lockstep(brokers=1)
async def test_manual_commit_ends_the_consumer_with_the_reason(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        context.auto_commit = False

    worker = Worker(cluster, handle)
    await send(cluster, 1, 1)
    with pytest.raises(ConfigError, match="auto_commit=False"):
        await worker.run()


@pytest.mark.lockstep(brokers=1)
async def test_members_must_agree_on_the_unit_of_order(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("by-key", Worker(cluster).run)
    await cluster.advance(seconds=2)
    with pytest.raises(SubscriptionConflictError, match="order_by: sharding_key here, queue asked for"):
        await Worker(cluster, settings={"order_by": "queue"}).run()
    with pytest.raises(SubscriptionConflictError, match="order_by: sharding_key here, sharding_key, unkeyed alone asked for"):
        await Worker(cluster, settings={"unkeyed": "alone"}).run()


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="broadcasting"):
        PushConsumer(GROUP, order_by="sharding_key", message_model=MessageModel.BROADCASTING)
    with pytest.raises(ConfigError, match='commit="interval"'):
        PushConsumer(GROUP, order_by="sharding_key", commit="each")
    with pytest.raises(ConfigError, match="needs order_by"):
        PushConsumer(GROUP, unkeyed="alone")
    with pytest.raises(ConfigError, match="order_by"):
        PushConsumer(GROUP, order_by="key")
    with pytest.raises(ConfigError, match="concurrent listener has no order"):
        PushConsumer(GROUP, order_by="sharding_key").concurrently(lambda messages, context: None)
