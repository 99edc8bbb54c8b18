"""Brokers are drained and removed: no topic loses its last queue, no message is left behind, and no failed request counts as an answer."""

import asyncio
import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.client import (
    ConcurrentlyContext,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes import broker_drain
from lockstep.operations.changes.broker_drain import BrokerDrain, BrokerRemove
from lockstep.operations.changes.layouts.drain import close_queues, drop_queues
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.layouts.queue_move import NotConsumedError, put_in_order
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_groups
from lockstep.protocol.bodies import BrokerAddress, BrokerStatus, TopicRoute
from lockstep.protocol.errors import TransportError
from lockstep.protocol.names import dlq_topic, retry_topic
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import broker_named, layout_of, ordered_worker, until_unregistered

TOPIC = "orders"
HOUR_MS = 3_600_000


async def test_two_drains_at_once_leave_each_topic_a_queue_to_write_to(lockstep_cluster: TestCluster) -> None:
    """The drain of broker-a waits for a slow group, while that of broker-b closes the queues on which broker-a's layout relied."""
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, "aaa", 1, ["broker-a"])
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("worker", ordered_worker(cluster, "billing", "aaa", [], call_s=0.1))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(100):
            await producer.send(Message("aaa", b"%d" % number, sharding_key="k"))
        first = asyncio.create_task(carry_out(BrokerDrain(name="broker-a"), cluster.nameserver))
        await asyncio.sleep(1)
        await asyncio.gather(first, carry_out(BrokerDrain(name="broker-b"), cluster.nameserver))
        for topic in ("aaa", TOPIC):
            assert (await layout_of(admin, topic)).write_total
            await producer.send(Message(topic, b"later", sharding_key="k"))


async def test_drain_waits_for_a_stopped_group_that_will_begin_in_the_broker_s_new_queue(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    bodies: list[bytes] = []
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, bodies))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"0"))
        await cluster.settled("billing")
    await cluster.stop("worker")
    before = await layout_of(admin, TOPIC)
    await put_in_order(admin, before, alter_layout(before, {"broker-b": (1, 1)}, writer=7))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"1"), queue=MessageQueue(TOPIC, "broker-b", 0))
    draining = asyncio.create_task(carry_out(BrokerDrain(name="broker-b"), cluster.nameserver))
    await asyncio.sleep(5)
    assert not draining.done()
    await cluster.restart("worker")
    await draining
    assert bodies == [b"0", b"1"]


async def test_drain_misses_no_message_that_fails_while_it_looks(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry of a message fails again between two requests of the drain: it waits for its delay, and its first copy is consumed."""
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    calls, may_fail_again = 0, asyncio.Event()

    async def worker() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(TOPIC)

        async def handle(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await may_fail_again.wait()
            if calls <= 2:
                raise ValueError("not yet")

        consumer.concurrently(handle)
        async with consumer:
            await consumer.wait_closed()

    real = AdminClient.broker_status

    async def broker_status(self: AdminClient, broker: BrokerAddress) -> BrokerStatus:
        status = await real(self, broker)
        if calls == 2 and not may_fail_again.is_set() and "broker-a" not in (await layout_of(self, TOPIC)).brokers:
            may_fail_again.set()
            await asyncio.sleep(1)
        return status

    monkeypatch.setattr(AdminClient, "broker_status", broker_status)
    await cluster.start("worker", worker)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"1"))
    await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)
    assert may_fail_again.is_set()
    assert (await real(admin, await broker_named(admin, "broker-a"))).delayed_messages == 0
    assert calls == 3


async def test_drain_waits_for_a_message_that_waits_for_its_delay(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    bodies: list[bytes] = []
    await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, bodies))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"late"), queue=MessageQueue(TOPIC, "broker-a", 0), delay=timedelta(seconds=30))
        await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)
    assert b"late" in bodies
    assert (await layout_of(admin, TOPIC)).brokers == ("broker-b",)


async def test_drain_leaves_what_waits_and_says_until_when(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    bodies: list[bytes] = []
    await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, bodies))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"late"), queue=MessageQueue(TOPIC, "broker-a", 0), delay=timedelta(hours=1))
        sent_ms = admin.host.clock.wall_ms()
        for _ in range(2):
            capsys.readouterr()
            await carry_out(BrokerDrain(name="broker-a", leave_waiting=True), cluster.nameserver, as_json=True)
            shown = json.loads(capsys.readouterr().out)
            assert (shown["drained"], shown["waiting"]) == (False, 1)
            last_ms = datetime.fromisoformat(shown["last_due_at"]).timestamp() * 1_000 - sent_ms
            assert HOUR_MS - 1_000 <= last_ms <= HOUR_MS + 66_000
            assert (await layout_of(admin, TOPIC)).write_count("broker-a") == 0
        await producer.send(Message(TOPIC, b"now"))
        await cluster.advance(seconds=3_600)
        await cluster.advance(seconds=10)
        assert sorted(bodies) == [b"late", b"now"]
        await carry_out(BrokerDrain(name="broker-a", leave_waiting=True), cluster.nameserver, as_json=True)
    assert json.loads(capsys.readouterr().out)["drained"]
    assert (await layout_of(admin, TOPIC)).brokers == ("broker-b",)


async def test_queue_is_not_removed_while_a_message_waits_at_its_broker(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    before = await layout_of(admin, TOPIC)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"late"), queue=MessageQueue(TOPIC, "broker-a", 0), delay=timedelta(seconds=30))
        with pytest.raises(
            NotConsumedError, match=r"nothing was changed: messages wait for their delay, a retry or a transaction \(1 at broker-a\)"
        ):
            await put_in_order(admin, before, alter_layout(before, {"broker-a": (0, 0)}, writer=7))
        await put_in_order(admin, before, alter_layout(before, {"broker-b": (0, 0)}, writer=7))
    assert (await layout_of(admin, TOPIC)).brokers == ("broker-a",)


async def test_drain_ends_if_another_command_gives_the_broker_queues_again(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drains that give each other their queues would otherwise never end."""
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)

    async def drop_and_add(admin: AdminClient, topics: Collection[str], source: str) -> None:
        await drop_queues(admin, topics, source)
        if TOPIC in topics:
            before = await layout_of(admin, TOPIC)
            await put_in_order(admin, before, alter_layout(before, {source: (1, 1)}, writer=7))

    monkeypatch.setattr(broker_drain, "drop_queues", drop_and_add)
    with pytest.raises(OperationError, match="topic orders has queues on broker-a again: another command has added them since"):
        await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)
    assert (await layout_of(admin, TOPIC)).write_total == 2


async def test_drain_gives_another_broker_the_topics_of_groups_that_are_on_the_broker_alone(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    topics = retry_topic("billing"), dlq_topic("billing")
    for topic in topics:
        await create_and_wait(cluster.nameserver, topic, 1, ["broker-a"])
    await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)
    assert [(await layout_of(admin, topic)).brokers for topic in topics] == [("broker-b",)] * 2


async def test_drain_leaves_queues_of_broadcasting_groups_and_names_the_next_step(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)

    async def worker() -> None:
        consumer = PushConsumer("screens", nameserver=cluster.nameserver, message_model=MessageModel.BROADCASTING)
        consumer.subscribe(TOPIC)

        async def handle(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
            pass

        consumer.concurrently(handle)
        async with consumer:
            await consumer.wait_closed()

    await cluster.start("worker", worker)
    await asyncio.sleep(5)
    await close_queues(admin, TOPIC, "broker-a")
    with pytest.raises(
        OperationError, match=r"orders \(groups screens\).*`lockstep topic alter orders --broker broker-a --queues 0 --force`"
    ):
        await drop_queues(admin, [TOPIC], "broker-a")
    await cluster.stop("worker")
    await drop_queues(admin, [TOPIC], "broker-a")
    assert (await layout_of(admin, TOPIC)).brokers == ("broker-b",)


async def test_broker_counts_as_drained_only_if_every_layout_was_read(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def route(self: AdminClient, topic: str) -> TopicRoute:
        raise TransportError("no response within 5000 ms")

    monkeypatch.setattr(AdminClient, "route", route)
    with pytest.raises(TransportError, match="the layouts of 1 of 1 topics can't be read; that of orders: no response within 5000 ms"):
        await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)


async def test_lost_broker_is_removed_from_many_topics_with_several_groups(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        await cluster.create_topic(topic, queues=1)
    for number in range(4):
        await cluster.start(f"worker-{number}", ordered_worker(cluster, f"g{number}", "t1", []))
    await asyncio.sleep(3)
    await cluster.kill("broker-a")
    await until_unregistered(admin, "broker-a")
    await carry_out(BrokerRemove(name="broker-a", force=True), cluster.nameserver)
    assert {(await layout_of(admin, topic)).brokers for topic in topics} == {("broker-b",)}


@pytest.mark.lockstep(brokers=3)
async def test_queues_of_a_lost_broker_are_spread_over_the_others(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    topics = [f"t{number}" for number in range(4)]
    for topic in topics:
        await create_and_wait(cluster.nameserver, topic, 1, ["broker-a"])
    await cluster.kill("broker-a")
    await until_unregistered(admin, "broker-a")
    await carry_out(BrokerRemove(name="broker-a", force=True), cluster.nameserver)
    assert sorted([(await layout_of(admin, topic)).brokers for topic in topics]) == [("broker-b",)] * 2 + [("broker-c",)] * 2


async def test_connections_are_kept_until_the_last_of_concurrent_reads_has_ended(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    many = [f"g{number}" for number in range(200)]
    results = await asyncio.gather(read_groups(admin, many[:1]), read_groups(admin, many))
    assert [found.failed for result in results for _, found in result.values() if found.failed] == []
