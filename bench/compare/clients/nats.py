"""The client program of NATS JetStream: nats-py."""

import asyncio
from collections.abc import Mapping
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

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

WINDOW = 4_000
"""Asynchronous publishes that are not confirmed: nats-py's default."""
FETCH_S = 5.0


class JetStream:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection: Any = None
        self.stream: Any = None

    async def open(self) -> None:
        self.connection = await nats.connect(f"nats://{self.job.address}")
        self.stream = self.connection.jetstream(publish_async_max_pending=WINDOW)

    async def close(self) -> None:
        await self.connection.close()

    async def create(self) -> None:
        await self.stream.add_stream(StreamConfig(name=self.job.topic, subjects=[self.job.topic], storage=StorageType.FILE))

    async def delete(self) -> None:
        await self.stream.delete_stream(self.job.topic)

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
        await self.stream.publish(self.job.topic, body)

    async def pipeline(self, count: int) -> None:
        """Publish with a window of confirmations. A time limit for room in the window would cost a task for each message."""
        topic, body, publish = self.job.topic, self.job.body, self.stream.publish_async
        futures = [await publish(topic, body) for _ in range(count)]
        await asyncio.gather(*futures)

    async def subscription(self, ack: AckPolicy) -> Any:
        config = ConsumerConfig(ack_policy=ack, max_ack_pending=20 * BATCH)
        return await self.stream.pull_subscribe(self.job.topic, durable=self.job.group, stream=self.job.topic, config=config)

    async def consume_batches(self, counter: Counter) -> None:
        """Acknowledge a batch by its last message (AckPolicy.ALL)."""
        subscription = await self.subscription(AckPolicy.ALL)
        while True:
            messages = await subscription.fetch(BATCH, timeout=FETCH_S)
            await messages[-1].ack()
            if counter.count(len(messages)):
                return

    async def consume_each(self, counter: Counter) -> None:
        """Acknowledge every message, without waiting for an answer."""
        subscription = await self.subscription(AckPolicy.EXPLICIT)
        while True:
            for message in await subscription.fetch(BATCH, timeout=FETCH_S):
                await message.ack()
                if counter.count(1):
                    return

    async def receive(self, stamps: Stamps) -> None:
        """Receive pushed messages, which arrive sooner than those of a fetch."""
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20 * BATCH)
        subscription = await self.stream.subscribe(
            self.job.topic, durable=self.job.group, stream=self.job.topic, config=config, manual_ack=True
        )
        async for message in subscription.messages:
            await message.ack()
            if stamps.saw(message.data):
                return


if __name__ == "__main__":
    run(JetStream)
