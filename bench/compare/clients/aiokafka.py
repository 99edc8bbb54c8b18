"""The client program of Apache Kafka: aiokafka."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from compare.clients.harness import (
    BATCH,
    Counter,
    Job,
    Stamps,
    Work,
    bulk,
    consuming,
    filling,
    in_tasks,
    one,
    paced,
    receiving,
    run,
)

PARTITIONS = 8
BATCH_BYTES = 256 * 1024
"""The size at which a batch leaves: lockstep's too. The default, 16 KiB, is slower."""
WINDOW = 10_000
COMMIT_MS = 100
"""How often progress is committed: lockstep's interval. The default is 5 s."""


class AioKafka:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.producer: Any = None

    async def open(self) -> None:
        self.producer = AIOKafkaProducer(bootstrap_servers=self.job.address, acks="all", max_batch_size=BATCH_BYTES)
        await self.producer.start()

    async def close(self) -> None:
        await self.producer.stop()

    async def create(self) -> None:
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=self.job.address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.job.topic, PARTITIONS, 1)])
        finally:
            await admin.close()
        await self.producer.partitions_for(self.job.topic)

    async def delete(self) -> None:
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=self.job.address)
        await admin.start()
        try:
            await admin.delete_topics([self.job.topic])
        finally:
            await admin.close()

    def works(self) -> Mapping[str, Work]:
        return {
            "fill": filling(self.pipeline),
            "one": one(self.send),
            "tasks": bulk(in_tasks(self.send, self.job.body)),
            "pipeline": bulk(self.pipeline),
            "consume_batch": consuming(self.consume_batches),
            "consume_one": consuming(self.consume_each),
            "e2e_send": paced(self.send),
            "e2e_receive": receiving(self.receive),
        }

    async def send(self, index: int, body: bytes) -> None:
        await self.producer.send_and_wait(self.job.topic, body)

    async def pipeline(self, count: int) -> None:
        """Call `send`, which returns a future, with a window of those."""
        send, topic, body = self.producer.send, self.job.topic, self.job.body
        waiting: deque[asyncio.Future[object]] = deque()
        for _ in range(count):
            waiting.append(await send(topic, body))
            if len(waiting) >= WINDOW:
                await waiting.popleft()
        await asyncio.gather(*waiting)

    async def consumer(self) -> Any:
        consumer = AIOKafkaConsumer(
            self.job.topic,
            bootstrap_servers=self.job.address,
            group_id=self.job.group,
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            auto_commit_interval_ms=COMMIT_MS,
        )
        await consumer.start()
        return consumer

    async def consume_batches(self, counter: Counter) -> None:
        consumer = await self.consumer()
        try:
            while True:
                got = await consumer.getmany(timeout_ms=1_000, max_records=BATCH)
                if counter.count(sum(map(len, got.values()))):
                    return
        finally:
            await consumer.stop()

    async def consume_each(self, counter: Counter) -> None:
        consumer = await self.consumer()
        try:
            async for _ in consumer:
                if counter.count(1):
                    return
        finally:
            await consumer.stop()

    async def receive(self, stamps: Stamps) -> None:
        consumer = await self.consumer()
        try:
            async for message in consumer:
                if stamps.saw(message.value):
                    return
        finally:
            await consumer.stop()


if __name__ == "__main__":
    run(AioKafka)
