"""New queues of a topic, and a subscribed topic that is created later, are consumed before the next route refresh."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageModel,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
)
from lockstep.client.client import Client
from lockstep.client.instance import Instance
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.protocol.bodies import TopicRoute
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate

TOPIC = "orders"
SOON_S = 3
"""Far below the 30 s between two refreshes."""
Program = Callable[[str, list[bytes]], Coroutine[Any, Any, None]]


async def push_ordered(nameserver: str, seen: list[bytes]) -> None:
    consumer = PushConsumer("billing", nameserver=nameserver).subscribe(TOPIC)

    @consumer.orderly
    async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
        seen.extend(message.body for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async with consumer:
        await asyncio.Event().wait()


async def push_concurrent(nameserver: str, seen: list[bytes], model: MessageModel = MessageModel.CLUSTERING) -> None:
    consumer = PushConsumer("mailing", nameserver=nameserver, message_model=model).subscribe(TOPIC)

    @consumer.concurrently
    async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        seen.extend(message.body for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async with consumer:
        await asyncio.Event().wait()


async def push_broadcasting(nameserver: str, seen: list[bytes]) -> None:
    await push_concurrent(nameserver, seen, MessageModel.BROADCASTING)


async def pull(nameserver: str, seen: list[bytes]) -> None:
    async with PullConsumer("copying", nameserver=nameserver).subscribe(TOPIC) as consumer:
        while True:
            seen.extend(message.body for message in await consumer.poll())


PROGRAMS = [push_ordered, push_concurrent, push_broadcasting, pull]


async def set_queue_count(cluster: TestCluster, queue_count: int) -> None:
    """Change the topic to `queue_count` queues on every broker."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    layout = (await admin.route(TOPIC)).layout
    await publish_layout(admin, alter_layout(layout, dict.fromkeys(set(cluster.brokers), (queue_count, queue_count)), writer=7))


async def assert_each_queue_is_consumed(cluster: TestCluster, seen: list[bytes], queue_count: int) -> None:
    """Send a message to each queue and check that all are consumed within `SOON_S`."""
    await cluster.advance(seconds=SOON_S)
    sent = [b"%d" % number for number in range(queue_count)]
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number, body in enumerate(sent):
            await producer.send(Message(TOPIC, body), selector=lambda queues, _, number=number: queues[number])
        await cluster.advance(seconds=SOON_S)
    assert sorted(seen) == sent


@pytest.mark.parametrize("program", PROGRAMS)
def test_messages_in_new_queues_are_consumed_within_seconds(program: Program) -> None:
    async def main() -> None:
        seen: list[bytes] = []
        async with TestCluster(brokers=2) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await cluster.advance(seconds=5)
            await set_queue_count(cluster, 3)
            await assert_each_queue_is_consumed(cluster, seen, 6)

    simulate(main)


def test_route_of_a_changed_topic_is_polled_every_second_until_the_nameserver_has_it() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            for topic in (TOPIC, "other"):
                await cluster.create_topic(topic, queues=1)
            instance = Client(cluster.nameserver).instance()
            await instance.start()
            for topic in (TOPIC, "other"):
                await instance.watch.route(topic)
            layout = instance.routes.layout(TOPIC)
            assert layout is not None
            newer = alter_layout(layout, dict.fromkeys({"broker-a"}, (3, 3)), writer=7)
            requested: list[str] = []
            route = instance.cluster.route

            async def counted(topic: str, *, deleted: bool = False) -> TopicRoute:
                requested.append(topic)
                return await route(topic, deleted=deleted)

            instance.cluster.route = counted  # type: ignore[method-assign]
            instance._layouts_changed([newer, TopicLayout("unheard", newer.version, newer.entries)])
            await cluster.advance(seconds=4.5)
            assert (set(requested), len(requested)) == ({TOPIC}, 5)
            await publish_layout(AdminClient(Host.current(), cluster.nameserver), newer)
            await cluster.advance(seconds=1.5)
            assert instance.routes.layout(TOPIC) == newer
            requested.clear()
            await cluster.advance(seconds=10)
            assert requested == []
            await instance.close()

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_layout_change_during_a_join_is_applied_within_seconds(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its route request and its first heartbeat the consumer is unknown to every broker, so none can notify it."""

    async def main() -> None:
        seen: list[bytes] = []
        joining, changed, join = asyncio.Event(), asyncio.Event(), Instance.join

        async def late(self: Instance, group: str) -> None:
            joining.set()
            await changed.wait()
            await join(self, group)

        monkeypatch.setattr(Instance, "join", late)
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await joining.wait()
            await set_queue_count(cluster, 2)
            await cluster.advance(seconds=1)
            changed.set()
            await assert_each_queue_is_consumed(cluster, seen, 2)

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_layout_change_notified_on_a_dead_connection_is_applied_soon_after_the_reconnect(program: Program) -> None:
    async def main() -> None:
        seen: list[bytes] = []
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await cluster.advance(seconds=5)
            cluster.partition("consumer", "broker-a")
            await set_queue_count(cluster, 2)
            await cluster.advance(seconds=0.1)
            cluster.reset_connections("consumer", "broker-a")
            cluster.heal()
            await assert_each_queue_is_consumed(cluster, seen, 2)

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_newly_created_topic_is_consumed_within_seconds(program: Program) -> None:
    """A client that subscribes to a missing topic requests its route every second."""

    async def main() -> None:
        seen: list[bytes] = []
        async with TestCluster(brokers=2) as cluster:
            await cluster.create_topic("other", queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await cluster.advance(seconds=5)
            await cluster.create_topic(TOPIC, queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message(TOPIC, b"first"))
                await cluster.advance(seconds=SOON_S)
            assert seen == [b"first"]

    simulate(main)
