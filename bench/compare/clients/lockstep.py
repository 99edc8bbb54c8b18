"""lockstep's client program."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from compare.clients.harness import (
    BATCH,
    KEYS,
    Counter,
    Job,
    Stamps,
    Work,
    bulk,
    consuming,
    filling,
    in_batches,
    in_tasks,
    one,
    paced,
    receiving,
    run,
)
from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_publish import create_and_wait, publish_layout
from lockstep.runtime.host import Host

QUEUES = 8
WINDOW = 10_000
"""Posts in flight, the default of a producer."""


class Lockstep:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.producer = Producer("compare", nameserver=job.address, compress_over_bytes=None)

    async def open(self) -> None:
        await self.producer.start()

    async def close(self) -> None:
        await self.producer.close()

    async def create(self) -> None:
        await create_and_wait(self.job.address, self.job.topic, QUEUES)

    async def delete(self) -> None:
        admin = AdminClient(Host.current(), self.job.address)
        await publish_layout(admin, (await admin.route(self.job.topic)).layout.deletion)

    def works(self) -> Mapping[str, Work]:
        body = self.job.body
        return {
            "fill": filling(in_batches(self.send_batch)),
            "one": one(self.send),
            "tasks": bulk(in_tasks(self.send, body)),
            "tasks_keyed": bulk(in_tasks(self.send_keyed, body)),
            "pipeline": bulk(self.pipeline),
            "batch": bulk(in_batches(self.send_batch)),
            "consume_batch_ordered": consuming(lambda counter: self.consume_in_order(counter, BATCH)),
            "consume_batch_concurrent": consuming(lambda counter: self.consume_concurrently(counter, BATCH)),
            "consume_batch_poll": consuming(self.poll),
            "consume_one_concurrent": consuming(lambda counter: self.consume_concurrently(counter, 1)),
            "consume_one_iterate": consuming(self.iterate),
            "ordered_one": consuming(lambda counter: self.consume_in_order(counter, 1)),
            "e2e_send": paced(self.send),
            "e2e_receive": receiving(self.receive),
        }

    async def send(self, index: int, body: bytes) -> None:
        await self.producer.send(Message(self.job.topic, body))

    async def send_keyed(self, index: int, body: bytes) -> None:
        await self.producer.send(Message(self.job.topic, body, sharding_key=str(index % KEYS)))

    async def pipeline(self, count: int) -> None:
        """Call `post`, which returns a future, and waits while the producer's in-flight limit (10,000) is reached."""
        post, topic, body = self.producer.post, self.job.topic, self.job.body
        waiting: deque[asyncio.Future[SendResult]] = deque()
        for _ in range(count):
            waiting.append(await post(Message(topic, body)))
            if len(waiting) >= WINDOW:
                await waiting.popleft()
        await asyncio.gather(*waiting)

    async def send_batch(self, first: int, end: int) -> None:
        topic, body = self.job.topic, self.job.body
        await self.producer.send_batch([Message(topic, body) for _ in range(first, end)])

    def push_consumer(self, batch: int) -> PushConsumer:
        consumer = PushConsumer(self.job.group, nameserver=self.job.address, batch_count=batch)
        consumer.subscribe(self.job.topic)
        return consumer

    async def consume_in_order(self, counter: Counter, batch: int) -> None:
        async def listener(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
            counter.count(len(messages))
            return ConsumeOrderlyStatus.SUCCESS

        consumer = self.push_consumer(batch)
        consumer.orderly(listener)
        async with consumer:
            await counter.done.wait()

    async def consume_concurrently(self, counter: Counter, batch: int) -> None:
        async def listener(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            counter.count(len(messages))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = self.push_consumer(batch)
        consumer.concurrently(listener)
        async with consumer:
            await counter.done.wait()

    async def receive(self, stamps: Stamps) -> None:
        async def listener(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
            for message in messages:
                stamps.saw(message.body)
            return ConsumeOrderlyStatus.SUCCESS

        consumer = self.push_consumer(1)
        consumer.orderly(listener)
        async with consumer:
            await stamps.done.wait()

    async def poll(self, counter: Counter) -> None:
        async with self.pull_consumer() as consumer:
            while not counter.count(len(await consumer.poll())):
                pass

    async def iterate(self, counter: Counter) -> None:
        async with self.pull_consumer() as consumer:
            async for _ in consumer:
                if counter.count(1):
                    break

    def pull_consumer(self) -> PullConsumer:
        return PullConsumer(self.job.group, nameserver=self.job.address, poll_count=BATCH).subscribe(self.job.topic)


if __name__ == "__main__":
    run(Lockstep)
