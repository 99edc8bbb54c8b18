"""The cost of the simulator: reported at the end of the run, never asserted."""

import asyncio
import time
from functools import partial

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, Producer, PushConsumer
from lockstep.testing import TestCluster, simulate
from support.cluster import Report

pytestmark = pytest.mark.e2e

SIMULATED_S = 120
EVERY_S = 0.25
STARTS = 5


async def consume(cluster: TestCluster, heard: list[bytes]) -> None:
    consumer = PushConsumer("billing", nameserver=cluster.nameserver)
    consumer.subscribe("orders")

    @consumer.orderly
    async def listen(messages: object, _context: object) -> ConsumeOrderlyStatus:
        heard.extend(message.body for message in messages)  # type: ignore[attr-defined]
        return ConsumeOrderlyStatus.SUCCESS

    async with consumer:
        await consumer.wait_closed()


async def steady(heard: list[bytes]) -> tuple[float, float, int]:
    """Run 1 nameserver, 2 brokers, 3 ordered consumers, 4 keyed messages a second; return (simulated s, CPU s, messages)."""
    async with TestCluster() as cluster:
        await cluster.create_topic("orders")
        for number in range(3):
            await cluster.start(f"worker-{number}", partial(consume, cluster, heard))
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            began, cpu, sent = cluster.now, time.process_time(), 0
            while cluster.now < began + SIMULATED_S:
                await producer.send(Message("orders", b"%d" % sent, sharding_key=f"key-{sent % 20}"))
                sent += 1
                await asyncio.sleep(EVERY_S)
            took = cluster.now - began, time.process_time() - cpu, sent
        await cluster.settled("billing")
    return took


async def start() -> float:
    """Return the CPU seconds until a cluster has started."""
    began = time.process_time()
    async with TestCluster():
        return time.process_time() - began


def test_simulated_cluster_speed_is_reported(report: Report) -> None:
    heard: list[bytes] = []
    simulated_s, cpu_s, sent = simulate(partial(steady, heard), seed=1)
    assert len(heard) == sent
    report(f"{simulated_s / cpu_s:.0f} simulated seconds per CPU second")
    starts = sorted(simulate(start, seed=number) for number in range(STARTS))
    report(f"a cluster has started after {starts[STARTS // 2] * 1000:.0f} ms of CPU")
