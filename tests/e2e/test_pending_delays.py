"""The cost of a million pending delayed messages for an idle broker."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from lockstep.client import Message, Producer
from lockstep.protocol.codes import ResponseCode
from lockstep.runtime.processes import ChildProcess
from support.background import resident_bytes
from support.cluster import QUICK, Cluster, Report
from support.concurrent_lines import Lines, consumer
from support.delayed import at_level
from support.native import native

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PENDING = 1_000_000
WINDOW = 2_000
"""Sends in flight."""
PENDING_BYTES_MAX = 50 << 20
CORE_SHARE_MAX = 0.006
"""What the pending messages may add to the share of a core that one waiting message costs: some 0.004 on a machine that does nothing else,
so that both together stay below a hundredth. A machine that is busy needs more for the one message alone."""
WAITS = 4
FAR_LEVEL, NEAR_LEVEL, NEAR_S = 2, 1, 10
LEVELS = (*QUICK, "--scrub-kib-per-s", "0", "--message-delay-level", f"{NEAR_S}s 2h")
"""Without the scrub, which begins a minute after the start and reads the log: on a slow machine that is while this test measures."""


def core_s(process: ChildProcess) -> float:
    """Return the CPU seconds that it has used, in user and kernel mode."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Send = Callable[[bytes, int], Awaitable[object]]
"""Sends a body with a delay level."""


@asynccontextmanager
async def timers(cluster: Cluster) -> AsyncIterator[Send]:
    async with Producer("filler", nameserver=cluster.nameservers, send_timeout_ms=60_000) as producer:
        yield lambda body, level: producer.send(Message("orders", body), delay_level=level)


@asynccontextmanager
async def queues_of_levels(cluster: Cluster) -> AsyncIterator[Send]:
    """Send as RocketMQ's clients do."""
    async with native(cluster.addresses["broker-a"]) as client:

        async def send(body: bytes, level: int) -> None:
            response = await client.send("orders", body, properties=at_level(level))
            assert response.code == ResponseCode.SUCCESS, response.remark

        yield send


Way = Callable[[Cluster], AbstractAsyncContextManager[Send]]


async def fill(cluster: Cluster, way: Way) -> None:
    async with way(cluster) as send:
        numbers = iter(range(PENDING))

        async def lane() -> None:
            for number in numbers:
                await send(b"pending %d" % number, FAR_LEVEL)

        await asyncio.gather(*(lane() for _ in range(WINDOW)))


class Watch:
    """Measures the broker's cost from now on."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._core_s = core_s(process)
        self._since = time.monotonic()

    @property
    def core_share(self) -> float:
        return (core_s(self._process) - self._core_s) / (time.monotonic() - self._since)


async def share_of_a_wait(cluster: Cluster, way: Way, lines: Lines, name: str) -> float:
    """Return the share of a core while one message waits for its NEAR_S among the others."""
    async with way(cluster) as send:
        watch = Watch(cluster.processes["broker-a"])
        await send(name.encode(), NEAR_LEVEL)
    await cluster.until("it has come", lambda: lines.done()[name])
    return watch.core_share


async def idle_share(cluster: Cluster, way: Way, lines: Lines, number: int, enough: float) -> float:
    """Return the lowest share of up to WAITS waits: what else the machine does only adds to a process's CPU time. `enough` ends them."""
    lowest = 1.0
    for wait in range(WAITS):
        lowest = min(lowest, await share_of_a_wait(cluster, way, lines, f"near-{number}-{wait}"))
        if lowest <= enough:
            break
    return lowest


@pytest.mark.parametrize("way", [queues_of_levels, timers])
async def test_one_million_pending_delays_use_little_memory_and_cpu_even_after_a_kill(cluster: Cluster, report: Report, way: Way) -> None:
    await cluster.servers(*LEVELS, queues=1, brokers=("broker-a",))
    lines = await consumer(cluster, "worker")
    usual = await idle_share(cluster, way, lines, -1, 0)
    empty = resident_bytes(cluster.processes["broker-a"].pid)
    await fill(cluster, way)
    for number, state in enumerate(("after they were sent", "after kill -9 and a start")):
        share = await idle_share(cluster, way, lines, number, usual + CORE_SHARE_MAX)
        grown = resident_bytes(cluster.processes["broker-a"].pid) - empty
        cost = f"{grown / 2**20:.1f} MiB more than empty, {share:.2%} of a core, {usual:.2%} when empty"
        report(f"{PENDING:,} delayed messages pending, {state}: {cost}")
        assert grown <= PENDING_BYTES_MAX
        assert share <= usual + CORE_SHARE_MAX
        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
