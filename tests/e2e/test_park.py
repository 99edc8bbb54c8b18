"""lockstep park with real processes: parked keys are listed, replayed in order over a kill, and dropped; meanwhile nothing moves them."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from support.cluster import QUICK, Cluster
from support.worker_consumer import BROKEN_EVERY

pytestmark = pytest.mark.e2e

CONSUMERS = ("consumer-1", "consumer-2")
KEYS, STEPS = 12, 6
BROKEN = [key for key in range(KEYS) if key % BROKEN_EVERY == 0]


async def park(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(await cluster.command("park", *arguments, "--json"))


async def until_parked(cluster: Cluster, *keys: int) -> dict[int, dict[str, Any]]:
    """Return what `park ls` prints when exactly these keys are parked, by key."""
    while True:
        found = {int(row["key"]): row for row in (await park(cluster, "ls", "billing"))["keys"]}
        if sorted(found) == sorted(keys):
            return found


def steps(cluster: Cluster) -> dict[int, list[int]]:
    """Return the steps of each order in the sequence in which their calls began, each once."""
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for each in sorted(cluster.handled_events(), key=lambda each: each.begun_us):
        found[each.order][each.step] = None
    return {order: list(handled) for order, handled in found.items()}


async def park_orders(cluster: Cluster) -> Path:
    """Let every third order be parked, after two calls of its first event. Return the file that makes the listener fail."""
    broken = cluster.folder / "broken"
    broken.touch()
    await cluster.servers(*QUICK, queues=2)
    for name in CONSUMERS:
        await cluster.consumer(name, "--give-up-after", "2", "--on-exhausted", "park", "--backoff-ms", "10", "--broken", str(broken))
    await cluster.until_held(4, *CONSUMERS)
    await cluster.producer("producer", "--keys", str(KEYS), "--steps", str(STEPS), "--pause-ms", "1")
    await cluster.until("the others are handled", lambda: len(cluster.handled_events()) == (KEYS - len(BROKEN)) * STEPS)
    await cluster.until_lag(0)
    return broken


async def test_parked_keys_are_shown_and_nothing_moves_them(cluster: Cluster) -> None:
    await park_orders(cluster)
    found = await until_parked(cluster, *BROKEN)
    assert {(row["state"], row["attempts"], row["error"], row["waiting"]) for row in found.values()} == {
        ("parked", 2, "RuntimeError: broken", STEPS)
    }
    (queue,) = (await park(cluster, "show", "billing", str(BROKEN[0]), "--limit", "4"))["queues"]
    assert [json.loads(message["body"])["step"] for message in queue["messages"]] == [0, 1, 2, 3]
    assert sum(line["parked"] for line in (await cluster.group())["queues"]) == len(BROKEN)
    assert f"groups have parked keys in orders (billing: {len(BROKEN)})" in await cluster.command(
        "topic", "alter", "orders", "--queues", "3", code=1
    )
    assert "nothing was changed: keys of group billing are parked" in await cluster.command(
        "group", "reset-offset", "billing", "--to", "end", code=1
    )
    assert "is not parked; run `lockstep park ls billing`" in await cluster.command("park", "replay", "billing", "1", code=1)
    assert "Missing option '--to'" in await cluster.command("park", "drop", "billing", "0", code=2)
    reset = json.loads(await cluster.command("group", "reset-offset", "billing", "--to", "end", "--drop-parked", "--json"))
    assert (reset["parked_keys"], reset["waiting"]) == (len(BROKEN), len(BROKEN) * STEPS)
    await until_parked(cluster)
    await cluster.command("topic", "alter", "orders", "--queues", "3")


async def test_kills_during_a_replay_lose_nothing_and_keep_the_order(cluster: Cluster) -> None:
    broken = await park_orders(cluster)
    first, *others = BROKEN
    dropped = await park(cluster, "drop", "billing", str(first), "--to", "dlq")
    assert [(each["key"], each["state"]) for each in dropped["keys"]] == [(str(first), "dropping")]
    await until_parked(cluster, *others)
    letters = json.loads(await cluster.command("dlq", "ls", "billing", "--json"))["dead_letters"]
    assert [json.loads(letter["body"])["step"] for letter in letters] == list(range(STEPS))
    await cluster.kill(*CONSUMERS)
    broken.unlink()
    replayed = await park(cluster, "replay", "billing", "--all")
    assert sorted(int(each["key"]) for each in replayed["keys"]) == others
    await cluster.kill("broker-a")
    await cluster.restart("broker-a", *CONSUMERS)
    await until_parked(cluster)
    await cluster.until_lag(0)
    await cluster.stop(*CONSUMERS)
    assert steps(cluster) == {key: list(range(STEPS)) for key in range(KEYS) if key != first}
