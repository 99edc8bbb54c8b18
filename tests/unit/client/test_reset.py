"""A reset applies to running ordered and concurrent members, in a simulated cluster."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockstep.client import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Message, MessageExt, Producer, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate

GROUP, TOPIC, COUNT = "billing", "orders", 20


def consuming(cluster: TestCluster, kind: str, note: Callable[[MessageExt], Any]) -> PushConsumer:
    made = PushConsumer(GROUP, nameserver=cluster.nameserver)
    made.subscribe(TOPIC)
    if kind == "ordered":

        @made.orderly
        async def one_by_one(messages: Sequence[MessageExt], _: object) -> ConsumeOrderlyStatus:
            for message in messages:
                await note(message)
            return ConsumeOrderlyStatus.SUCCESS

    else:

        @made.concurrently
        async def side_by_side(messages: Sequence[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
            for message in messages:
                await note(message)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return made


async def reset(cluster: TestCluster, offset: int) -> list[int]:
    """Reset the group to `offset`. Return its previous offset per broker."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    before = []
    for broker in await admin.brokers():
        before += [each.offset for each in (await admin.reset(broker, ResetBody(GROUP, TOPIC, (QueueOffset(0, offset),)))).queues]
    return before


@pytest.mark.parametrize("kind", ["ordered", "concurrent"])
@pytest.mark.parametrize(("offset", "again"), [(0, range(COUNT)), (15, range(15, COUNT)), (COUNT, range(0))])
def test_reset_moves_idle_members_to_the_new_offset(kind: str, offset: int, again: range) -> None:
    async def main() -> None:
        seen: list[int] = []

        async def note(message: MessageExt) -> None:
            seen.append(message.queue_offset)

        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for number in range(COUNT):
                    await producer.send(Message(TOPIC, b"%d" % number))
                async with consuming(cluster, kind, note):
                    await cluster.advance(seconds=2)
                    assert sorted(seen) == list(range(COUNT))
                    seen.clear()
                    assert await reset(cluster, offset) == [COUNT]
                    await cluster.advance(seconds=2)
                    assert sorted(seen) == list(again)
                    await producer.send(Message(TOPIC, b"next"))
                    await cluster.advance(seconds=2)
                    assert seen[-1] == COUNT

    simulate(main)


@pytest.mark.parametrize("kind", ["ordered", "concurrent"])
def test_commit_of_a_call_that_ends_after_a_reset_is_ignored(kind: str) -> None:
    """Its commit has the old generation, so its message is redelivered in order."""

    async def main() -> None:
        seen: list[int] = []
        at_work, go_on = asyncio.Event(), asyncio.Event()

        async def note(message: MessageExt) -> None:
            seen.append(message.queue_offset)
            if message.queue_offset == COUNT - 1 and not go_on.is_set():
                at_work.set()
                await go_on.wait()

        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic(TOPIC, queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for number in range(COUNT):
                    await producer.send(Message(TOPIC, b"%d" % number))
            async with consuming(cluster, kind, note):
                await at_work.wait()
                await cluster.advance(seconds=1)
                assert await reset(cluster, 0) == [COUNT - 1]
                await cluster.advance(seconds=1)
                go_on.set()
                await cluster.advance(seconds=5)
            assert sorted(seen[-COUNT:]) == list(range(COUNT)), "all of them once more"
            assert await reset(cluster, 0) == [COUNT], "and committed under the new generation"

    simulate(main)
