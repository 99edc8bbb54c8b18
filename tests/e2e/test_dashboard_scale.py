"""A dashboard that is left open on a cluster of 10,000 queues and 1,000 groups: its memory, and what it costs the brokers.

It is usually open for three windows of a minute; LOCKSTEP_TEST_MINUTES=60 makes it an hour.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lockstep.client import Message, Producer
from support.background import resident_bytes
from support.browsing import Tab
from support.cluster import DEFAULTS, Cluster, Report
from support.http import raw
from support.many_queues import commit, make_topics, topic_name

MINUTES = float(os.environ.get("LOCKSTEP_TEST_MINUTES", "3"))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(1_200 + MINUTES * 120),
]

MIB = 1 << 20
BROKERS = STAYS, KILLED = ("broker-a", "broker-b")
TOPICS, QUEUES = 1_000, 5
"""Queues of a topic at each broker."""
BIG = "everything"
"""The group with progress in all queues."""
ROUNDS = 3
"""Windows with a viewer. Between two of them a broker is killed and started again."""
WINDOW_S = MINUTES * 60 / ROUNDS
BASE_S = min(WINDOW_S, 60.0)
"""The windows without a viewer. In a shorter one a broker's own background work would count for much."""
RSS_MAX = 100 * MIB
GROWTH_MAX = 12 * MIB
"""From the end of the first window to the end of the last one."""
BROKER_GROWTH_MAX = 64 * MIB
"""Of a broker that runs throughout, whose responses to the dashboard are garbage."""
CORE_SHARE_MAX = 0.02
"""What the dashboard and its viewer may cost a broker. A busy machine counts up to twice the time that an idle one does."""
SHOWN_S = 90
LOOK_S = 0.5
SILENT = "sums exclude it"


async def test_an_open_dashboard_stays_small_and_costs_the_brokers_little(cluster: Cluster, report: Report) -> None:
    await cluster.servers(*DEFAULTS, queues=4)
    await make_topics(cluster.nameservers, TOPICS, QUEUES)
    await commit(cluster.nameservers, progress())
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        for number in range(TOPICS):
            await producer.send(Message(topic_name(number), b"x"))
    await cluster.consumer("worker")
    await cluster.producer("producer", "--keys", "2", "--pause-ms", "200")
    await cluster.until("events are handled", lambda: cluster.handled_events())
    without = await core_share(cluster, BROKERS, BASE_S)
    await cluster.start("panel", dashboard(cluster), "dashboard.started")
    address = cluster.reported_events("panel", "dashboard.started")[0]["address"].removeprefix("http://").rstrip("/")
    await until_page(address, has_figures)
    watched = await core_share(cluster, BROKERS, BASE_S) - without
    report(f"{2 * TOPICS * QUEUES} queues, {TOPICS + 2} groups: a broker uses {without:.2%} of a core; watched, {watched:.2%} more")
    async with AsyncExitStack() as open_tabs:
        tabs = await browse(open_tabs, address)
        memory, of_broker, shares = [], [], []
        for number in range(ROUNDS):
            share, own = await asyncio.gather(core_share(cluster, BROKERS, WINDOW_S), core_share(cluster, ["panel"], WINDOW_S))
            memory.append(resident_bytes(cluster.processes["panel"].pid))
            of_broker.append(resident_bytes(cluster.processes[STAYS].pid))
            shares.append(share - without)
            report(
                f"{WINDOW_S:.0f} s with {len(tabs)} open pages: a broker uses {shares[-1]:.2%} of a core more than without, "
                f"the dashboard {own:.1%} and {memory[-1] / MIB:.1f} MiB, {STAYS} {of_broker[-1] / MIB:.1f} MiB"
            )
            if number + 1 < ROUNDS:
                await cluster.kill(KILLED)
                await until_page(address, lambda text: SILENT in text)
                await cluster.restart(KILLED)
                await until_page(address, has_figures)
    for line in answer_lines(tabs):
        report(line)
    began_s = time.monotonic()
    await cluster.started_command("doctor")
    report(f"lockstep doctor took {time.monotonic() - began_s:.1f} s")
    assert {each.status for tab in tabs for each in tab.answers} <= {200, 304}
    assert max(memory) < RSS_MAX, memory
    assert memory[-1] - memory[0] < GROWTH_MAX, memory
    assert of_broker[-1] - of_broker[0] < BROKER_GROWTH_MAX, of_broker
    assert statistics.mean(shares) < CORE_SHARE_MAX, shares
    await cluster.stop("producer", "worker", "panel")


def progress() -> Iterator[tuple[str, str, int]]:
    """Yield what groups have progress in: each of 1,000 in one topic, and one in all."""
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            yield f"group-{number:04}", topic_name(number), queue_id
            yield BIG, topic_name(number), queue_id


def dashboard(cluster: Cluster) -> list[str]:
    return ["-m", "lockstep.cli.main", "dashboard", "--nameserver", cluster.nameservers, "--listen", "127.0.0.1:0"]


async def browse(stack: AsyncExitStack, address: str) -> list[Tab]:
    """Open pages, each as if it alone were visible, until the stack is closed."""
    pages = {
        "/": {"figures": 5.0},
        "/topics": {"list": 5.0},
        "/groups": {"list": 5.0},
        f"/groups/{BIG}": {"figures": 2.0, "lanes": 2.0, "held": 10.0, "rest": 2.0},
        "/groups/billing": {"figures": 2.0, "lanes": 2.0, "rest": 2.0},
        f"/topics/{topic_name(0)}": {"figures": 2.0, "queues": 2.0},
    }
    tabs = [Tab(address, path, {"notices": 5.0, **parts}) for path, parts in pages.items()]
    group = await stack.enter_async_context(asyncio.TaskGroup())
    tasks = [group.create_task(tab.run()) for tab in tabs]
    stack.callback(lambda: [task.cancel() for task in tasks])
    return tabs


async def until_page(address: str, shows: Callable[[str], bool]) -> None:
    """Load the page of the cluster again and again until it shows what is expected."""
    text = ""
    try:
        async with asyncio.timeout(SHOWN_S):
            while not shows(text):
                await asyncio.sleep(LOOK_S)
                _, text = await raw(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    except TimeoutError:
        raise AssertionError(f"not within {SHOWN_S} s on the page of the cluster: {text[:5_000]}") from None


def has_figures(text: str) -> bool:
    """Return whether every broker answers and the rates of the whole cluster are known."""
    figures = [part.partition("<")[0] for part in text.split('<p class="figure">')[1:]]
    return len(figures) == 4 and "–" not in figures and SILENT not in text


def cpu_s(cluster: Cluster, names: Iterable[str]) -> float:
    """Return the CPU time that these processes have used."""
    ticks = 0
    for name in names:
        fields = Path(f"/proc/{cluster.processes[name].pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def core_share(cluster: Cluster, names: Sequence[str], window_s: float) -> float:
    """Return the part of a core that one of these processes uses in the coming window, on average."""
    before_s, began_s = cpu_s(cluster, names), time.monotonic()
    await asyncio.sleep(window_s)
    return (cpu_s(cluster, names) - before_s) / (time.monotonic() - began_s) / len(names)


def answer_lines(tabs: Iterable[Tab]) -> Iterator[str]:
    """Yield a line for each tab about its answers."""
    for tab in tabs:
        times_ms = sorted(each.took_ms for each in tab.answers[1:])
        if times_ms:
            same = sum(each.status == 304 for each in tab.answers)
            high = times_ms[len(times_ms) * 99 // 100]
            largest = max(each.size for each in tab.answers)
            yield (
                f"{tab.path}: whole page in {tab.answers[0].took_ms:.0f} ms; {len(times_ms)} parts, {same} unchanged, at most "
                f"{largest / 1024:.0f} KiB, median {statistics.median(times_ms):.0f} ms, 99 % {high:.0f} ms, "
                f"longest {times_ms[-1]:.0f} ms"
            )
