"""Transactions over kills: the database of a producer that is killed at each step, and its topics, never contradict each other."""

from collections import Counter
from contextlib import closing

import pytest

from lockstep.client import PullConsumer
from support.cluster import QUICK, Cluster, Report
from support.effort import SLOW
from support.worker_transactions import STEPS, connect, prepare

pytestmark = pytest.mark.e2e

KILLS = 20 if SLOW else 2
"""Kills at each step."""


async def test_database_and_topics_agree_whenever_the_producer_is_killed(cluster: Cluster, report: Report) -> None:
    file = cluster.folder / "shop.db"
    prepare(file)
    await cluster.servers(*QUICK, "--transaction-check-ms", "300", queues=2, brokers=["broker-a"])
    for topic in ("sales", "receipts"):
        await cluster.command("topic", "create", topic, "--queues", "2")
    worker = ["-m", "support.worker_transactions", "--nameserver", cluster.nameservers, "--file", str(file)]
    for number in range(KILLS):
        for step in STEPS:
            name = f"worker-{number}-{step.replace(' ', '-')}"
            process = await cluster.start(name, [*worker, "--die-at", step, "--after", str(number % 3)], "worker.ready")
            await process.wait()
        if number % 2:
            await cluster.kill("broker-a")
            await cluster.restart("broker-a")
    await cluster.start("worker", [*worker, "--count", "5"], "worker.ready")

    def sold() -> Counter[str]:
        with closing(connect(file)) as db:
            return Counter(name for (name,) in db.execute("SELECT id FROM sales"))

    sales: Counter[str] = Counter()
    receipts: Counter[str] = Counter()
    async with PullConsumer("audit", nameserver=cluster.nameservers).subscribe("sales").subscribe("receipts") as consumer:
        await cluster.until_heard("worker", "ended")
        while sum(sales.values()) < len(sold()) or sum(receipts.values()) < len(sold()):
            for message in await consumer.poll(timeout_ms=1_000):
                (sales if message.topic == "sales" else receipts)[message.body.decode()] += 1
    assert sales == receipts == sold(), "each once, and nothing else"
    report(f"{KILLS} kills at each of {len(STEPS)} steps: {len(sales)} sales in the database and in both topics")
