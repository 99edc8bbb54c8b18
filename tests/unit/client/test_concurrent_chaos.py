"""Concurrent consumers under seeded kills, pauses and restarts: every message is consumed or dead-lettered."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    LockstepError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from lockstep.testing import TestCluster, simulate
from support.effort import seeds

DONE, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_every_acknowledged_message_is_consumed_or_dead_lettered_despite_faults(seed: int) -> None:
    dice = random.Random(seed)
    handled: set[bytes] = set()
    acknowledged: set[bytes] = set()

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=3)

            async def worker() -> None:
                settings = {"batch_count": dice.choice((1, 3)), "concurrency": dice.choice((1, 5, 20)), "max_reconsume_times": 2}
                consumer = PushConsumer("mailing", nameserver=cluster.nameserver, **settings)  # type: ignore[arg-type]
                consumer.subscribe("orders")

                @consumer.concurrently
                async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    await asyncio.sleep(dice.random() * 0.3)
                    context.delay_level_when_next_consume = dice.choice((0, 1, 1, 2))
                    failed = dice.random() < 0.3
                    context.ack_index = dice.randrange(len(messages)) if failed else len(messages) - 1
                    if failed and dice.random() < 0.5:
                        return LATER
                    handled.update(message.body for message in messages[: context.ack_index + 1])
                    return DONE

                async with consumer:
                    await consumer.wait_closed()

            async def undertaker() -> None:
                consumer = PushConsumer("morgue", nameserver=cluster.nameserver)
                consumer.subscribe("%DLQ%mailing")

                @consumer.concurrently
                async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    handled.update(message.body for message in messages)
                    return DONE

                async with consumer:
                    await consumer.wait_closed()

            async def feed() -> None:
                async with Producer("shop", nameserver=cluster.nameserver) as producer:
                    for number in range(200):
                        body = b"%d" % number
                        try:
                            await producer.send(Message("orders", body), delay_level=dice.choice((None, None, 1, 2)))
                            acknowledged.add(body)
                        except LockstepError:
                            continue
                        await asyncio.sleep(0.05)

            for name in ("worker-1", "worker-2"):
                await cluster.start(name, worker)
            await cluster.start("undertaker", undertaker)
            feeding = asyncio.ensure_future(feed())
            for _ in range(8):
                await cluster.advance(seconds=dice.random() * 3)
                name = dice.choice(("worker-1", "worker-2", "broker-a", "broker-b"))
                how = dice.choice(("kill", "kill", "stop", "pause"))
                if how == "pause":
                    await cluster.pause(name, seconds=dice.random() * 10)
                    continue
                await (cluster.kill if how == "kill" else cluster.stop)(name)
                await cluster.advance(seconds=dice.random() * 5)
                await cluster.restart(name)
            await feeding
            await cluster.advance(seconds=30)
            await cluster.until(lambda: acknowledged <= handled, "every acknowledged message is handled", timeout=300)
            await cluster.settled("mailing", timeout=300)

    simulate(main, seed=seed)
    assert len(acknowledged) > 100
