"""A deployment of fifty consumers in ten processes that join concurrently.

tests/sim/test_many_join.py checks the same for a machine that is never busy.
"""

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from support.cluster import TESTS, Cluster, Report

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = tuple(f"crowd-{number}" for number in range(10))
MEMBERS = 5
"""The number of consumers in each process."""


async def test_fifty_consumers_joining_within_a_second_move_each_queue_once(cluster: Cluster, report: Report) -> None:
    await cluster.servers(queues=50)
    worker = [str(TESTS / "support" / "worker_crowd.py"), "--nameserver", cluster.nameservers, "--members", str(MEMBERS)]
    await asyncio.gather(*(cluster.start(name, worker, "worker.ready") for name in NAMES))
    notified_us = cluster.signal(signal.SIGUSR1, *NAMES)
    count = len(NAMES) * MEMBERS

    def granted() -> list[dict[str, Any]]:
        return [event for name in NAMES for event in cluster.reported_events(name, "consumer.QueueAssigned")]

    def shares() -> list[int]:
        """Return the share of each consumer, by the last grant of each queue."""
        last = {event["queue"]: event["member"] for event in sorted(granted(), key=lambda event: event["epoch"])}
        return sorted(Counter(last.values()).values())

    await cluster.until("equal shares", lambda: shares() == [100 // count] * count)
    joined_us = [event["at_us"] for name in NAMES for event in cluster.reported_events(name, "worker.joined")]
    epochs = Counter(event["queue"] for event in granted())
    joined_s = (max(joined_us) - notified_us) / 1e6
    held_s = (max(event["at_us"] for event in granted()) - notified_us) / 1e6
    report(
        f"{count} consumers of {len(NAMES)} processes joined in {joined_s:.2f} s, held 100 queues {held_s:.2f} s after that "
        f"(goal 5 s); a queue's grants: {sorted(Counter(epochs.values()).items())}"
    )
    assert max(epochs.values()) <= (2 if joined_s <= 1 else 4), epochs.most_common(5)
    await cluster.stop(*NAMES)
