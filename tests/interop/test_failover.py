"""RocketMQ's Java client, as producer and as members of an ordered group, over masters that are killed or suspended under a register.

A queue of a member without epochs is taken over when a classic lease is over, and Java clients ask for routes every 30 s: each round takes
a minute. LOCKSTEP_TEST_KILLS says how many masters are killed, 3 if it is not set.
"""

import asyncio
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from support.cluster import DEFAULTS, LOOK_S, Cluster, Report, now_us, running_cluster
from support.copies import Copies
from support.group_loads import QUEUE_NAMES, quantiles, stored_twice
from support.java_programs import compiled
from support.mixed_groups import faults, java, java_member, repeats, until_taken_over
from support.registers import RegisterServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "3"))
MEMBERS = ("java-1", "java-2")


@pytest.mark.parametrize("how", ["killed", "suspended"])
@pytest.mark.parametrize(("version", "form"), [("4.9.8", "JSON"), ("5.3.3", "ROCKETMQ")])
async def test_java_clients_lose_nothing_and_no_offset_goes_back(tmp_path: Path, report: Report, version: str, form: str, how: str) -> None:
    class_path = compiled(version, tmp_path, "OrderedMember", "KeyedProducer")
    server = RegisterServer("etcd", tmp_path)
    try:
        async with running_cluster(tmp_path) as cluster:
            copies = await Copies.start_all(cluster, server, 2, *DEFAULTS)
            await replace_masters(cluster, copies, [f"-Drocketmq.serialize.type={form}", "-cp", class_path], report, how)
    finally:
        server.kill()


async def replace_masters(cluster: Cluster, copies: Copies, programs: list[str], report: Report, how: str) -> None:
    for name in MEMBERS:
        await java_member(cluster, programs, name)
    await java(cluster, programs, "KeyedProducer", "producer", "0", "16", "10")
    waits: list[float] = []
    await until_taken_over(cluster, len(QUEUE_NAMES), 0)
    committed: dict[str, list[int]] = defaultdict(list)
    watching = asyncio.ensure_future(watch_offsets(cluster, committed))
    for _ in range(KILLS):
        master = await copies.until_in_sync()
        term = (await copies.statuses())[master].term
        if how == "killed":
            await cluster.kill(master)
            await copies.until_elected(term)
            waits.append(await until_taken_over(cluster, len(QUEUE_NAMES), now_us()))
            await copies.start(master)
        else:
            await copies.pause(master, 4)
            await copies.until_in_sync()
            waits.append(await until_taken_over(cluster, len(QUEUE_NAMES), now_us()))
    watching.cancel()
    await asyncio.wait([watching])
    await cluster.finish_producer()
    await cluster.until_done()
    await cluster.stop(*MEMBERS)
    events = cluster.handled_events()
    assert faults(events) == []
    assert {each.queue for each in events} == QUEUE_NAMES
    assert set(committed) >= QUEUE_NAMES
    assert all(offsets == sorted(offsets) for offsets in committed.values()), committed
    report(
        f"{KILLS} masters {how}: {len(events)} events, 0 lost, {repeats(events)} handled again, {stored_twice(events)} stored twice; "
        f"the last queue was worked on {quantiles(waits)} after the election"
    )


async def watch_offsets(cluster: Cluster, committed: dict[str, list[int]]) -> None:
    """Note the progress of each queue, again and again, as the broker tells it."""
    while True:
        code, out, _ = await cluster.started_command("group", "show", "billing", "--json")
        for line in json.loads(out)["queues"] if code == 0 else []:
            if line["committed_offset"] is not None:
                committed[f"{line['topic']}@{line['broker']}:{line['queue_id']}"].append(line["committed_offset"])
        await asyncio.sleep(LOOK_S)
