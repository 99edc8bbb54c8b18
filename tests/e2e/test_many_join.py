"""A deployment of fifty consumer processes, all joining at once.

tests/sim/test_many_join.py says exactly what holds where they join within a second. Here they take as long as the machine lets them.
"""

import asyncio
import signal
from collections import Counter

import pytest

from support.cluster import TESTS, Cluster, Report

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = tuple(f"member-{number}" for number in range(50))
STARTED_TOGETHER = 10
"""Processes that load Python at once."""


async def test_fifty_processes_that_join_at_once_move_each_queue_a_few_times_and_not_fifty_times(cluster: Cluster, report: Report) -> None:
    await cluster.servers(queues=50)
    worker = [str(TESTS / "support" / "worker_crowd.py"), "--nameserver", cluster.nameservers]
    for first in range(0, len(NAMES), STARTED_TOGETHER):
        await asyncio.gather(*(cluster.start(name, worker, "worker.ready") for name in NAMES[first : first + STARTED_TOGETHER]))
    told_us = cluster.signal(signal.SIGUSR1, *NAMES)
    await cluster.until_held(100, *NAMES)
    granted = [event for name in NAMES for event in cluster.heard(name, "consumer.QueueAssigned")]
    joined = [event["at_us"] for name in NAMES for event in cluster.heard(name, "worker.joined")]
    epochs = Counter(event["queue"] for event in granted)
    held_s = (max(event["at_us"] for event in granted) - told_us) / 1e6
    report(
        f"50 processes joined within {(max(joined) - min(joined)) / 1e6:.2f} s, held 100 queues {held_s:.2f} s after they were told to; "
        f"a queue's grants: {sorted(Counter(epochs.values()).items())}"
    )
    assert len(epochs) == 100
    assert len(granted) <= 4 * 100, epochs.most_common(5)
    await cluster.stop(*NAMES)
