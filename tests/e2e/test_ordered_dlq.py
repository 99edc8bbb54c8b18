"""Dead letters of an ordered group with real processes: written once, listed, and replayed to the consumers in the order of their keys."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.demo.proof import HandledEvent
from support.accepted import accepted_twice
from support.cluster import QUICK, Cluster, Report
from support.worker_consumer import BROKEN_EVERY

pytestmark = pytest.mark.e2e

CONSUMERS = ("consumer-1", "consumer-2")
KEYS, STEPS = 12, 6
BROKEN = [key for key in range(KEYS) if key % BROKEN_EVERY == 0]
LETTERS = len(BROKEN) * STEPS


async def dlq(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(await cluster.command("dlq", *arguments, "--json"))


def steps(handled_events: list[HandledEvent]) -> dict[int, list[int]]:
    """Return the steps of each order in the sequence in which their calls began."""
    found: dict[int, list[int]] = defaultdict(list)
    for each in sorted(handled_events, key=lambda each: each.begun_us):
        found[each.order].append(each.step)
    return found


def given_up(cluster: Cluster) -> list[dict[str, Any]]:
    return [event for name in CONSUMERS for event in cluster.reported_events(name, "consumer.MessageDeadLettered")]


async def dead_letter_orders(cluster: Cluster) -> Path:
    """Let every third order be dead-lettered, each event after two calls. Return the file that makes the listener fail."""
    broken = cluster.folder / "broken"
    broken.touch()
    await cluster.servers(*QUICK, queues=2)
    for name in CONSUMERS:
        await cluster.consumer(name, "--give-up-after", "2", "--backoff-ms", "10", "--broken", str(broken))
    await cluster.until_held(4, *CONSUMERS)
    await cluster.producer("producer", "--keys", str(KEYS), "--steps", str(STEPS), "--pause-ms", "1")
    await cluster.until("every third order is given up", lambda: len(given_up(cluster)) == LETTERS)
    await cluster.until("the others are handled", lambda: len(cluster.handled_events()) == (KEYS - len(BROKEN)) * STEPS)
    assert steps(cluster.handled_events()) == {key: list(range(STEPS)) for key in range(KEYS) if key not in BROKEN}, "each once, in order"
    assert {event["attempts"] for event in given_up(cluster)} == {2}
    return broken


async def test_replay_redelivers_each_order_once_and_in_order(cluster: Cluster) -> None:
    broken = await dead_letter_orders(cluster)
    assert (await dlq(cluster, "ls"))["groups"] == [{"group": "billing", "stored": LETTERS, "not_replayed": LETTERS}]
    letters = (await dlq(cluster, "ls", "billing", "--limit", "100"))["dead_letters"]
    assert {(letter["origin_topic"], letter["reason"], letter["replayed"]) for letter in letters} == {
        ("orders", "RuntimeError: broken", False)
    }
    broken.unlink()
    would = {"group": "billing", "done": False, "to": "topic", "count": LETTERS, "left": [], "failed": {}}
    assert await dlq(cluster, "replay", "billing", "--dry-run") == would
    handled = len(cluster.handled_events())
    assert (await dlq(cluster, "replay", "billing", "--rate", "1000"))["count"] == LETTERS
    await cluster.until("every letter is handled", lambda: len(cluster.handled_events()) >= handled + LETTERS)
    assert (await dlq(cluster, "replay", "billing"))["count"] == 0, "each once"
    await cluster.until_lag(0)
    await cluster.stop(*CONSUMERS)
    assert steps(cluster.handled_events()[handled:]) == {key: list(range(STEPS)) for key in BROKEN}, "each once, in order"
    queue_of = {key: queue for key, _, queue, _ in cluster.acks()}
    assert all(each.queue == queue_of[each.order] for each in cluster.handled_events()), "an order stays in its queue"
    assert accepted_twice(cluster.accepted()) == []


async def test_kills_during_a_replay_lose_nothing_and_keep_the_order(cluster: Cluster, report: Report) -> None:
    broken = await dead_letter_orders(cluster)
    broken.unlink()
    before = len(cluster.handled_events())
    replay = asyncio.ensure_future(dlq(cluster, "replay", "billing", "--rate", "10"))
    await cluster.until("some letters are handled", lambda: len(cluster.handled_events()) >= before + 3)
    await cluster.kill("consumer-1", "broker-a")
    await cluster.restart("broker-a")
    assert (await replay)["count"] == LETTERS
    wanted = {(key, step) for key in BROKEN for step in range(STEPS)}
    await cluster.until(
        "every letter is handled",
        lambda: {(each.order, each.step) for each in cluster.handled_events()[before:]} == wanted,
    )
    await cluster.until_lag(0)
    await cluster.stop("consumer-2")
    for key, seen in steps(cluster.handled_events()[before:]).items():
        assert list(dict.fromkeys(seen)) == list(range(STEPS)), f"order {key} was first handled in its order"
    report(f"{len(cluster.handled_events()) - before - LETTERS} of {LETTERS} replayed letters were handled a second time")


async def test_attempts_survive_the_kill_of_the_consumer_and_of_the_broker(cluster: Cluster) -> None:
    """The next owner continues with the committed count: call 8 is the last one, whichever consumer made it."""
    broken = cluster.folder / "broken"
    broken.touch()
    await cluster.servers(*QUICK, queues=1, brokers=("broker-a",))
    options = ("--give-up-after", "8", "--backoff-ms", "400", "--broken", str(broken))
    await cluster.consumer("consumer-1", *options)
    await cluster.producer("producer", "--keys", "1", "--steps", "1")
    await cluster.until_heard("consumer-1", "listener.failed", attempt=4)
    await cluster.kill("broker-a", "consumer-1")
    await cluster.restart("broker-a")
    (line,) = (await cluster.group())["queues"]
    kept = line["attempts"]
    assert kept >= 1, "what was committed is there"
    await cluster.consumer("consumer-2", *options)
    left = await cluster.until_heard("consumer-2", "consumer.MessageDeadLettered")
    assert left["attempts"] == 8
    assert [event["attempt"] for event in cluster.reported_events("consumer-2", "listener.failed")] == list(range(kept, 8))
    await cluster.stop("consumer-2")
