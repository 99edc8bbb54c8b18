"""A topic is purged: what was removed stays away over kill -9, and a consumer goes on."""

import json

import pytest

from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e


async def test_purged_messages_stay_away_over_a_kill_and_a_consumer_goes_on(cluster: Cluster) -> None:
    await cluster.servers(*QUICK, queues=1, brokers=("broker-a",))
    await cluster.consumer("consumer-1")
    await cluster.producer("producer", "--keys", "4", "--steps", "10")
    await cluster.until_handled(40)
    await cluster.stop("consumer-1")
    assert await bounds(cluster) == (0, 40)
    shown = await cluster.command("topic", "purge", "orders", "--to", "25", "--dry-run")
    assert "25 messages of topic orders are removed, as things are now" in shown
    assert await bounds(cluster) == (0, 40)
    purged = json.loads(await cluster.command("topic", "purge", "orders", "--to", "25", "--json"))
    assert (purged["done"], purged["messages"], purged["groups"]) == (True, 25, [])
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    assert await bounds(cluster) == (25, 40)

    await cluster.command("group", "reset-offset", "billing", "--to", "30")
    error = await cluster.command("topic", "purge", "orders", "--to", "end", code=1)
    assert "nothing was changed: not all of it was consumed by billing (10 messages)" in error
    assert await bounds(cluster) == (25, 40)
    await cluster.command("topic", "purge", "orders", "--to", "35", "--queue", "broker-a:0", "--force")
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    assert await bounds(cluster) == (35, 40)
    await cluster.consumer("consumer-2")
    await cluster.until("the consumer goes on", lambda: offsets(cluster, "consumer-2") == [*range(35, 40)])
    await cluster.until_lag(0)


def offsets(cluster: Cluster, consumer: str) -> list[int]:
    return [each.offset for each in cluster.handled_events() if each.consumer == consumer]


async def bounds(cluster: Cluster) -> tuple[int, int]:
    (queue,) = json.loads(await cluster.command("topic", "show", "orders", "--json"))["queues"]
    return queue["min_offset"], queue["max_offset"]
