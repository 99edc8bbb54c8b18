"""Run the servers and the measurements."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.children import Children
from compare.clientproc import ClientProgram
from compare.plan import Measurement, count_of
from compare.procfs import Memory, cpu_us, memory
from compare.systems.base import Server, System

RATE = 1_000
"""Messages per second of the end-to-end work."""
QUIET_US = 25_000
"""CPU time of all servers within QUIET_STEP_S below which they count as idle."""
QUIET_STEP_S = 0.1
QUIET_WAIT_S = 3.0


@dataclass(slots=True)
class RunningServer:
    """A server that is up."""

    address: str
    children: Children
    at_start: Memory
    pids: tuple[int, ...]

    @property
    def now(self) -> Memory:
        return memory(self.children.pids)


@dataclass(slots=True)
class Runner:
    """Runs measurements, one at a time, against servers that stay up."""

    systems: Mapping[str, System]
    folder: Path
    servers: dict[str, RunningServer] = field(default_factory=dict)
    _filled: dict[tuple[str, int], str] = field(default_factory=dict)
    _topics: int = 0

    def start(self, server: Server) -> None:
        """Start a server. Raise ChildError if it does not become ready."""
        folder = self.folder / server.name.lower().replace(" ", "-")
        folder.mkdir()
        children = Children(folder)
        try:
            address = server.start(children)
            pids = children.pids
        except BaseException:
            children.end()
            raise
        self.servers[server.name] = RunningServer(address, children, memory(pids), tuple(pids))

    def end(self) -> None:
        """Kill all servers."""
        for running in self.servers.values():
            running.children.end()
        self.servers.clear()

    def idle_cpu(self, seconds: float) -> dict[str, float]:
        """Return which part of a core each server uses while nobody uses it."""
        before = {name: cpu_us(running.pids) for name, running in self.servers.items()}
        time.sleep(seconds)
        return {name: (cpu_us(running.pids) - before[name]) / 1_000_000 / seconds for name, running in self.servers.items()}

    def fill(self, system: System, works: Sequence[str], body_bytes: int, scale: float) -> None:
        """Fill the topic that the consuming works of the system read, each with a group of its own."""
        counts = [count_of(system.subject, work, body_bytes, scale) for work in works if consumes(work)]
        if counts and not system.removes and (system.name, body_bytes) not in self._filled:
            self._filled[system.name, body_bytes] = self._fill(system, max(counts), body_bytes)

    def run(self, measurement: Measurement) -> dict[str, Any]:
        """Return the figure of a measurement. Raise ChildError if a program or a server failed."""
        system = self.systems[measurement.system]
        self.servers[system.server.name].children.check()
        self.wait_until_quiet()
        count, body_bytes = measurement.count, measurement.body_bytes
        if measurement.work == "e2e":
            return self._end_to_end(system, count, body_bytes)
        if not consumes(measurement.work):
            return self._client(system, measurement.work, self._topic(), count, body_bytes, "--create", "--delete")
        if not system.removes:
            return self._client(system, measurement.work, self._filled[system.name, body_bytes], count, body_bytes)
        topic = self._fill(system, count, body_bytes)
        self.wait_until_quiet()
        return self._client(system, measurement.work, topic, count, body_bytes, "--delete")

    def wait_until_quiet(self, at_most_s: float = QUIET_WAIT_S) -> None:
        """Wait until the servers have finished what earlier measurements left to do."""
        pids = [pid for running in self.servers.values() for pid in running.pids]
        deadline = time.monotonic() + at_most_s
        before = cpu_us(pids)
        while time.monotonic() < deadline:
            time.sleep(QUIET_STEP_S)
            now = cpu_us(pids)
            if now - before <= QUIET_US:
                return
            before = now

    def _fill(self, system: System, count: int, body_bytes: int) -> str:
        topic = self._topic()
        self._client(system, "fill", topic, count + warmup_of(system, count), body_bytes, "--create")
        return topic

    def _end_to_end(self, system: System, count: int, body_bytes: int) -> dict[str, Any]:
        topic, warmup = self._topic(), system.e2e_warmup
        with self._program(system, "e2e_receive", topic, count, warmup, body_bytes, "--create", "--delete") as consumer:
            consumer.wait_for("ready")
            with self._program(system, "e2e_send", topic, count, warmup, body_bytes) as producer:
                done = consumer.wait_for("done")
                producer.wait_for("done")
                producer.finish()
            consumer.finish()
        return dict(done["figure"])

    def _client(self, system: System, work: str, topic: str, count: int, body_bytes: int, *flags: str) -> dict[str, Any]:
        with self._program(system, work, topic, count, warmup_of(system, count), body_bytes, *flags) as program:
            done = program.wait_for("done")
            program.finish()
        return dict(done["figure"] or {})

    def _program(self, system: System, work: str, topic: str, count: int, warmup: int, body_bytes: int, *flags: str) -> ClientProgram:
        running = self.servers[system.server.name]
        self._topics += 1
        options = {
            "address": running.address,
            "topic": topic,
            "group": f"group-{self._topics}",
            "count": count,
            "warmup": warmup,
            "body-bytes": body_bytes,
            "rate": RATE,
            "server-pids": ",".join(map(str, running.pids)),
        }
        command = [*system.client(), work, *(part for name, value in options.items() for part in (f"--{name}", str(value))), *flags]
        return ClientProgram(f"{system.name} {work}", command, self.folder / f"{system.name}-client.log")

    def _topic(self) -> str:
        self._topics += 1
        return f"topic-{self._topics}"


def consumes(work: str) -> bool:
    """Return whether the work consumes a filled topic."""
    return work.startswith(("consume_", "ordered_"))


def warmup_of(system: System, count: int) -> int:
    return max(10, round(count * system.warmup))
