"""A group that consumes the keys of a queue side by side, with real processes that are killed."""

import asyncio

import pytest

from support.cluster import QUICK, Cluster, Report

pytestmark = pytest.mark.e2e

BY_KEY = ("--order-by", "sharding_key", "--concurrency", "20", "--work-ms", "10")


async def test_order_of_each_key_holds_while_members_and_a_broker_are_killed(cluster: Cluster, report: Report) -> None:
    """Two queues, 60 keys, calls of 10 ms: by queue, two members would handle 200 events a second."""
    await cluster.servers(*QUICK, queues=1)
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name, *BY_KEY)
    await cluster.until_held(2, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "50")
    for victim in ("consumer-1", "broker-a", "consumer-2"):
        await cluster.until_handled_more(1_000)
        await cluster.kill(victim)
        await cluster.restart(victim)
    await cluster.until_held(2, "consumer-1", "consumer-2")
    await cluster.until_handled_more(1_000)
    await cluster.finish_producer()
    verdict = await cluster.prove("consumer-1", "consumer-2")
    report(f"{verdict.events} events, {verdict.repeats} repeated over three kills")


async def test_failing_orders_hold_up_no_other_order(cluster: Cluster) -> None:
    """Every third order fails until the fault is mended; the others are handled meanwhile, through a kill, and none of them twice."""
    broken = cluster.folder / "broken"
    broken.touch()
    await cluster.servers(*QUICK, queues=1, brokers=["broker-a"])
    options = (*BY_KEY, "--broken", str(broken), "--backoff-ms", "50")
    await cluster.consumer("consumer-1", *options)
    await cluster.producer("producer", "--keys", "30", "--steps", "10", "--pause-ms", "5")
    await cluster.until("the other orders are handled", lambda: len(cluster.handled_events()) == 20 * 10)
    await cluster.until_lag(10 * 10)
    await cluster.kill("consumer-1")
    await cluster.consumer("consumer-2", *options)
    await cluster.until_held(1, "consumer-2")
    await asyncio.to_thread(broken.unlink)
    await cluster.finish_producer()
    await cluster.until_lag(0)
    handled = sorted(cluster.handled_events(), key=lambda each: each.begun_us)
    assert {order: [each.step for each in handled if each.order == order] for order in range(30)} == {
        key: [*range(10)] for key in range(30)
    }
