"""Draw the pictures of this directory from simulated clusters: python docs/pictures/make_pictures.py

owners.svg  `lockstep group history shipping --svg`: a consumer is killed, another one joins, one is stopped, and one is paused for 30 s
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.commands.group_history import _history
from lockstep.client import Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.testing import TestCluster, simulate

HERE = Path(__file__).parent
GROUP, TOPIC = "shipping", "orders"
SECONDS = 95


async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    await asyncio.sleep(0.02)


async def draw_owners(path: Path) -> None:
    """Run a cluster, and draw who held its queues when."""
    async with TestCluster(brokers=2) as cluster:

        async def consume() -> None:
            consumer = PushConsumer(GROUP, nameserver=cluster.nameserver).subscribe(TOPIC)
            consumer.orderly(listen)
            async with consumer:
                await consumer.wait_closed()

        async def produce() -> None:
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for number in range(SECONDS * 20):
                    await producer.send(Message(TOPIC, b"%d" % number, sharding_key=f"order-{number % 50}"))
                    await asyncio.sleep(0.05)

        await cluster.create_topic(TOPIC, queues=4)
        await cluster.start("producer", produce)
        for name in ("a", "b", "c"):
            await cluster.start(name, consume)
            await cluster.advance(seconds=7)
        await cluster.kill("b")
        await cluster.advance(seconds=12)
        await cluster.start("d", consume)
        await cluster.advance(seconds=11)
        await cluster.stop("a")
        await cluster.advance(seconds=9)
        await cluster.pause("c", seconds=30)
        await cluster.advance(seconds=42)
        await cluster.settled(GROUP)
        await _history(GROUP, None, None, path, cluster.nameserver, True)


if __name__ == "__main__":
    simulate(lambda: draw_owners(HERE / "owners.svg"))
