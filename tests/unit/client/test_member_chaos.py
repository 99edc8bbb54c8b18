"""Pull consumers and broadcasting members under seeded kills, pauses, power cuts and restarts: no acknowledged message is missed."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    LockstepError,
    Message,
    MessageExt,
    MessageModel,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    StaleEpochError,
)
from lockstep.testing import TestCluster, simulate
from support.effort import seeds

NAMES = ("one", "two", "three")


async def send_under_faults(cluster: TestCluster, dice: random.Random, acknowledged: set[bytes]) -> None:
    """Send 200 messages while processes are killed, paused and disconnected. Return when all of them run again."""

    async def feed() -> None:
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            for number in range(200):
                try:
                    await producer.send(Message("orders", b"%d" % number))
                    acknowledged.add(b"%d" % number)
                except LockstepError:
                    continue
                await asyncio.sleep(0.05)

    feeding = asyncio.ensure_future(feed())
    for _ in range(10):
        await cluster.advance(seconds=dice.random() * 3)
        victim = dice.choice((*NAMES, *NAMES, "broker-a", "broker-b"))
        kind = dice.choice(("kill", "pause", "reset") if victim.startswith("broker") else ("kill", "pause", "reset", "power", "stop"))
        if kind == "pause":
            await cluster.pause(victim, seconds=dice.choice((1, 5, 30)))
        elif kind == "reset":
            cluster.reset_connections(victim)
        else:
            await {"kill": cluster.kill, "power": cluster.cut_power, "stop": cluster.stop}[kind](victim)
            await cluster.advance(seconds=dice.random() * 5)
            await cluster.restart(victim)
    await feeding
    await cluster.advance(seconds=90)


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_every_acknowledged_message_is_polled_and_committed_despite_faults(seed: int) -> None:
    dice = random.Random(seed)
    acknowledged: set[bytes] = set()
    handled: set[bytes] = set()

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=3)

            async def work() -> None:
                by_hand_commit = dice.random() < 0.5
                consumer = PullConsumer(
                    "reports", nameserver=cluster.nameserver, auto_commit=not by_hand_commit, poll_count=dice.choice((1, 7))
                )
                async with consumer.subscribe("orders"):
                    while True:
                        batch = await consumer.poll(2_000)
                        await asyncio.sleep(dice.random() * 0.2)
                        handled.update(message.body for message in batch)
                        if by_hand_commit:
                            try:
                                await consumer.commit()
                            except (StaleEpochError, LockstepError):
                                continue

            for name in NAMES:
                await cluster.start(name, work)
            await send_under_faults(cluster, dice, acknowledged)
            assert acknowledged <= handled
            await cluster.settled("reports")

    simulate(main, seed=seed)
    assert len(acknowledged) > 100


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_every_broadcast_member_gets_every_acknowledged_message_despite_faults(seed: int) -> None:
    dice = random.Random(seed)
    acknowledged: set[bytes] = set()
    handled: dict[str, set[bytes]] = {name: set() for name in NAMES}
    offsets: dict[tuple[int, str, str], int] = {}
    lives = iter(range(1_000))

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=3)

            def member(name: str) -> "object":
                async def work() -> None:
                    life = next(lives)
                    consumer = PushConsumer(
                        "prices", nameserver=cluster.nameserver, message_model=MessageModel.BROADCASTING, instance_name=name
                    )
                    consumer.subscribe("orders")

                    if seed % 2:

                        @consumer.concurrently
                        async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                            await asyncio.sleep(dice.random() * 0.3)
                            handled[name].update(message.body for message in messages)
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

                    else:

                        @consumer.orderly
                        async def listen_in_order(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                            await asyncio.sleep(dice.random() * 0.05)
                            if dice.random() < 0.05:
                                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                            for message in messages:
                                key = (life, name, str(context.queue))
                                assert offsets.get(key, -1) < message.queue_offset, "in order within a life"
                                offsets[key] = message.queue_offset
                                handled[name].add(message.body)
                            return ConsumeOrderlyStatus.SUCCESS

                    async with consumer:
                        await consumer.wait_closed()

                return work

            for name in NAMES:
                await cluster.start(name, member(name))  # type: ignore[arg-type]
            await send_under_faults(cluster, dice, acknowledged)
            for name in NAMES:
                assert acknowledged <= handled[name], name

    simulate(main, seed=seed)
    assert len(acknowledged) > 100
