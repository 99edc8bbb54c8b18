"""Many members join at once: each queue moves once, not once for each new member."""

import asyncio
from collections import Counter
from functools import partial

from lockstep.client import ConsumeOrderlyStatus, ConsumerEvent, PullConsumer, PushConsumer, QueueAssigned
from lockstep.client.consumer.rebalance_delay import CALM_MS, QUIET_MS
from lockstep.testing import TestCluster

MEMBERS = 50
QUEUES = 50
"""Per broker; there are two brokers."""
HELD_WITHIN_S = 5.0
JOINED_WITHIN_S = 0.1


async def _member(cluster: TestCluster, name: str, assigned: list[tuple[str, str]]) -> None:
    consumer = PushConsumer("billing", nameserver=cluster.nameserver)
    consumer.subscribe("orders")

    def heard(event: ConsumerEvent) -> None:
        if isinstance(event, QueueAssigned):
            assigned.append((str(event.queue), name))

    consumer.on_event(heard)

    @consumer.orderly
    async def listen(_messages: object, _context: object) -> ConsumeOrderlyStatus:
        return ConsumeOrderlyStatus.SUCCESS

    async with consumer:
        await consumer.wait_closed()


def _owners(assigned: list[tuple[str, str]]) -> dict[str, str]:
    return dict(assigned)


async def test_each_queue_moves_at_most_once_when_fifty_members_join_within_a_second(lockstep_cluster: TestCluster) -> None:
    cluster, assigned = lockstep_cluster, list[tuple[str, str]]()
    await cluster.create_topic("orders", queues=QUEUES)
    began_s = cluster.now
    for number in range(MEMBERS):
        await cluster.start(f"member-{number}", partial(_member, cluster, f"member-{number}", assigned))
        await asyncio.sleep(1 / MEMBERS)
    shares = {f"member-{number}": 2 * QUEUES // MEMBERS for number in range(MEMBERS)}
    await cluster.until(lambda: Counter(_owners(assigned).values()) == shares, "equal shares")
    assert cluster.now - began_s < HELD_WITHIN_S
    assert max(Counter(queue for queue, _ in assigned).values()) <= 2


async def test_member_that_joins_alone_gets_its_queues_immediately(lockstep_cluster: TestCluster) -> None:
    cluster, assigned = lockstep_cluster, list[tuple[str, str]]()
    await cluster.create_topic("orders", queues=2)
    await cluster.start("old", partial(_member, cluster, "old", assigned))
    await cluster.until(lambda: len(assigned) == 4, "everything at the first")
    await cluster.advance(seconds=CALM_MS / 1000)
    began_s = cluster.now
    await cluster.start("new", partial(_member, cluster, "new", assigned))
    await cluster.until(lambda: Counter(_owners(assigned).values()) == {"old": 2, "new": 2}, "equal shares")
    assert cluster.now - began_s < JOINED_WITHIN_S


async def test_leave_ends_the_rebalance_delay_of_a_joining_member(lockstep_cluster: TestCluster) -> None:
    cluster, assigned = lockstep_cluster, list[tuple[str, str]]()
    await cluster.create_topic("orders", queues=2)
    for name in ("one", "two"):
        await cluster.start(name, partial(_member, cluster, name, assigned))
    await cluster.advance(seconds=(CALM_MS + QUIET_MS) / 1000)
    await cluster.start("three", partial(_member, cluster, "three", assigned))
    await cluster.until(lambda: "three" in _owners(assigned).values(), "a share for the first that comes")
    await cluster.start("four", partial(_member, cluster, "four", assigned))
    while (report := await cluster.group_status("billing")) is None or len(report.members) < 4:
        await cluster.advance(seconds=0.01)
    assert "four" not in _owners(assigned).values(), "it came soon after another: it waits"
    began_s = cluster.now
    await cluster.stop("one")
    await cluster.until(lambda: set(_owners(assigned).values()) == {"two", "three", "four"}, "shares of who is left")
    assert cluster.now - began_s < JOINED_WITHIN_S


async def test_pull_group_rebalances_without_a_delay(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=2)
    held: dict[str, list[object]] = {}

    async def member(name: str) -> None:
        consumer = PullConsumer("mailing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")
        async with consumer:
            while True:
                await consumer.poll(timeout_ms=10)
                held[name] = list(consumer.assignment())

    await cluster.start("old", partial(member, "old"))
    await cluster.until(lambda: len(held.get("old", ())) == 4, "everything at the first")
    began_s = cluster.now
    await cluster.start("new", partial(member, "new"))
    await cluster.start("newer", partial(member, "newer"))
    await cluster.until(lambda: sorted(map(len, held.values())) == [1, 1, 2], "equal shares")
    assert cluster.now - began_s < 3 * JOINED_WITHIN_S
