"""A finished simulation is freed, even though its processes ended without stopping their parts."""

import gc
import weakref

from lockstep.client import ConsumeOrderlyStatus, PushConsumer
from lockstep.testing import TestCluster, simulate


def test_killed_consumer_is_garbage_collected_when_the_next_client_starts() -> None:
    consumers: list[weakref.ref[PushConsumer]] = []

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:

            async def worker() -> None:
                consumer = PushConsumer("billing", nameserver=cluster.nameserver)
                consumer.subscribe("orders")
                consumer.orderly(lambda messages, context: ConsumeOrderlyStatus.SUCCESS)
                consumers.append(weakref.ref(consumer))
                async with consumer:
                    await consumer.wait_closed()

            await cluster.create_topic("orders")
            await cluster.start("worker", worker)
            await cluster.settled("billing")
            await cluster.kill("worker")

    for _ in range(2):
        simulate(main)
        gc.collect()
    assert len(consumers) == 2
    assert consumers[0]() is None
