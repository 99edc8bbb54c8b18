"""All processes are killed and started again at once."""

import pytest

from support.cluster import DEFAULTS, Cluster, Report

pytestmark = pytest.mark.e2e

SERVERS = ("nameserver", "broker-a", "broker-b")
CONSUMERS = ("consumer-1", "consumer-2")


async def start_everything(cluster: Cluster) -> None:
    await cluster.servers(*DEFAULTS, queues=4)
    for name in CONSUMERS:
        await cluster.consumer(name)
    await cluster.until_held(8, *CONSUMERS)
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "50")
    await cluster.until_handled(300)
    assert len(cluster.acknowledged_queues()) == 8, "every queue has a key"


async def test_consumption_resumes_after_all_processes_were_killed(cluster: Cluster, report: Report) -> None:
    """The consumers are new ones: the killed ones keep their queues for the grace."""
    await start_everything(cluster)
    queues = cluster.acknowledged_queues()
    await cluster.kill(*SERVERS, *CONSUMERS, "producer")
    cluster.record_killed_producer()
    new_producer = cluster.producer("producer-2", "--first", "1000", "--keys", "60", "--pause-ms", "50")
    began_us = await cluster.restart(*SERVERS, *CONSUMERS, beside=new_producer)
    seconds = await cluster.until_accepted(queues, after_us=began_us)
    report(f"slowest queue's first accepted result {max(seconds.values()):.2f} s after the start commands (goal 5 s)")
    await cluster.finish_producer("producer-2")
    verdict = await cluster.prove(*CONSUMERS)
    report(f"{verdict.events} events, {verdict.repeats} repeated")


async def test_kill_of_all_servers_loses_no_member_and_no_lock(cluster: Cluster, report: Report) -> None:
    """Locks, members and progress are in the log: consumers that reconnect within the grace keep their epochs."""
    await start_everything(cluster)
    queues = cluster.acknowledged_queues()
    held = {name: cluster.held(name) for name in CONSUMERS}
    await cluster.kill(*SERVERS)
    began_us = await cluster.restart(*SERVERS)
    seconds = await cluster.until_accepted(queues, after_us=began_us)
    report(f"slowest queue's first accepted result {max(seconds.values()):.2f} s after the start commands (goal 5 s)")
    assert {name: cluster.held(name) for name in CONSUMERS} == held
    await cluster.finish_producer()
    verdict = await cluster.prove(*CONSUMERS)
    assert verdict.repeats == 0
