"""Groups with LAST_OFFSET that subscribed before their topic existed begin at its first message (ordering.md 7.8)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockstep.client import ConsumeFromWhere, Message, MessageModel, Producer, PullConsumer, PushConsumer, QueueGap
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_delete import delete_topic, plan_deletion
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate

Kind = Callable[[TestCluster, list[bytes]], Coroutine[Any, Any, None]]

LAST = ConsumeFromWhere.LAST_OFFSET
COUNT = 40


def put_gaps_into(done: list[bytes]) -> Callable[[object], None]:
    """Return a listener for events that puts each gap among the messages, where `all_come` refuses it."""

    def listen(event: object) -> None:
        if isinstance(event, QueueGap):
            done.append(repr(event).encode())

    return listen


def pushing(done: list[bytes], cluster: TestCluster, *, ordered: bool, **settings: Any) -> PushConsumer:
    consumer = PushConsumer("billing", nameserver=cluster.nameserver, consume_from_where=LAST, **settings)
    consumer.subscribe("orders")
    consumer.on_event(put_gaps_into(done))

    async def listen(messages: Any, context: Any) -> None:
        done.extend(message.body for message in messages)

    (consumer.orderly if ordered else consumer.concurrently)(listen)
    return consumer


async def run_push(consumer: PushConsumer) -> None:
    async with consumer:
        await consumer.wait_closed()


async def ordered(cluster: TestCluster, done: list[bytes]) -> None:
    await run_push(pushing(done, cluster, ordered=True))


async def concurrent(cluster: TestCluster, done: list[bytes]) -> None:
    await run_push(pushing(done, cluster, ordered=False))


async def broadcasting(cluster: TestCluster, done: list[bytes]) -> None:
    await run_push(pushing(done, cluster, ordered=True, message_model=MessageModel.BROADCASTING, offset_dir="/var/offsets"))


async def pulling(cluster: TestCluster, done: list[bytes]) -> None:
    consumer = PullConsumer("billing", nameserver=cluster.nameserver, consume_from_where=LAST)
    consumer.subscribe("orders")
    consumer.on_event(put_gaps_into(done))
    async with consumer:
        while True:
            done.extend(message.body for message in await consumer.poll())
            await consumer.commit()


KINDS = pytest.mark.parametrize("kind", [ordered, concurrent, broadcasting, pulling])


async def send_all(cluster: TestCluster, first: int = 0, topic: str = "orders") -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + COUNT)]
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    return bodies


async def delete(cluster: TestCluster) -> None:
    admin = AdminClient(Host.current(), cluster.nameserver)
    await delete_topic(admin, await plan_deletion(admin, "orders", force=True))


async def all_come(cluster: TestCluster, done: list[bytes], sent: list[bytes]) -> None:
    await cluster.until(lambda: len(done) >= len(sent), f"every message, {len(done)} of {len(sent)}", timeout=40)
    assert sorted(done) == sorted(sent)


@KINDS
@pytest.mark.parametrize("nameservers", [1, 2])
def test_member_that_runs_before_its_topic_exists_gets_the_first_message(kind: Kind, nameservers: int) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, nameservers=nameservers, auto_create_topics=True) as cluster:
            done: list[bytes] = []
            await cluster.start("worker", lambda: kind(cluster, done))
            await cluster.advance(seconds=3)
            await all_come(cluster, done, await send_all(cluster))

    simulate(main, seed=1)


@KINDS
@pytest.mark.parametrize("runs", [False, True])
def test_member_gets_the_first_message_of_a_topic_that_was_deleted_before(kind: Kind, runs: bool) -> None:
    """And no gap: the messages of the deleted topic are not missing. `runs`: the member has consumed the deleted topic."""

    async def main() -> None:
        async with TestCluster(brokers=2, auto_create_topics=True) as cluster:
            done: list[bytes] = []
            if runs:
                await cluster.start("worker", lambda: kind(cluster, done))
                await cluster.advance(seconds=3)
            old = await send_all(cluster)
            if runs:
                await all_come(cluster, done, old)
                done.clear()
            await delete(cluster)
            if not runs:
                await cluster.start("worker", lambda: kind(cluster, done))
            await cluster.advance(seconds=3)
            await all_come(cluster, done, await send_all(cluster, COUNT))

    simulate(main, seed=2)


@KINDS
def test_brokers_that_restart_still_know_who_subscribed(kind: Kind) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, auto_create_topics=True) as cluster:
            done: list[bytes] = []
            await cluster.start("worker", lambda: kind(cluster, done))
            await cluster.advance(seconds=3)
            for broker in cluster.brokers:
                await cluster.kill(broker)
            for broker in cluster.brokers:
                await cluster.restart(broker)
            await all_come(cluster, done, await send_all(cluster))

    simulate(main, seed=3)


@pytest.mark.parametrize("kind", [ordered, concurrent, pulling])
def test_member_that_joins_when_the_topic_exists_does_not_decide_for_those_that_waited(kind: Kind) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, auto_create_topics=True) as cluster:
            done: list[bytes] = []
            await cluster.start("waiting", lambda: kind(cluster, done))
            await cluster.advance(seconds=3)
            cluster.partition("waiting")
            sent = await send_all(cluster)
            await cluster.start("late", lambda: kind(cluster, done))
            await all_come(cluster, done, sent)

    simulate(main, seed=4)


@KINDS
def test_group_without_a_member_begins_at_the_end_of_a_topic_that_was_created_meanwhile(kind: Kind) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, auto_create_topics=True) as cluster:
            done: list[bytes] = []
            await cluster.start("worker", lambda: kind(cluster, done))
            await cluster.advance(seconds=3)
            await cluster.stop("worker")
            await send_all(cluster)
            await cluster.restart("worker")
            await cluster.advance(seconds=3)
            await all_come(cluster, done, await send_all(cluster, COUNT))

    simulate(main, seed=5)
