"""RocketMQ's Java client, as producer and as members of an ordered group, over masters that are killed and replicas that are promoted.

A promotion counts as a loss, so members without epochs get their queues when a classic lease is over: each round takes a minute.
LOCKSTEP_TEST_KILLS says how many there are, 3 if it is not set.
"""

import os
from pathlib import Path

import pytest

from support.cluster import DEFAULTS, Cluster, Report, running_cluster
from support.group_loads import QUEUE_NAMES, quantiles, stored_twice
from support.java_programs import compiled
from support.mixed_groups import faults, java, java_member, repeats, until_taken_over
from support.replica_pair import started_pair

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "3"))
MEMBERS = ("java-1", "java-2")


@pytest.mark.parametrize(("version", "form"), [("4.9.8", "JSON"), ("5.3.3", "ROCKETMQ")])
async def test_java_clients_lose_nothing_and_keep_the_order_over_killed_masters(
    tmp_path: Path, report: Report, version: str, form: str
) -> None:
    class_path = compiled(version, tmp_path, "OrderedMember", "KeyedProducer")
    async with running_cluster(tmp_path) as cluster:
        await replace_masters(cluster, [f"-Drocketmq.serialize.type={form}", "-cp", class_path], report)


async def replace_masters(cluster: Cluster, programs: list[str], report: Report) -> None:
    pair = await started_pair(cluster, *DEFAULTS)
    for name in MEMBERS:
        await java_member(cluster, programs, name)
    await java(cluster, programs, "KeyedProducer", "producer", "0", "16", "10")
    waits: list[float] = []

    async def went_on(promoted_us: int) -> None:
        waits.append(await until_taken_over(cluster, len(QUEUE_NAMES), promoted_us))

    await went_on(0)
    waits.clear()
    await pair.replace_masters(KILLS, went_on)
    await cluster.finish_producer()
    await cluster.until_done()
    await cluster.stop(*MEMBERS)
    events = cluster.handled_events()
    assert faults(events) == []
    assert {each.queue for each in events} == QUEUE_NAMES
    report(
        f"{KILLS} masters killed: {len(events)} events, 0 lost, {repeats(events)} handled again, {stored_twice(events)} stored twice; "
        f"the last queue was worked on {quantiles(waits)} after the promotion"
    )
