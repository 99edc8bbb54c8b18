"""A cluster of real processes for the Spark tests, and a topic to read and write."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.client import Message, Producer
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.connections.cluster_address import ClusterAddress
from support.background import Background


class SparkCluster:
    """A nameserver and a broker that can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._nameserver = Background(folder, "nameserver", "-m", "lockstep.nameserver", "--listen", "127.0.0.1:0")
        self.nameserver = str(self._nameserver.started("nameserver.started")["address"])
        self._listen = "127.0.0.1:0"
        self.broker = self._start_broker()

    def _start_broker(self) -> Background:
        self._count += 1
        options = ["--name", "broker-a", "--listen", self._listen, "--nameserver", self.nameserver, "--store", str(self._folder / "store")]
        broker = Background(self._folder, f"broker-{self._count}", "-m", "lockstep.broker", *options)
        self._listen = str(broker.started("broker.started")["address"])
        return broker

    @property
    def broker_port(self) -> int:
        return int(self._listen.rpartition(":")[2])

    def kill_broker(self) -> None:
        self.broker.end()

    def start_broker(self) -> None:
        self.broker = self._start_broker()

    def end(self) -> None:
        self.broker.end()
        self._nameserver.end()

    def create(self, topic: str, queues: int) -> TopicLayout:
        from lockstep.spark.cluster import run_once

        return run_once(ClusterAddress.parse(self.nameserver), 10_000, lambda cluster: cluster.create(topic, queues))

    def alter(self, topic: str, queues: int) -> None:
        """Run `lockstep topic alter`: set the number of queues per broker."""
        self.run("topic", "alter", topic, "--queues", str(queues), "--force")

    def run(self, *command: str) -> str:
        """Run a command of lockstep. Return its output."""
        words = [sys.executable, "-m", "lockstep.cli.main", *command, "--nameserver", self.nameserver]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def ends(self, topic: str) -> dict[MessageQueue, int]:
        """Return the next offset of each queue."""
        from lockstep.spark.cluster import Cluster, run_once

        async def look(cluster: Cluster) -> dict[MessageQueue, int]:
            return {queue: high for queue, (_, high) in (await cluster.bounds([await cluster.layout(topic)])).items()}

        return run_once(ClusterAddress.parse(self.nameserver), 10_000, look)

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        from lockstep.spark.cluster import Cluster, run_once

        async def look(cluster: Cluster) -> dict[MessageQueue, int | None]:
            queues = (await cluster.layout(topic)).read_queues
            return {queue: await cluster.committed(group, queue) for queue in queues}

        return run_once(ClusterAddress.parse(self.nameserver), 10_000, look)

    def send(self, topic: str, bodies: Sequence[bytes], *, key: str | None = None, **more: Any) -> None:
        """Send messages with the SDK."""

        async def send() -> None:
            async with Producer("tests", nameserver=self.nameserver) as producer:
                for body in bodies:
                    await producer.send(Message(topic, body, **more, sharding_key=key))

        asyncio.run(send())


class Table:
    """A topic that the test reads and writes with Spark."""

    def __init__(self, spark: Any, cluster: SparkCluster, topic: str, queues: int) -> None:
        self.spark = spark
        self.cluster = cluster
        self.topic = topic
        self.layout = cluster.create(topic, queues)

    def fill(self, first: int, count: int) -> None:
        """Send rows first … first+count−1 with the SDK, row n to the queue n % queues: a job of Spark takes a second longer."""
        queues = self.layout.read_queues

        async def send() -> None:
            async with Producer("tests", nameserver=self.cluster.nameserver) as producer:
                for number, queue in enumerate(queues):
                    rows = [row for row in range(first, first + count) if row % len(queues) == number]
                    if rows:
                        await producer.send_batch([Message(self.topic, str(row).encode()) for row in rows], queue=queue)

        asyncio.run(send())

    def writer(self, df: Any, **options: str) -> Any:
        return df.write.format("lockstep").mode("append").options(nameserver=self.cluster.nameserver, topic=self.topic, **options)

    def write(self, df: Any, **options: str) -> None:
        self.writer(df, **options).save()

    def read(self, **options: str) -> Any:
        given = {"nameserver": self.cluster.nameserver, "subscribe": self.topic, **options}
        return self.spark.read.format("lockstep").options(**given).load()

    def stream(self, **options: str) -> Any:
        given = {"nameserver": self.cluster.nameserver, "subscribe": self.topic, **options}
        return self.spark.readStream.format("lockstep").options(**given).load()

    def values(self, **options: str) -> list[bytes]:
        """Return the values in the order of queue and offset."""
        rows = self.read(columns="value,partition,offset", **options).collect()
        return [bytes(row.value) for row in sorted(rows, key=lambda row: (row.partition, row.offset))]
