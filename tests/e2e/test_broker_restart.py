"""A broker killed -9 and restarted under load, ten times."""

from collections import Counter

import pytest

from support.cluster import QUICK, Cluster, Report, now_us

pytestmark = pytest.mark.e2e

KILLS = 10


async def test_ten_kills_lose_nothing_store_nothing_twice_and_commit_nothing_twice(cluster: Cluster, report: Report) -> None:
    """None is lost, out of order or stored twice if keyed; no offset is accepted twice.

    One broker responds when its disk has synced: at most kills it has stored frames without a response, which are sent again.
    """
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK)
    await cluster.broker("broker-b", *QUICK, "--flush", "sync")
    await cluster.command("topic", "create", "orders", "--queues", "4")
    await cluster.command("topic", "create", "free", "--queues", "4")
    await cluster.consumer("consumer-1")
    await cluster.consumer("consumer-2")
    await cluster.until_held(8, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "20")
    await cluster.producer("unkeyed", "--keys", "20", "--pause-ms", "50", "--unkeyed", "--topic", "free")
    await cluster.until_handled(300)
    assert len(cluster.acknowledged_queues()) == 8, "every queue has a key"

    waits = []
    for number in range(KILLS):
        broker = ("broker-a", "broker-b")[number % 2]
        queues = [queue for queue in cluster.acknowledged_queues() if broker in queue]
        await cluster.kill(broker)
        await cluster.restart(broker)
        seconds = await cluster.until_accepted(queues, after_us=now_us())
        waits.append(max(seconds.values()))
    report("slowest queue's first accepted result after broker.started: " + ", ".join(f"{wait:.2f}" for wait in waits) + " s (grace 1 s)")

    finished = await cluster.finish_producer()
    assert finished["possible_duplicates"] == 0
    unkeyed = await cluster.finish_producer("unkeyed", ordered=False)
    verdict = await cluster.prove("consumer-1", "consumer-2")
    report(f"{verdict.events} events of keys, {verdict.repeats} repeated; {len(cluster.acks('unkeyed'))} unkeyed")
    await check_unkeyed(cluster, unkeyed["possible_duplicates"])


async def check_unkeyed(cluster: Cluster, possible_duplicates: int) -> None:
    """Check that every acknowledged message is at its acknowledged offset; each duplicate was counted."""
    acks = cluster.acks("unkeyed")
    await cluster.consumer("auditor", "--group", "audit", "--topic", "free", "--work-ms", "0")
    stored = {(key, step): (queue, offset) for key, step, queue, offset in acks}
    await cluster.until(
        "all unkeyed are read",
        lambda: {(each.order, each.step) for each in cluster.handled_events("free")} >= set(stored),
    )
    places: dict[tuple[int, int], set[tuple[str, int]]] = {}
    for each in cluster.handled_events("free"):
        places.setdefault((each.order, each.step), set()).add((each.queue, each.offset))
    assert [event for event, place in stored.items() if place not in places[event]] == []
    copies = Counter({event: len(found) - 1 for event, found in places.items()})
    assert copies.total() <= possible_duplicates
