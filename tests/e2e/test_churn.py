"""Consumers join and leave continuously under load."""

import asyncio
from itertools import cycle

import pytest

from lockstep.cli.demo.proof import Verdict
from support.cluster import DEFAULTS, Cluster, Report, now_us

pytestmark = pytest.mark.e2e

QUEUES = 16


@pytest.mark.slow
async def test_order_holds_and_nothing_is_accepted_twice_while_consumers_join_and_leave(cluster: Cluster, report: Report) -> None:
    await churn(cluster, report, seconds=15)


@pytest.mark.slow
async def test_order_holds_and_nothing_is_accepted_twice_in_a_minute_of_churn(cluster: Cluster, report: Report) -> None:
    await churn(cluster, report, seconds=60)


async def churn(cluster: Cluster, report: Report, *, seconds: float) -> None:
    """One consumer stays. Of four others first one, then two at once join or leave, as soon as all queues have their owners."""
    await cluster.servers(*DEFAULTS, queues=QUEUES // 2)
    await cluster.consumer("host", "--work-ms", "2")
    await cluster.until_held(QUEUES, "host")
    await cluster.producer("producer", "--keys", "80", "--pause-ms", "50")
    end_us = now_us() + int(seconds * 1e6)
    present: dict[str, None] = {}
    changes = 0
    for names in cycle((("guest-0",), ("guest-1", "guest-2"), ("guest-0", "guest-3"), ("guest-1",), ("guest-2", "guest-3"))):
        if now_us() > end_us:
            break
        await asyncio.gather(*(cluster.stop(name) if name in present else cluster.consumer(name, "--work-ms", "2") for name in names))
        for name in names:
            if name in present:
                del present[name]
            else:
                present[name] = None
        changes += len(names)
        await cluster.until_held(QUEUES, "host", *present)
        await cluster.until_handled_more(500)
    await cluster.finish_producer()
    verdict = await cluster.prove("host", *present)
    assert verdict.repeats == 0, "auto commit, listeners shorter than the drain limit: nobody does anything twice"
    report(f"{changes} joined or left, {verdict.events} events")
    report(handover_times(verdict))


def handover_times(verdict: Verdict) -> str:
    gaps = sorted(handover.idle_us / 1000 for handover in verdict.handovers)
    middle, high = gaps[len(gaps) // 2], gaps[len(gaps) * 95 // 100]
    return f"{len(gaps)} hand-overs: median {middle:.0f} ms, 95 % {high:.0f} ms, longest {gaps[-1]:.0f} ms (goal 100 ms)"
