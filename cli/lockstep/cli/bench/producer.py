"""The producer process of a benchmark: runs one phase and prints the figure that it measured.

Bodies repeat one character, and are sent uncompressed.
"""

import argparse
import asyncio
import json
from dataclasses import asdict
from datetime import timedelta

from lockstep.cli.bench.figures import Figure, latency_figure, rate_figure
from lockstep.client import Message, Producer
from lockstep.runtime.clock import Clock
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.garbage_collector import collect_less_often

KEYS = 1_000
PROGRESS_US = 250_000
CLOCK = Clock()


class Phases:
    """The phases. With `keyed`, every message has one of 1,000 sharding keys; else messages go round robin to the queues."""

    def __init__(self, producer: Producer, options: argparse.Namespace) -> None:
        self.producer = producer
        self.topic: str = options.topic
        self.count: int = options.count
        self.bytes: int = options.bytes
        self.window: int = options.window
        self.keyed: bool = options.keyed
        self.rate: int = options.rate
        self.delay: timedelta | None = timedelta(seconds=options.delay_s) if options.delay_s else None
        self.body = b"x" * self.bytes

    def key(self, index: int) -> str | None:
        return str(index % KEYS) if self.keyed else None

    def stamped(self) -> bytes:
        """Return a body that begins with the time (µs) at which the message becomes visible to consumers."""
        due_us = CLOCK.monotonic_us() + (self.delay or timedelta()) // timedelta(microseconds=1)
        return b"%020d%b" % (due_us, self.body[20:])

    async def one(self) -> Figure:
        """Send one message at a time and measure the latency of each."""
        latencies = []
        for index in range(self.count):
            begun = CLOCK.monotonic_us()
            await self.producer.send(Message(self.topic, self.body, sharding_key=self.key(index)))
            latencies.append(CLOCK.monotonic_us() - begun)
            progress(index + 1, self.count)
        return latency_figure("send, one at a time", self.bytes, latencies)

    async def window_of_sends(self) -> Figure:
        """Send with `window` awaited sends in flight."""
        indices = iter(range(self.count))

        async def worker() -> None:
            for index in indices:
                await self.producer.send(Message(self.topic, self.body, sharding_key=self.key(index)), delay=self.delay)
                progress(index + 1, self.count)

        begun = CLOCK.monotonic_us()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.window):
                group.create_task(worker())
        return rate_figure(f"send, {self.window:,} in flight", self.bytes, self.count, CLOCK.monotonic_us() - begun)

    async def batches(self) -> Figure:
        """Call send_batch with 1,000 messages, four calls in flight."""
        size = min(1_000, self.count)
        indices = iter(range(0, self.count, size))

        async def worker() -> None:
            for first in indices:
                last = min(first + size, self.count)
                await self.producer.send_batch(
                    [Message(self.topic, self.body, sharding_key=self.key(index)) for index in range(first, last)]
                )
                progress(last, self.count)

        begun = CLOCK.monotonic_us()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(worker())
        return rate_figure(f"send_batch of {size:,}", self.bytes, self.count, CLOCK.monotonic_us() - begun)

    async def paced(self) -> Figure:
        """Send `rate` messages per second, each with a timestamp from which the consumer measures the latency."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            for index in range(self.count):
                delay = begun + index / self.rate - loop.time()
                if delay > 0:
                    await asyncio.sleep(delay)
                message = Message(self.topic, self.stamped(), sharding_key=self.key(index))
                group.create_task(self.producer.send(message, delay=self.delay))
                progress(index + 1, self.count)
        return rate_figure(f"send, {self.rate:,}/s", self.bytes, self.count, (loop.time() - begun) * 1_000_000)


_last_progress_us = 0


def progress(done: int, total: int) -> None:
    global _last_progress_us
    now = CLOCK.monotonic_us()
    if now - _last_progress_us > PROGRESS_US:
        _last_progress_us = now
        print(json.dumps({"event": "bench.progress", "done": done, "total": total}), flush=True)


async def main() -> None:
    options = parser().parse_args()
    async with Producer("bench-producer", nameserver=options.nameserver, compress_over_bytes=None) as producer:
        phases = Phases(producer, options)
        run = {"one": phases.one, "window": phases.window_of_sends, "batch": phases.batches, "paced": phases.paced}[options.phase]
        await producer.send(Message(options.topic, b"warm-up", sharding_key="warm-up"))
        print(json.dumps({"event": "bench.begun"}), flush=True)
        figure = await run()
    print(json.dumps({"event": "bench.figure", **asdict(figure)}), flush=True)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("phase", choices=["one", "window", "batch", "paced"])
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--bytes", type=int, required=True)
    options.add_argument("--window", type=int, default=2_000)
    options.add_argument("--rate", type=int, default=1_000)
    options.add_argument("--keyed", action="store_true")
    options.add_argument("--delay-s", type=int, default=0, help="delay every message by so many seconds")
    return options


if __name__ == "__main__":
    collect_less_often()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
