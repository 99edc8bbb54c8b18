"""Queues are added, moved and drained under load: each key stays in order, and no message is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lockstep.client import ConsumeFromWhere, Message, MessageExt, MessageQueue, OrderlyContext, Producer, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.drain import close_queues, drop_queues
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import create_and_wait, publish_layout
from lockstep.operations.changes.layouts.queue_move import needs_of, put_in_order
from lockstep.operations.changes.layouts.write_hold import WriteHold
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import NoPermissionError
from lockstep.protocol.topics.layouts import check_layout
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from lockstep.testing import OrderChecker, OrderViolationError, TestCluster
from support.effort import seed_count
from support.queue_moves import ordered_worker

TOPIC = "orders"
KEYS = [f"order-{number}" for number in range(12)]
TWO = TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry("broker-a", 2, 2, 1), LayoutEntry("broker-b", 2, 2, 1)))


async def layout_of(admin: AdminClient) -> TopicLayout:
    return (await admin.route(TOPIC)).layout


async def set_counts(admin: AdminClient, **counts: int) -> None:
    before = await layout_of(admin)
    named = {name.replace("_", "-"): (count, count) for name, count in counts.items()}
    await put_in_order(admin, before, alter_layout(before, named, writer=7))


class Load:
    """Producers and consumers of the topic, checked for the order of each key."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self.checker = OrderChecker(cluster)
        self.running = True

    async def worker(self) -> None:
        consumer = PushConsumer("billing", nameserver=self.cluster.nameserver, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(TOPIC)

        async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            await asyncio.sleep(0.01)

        consumer.orderly(self.checker.watch(handle))
        async with consumer:
            await consumer.wait_closed()

    async def feed(self, producer: Producer, key: str) -> None:
        number = 0
        while self.running:
            await producer.send(Message(TOPIC, f"{key} {number}".encode(), sharding_key=key), timeout_ms=60_000)
            number += 1
            await asyncio.sleep(0.02)

    async def run(self, change: "asyncio.Task[None]") -> None:
        await self.cluster.start("worker-1", self.worker)
        await self.cluster.start("worker-2", self.worker)
        async with self.checker.producer(Producer("shop", nameserver=self.cluster.nameserver)) as producer:
            feeds = [asyncio.create_task(self.feed(producer, key)) for key in KEYS]
            try:
                await change
            finally:
                self.running = False
            await asyncio.gather(*feeds)
        await self.cluster.settled("billing")


@pytest.mark.lockstep(brokers=3, seeds=seed_count(1, 6))
async def test_order_of_each_key_is_kept_while_queues_are_added_moved_and_drained(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    load, admin = Load(cluster), AdminClient(Host.current(), cluster.nameserver)

    async def change() -> None:
        await asyncio.sleep(3)
        await set_counts(admin, broker_a=3, broker_b=3, broker_c=3)
        await asyncio.sleep(1)
        await cluster.kill("worker-1")
        await cluster.restart("worker-1")
        await asyncio.sleep(5)
        await close_queues(admin, TOPIC, "broker-a", "broker-c")
        assert (await layout_of(admin)).write_count("broker-a") == 0
        await drop_queues(admin, [TOPIC], "broker-a")
        assert (await layout_of(admin)).brokers == ("broker-b", "broker-c")
        await asyncio.sleep(1)
        await set_counts(admin, broker_b=0, broker_a=1)

    await load.run(asyncio.create_task(change()))
    layout = await layout_of(admin)
    assert layout.brokers == ("broker-a", "broker-c")
    assert layout.began == 1, "it is still the topic that was created"
    load.checker.verify(max_repeats=60)


@pytest.mark.lockstep(brokers=2)
async def test_change_without_a_hold_breaks_the_order_that_the_checker_checks(lockstep_cluster: TestCluster) -> None:
    """The group stands still while the layout changes, so that old messages of a key are consumed beside new ones."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    load, admin = Load(cluster), AdminClient(Host.current(), cluster.nameserver)
    async with load.checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        for number in range(200):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key=KEYS[number % 12]))
        before = await layout_of(admin)
        await publish_layout(admin, alter_layout(before, {"broker-a": (4, 4), "broker-b": (4, 4)}, writer=7))
        for number in range(200, 400):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key=KEYS[number % 12]))
    await cluster.start("worker-1", load.worker)
    await cluster.settled("billing")
    with pytest.raises(OrderViolationError):
        load.checker.verify()


async def test_lagging_group_keeps_the_layout_and_ends_the_hold(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.start("worker-1", ordered_worker(cluster, "billing", TOPIC, [], call_s=60))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"1", sharding_key="k"))
        before = await layout_of(admin)
        with pytest.raises(OperationError, match=r"nothing was changed: some groups have not consumed all of orders \(lag of billing: 1\)"):
            await set_counts(admin, broker_a=2, broker_b=2)
        assert await layout_of(admin) == before
        await producer.send(Message(TOPIC, b"3", sharding_key="k"), timeout_ms=1_000)


async def test_sends_wait_for_the_end_of_a_hold_and_brokers_take_no_layout_without_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"1", sharding_key="k"))
        async with WriteHold(admin, TOPIC) as hold:
            sending = asyncio.create_task(producer.send(Message(TOPIC, b"2", sharding_key="k")))
            await asyncio.sleep(2)
            assert not sending.done()
            await hold.confirm()
            other = WriteHold(admin, TOPIC)
            with pytest.raises(OperationError, match="are being moved by another command"):
                await other.__aenter__()
            await cluster.kill("broker-a")
            await cluster.restart("broker-a")
            with pytest.raises(OperationError, match="the writes to orders are not held at broker broker-a"):
                await hold.confirm()
            layout = await layout_of(admin)
            proposed = alter_layout(layout, {"broker-a": (2, 2)}, writer=7)
            broker = next(each for each in await admin.brokers() if each.name == "broker-b")
            with pytest.raises(NoPermissionError, match="are not held any more, so its layout was not changed"):
                await admin.put_layout(broker, proposed, "another")
        assert (await sending).queue_offset == 1


async def test_hold_of_a_command_that_died_ends_by_itself(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    await WriteHold(admin, TOPIC).__aenter__()
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        begun = cluster.now
        await producer.send(Message(TOPIC, b"1", sharding_key="k"))
        assert 9 < cluster.now - begun < 12


def test_needs_name_the_queues_that_must_be_consumed_first() -> None:
    more = alter_layout(TWO, {"broker-a": (3, 3)}, writer=9)
    assert (needs_of(TWO, more).ordered, needs_of(TWO, more).every) == (frozenset(TWO.read_queues), frozenset())
    closed = alter_layout(TWO, {"broker-a": (0, 2)}, writer=9)
    gone = alter_layout(closed, {"broker-a": (0, 0)}, writer=9)
    assert needs_of(closed, gone).every == frozenset(TWO.queues_of("broker-a"))
    assert not needs_of(closed, gone).ordered, "the queues to write to are the same"
    assert not needs_of(TWO, alter_layout(TWO, {"broker-a": (2, 3)}, writer=9))


def test_layout_without_queues_of_a_broker_keeps_the_age_of_the_topic_and_may_get_them_again() -> None:
    late = TopicLayout(TOPIC, LayoutVersion(5, 7), (LayoutEntry("broker-a", 2, 2, 1), LayoutEntry("broker-b", 2, 2, 4)))
    gone = alter_layout(late, {"broker-a": (0, 0)}, writer=9)
    check_layout(gone)
    assert (gone.began, gone.brokers, gone.last_removal_counter("broker-a")) == (1, ("broker-b",), 6)
    assert alter_layout(gone, {"broker-a": (0, 0)}, writer=9) is gone
    back = alter_layout(gone, {"broker-a": (1, 1)}, writer=9)
    check_layout(back)
    assert (back.queues_of("broker-a")[0].queue_id, back.began, back.added_in(back.queues_of("broker-a")[0])) == (0, 1, 7)
    again = alter_layout(replace(back, version=LayoutVersion(7, 9)), {"broker-a": (0, 0)}, writer=9)
    assert len([entry for entry in again.entries if entry.broker_name == "broker-a"]) == 2, "markers do not add up"


@pytest.mark.lockstep(brokers=2)
async def test_fewer_queues_after_a_drain_and_new_queues_there_leave_the_messages_of_the_topic(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 2, ["broker-a"])
    await set_counts(admin, broker_b=2)
    await close_queues(admin, TOPIC, "broker-a", None)
    await drop_queues(admin, [TOPIC], "broker-a")
    await set_counts(admin, broker_a=3, broker_b=3)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"kept"), queue=MessageQueue(TOPIC, "broker-b", 0))
        await set_counts(admin, broker_a=2, broker_b=2)
    assert (await layout_of(admin)).began == 1
    kept = [await admin.offsets(broker, TOPIC) for broker in await admin.brokers() if broker.name == "broker-b"]
    assert [(each.min_offset, each.max_offset) for each in kept[0]] == [(0, 1), (0, 0)]


async def test_group_that_began_while_a_broker_had_no_queue_never_reads_its_messages_from_before(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    bodies: list[bytes] = []
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(5):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key="k"))
        await close_queues(admin, TOPIC, "broker-a", "broker-b")
        await drop_queues(admin, [TOPIC], "broker-a")
        await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, bodies))
        for number in range(5, 10):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key="k"))
        await cluster.settled("billing")
        await cluster.stop("worker")
        await set_counts(admin, broker_a=1)
        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
        await cluster.restart("worker")
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(10, 15):
            await producer.send(Message(TOPIC, b"%d" % number), queue=MessageQueue(TOPIC, "broker-a", 0), timeout_ms=60_000)
        await cluster.settled("billing")
    assert bodies == [b"%d" % number for number in range(5, 15)]
