"""A topic's new queues, and a subscribed topic that comes into being, are consumed at once: before the next refresh of the routes."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from lockstep.admin.client import AdminClient
from lockstep.admin.layout_change import alter_layout
from lockstep.admin.layout_publish import publish_layout
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
from lockstep.protocol.bodies import TopicRoute
from lockstep.protocol.queue import TopicLayout
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


async def alter(cluster: TestCluster, queue_count: int) -> None:
    """So many queues of the topic on every broker."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    layout = (await admin.route(TOPIC)).layout
    await publish_layout(admin, alter_layout(layout, set(cluster.brokers), write_count=queue_count, read_count=queue_count, writer=7))


async def has_each_queue(cluster: TestCluster, seen: list[bytes], queue_count: int) -> None:
    """Messages sent to each of the queues are consumed soon."""
    await cluster.advance(seconds=SOON_S)
    sent = [b"%d" % number for number in range(queue_count)]
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number, body in enumerate(sent):
            await producer.send(Message(TOPIC, body), selector=lambda queues, _, number=number: queues[number])
        await cluster.advance(seconds=SOON_S)
    assert sorted(seen) == sent


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_sent_to_new_queues_is_consumed_soon(program: Program) -> None:
    async def main() -> None:
        seen: list[bytes] = []
        async with TestCluster(brokers=2) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await cluster.advance(seconds=5)
            await alter(cluster, 3)
            await has_each_queue(cluster, seen, 6)

    simulate(main)


def test_a_nameserver_that_hears_of_it_late_is_asked_every_second_and_for_this_topic_only() -> None:
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
            newer = alter_layout(layout, {"broker-a"}, write_count=3, read_count=3, writer=7)
            asked: list[str] = []
            route = instance.nameservers.route

            async def counted(topic: str) -> TopicRoute:
                asked.append(topic)
                return await route(topic)

            instance.nameservers.route = counted  # type: ignore[method-assign]
            instance._layouts_changed([newer, TopicLayout("unheard", newer.version, newer.entries)])
            await cluster.advance(seconds=4.5)
            assert (set(asked), len(asked)) == ({TOPIC}, 5)
            await publish_layout(AdminClient(Host.current(), cluster.nameserver), newer)
            await cluster.advance(seconds=1.5)
            assert instance.routes.layout(TOPIC) == newer
            asked.clear()
            await cluster.advance(seconds=10)
            assert asked == []
            await instance.close()

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_layout_that_changes_while_a_member_joins_reaches_it_soon(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
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
            await alter(cluster, 2)
            await cluster.advance(seconds=1)
            changed.set()
            await has_each_queue(cluster, seen, 2)

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_told_into_a_dead_connection_is_heard_soon_after_the_next_one(program: Program) -> None:
    async def main() -> None:
        seen: list[bytes] = []
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            await cluster.start("consumer", lambda: program(cluster.nameserver, seen))
            await cluster.advance(seconds=5)
            cluster.partition("consumer", "broker-a")
            await alter(cluster, 2)
            await cluster.advance(seconds=0.1)
            cluster.reset_connections("consumer", "broker-a")
            cluster.heal()
            await has_each_queue(cluster, seen, 2)

    simulate(main)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_topic_that_comes_into_being_is_consumed_soon(program: Program) -> None:
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
