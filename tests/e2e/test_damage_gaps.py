"""Consumers of every kind on a damaged log: each undamaged message, and one gap that names the damaged ones."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueGap,
)
from support.cluster import QUICK, Cluster
from support.damage import Damage
from support.effort import usually

pytestmark = pytest.mark.e2e

BODIES = [b"%02d" % number * 50 for number in range(20)]
DAMAGED = (7, 8)


async def create_damaged_topic(cluster: Cluster) -> None:
    """Create a topic of one queue whose offsets 7 and 8 are damaged while the broker does not run."""
    await cluster.servers(*QUICK, queues=1, brokers=("broker-a",))
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        places = [(await producer.send(Message("orders", body))).queue_offset for body in BODIES]
    assert places == list(range(20))
    await cluster.stop("broker-a")
    damage = Damage(cluster.folder / "store-broker-a")
    log = damage.segments[0].read_bytes()
    for offset in DAMAGED:
        damage.flip(log.index(BODIES[offset]) + 3)
    await cluster.restart("broker-a")


def gap_offsets(gaps: list[QueueGap]) -> set[int]:
    return {offset for gap in gaps for offset in range(gap.first, gap.end)}


@pytest.mark.parametrize("kind", usually(["orderly"], ["orderly", "concurrently", "broadcasting"]))
async def test_push_consumer_gets_every_undamaged_message_and_a_gap_event(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    await create_damaged_topic(cluster)
    options: dict[str, Any] = {}
    if kind == "broadcasting":
        options = {"message_model": MessageModel.BROADCASTING, "offset_dir": str(tmp_path / "offsets"), "instance_name": "one"}
    consumer = PushConsumer("billing", nameserver=cluster.nameservers, **options)
    consumer.subscribe("orders")
    found: dict[int, bytes] = {}
    gaps: list[QueueGap] = []
    consumer.on_event(lambda event: gaps.append(event) if isinstance(event, QueueGap) else None)

    async def orderly(messages: Sequence[MessageExt], context: object) -> ConsumeOrderlyStatus:
        found.update((message.queue_offset, message.body) for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async def concurrently(messages: Sequence[MessageExt], context: object) -> ConsumeConcurrentlyStatus:
        found.update((message.queue_offset, message.body) for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    if kind == "concurrently":
        consumer.concurrently(concurrently)
    else:
        consumer.orderly(orderly)
    async with consumer:
        await cluster.until("all are handled", lambda: len(found) == 18)
    assert found == {offset: body for offset, body in enumerate(BODIES) if offset not in DAMAGED}
    assert gap_offsets(gaps) == set(DAMAGED)


async def test_pull_consumer_gets_every_undamaged_message_and_a_gap_event(cluster: Cluster) -> None:
    await create_damaged_topic(cluster)
    consumer = PullConsumer("billing", nameserver=cluster.nameservers)
    consumer.subscribe("orders")
    gaps: list[QueueGap] = []
    consumer.on_event(lambda event: gaps.append(event) if isinstance(event, QueueGap) else None)
    found: dict[int, bytes] = {}
    async with consumer, asyncio.timeout(60):
        while len(found) < 18:
            found.update((message.queue_offset, message.body) for message in await consumer.poll())
    assert found == {offset: body for offset, body in enumerate(BODIES) if offset not in DAMAGED}
    assert gap_offsets(gaps) == set(DAMAGED)
