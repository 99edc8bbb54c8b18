"""The client program of Apache Kafka: confluent-kafka, which calls librdkafka. Its threads' CPU time counts as the client's."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer

from compare.clients.harness import (
    BATCH,
    CLOCK,
    Counter,
    Figure,
    Job,
    Meter,
    Stamps,
    bulk,
    in_tasks,
    parse,
    print_figure,
    print_line,
    stamped,
)
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.garbage_collector import collect_less_often

PARTITIONS = 8
COMMIT_MS = 100
QUEUED_MIN, BACKOFF_MS = 1_000_000, 10
"""With the defaults, 100,000 and 1 s, small messages are not fetched for up to a second although few are left."""
POLL_S = 1.0
BUFFER_S = 0.005
"""How long the asyncio producer collects a batch. The default is 1 s."""
WAIT_S = 60.0


class Confluent:
    """A plain program without an event loop, as the library's own examples are."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failed: list[object] = []

    def works(self) -> Mapping[str, Callable[[], Figure | None]]:
        return {
            "fill": self.fill,
            "one": self.one,
            "tasks": self.tasks,
            "pipeline": self.pipeline,
            "consume_batch": self.consume_batches,
            "consume_one": self.consume_each,
            "e2e_send": self.paced,
            "e2e_receive": self.receive,
        }

    def create(self) -> None:
        self._admin(lambda admin: admin.create_topics([NewTopic(self.job.topic, PARTITIONS, 1)]))

    def delete(self) -> None:
        self._admin(lambda admin: admin.delete_topics([self.job.topic]))

    def _admin(self, call: Callable[[Any], Mapping[str, Any]]) -> None:
        admin = AdminClient({"bootstrap.servers": self.job.address})
        for future in call(admin).values():
            future.result(timeout=WAIT_S)

    # ------------------------------------------------------------------------------------------------------------------ send

    def producer(self, linger_ms: float) -> Any:
        return Producer({"bootstrap.servers": self.job.address, "acks": "all", "linger.ms": linger_ms, "compression.type": "none"})

    def confirmed(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(error)

    def send_all(self, producer: Any, count: int) -> None:
        """Call produce with a callback for every message, and wait for the last one."""
        produce, poll, topic, body, confirmed = producer.produce, producer.poll, self.job.topic, self.job.body, self.confirmed
        for _ in range(count):
            while True:
                try:
                    produce(topic, body, on_delivery=confirmed)
                    break
                except BufferError:
                    poll(0.01)
            poll(0)
        self.flush(producer)

    def flush(self, producer: Any) -> None:
        left = producer.flush(WAIT_S)
        if left or self.failed:
            raise RuntimeError(f"{left} messages were not confirmed, {len(self.failed)} failed: {self.failed[:1]}")

    def fill(self) -> None:
        self.send_all(self.producer(5), self.job.count)

    def pipeline(self) -> Figure:
        producer, meter = self.producer(5), Meter(self.job.server_pids)
        self.send_all(producer, self.job.warmup)
        meter.begin()
        self.send_all(producer, self.job.count)
        return meter.figure(self.job.count)

    def one(self) -> Figure:
        producer, meter, latencies, body = self.producer(0), Meter(self.job.server_pids), [], self.job.body
        for index in range(self.job.warmup + self.job.count):
            if index == self.job.warmup:
                meter.begin()
            begun = CLOCK.monotonic_us()
            producer.produce(self.job.topic, body, on_delivery=self.confirmed)
            while len(producer):
                producer.poll(POLL_S)
            if index >= self.job.warmup:
                latencies.append(CLOCK.monotonic_us() - begun)
        self.flush(producer)
        return meter.figure(self.job.count, latencies)

    def tasks(self) -> Figure | None:
        """Await sends in tasks by the library's own asyncio producer, which collects them into batches for its threads."""
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(self._tasks())

    async def _tasks(self) -> Figure | None:
        settings = {"bootstrap.servers": self.job.address, "acks": "all", "linger.ms": 0, "compression.type": "none"}
        producer: Any = AIOProducer(settings, batch_size=BATCH, buffer_timeout=BUFFER_S)

        async def send(index: int, body: bytes) -> None:
            await (await producer.produce(self.job.topic, body))

        try:
            return await bulk(in_tasks(send, self.job.body))(self.job)
        finally:
            await producer.close()

    def paced(self) -> None:
        producer, body = self.producer(0), self.job.body
        begun = CLOCK.monotonic_us()
        for index in range(self.job.warmup + self.job.count):
            while (left_us := begun + index * 1_000_000 // self.job.rate - CLOCK.monotonic_us()) > 0:
                producer.poll(left_us / 1_000_000)
            stamp = CLOCK.monotonic_us() if index >= self.job.warmup else 0
            producer.produce(self.job.topic, stamped(body, stamp), on_delivery=self.confirmed)
        self.flush(producer)

    # --------------------------------------------------------------------------------------------------------------- consume

    def consumer(self) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": self.job.address,
                "group.id": self.job.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": COMMIT_MS,
                "queued.min.messages": QUEUED_MIN,
                "fetch.queue.backoff.ms": BACKOFF_MS,
            }
        )
        consumer.subscribe([self.job.topic])
        return consumer

    def consume_batches(self) -> Figure | None:
        consumer, counter = self.consumer(), Counter(self.job)
        while True:
            # It waits for as many messages as are asked for, until its time limit.
            messages = consumer.consume(min(BATCH, counter.left), POLL_S)
            for message in messages:
                check(message)
            if counter.count(len(messages)):
                break
        consumer.close()
        return counter.result

    def consume_each(self) -> Figure | None:
        consumer, counter = self.consumer(), Counter(self.job)
        while True:
            message = consumer.poll(POLL_S)
            if message is not None:
                check(message)
                if counter.count(1):
                    break
        consumer.close()
        return counter.result

    def receive(self) -> Figure | None:
        consumer, stamps = self.consumer(), Stamps(self.job)
        print_line(event="ready")
        while True:
            message = consumer.poll(POLL_S)
            if message is not None and stamps.saw(message.value()):
                break
        consumer.close()
        return stamps.result


def check(message: Any) -> None:
    """Raise the error that is delivered in place of a message."""
    if message.error() is not None:
        raise RuntimeError(f"consuming failed: {message.error()}")


def main() -> None:
    job = parse()
    collect_less_often()
    client = Confluent(job)
    if job.create:
        client.create()
    figure = client.works()[job.work]()
    if job.delete:
        client.delete()
    print_figure(figure)


if __name__ == "__main__":
    main()
