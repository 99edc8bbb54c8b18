"""Senders wait for a peer that does not read or does not finish, and the number of waiting sends has a limit."""

import json
import signal
from typing import Any

import pytest

from support.cluster import Cluster, Report

pytestmark = pytest.mark.e2e

MIB = 1 << 20
LIMIT_BYTES = 4 * MIB
BODY_BYTES = 64 << 10
COUNT = 1_600
"""100 MiB, twenty-five times the limit."""


async def latest_report(cluster: Cluster, process: str, event: str) -> dict[str, Any]:
    """Return the process's latest report about itself."""
    before = len(cluster.reported_events(process, event))
    cluster.signal(signal.SIGUSR2, process)
    await cluster.until(f"{process} says {event}", lambda: len(cluster.reported_events(process, event)) > before)
    return cluster.reported_events(process, event)[-1]


async def test_sends_to_a_stopped_broker_wait_in_bounded_memory_and_then_complete(cluster: Cluster, report: Report) -> None:
    await cluster.servers(queues=4, brokers=["broker-a"])
    options = ["--count", str(COUNT), "--body-bytes", str(BODY_BYTES), "--in-flight-bytes", str(LIMIT_BYTES)]
    await cluster.start("flood", ["-m", "support.worker_flood", "--nameserver", cluster.nameservers, *options], "worker.ready")
    before = await latest_report(cluster, "flood", "flood.state")
    cluster.signal(signal.SIGSTOP, "broker-a")
    cluster.signal(signal.SIGUSR1, "flood")
    states = [await latest_report(cluster, "flood", "flood.state")]
    while len(states) < 100 or len(cluster.reported_events("flood", "broker.disconnected")) < 1:
        states.append(await latest_report(cluster, "flood", "flood.state"))
    assert {state["acknowledged"] for state in states} == {before["acknowledged"]}
    assert {state["failed"] for state in states} == {0}
    assert max(state["in_flight_bytes"] for state in states) <= LIMIT_BYTES + 2 * BODY_BYTES
    assert states[-1]["in_flight_bytes"] > LIMIT_BYTES // 2, "the limit is what keeps the rest waiting"
    grown = max(state["resident_bytes"] for state in states) - before["resident_bytes"]
    report(f"{COUNT * BODY_BYTES // MIB} MiB of sends, limit {LIMIT_BYTES // MIB} MiB: the client grew by {grown / MIB:.1f} MiB")
    assert grown < 4 * LIMIT_BYTES, "encoded, once more as frames, once more in the socket's buffer"

    cluster.signal(signal.SIGCONT, "broker-a")
    finished = await cluster.until_heard("flood", "flood.finished")
    assert finished["errors"] == []
    assert finished["acknowledged"] == COUNT + before["acknowledged"]
    shown = json.loads(await cluster.command("topic", "show", "orders", "--json"))
    assert sum(queue["max_offset"] for queue in shown["queues"]) == finished["acknowledged"], "each is stored once"


async def test_blocked_listener_buffers_up_to_each_threshold(cluster: Cluster) -> None:
    """Three groups, each with the one threshold that it will reach. Only every hundredth message matches the tags of the third one."""
    await cluster.servers(queues=1, brokers=["broker-a"])
    await cluster.producer("producer", "--keys", "100", "--pause-ms", "5", "--padding", "1000", "--even-every", "100")
    stuck = ["--trouble", "wait:600", "--armed", "--stop-ms", "0"]
    await cluster.consumer("by-count", "--group", "count", "--count-max", "100", *stuck)
    await cluster.consumer("by-bytes", "--group", "bytes", "--bytes-max", str(64 << 10), *stuck)
    await cluster.consumer("by-span", "--group", "span", "--span-max", "300", "--tags", "even", *stuck)

    async def held(name: str) -> dict[str, int]:
        queue: dict[str, int]
        (queue,) = (await latest_report(cluster, name, "consumer.held"))["queues"].values()
        return queue

    full = {"by-count": ("count", 100), "by-bytes": ("bytes", 64 << 10), "by-span": ("span", 300)}
    for name, (what, limit) in full.items():
        await cluster.until_heard(name, "trouble.begun")
        while (await held(name))[what] <= limit // 2:
            pass
    stored = len(cluster.acks())
    await cluster.until("far more is there than any may hold", lambda: len(cluster.acks()) > stored + 3_000)
    counted, sized, spanned = [await held(name) for name in full]
    assert 50 < counted["count"] <= 100
    assert 32 << 10 < sized["bytes"] <= (64 << 10) + 2_000, "one message may exceed it"
    assert 300 < spanned["span"] <= 300 + 1_000, "one pull may exceed it"
    assert spanned["count"] < 50
    for name in full:
        again = await held(name)
        assert again["next"] == {"by-count": counted, "by-bytes": sized, "by-span": spanned}[name]["next"], "nothing more is pulled"
    await cluster.finish_producer()
