"""The driver of a stream is killed repeatedly and restarted with the same checkpoint: every row is stored once."""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.client import Message, Producer
from support.background import Background
from support.spark_table import SparkCluster, Table

KILLS = 4
ROWS = 6_000
KEYS = 50
START_S = 300.0
LOOK_S = 0.2


class Driver(Background):
    """A driver in its own process group, so that its JVM and workers are killed with it."""

    def __init__(self, folder: Path, number: int, *arguments: str) -> None:
        super().__init__(folder, f"driver-{number}", "-m", "support.worker_spark_copy", *arguments, own_group=True)

    def wait_for(self, goal: int, stored: Callable[[], int]) -> None:
        """Wait until `goal` rows are stored."""
        end = time.monotonic() + START_S
        while (count := stored()) < goal:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.words()}"
            assert time.monotonic() < end, f"{count} of {goal} rows are stored after {START_S:.0f} s: {self.words()}"
            time.sleep(LOOK_S)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.slow
def test_stream_stores_every_row_once_across_four_driver_kills(table: Table, tmp_path: Path) -> None:
    target = Table(table.spark, table.cluster, f"{table.topic[:100]}-out", 4)
    fill(table.cluster, table.topic)
    where = ["--nameserver", table.cluster.nameserver, "--source", table.topic, "--target", target.topic]
    kept = ["--checkpoint", str(tmp_path / "checkpoint"), "--scratch", str(tmp_path)]

    def stored() -> int:
        return sum(table.cluster.ends(target.topic).values())

    for number in range(KILLS + 1):
        driver = Driver(tmp_path, number, *where, *kept)
        try:
            goal = ROWS if number == KILLS else stored() + ROWS // (KILLS + 2)
            driver.wait_for(goal, stored)
        finally:
            driver.kill()
    orders = defaultdict(list)
    for row in target.read().orderBy("partition", "offset").collect():
        orders[bytes(row.key)].append(int(row.value))
    assert sum(map(len, orders.values())) == ROWS, "no more, no fewer"
    assert all(values == sorted(set(values)) for values in orders.values()), "and every key's in order"


def fill(cluster: SparkCluster, topic: str) -> None:
    async def send() -> None:
        async with Producer("fill", nameserver=cluster.nameserver) as producer:
            await producer.send_batch([Message(topic, b"%d" % number, sharding_key=f"k{number % KEYS}") for number in range(ROWS)])

    asyncio.run(send())
