"""Replays of parked keys with real processes: members and a broker are killed in them, and other members and keys go on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.bodies import LockBatchBody, LockBatchReply, ParkAction, QueueRef
from lockstep.protocol.bodies.parks import KEYS_PER_QUEUE_MAX
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from support.cluster import QUICK, Cluster, Report, now_us
from support.native import bodies, native

pytestmark = pytest.mark.e2e

BY_KEY = ("--order-by", "sharding_key", "--concurrency", "50")


def parking(broken: Path, orders: str, *options: str, attempts: int = 2) -> tuple[str, ...]:
    """Return the options of a member whose listener fails for these orders while the file exists."""
    fails = ("--broken", str(broken), "--broken-orders", orders, "--backoff-ms", "10")
    return "--give-up-after", str(attempts), "--on-exhausted", "park", *fails, *options


def broken_in(cluster: Cluster) -> Path:
    broken = cluster.folder / "broken"
    broken.touch()
    return broken


async def parked(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return what `park ls` prints, by key."""
    return {row["key"]: row for row in json.loads(await cluster.command("park", "ls", "billing", "--json"))["keys"]}


async def until_parked(cluster: Cluster, *keys: str) -> None:
    while (await parked(cluster)).keys() != set(keys):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def handled(cluster: Cluster, order: int) -> list[tuple[str, int]]:
    """Return (member, step) of an order's handled events, in the sequence in which their calls began."""
    found = sorted(cluster.handled_events(), key=lambda each: each.begun_us)
    return [(each.consumer, each.step) for each in found if each.order == order]


async def test_poisoned_order_among_a_thousand_comes_back_in_order_over_kills_in_its_replay(cluster: Cluster, report: Report) -> None:
    """The member that replays it is killed, then the broker while the next member goes on, and that member."""
    orders, steps, more, poisoned = 1_000, 4, 40, 7
    broken = broken_in(cluster)
    await cluster.servers(*QUICK, queues=2, brokers=["broker-a"])
    members = ["consumer-1", "consumer-2"]
    for name in members:
        await cluster.consumer(name, *parking(broken, str(poisoned), *BY_KEY))
    await cluster.until_held(2, *members)
    await cluster.producer("producer", "--keys", str(orders), "--steps", str(steps), "--pause-ms", "1")
    await cluster.until("every other order is handled", lambda: len(cluster.handled_events()) == (orders - 1) * steps)
    times = [each.begun_us for each in cluster.handled_events()]
    report(f"{len(times) / (max(times) - min(times)) * 1e6:.0f} events/s of {orders - 1} orders while one is parked")
    await until_parked(cluster, str(poisoned))
    await cluster.producer("more", "--keys", "1", "--first", str(poisoned), "--steps", str(more), "--pause-ms", "0", "--group", "more")
    await cluster.finish_producer()
    await cluster.until("they are stored", lambda: len(cluster.acks("more")) == more)
    await cluster.stop(*members)
    broken.unlink()
    slow = {f"slow-{number}": parking(broken, str(poisoned), *BY_KEY, "--work-ms", "300") for number in range(2)}
    for name, options in slow.items():
        await cluster.consumer(name, *options)
    await cluster.until_held(2, *slow)
    assert not handled(cluster, poisoned), "it waits, also for other members"
    await cluster.command("park", "replay", "billing", str(poisoned))
    await cluster.until("a part of the replay", lambda: len(handled(cluster, poisoned)) >= 3)
    ((first, _), *_) = handled(cluster, poisoned)
    await cluster.kill(first)
    (other,) = slow.keys() - {first}
    await cluster.until("the next member goes on", lambda: other in dict(handled(cluster, poisoned)))
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    done = len(handled(cluster, poisoned))
    await cluster.until("it goes on after the broker", lambda: len(handled(cluster, poisoned)) > done + 1)
    assert await parked(cluster), "the replay is under way"
    await cluster.kill(other)
    await cluster.consumer("fast", *parking(broken, str(poisoned), *BY_KEY))
    await until_parked(cluster)
    await cluster.until_lag(0)
    accepted = handled(cluster, poisoned)
    expected = [*range(steps), *range(more)]
    repeats = len(accepted) - len(expected)
    report(f"{repeats} of {len(expected)} events repeated over the kills of two members and of the broker")
    assert list(dict(accepted)) == [first, other, "fast"]
    assert 0 <= repeats <= 6, "at most what was not committed: a call of each kill, and what was on its way"
    assert without_repeats([step for _, step in accepted], repeats) == expected
    await cluster.finish_producer("more", ordered=False)


def without_repeats(steps: list[int], repeats: int) -> list[int]:
    """Return the steps without those that came again: a step that is not above the one before it repeats the last ones."""
    found: list[int] = []
    for step in steps:
        if repeats and found and step in found[-4:] and step <= found[-1]:
            repeats -= 1
            continue
        found.append(step)
    return found


async def test_two_orders_are_replayed_at_once_while_one_of_fifty_hangs_and_the_others_go_on(cluster: Cluster) -> None:
    """A call of one order does not return. Both replays, and all other orders, come to their end all the same."""
    broken = broken_in(cluster)
    await cluster.servers(*QUICK, queues=1, brokers=["broker-a"])
    await cluster.consumer("consumer-1", *parking(broken, "3,4", *BY_KEY))
    await cluster.until_held(1, "consumer-1")
    await cluster.producer("producer", "--keys", "50", "--steps", "4", "--pause-ms", "1")
    await cluster.until("the others are handled", lambda: len(cluster.handled_events()) == 48 * 4)
    await until_parked(cluster, "3", "4")
    await cluster.stop("consumer-1")
    broken.unlink()
    await cluster.consumer("consumer-2", *parking(broken, "3,4", *BY_KEY, "--work-ms", "30", "--trouble", "wait:600", "--armed"))
    await cluster.until_held(1, "consumer-2")
    await cluster.finish_producer()
    await cluster.producer("again", "--keys", "50", "--first", "100", "--steps", "2", "--pause-ms", "1")
    await cluster.until_heard("consumer-2", "trouble.begun")
    await cluster.command("park", "replay", "billing", "--all")
    await cluster.until("all but the hanging order", lambda: len(cluster.handled_events()) == 50 * 4 + 49 * 2)
    calls = sorted((each for each in cluster.handled_events() if each.order in (3, 4)), key=lambda each: each.begun_us)
    for order in (3, 4):
        assert handled(cluster, order) == [("consumer-2", step) for step in range(4)]
    assert [each.order for each in calls] != sorted(each.order for each in calls), "the replays take turns"
    await cluster.finish_producer("again")
    await until_parked(cluster)
    assert not cluster.reported_events("consumer-2", "trouble.ended")
    await cluster.kill("consumer-2")
    await cluster.consumer("consumer-3", *parking(broken, "3,4", *BY_KEY))
    await cluster.until_lag(0)


async def test_classic_member_gets_nothing_of_a_parked_order(cluster: Cluster) -> None:
    """It takes the queue over from the members that parked the order, and reads from the first message on."""
    broken = broken_in(cluster)
    await cluster.servers(*QUICK, queues=1, brokers=["broker-a"])
    await cluster.consumer("consumer-1", *parking(broken, "1"))
    await cluster.until_held(1, "consumer-1")
    await cluster.producer("producer", "--keys", "3", "--steps", "5", "--pause-ms", "1")
    await cluster.until("the others are handled", lambda: len(cluster.handled_events()) == 2 * 5)
    await until_parked(cluster, "1")
    await cluster.finish_producer()
    await cluster.stop("consumer-1")
    async with native(cluster.addresses["broker-a"]) as client:
        wanted = LockBatchBody("classic", "billing", (QueueRef("orders", "broker-a", 0),))
        reply = await client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(wanted))
        assert decode_body(LockBatchReply, reply.body).lock_ok_mq_set
        response = await client.pull("orders", 0, group="billing")
        orders = [json.loads(body)["order"] for body in bodies(response)]
        assert (sorted(set(orders)), len(orders)) == ([0, 2], 10)
        assert response.fields["nextBeginOffset"] == 15
        other = await client.pull("orders", 0, group="shipping")
        assert len(bodies(other)) == 15, "another group gets all"
    dropped = json.loads(await cluster.command("park", "drop", "billing", "1", "--to", "dlq", "--json"))
    assert [row["state"] for row in dropped["keys"]] == [ParkAction.DROP.value + "ping"]
    await until_parked(cluster)
    letters = json.loads(await cluster.command("dlq", "ls", "billing", "--json"))["dead_letters"]
    assert [json.loads(letter["body"])["step"] for letter in letters] == [0, 1, 2, 3, 4]


@pytest.mark.slow
async def test_thousand_orders_can_be_parked_and_the_next_one_blocks_and_says_why(cluster: Cluster, report: Report) -> None:
    broken = broken_in(cluster)
    orders = ",".join(map(str, range(KEYS_PER_QUEUE_MAX + 1)))
    await cluster.servers(*QUICK, queues=1, brokers=["broker-a"])
    options = parking(broken, orders, *BY_KEY, "--work-ms", "0", attempts=1)
    await cluster.consumer("consumer-1", *options)
    await cluster.until_held(1, "consumer-1")
    await cluster.producer("producer", "--keys", str(KEYS_PER_QUEUE_MAX + 2), "--steps", "2", "--pause-ms", "0")
    blocked = await cluster.until_heard("consumer-1", "consumer.QueueBlocked")
    assert blocked["error"].startswith(
        "RuntimeError: broken; its key is not parked: 1000 keys of group billing are parked in orders queue 0"
    )
    times = [each["at_us"] for each in cluster.reported_events("consumer-1", "consumer.KeyParked")]
    report(f"{len(times)} keys parked, {len(times) / (times[-1] - times[0]) * 1e6:.0f} a second")
    assert len(times) == KEYS_PER_QUEUE_MAX
    await cluster.until("the order that does not fail", lambda: len(handled(cluster, KEYS_PER_QUEUE_MAX + 1)) == 2)
    rows = await parked(cluster)
    (left,) = set(orders.split(",")) - rows.keys()
    assert left == blocked["key"]
    await cluster.finish_producer()
    await cluster.stop("consumer-1")
    broken.unlink()
    await cluster.consumer("consumer-2", *options)
    await cluster.until("the order that had blocked", lambda: len(handled(cluster, int(left))) == 2)
    began = now_us()
    await cluster.command("park", "replay", "billing", "--all")
    await cluster.until("all events", lambda: len(cluster.handled_events()) == 2 * (KEYS_PER_QUEUE_MAX + 2))
    report(f"{KEYS_PER_QUEUE_MAX} keys replayed, {KEYS_PER_QUEUE_MAX / (now_us() - began) * 1e6:.0f} a second")
    await until_parked(cluster)
    for order in range(0, KEYS_PER_QUEUE_MAX + 2, 100):
        assert [step for _, step in handled(cluster, order)] == [0, 1]
    await cluster.stop("consumer-2")
    assert len(cluster.handled_events()) == 2 * (KEYS_PER_QUEUE_MAX + 2), "each once"
