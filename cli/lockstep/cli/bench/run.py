"""Run the phases of a benchmark, each in a new producer or consumer process, against a running cluster or one of its own."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.cli.bench.figures import Figure
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.protocol.errors import LocalProtocolError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.processes import ChildProcess

PHASE_S = 300.0
"""Time limit of a phase."""
LATENCY_COUNT_MAX = 5_000
"""Messages of the phases that send one at a time or paced: more would only take longer."""
DELAYED_COUNT_MAX = 1_000
NEAR_S, FAR_S = 1, 7_200
"""RocketMQ's first and last delay levels."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The parameters of a benchmark."""

    count: int
    body_bytes: int
    window: int
    rate: int
    queues: int
    ordered: bool
    """True to send with sharding keys, False to send round robin to the queues."""
    batches: tuple[int, ...] = (64, 1)
    """Maximum messages per listener call; each value is measured in order and concurrently."""
    delayed: int = 0
    """Number of messages that are pending for a later time while the lateness of a short delay is measured; 0 disables it."""

    def __post_init__(self) -> None:
        if self.body_bytes < 20:
            raise LocalProtocolError(f"--size {self.body_bytes}: a body contains a timestamp, so it must have at least 20 bytes")


OnPhase = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""


class Bench:
    def __init__(self, nameserver: ClusterAddress, plan: BenchPlan, folder: Path, tasks: Tasks, on_progress: OnPhase) -> None:
        self.nameserver = nameserver
        self.plan = plan
        self.folder = folder
        self.tasks = tasks
        self.on_progress = on_progress
        self.topic = f"bench-{Host.current().random.token(4).hex()}"
        self._sent = 0

    async def run(self) -> AsyncIterator[Figure]:
        """Yield the figure of each phase."""
        plan = self.plan
        await create_and_wait(self.nameserver, self.topic, plan.queues)
        few = min(plan.count, LATENCY_COUNT_MAX)
        for phase, count in (("one", few), ("window", plan.count), ("batch", plan.count)):
            yield await self._produce(phase, phase, count)
            self._sent += count + 1
        for how in ((), ("--concurrently",)):
            for batch in plan.batches:
                group = "-".join([self.topic, "by", str(batch), *(option.strip("-") for option in how)])
                yield await self._consume(group, self._sent, "--batch", str(batch), *how)
        yield await self._end_to_end("end to end", min(plan.count, LATENCY_COUNT_MAX))
        if plan.delayed:
            await self._produce("waiting", "window", plan.delayed, "--delay-s", str(FAR_S))
            lateness = f"lateness of a {NEAR_S} s delay, {plan.delayed:,} pending"
            yield await self._end_to_end(lateness, min(plan.count, DELAYED_COUNT_MAX), "--delay-s", str(NEAR_S))

    async def _produce(self, name: str, phase: str, count: int, *more: str) -> Figure:
        return await self._figure(name, await self._producer(phase, count, self.topic, *more))

    async def _producer(self, phase: str, count: int, topic: str, *more: str) -> ChildProcess:
        plan = self.plan
        options = ["--count", str(count), "--bytes", str(plan.body_bytes), "--window", str(plan.window), "--rate", str(plan.rate)]
        options += ["--keyed"] if plan.ordered else []
        return await self._start("producer", [phase, "--topic", topic, *options, *more])

    async def _consume(self, group: str, count: int, *options: str) -> Figure:
        return await self._figure("consume", await self._consumer(group, count, self.topic, *options))

    async def _consumer(self, group: str, count: int, topic: str, *options: str) -> ChildProcess:
        shared = ["--count", str(count), "--bytes", str(self.plan.body_bytes), "--topic", topic, "--group", group]
        return await self._start("consumer", [*shared, *options])

    async def _end_to_end(self, name: str, count: int, *more: str) -> Figure:
        """Measure with a new topic, so that there is no backlog. `more`: further options of the producer."""
        topic = f"{self.topic}-{'delayed' if more else 'paced'}"
        await create_and_wait(self.nameserver, topic, self.plan.queues)
        consumer = await self._consumer(topic, count, topic, "--stamped")
        await consumer.wait_for_event("bench.begun")
        producer = await self._producer("paced", count, topic, *more)
        figure = await self._figure(name, consumer)
        await producer.wait()
        return replace(figure, phase=name)

    async def _start(self, role: str, options: list[str]) -> ChildProcess:
        command = ["-m", f"lockstep.cli.bench.{role}", "--nameserver", str(self.nameserver), *options]
        password = self.nameserver.password
        environment = {} if password is None else {"LOCKSTEP_PASSWORD": password}
        return await ChildProcess.start(role, command, log=self.folder / f"{role}.log", tasks=self.tasks, environment=environment)

    async def _figure(self, phase: str, process: ChildProcess) -> Figure:
        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "bench.progress":
                self.on_progress(phase, event["done"], event["total"])

        process.on_event = on_event
        event = await process.wait_for_event("bench.figure", timeout_s=PHASE_S)
        await process.wait()
        return Figure(**{key: value for key, value in event.items() if key != "event"})


@asynccontextmanager
async def cluster(folder: Path, tasks: Tasks, flush: str) -> AsyncIterator[str]:
    """Run a nameserver and a broker as processes inside the block. Yield the nameserver's address."""
    nameserver = await ChildProcess.start(
        "nameserver", ["-m", "lockstep.nameserver", "--listen", "127.0.0.1:0"], log=folder / "nameserver.log", tasks=tasks
    )
    try:
        address = str((await nameserver.wait_for_event("nameserver.started"))["address"])
        options = ["--listen", "127.0.0.1:0", "--nameserver", address, "--store", str(folder / "store"), "--flush", flush]
        broker = await ChildProcess.start("broker", ["-m", "lockstep.broker", *options], log=folder / "broker.log", tasks=tasks)
        try:
            await broker.wait_for_event("broker.started")
            yield address
        finally:
            await broker.stop()
    finally:
        await nameserver.stop()


@asynccontextmanager
async def workplace() -> AsyncIterator[tuple[Path, Tasks]]:
    """Yield a temporary folder, and the owner of the tasks that read the processes' output."""
    tasks = Tasks()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        try:
            yield Path(folder), tasks
        finally:
            await tasks.cancel_all()
