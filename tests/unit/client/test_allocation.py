"""RocketMQ's allocation strategies in a simulated cluster: every queue has one owner, and ordered groups reject some strategies."""

import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from lockstep.client import (
    ByConfig,
    ByMachineRoom,
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MachineRoomNearby,
    MessageExt,
    MessageQueue,
    OrderlyContext,
    PushConsumer,
    SubscriptionConflictError,
)
from lockstep.protocol.topics.allocate import Strategy
from lockstep.testing import TestCluster, simulate


async def done(_: Sequence[MessageExt], __: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def ordered(_: Sequence[MessageExt], __: OrderlyContext) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


def consumer(cluster: TestCluster, strategy: Strategy, group: str = "billing", *, in_order: bool = False) -> PushConsumer:
    made = PushConsumer(group, nameserver=cluster.nameserver, allocate=strategy)
    made.subscribe("orders")
    made.orderly(ordered) if in_order else made.concurrently(done)
    return made


def held(consumer: PushConsumer) -> list[MessageQueue]:
    return [each.queue for each in consumer.health().queues if each.state == "held" and each.queue.topic == "orders"]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "by_broker"])
def test_queues_are_divided_among_all_members_and_again_after_one_leaves(strategy: str, in_order: bool) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2) as cluster, AsyncExitStack() as stack:
            await cluster.create_topic("orders", queues=6)
            members = [consumer(cluster, strategy, in_order=in_order) for _ in range(3)]
            for member in members:
                await stack.enter_async_context(member)
            await cluster.advance(seconds=5)
            assert len(set(itertools.chain(*map(held, members)))) == sum(len(held(member)) for member in members) == 12
            await members[0].stop()
            await cluster.advance(seconds=5)
            assert len(set(itertools.chain(*map(held, members[1:])))) == sum(len(held(member)) for member in members[1:]) == 12

    simulate(main)


def test_failing_machine_room_lookup_keeps_the_current_assignment() -> None:
    rooms = {"ok": True}

    def room_of_member(_: str) -> str:
        return "here" if rooms["ok"] else ""

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=4)
            strategy = MachineRoomNearby(lambda queue: "here", room_of_member)
            async with consumer(cluster, strategy) as first:
                await cluster.advance(seconds=2)
                assert len(held(first)) == 4
                rooms["ok"] = False
                async with consumer(cluster, strategy) as second:
                    await cluster.advance(seconds=30)
                    assert (len(held(first)), len(held(second))) == (4, 0)
                    rooms["ok"] = True
                    await cluster.advance(seconds=30)
                    assert (len(held(first)), len(held(second))) == (2, 2)

    simulate(main)


def test_member_with_another_strategy_or_other_rooms_is_rejected() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=4)
            async with consumer(cluster, ByMachineRoom(("hz", "sh"))):
                with pytest.raises(SubscriptionConflictError, match="allocate: machine_room: hz, sh here, machine_room: hz asked for"):
                    await consumer(cluster, ByMachineRoom(("hz",))).start()
                async with consumer(cluster, ByMachineRoom(("sh", "hz"))):
                    pass

    simulate(main)


@pytest.mark.parametrize("strategy", [ByConfig(()), MachineRoomNearby(lambda _: "a", lambda _: "a")])
def test_ordered_consumer_rejects_strategies_on_which_members_could_disagree(strategy: Strategy) -> None:
    made = PushConsumer("billing", allocate=strategy)
    with pytest.raises(ConfigError, match=r"billing: allocate .* can't be used with @orderly, because members could disagree"):
        made.orderly(ordered)
    made.concurrently(done)
