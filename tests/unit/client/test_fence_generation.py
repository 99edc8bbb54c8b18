"""`context.fence`: the generation of the group's progress beside the epoch, in a simulated cluster."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import Fence, Message, MessageExt, OrderedRetry, OrderlyContext, Producer, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

GROUP, TOPIC = "billing", "orders"
PARK = OrderedRetry(max_attempts=2, on_exhausted="park")
pytestmark = pytest.mark.lockstep(brokers=1)


class Member:
    """A member, and the fences of its calls by the bodies of their messages."""

    def __init__(self, cluster: TestCluster, **settings: Any) -> None:
        self.cluster = cluster
        self.settings = settings
        self.fences: list[Fence] = []

    async def run(self) -> None:
        consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **self.settings).subscribe(TOPIC)

        @consumer.orderly
        async def note(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            self.fences.append(context.fence)

        async with consumer:
            await consumer.wait_closed()


async def send_one(cluster: TestCluster, *members: Member) -> Fence:
    """Send a message, and return the fence of its call."""
    known = sum(len(member.fences) for member in members)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"paid", sharding_key="1001"))
    await cluster.until(lambda: sum(len(member.fences) for member in members) > known, "the call")
    await cluster.settled(GROUP)
    return max((member.fences[-1] for member in members if member.fences), key=lambda fence: fence.epoch)


@pytest.mark.parametrize("settings", [{}, {"order_by": "sharding_key"}])
async def test_reset_raises_epoch_and_generation_and_a_change_of_the_owner_the_epoch_only(
    lockstep_cluster: TestCluster, settings: dict[str, Any]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    members = [Member(cluster, **settings) for _ in range(3)]
    await cluster.start("first", members[0].run)
    fences = [await send_one(cluster, *members)]
    for name, member in (("second", members[1]), ("third", members[2])):
        before = {"second": "first", "third": "second"}[name]
        await (cluster.stop(before) if name == "second" else cluster.kill(before))
        await cluster.start(name, member.run)
        fences.append(await send_one(cluster, *members))
    assert len({fence.generation for fence in fences}) == 1, "a release and a kill change the owner, not the generation"
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    assert await send_one(cluster, *members) == fences[-1], "the owner keeps its epoch over a restart"
    admin = AdminClient(Host.current(), cluster.nameserver)
    for broker in await admin.brokers():
        await admin.reset(broker, ResetBody(GROUP, TOPIC, (QueueOffset(0, 0),)))
    await cluster.until(lambda: members[2].fences[-1].generation > fences[-1].generation, "a higher generation")
    fences.append(await send_one(cluster, *members))
    assert all(earlier.epoch < later.epoch for earlier, later in itertools.pairwise(fences))
    assert fences[-1].generation > fences[0].generation > 0


async def test_power_cut_of_a_broker_with_async_flush_raises_the_generation(lockstep_cluster: TestCluster) -> None:
    """Its log may have lost messages, whose offsets are given to others."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    member = Member(cluster)
    await cluster.start("member", member.run)
    before = await send_one(cluster, member)
    await cluster.cut_power("broker-a")
    await cluster.restart("broker-a")
    after = await send_one(cluster, member)
    assert after.generation > before.generation
    assert after.epoch > before.epoch


@pytest.mark.parametrize(
    ("settings", "order_by", "unkeyed"),
    [
        ({}, "queue", "together"),
        ({"retry": PARK}, "sharding_key", "together"),
        ({"order_by": "sharding_key"}, "sharding_key", "together"),
        ({"order_by": "sharding_key", "unkeyed": "alone"}, "sharding_key", "alone"),
    ],
)
async def test_fence_says_in_what_the_offsets_rise(
    lockstep_cluster: TestCluster, settings: dict[str, Any], order_by: str, unkeyed: str
) -> None:
    """A replayed key gets offsets below those of its queue."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    member = Member(cluster, **settings)
    await cluster.start("member", member.run)
    fence = await send_one(cluster, member)
    assert (fence.order_by, fence.unkeyed) == (order_by, unkeyed)
