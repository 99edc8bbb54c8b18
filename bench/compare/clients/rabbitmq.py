"""The client program of RabbitMQ: aio-pika, a quorum queue, publisher confirms."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aio_pika

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

WINDOW = 2_000
PREFETCH = 2 * BATCH


class RabbitMQ:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection: Any = None
        self.channel: Any = None

    async def open(self) -> None:
        self.connection = await aio_pika.connect(f"amqp://guest:guest@{self.job.address}/")
        self.channel = await self.connection.channel(publisher_confirms=True)
        await self.channel.set_qos(prefetch_count=PREFETCH)

    async def close(self) -> None:
        await self.connection.close()

    async def create(self) -> None:
        await self.channel.declare_queue(self.job.topic, durable=True, arguments={"x-queue-type": "quorum"})

    async def delete(self) -> None:
        await self.channel.queue_delete(self.job.topic)

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
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self.channel.default_exchange.publish(message, routing_key=self.job.topic)

    async def pipeline(self, count: int) -> None:
        """Publish WINDOW messages, gather their confirmations, and so on."""
        body = self.job.body
        for first in range(0, count, WINDOW):
            await asyncio.gather(*(self.send(index, body) for index in range(first, min(first + WINDOW, count))))

    async def queue(self) -> Any:
        return await self.channel.get_queue(self.job.topic)

    async def consume_batches(self, counter: Counter) -> None:
        """Acknowledge 1,000 messages at a time, by the last of them: deliveries are single messages, but acknowledgements need not be."""
        queue = await self.queue()
        seen = 0

        async def take(message: Any) -> None:
            nonlocal seen
            seen += 1
            if seen % BATCH == 0 or counter.left == 1:
                await message.ack(multiple=True)
            counter.count(1)

        await queue.consume(take)
        await counter.done.wait()

    async def consume_each(self, counter: Counter) -> None:
        async with (await self.queue()).iterator() as messages:
            async for message in messages:
                await message.ack()
                if counter.count(1):
                    return

    async def receive(self, stamps: Stamps) -> None:
        async with (await self.queue()).iterator() as messages:
            async for message in messages:
                await message.ack()
                if stamps.saw(message.body):
                    return


if __name__ == "__main__":
    run(RabbitMQ)
