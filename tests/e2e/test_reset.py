"""A group's offsets are reset while it runs and while it is stopped."""

import json
from typing import Any

import pytest

from lockstep.cli.demo.proof import prove
from support.cluster import Cluster, Report, now_us

pytestmark = pytest.mark.e2e

CONSUMERS = ("consumer-1", "consumer-2")


async def reset(cluster: Cluster, *options: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(await cluster.command("group", "reset-offset", "billing", *options, "--json"))
    return plan


async def test_reset_under_load_redelivers_from_the_beginning(cluster: Cluster, report: Report) -> None:
    """Without a restart, each queue is redelivered in order under a higher epoch, and nothing is lost."""
    await cluster.servers(queues=2)
    for name in CONSUMERS:
        await cluster.consumer(name)
    await cluster.until_held(4, *CONSUMERS)
    await cluster.producer("producer", "--keys", "20", "--pause-ms", "20")
    await cluster.until_handled(300)
    before = await cluster.epochs()
    plan = await reset(cluster, "--to", "beginning", "--dry-run")
    assert (plan["done"], len(plan["queues"])) == (False, 4)
    assert all(queue["after"] == 0 and queue["change"] == -queue["before"] for queue in plan["queues"])
    assert await cluster.epochs() == before, "a dry run changes nothing"
    began_us = now_us()
    plan = await reset(cluster, "--to", "beginning")
    again = sum(queue["before"] for queue in plan["queues"])
    assert again >= 300 - 20, "one call of each key may have been under way"
    queues = cluster.acknowledged_queues()

    def begun() -> dict[str, int]:
        return {each.queue: each.begun_us for each in reversed(cluster.handled_events()) if each.offset == 0 and each.begun_us > began_us}

    await cluster.until("each queue begins again", lambda: begun().keys() == queues)
    report(f"{again} messages again, the last queue began {(max(begun().values()) - began_us) / 1e6:.2f} s after the command was typed")
    epochs = await cluster.epochs()
    assert all(int(epochs[queue]) > int(before[queue]) for queue in queues)
    await cluster.finish_producer()
    await cluster.until_done()
    await cluster.until_lag(0)
    await cluster.stop(*CONSUMERS)
    verdict = prove(cluster.handled_events(), cluster.reported)
    assert verdict.holds, verdict.faults[:10]
    assert verdict.repeats >= again
    assert not any("exited" in event["event"] for name in CONSUMERS for event in cluster.processes[name].events)


async def test_stopped_group_starts_at_the_reset_offset(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    await cluster.consumer("consumer-1")
    await cluster.producer("producer", "--keys", "4", "--steps", "10")
    await cluster.until_handled(40)
    await cluster.stop("consumer-1")
    (queue,) = (await reset(cluster, "--to", "25", "--queue", "broker-a:0"))["queues"]
    assert queue == {"queue": "orders@broker-a:0", "before": 40, "after": 25, "change": -15, "parked": 0}
    await cluster.consumer("consumer-2")
    await cluster.until_handled(55)
    assert [each.offset for each in cluster.handled_events() if each.consumer == "consumer-2"] == list(range(25, 40))
    await cluster.stop("consumer-2")
    (queue,) = (await reset(cluster, "--to", "2020-01-01"))["queues"]
    assert (queue["before"], queue["after"]) == (40, 0), "everything was stored after that"
    (queue,) = (await reset(cluster, "--to", "end"))["queues"]
    assert (queue["before"], queue["after"], queue["change"]) == (0, 40, 40)
    await cluster.consumer("consumer-3")
    await cluster.producer("producer-2", "--first", "100", "--keys", "1", "--steps", "3")
    await cluster.until_handled(58)
    assert [each.offset for each in cluster.handled_events() if each.consumer == "consumer-3"] == [40, 41, 42]


async def test_invalid_reset_is_rejected_and_changes_nothing(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a", "broker-b"))
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    words = {
        ("billing", "--to", "5"): "has offsets 0 to 0",
        ("billing", "--to", "end", "--queue", "broker-c:0"): "has no queue broker-c:0",
        ("nobody", "--to", "end"): "no broker knows group nobody",
        ("billing", "--to", "end", "--topic", "nothing"): "no topic 'nothing'",
    }
    before = await cluster.epochs()
    for arguments, expected in words.items():
        error = await cluster.command("group", "reset-offset", *arguments, code=1)
        assert expected in error, error
        assert error.count("\n") == 1, error
    assert await cluster.epochs() == before
    await cluster.kill("broker-b")
    error = await cluster.command("group", "reset-offset", "billing", "--to", "beginning", code=1)
    assert "nothing was changed" in error
    assert "broker-b" in error
