"""What the client programs in Python have in common: options, warm-up, measuring, and the line that is printed.

Every program runs on uvloop and raises the first threshold of the garbage collector, as `lockstep.client.run` does for its users.
"""

import argparse
import asyncio
import json
import resource
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from compare.procfs import cpu_us
from lockstep.cli.bench.figures import percentile
from lockstep.runtime.clock import Clock
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.garbage_collector import collect_less_often

CLOCK = Clock()
TASKS = 2_000
KEYS = 1_000
BATCH = 1_000
BATCHES_IN_FLIGHT = 4
STAMP_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Job:
    """What one process has to do."""

    work: str
    address: str
    topic: str
    group: str
    count: int
    warmup: int
    """Messages before the measured ones."""
    body_bytes: int
    rate: int
    server_pids: tuple[int, ...]
    create: bool
    """Create the topic first."""
    delete: bool
    """Delete the topic at the end."""

    @property
    def body(self) -> bytes:
        return b"x" * self.body_bytes


@dataclass(frozen=True, slots=True)
class Figure:
    """What one process measured."""

    messages: int
    elapsed_us: int
    client_cpu_us: int
    server_cpu_us: int
    p50_us: float | None = None
    p99_us: float | None = None


class Meter:
    """Takes the time, the CPU time of this process and that of the server's processes."""

    def __init__(self, server_pids: tuple[int, ...]) -> None:
        self._server_pids = server_pids
        self._begun = (0, 0, 0)

    def begin(self) -> None:
        self._begun = self._now()

    def figure(self, messages: int, latencies_us: list[int] | None = None) -> Figure:
        """Return the figure of what happened since `begin`."""
        elapsed, client, server = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        if latencies_us is None:
            return Figure(messages, elapsed, client, server)
        return Figure(messages, elapsed, client, server, percentile(latencies_us, 50), percentile(latencies_us, 99))

    def _now(self) -> tuple[int, int, int]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return CLOCK.monotonic_us(), round((used.ru_utime + used.ru_stime) * 1_000_000), cpu_us(self._server_pids)


class Counter:
    """Counts consumed messages: the warm-up first, then the measured ones. If they all come at once, all of them are measured."""

    def __init__(self, job: Job) -> None:
        self._meter = Meter(job.server_pids)
        self._warmup = job.warmup
        self._total = job.warmup + job.count
        self._seen = 0
        self._measured_from = 0
        self.done = asyncio.Event()
        self.result: Figure | None = None
        self._meter.begin()

    @property
    def left(self) -> int:
        return self._total - self._seen

    def count(self, messages: int) -> bool:
        """Count messages, and return whether these were the last ones."""
        before, self._seen = self._seen, self._seen + messages
        if before < self._warmup <= self._seen < self._total:
            self._measured_from = self._seen
            self._meter.begin()
        elif self._seen >= self._total and self.result is None:
            self.result = self._meter.figure(self._seen - self._measured_from)
            self.done.set()
        return self.result is not None


class Stamps:
    """Collects the latencies of consumed messages from the timestamps in their bodies. The warm-up is stamped 0."""

    def __init__(self, job: Job) -> None:
        self._meter = Meter(job.server_pids)
        self._count = job.count
        self._latencies_us: list[int] = []
        self.done = asyncio.Event()
        self.result: Figure | None = None

    def saw(self, body: bytes) -> bool:
        """Take a body, and return whether it was the last one."""
        sent_us = int(body[:STAMP_DIGITS])
        if sent_us and self.result is None:
            if not self._latencies_us:
                self._meter.begin()
            self._latencies_us.append(CLOCK.monotonic_us() - sent_us)
            if len(self._latencies_us) == self._count:
                self.result = self._meter.figure(self._count, self._latencies_us)
                self.done.set()
        return self.result is not None


def stamped(body: bytes, sent_us: int) -> bytes:
    """Return the body with a timestamp at its beginning."""
    return b"%020d%b" % (sent_us, body[STAMP_DIGITS:])


Work = Callable[[Job], Awaitable[Figure | None]]
Send = Callable[[int, bytes], Awaitable[object]]
"""Sends message number N with a body and waits for its confirmation."""
Bulk = Callable[[int], Awaitable[object]]
"""Sends N messages and waits for all confirmations."""


class Client(Protocol):
    """One system's client program."""

    def __init__(self, job: Job) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(self) -> None:
        """Create the topic."""

    async def delete(self) -> None:
        """Delete the topic and what it holds."""

    def works(self) -> Mapping[str, Work]:
        """Return the works of this system by name."""


def one(send: Send) -> Work:
    """Return the work that sends one message at a time and takes the latency of each."""

    async def work(job: Job) -> Figure:
        body, meter, latencies = job.body, Meter(job.server_pids), []
        for index in range(job.warmup):
            await send(index, body)
        meter.begin()
        for index in range(job.count):
            begun = CLOCK.monotonic_us()
            await send(index, body)
            latencies.append(CLOCK.monotonic_us() - begun)
        return meter.figure(job.count, latencies)

    return work


def bulk(run: Bulk) -> Work:
    """Return the work that sends all messages and takes the time until the last one is confirmed."""

    async def work(job: Job) -> Figure:
        meter = Meter(job.server_pids)
        await run(job.warmup)
        meter.begin()
        await run(job.count)
        return meter.figure(job.count)

    return work


def filling(run: Bulk) -> Work:
    """Return the work that only fills the topic."""

    async def work(job: Job) -> None:
        await run(job.count)

    return work


def in_tasks(send: Send, body: bytes, tasks: int = TASKS) -> Bulk:
    """Return how to send with many tasks, each of which awaits one send at a time."""

    async def run(count: int) -> None:
        indices = iter(range(count))

        async def worker() -> None:
            for index in indices:
                await send(index, body)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(tasks, count)):
                group.create_task(worker())

    return run


def in_batches(send_batch: Callable[[int, int], Awaitable[object]], size: int = BATCH, in_flight: int = BATCHES_IN_FLIGHT) -> Bulk:
    """Return how to send with batches (called with the first index and the one after the last), some of which are in flight at a time."""

    async def run(count: int) -> None:
        starts = iter(range(0, count, size))

        async def worker() -> None:
            for first in starts:
                await send_batch(first, min(first + size, count))

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())

    return run


def consuming(read: Callable[[Counter], Awaitable[object]]) -> Work:
    """Return the work that consumes a filled topic."""

    async def work(job: Job) -> Figure | None:
        counter = Counter(job)
        await read(counter)
        return counter.result

    return work


def receiving(read: Callable[[Stamps], Awaitable[object]]) -> Work:
    """Return the work that receives paced messages and takes the time since they were sent."""

    async def work(job: Job) -> Figure | None:
        stamps = Stamps(job)
        print_line(event="ready")
        await read(stamps)
        return stamps.result

    return work


def paced(send: Send) -> Work:
    """Return the work that sends `rate` stamped messages per second, whether or not earlier ones are confirmed."""

    async def work(job: Job) -> None:
        loop, body = asyncio.get_running_loop(), job.body
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            for index in range(job.warmup + job.count):
                delay = begun + index / job.rate - loop.time()
                if delay > 0:
                    await asyncio.sleep(delay)
                stamp = CLOCK.monotonic_us() if index >= job.warmup else 0
                group.create_task(send_stamped(index, stamped(body, stamp)))

    async def send_stamped(index: int, body: bytes) -> None:
        await send(index, body)

    return work


def print_line(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def run(make: Callable[[Job], Client]) -> None:
    """Run the program: parse the options, do the work, print the figure."""
    job = parse()
    collect_less_often()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        figure = runner.run(_run(make(job), job))
    print_figure(figure)


def print_figure(figure: Figure | None) -> None:
    print_line(event="done", figure=None if figure is None else asdict(figure))


async def _run(client: Client, job: Job) -> Figure | None:
    await client.open()
    try:
        if job.create:
            await client.create()
        figure = await client.works()[job.work](job)
        if job.delete:
            await client.delete()
    finally:
        await client.close()
    return figure


def parse() -> Job:
    """Return the job that the command line describes."""
    options = argparse.ArgumentParser()
    options.add_argument("work")
    for name in ("address", "topic", "group"):
        options.add_argument(f"--{name}", required=True)
    for name in ("count", "warmup", "body-bytes", "rate"):
        options.add_argument(f"--{name}", required=True, type=int)
    options.add_argument("--server-pids", required=True, type=lambda text: tuple(int(pid) for pid in text.split(",") if pid))
    options.add_argument("--create", action="store_true")
    options.add_argument("--delete", action="store_true")
    return Job(**vars(options.parse_args()))
