"""A backup is restored after the original was lost, and the original comes back later."""

import json
import shutil
from collections.abc import Sequence

import pytest

from lockstep.client import (
    ConsumeFromWhere,
    ConsumerEvent,
    Message,
    MessageExt,
    MessageQueue,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueAssigned,
    QueueGap,
)
from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e

QUEUE = MessageQueue("orders", "broker-a", 0)


async def send(producer: Producer, first: int, end: int) -> None:
    for number in range(first, end):
        await producer.send(Message("orders", b"%d" % number), queue=QUEUE)


async def test_members_ahead_of_a_restored_backup_continue_and_are_told_and_the_original_is_refused(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    store, backup = cluster.folder / "store-broker-a", cluster.folder / "backup"
    handled: list[int] = []
    events: list[ConsumerEvent] = []
    consumer = PushConsumer("billing", nameserver=cluster.nameservers, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.on_event(events.append)

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        handled.extend(int(message.body) for message in messages)

    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        await send(producer, 0, 10)
        async with consumer:
            await cluster.until("the first ten", lambda: set(handled) == set(range(10)))
        await cluster.stop("broker-a")
        shutil.copytree(store, backup)
        await cluster.restart("broker-a")
        async with consumer:
            await send(producer, 10, 20)
            await cluster.until("all twenty", lambda: set(handled) == set(range(20)))
            await cluster.until_lag(0)
            await cluster.kill("broker-a")
            lost = cluster.folder / "lost"
            store.rename(lost)
            said = await cluster.command("store", "restore", str(store), "--from", str(backup))
            assert "is a restored backup of broker broker-a" in said
            assert (await cluster.command("store", "check", str(store), "--json")).startswith('{"whole": true')
            events.clear()
            await cluster.restart("broker-a")
            await cluster.until("the member is told", lambda: any(isinstance(event, QueueGap) for event in events))
            (gap,) = (event for event in events if isinstance(event, QueueGap))
            assert (gap.first, gap.end) == (10, 20)
            again = [event for event in events if isinstance(event, QueueAssigned)][-1]
            assert again.offset == 10
            await send(producer, 100, 103)
            await cluster.until("new messages at old offsets", lambda: handled[-3:] == [100, 101, 102])
        await cluster.stop("broker-a")
    shutil.move(store, cluster.folder / "restored")
    shutil.move(lost, store)
    refused = await cluster.start("broker-a", cluster.command_of("broker-a"))
    assert await refused.wait() == 4, "the identity of the store is another broker's now"
    assert "term" in refused.stderr_tail()


async def test_pull_consumer_ahead_of_a_restored_backup_is_told(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    store, backup = cluster.folder / "store-broker-a", cluster.folder / "backup"
    await cluster.stop("broker-a")
    shutil.copytree(store, backup)
    await cluster.restart("broker-a")
    events: list[ConsumerEvent] = []
    consumer = PullConsumer("reports", nameserver=cluster.nameservers, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.on_event(events.append)
    async with Producer("shop", nameserver=cluster.nameservers) as producer, consumer:
        await send(producer, 0, 5)
        polled: list[int] = []
        while len(polled) < 5:
            polled += [int(message.body) for message in await consumer.poll()]
        await consumer.commit()
        await cluster.kill("broker-a")
        shutil.rmtree(store)
        await cluster.command("store", "restore", str(backup))
        shutil.move(backup, store)
        await cluster.restart("broker-a")
        while not any(isinstance(event, QueueGap) for event in events):
            await consumer.poll(200)
        await send(producer, 50, 52)
        after: list[int] = []
        while len(after) < 2:
            after += [int(message.body) for message in await consumer.poll()]
        assert after == [50, 51]


async def test_backup_that_can_not_be_restored_is_named(cluster: Cluster) -> None:
    (cluster.folder / "empty").mkdir()
    said = await cluster.command("store", "restore", str(cluster.folder / "new"), "--from", str(cluster.folder / "empty"), code=1)
    assert "is not the store of a broker" in said
    assert not (cluster.folder / "new").exists()
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK)
    store = cluster.folder / "store-broker-a"
    assert "is open in another broker" in await cluster.command("store", "restore", str(store), code=6)
    await cluster.stop("broker-a")
    full = cluster.folder / "full"
    full.mkdir()
    (full / "file").write_text("x")
    assert "is not empty" in await cluster.command("store", "restore", str(full), "--from", str(store), code=1)
    json.loads(await cluster.command("store", "check", str(store), "--json"))
