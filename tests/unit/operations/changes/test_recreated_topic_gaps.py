"""A topic that is created again after its deletion: the offsets of the deleted messages are no gap for groups that begin in its queues."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.client import (
    ConsumeFromWhere,
    ConsumerEvent,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueGap,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.layouts.queue_move import put_in_order
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.groups.group_query import list_groups, read_group
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import layout_of, stored

TOPIC = "orders"
KINDS = ("ordered", "concurrent", "broadcasting", "pull")
WHERE = (ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET)


class Seen:
    """What one consumer has received, and the gaps that were reported to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.gaps: list[QueueGap] = []

    def event(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueueGap):
            self.gaps.append(event)

    async def handle(self, messages: Sequence[MessageExt], _: object) -> None:
        await asyncio.sleep(0)
        self.bodies += [bytes(message.body) for message in messages]


def consumer_of(
    cluster: TestCluster, kind: str, where: ConsumeFromWhere, folder: Path, seen: Seen
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the program of a consumer of this kind."""

    async def pull() -> None:
        consumer = PullConsumer("billing", nameserver=cluster.nameserver, consume_from_where=where)
        consumer.subscribe(TOPIC)
        consumer.on_event(seen.event)
        async with consumer:
            async for message in consumer:
                seen.bodies.append(bytes(message.body))

    async def push() -> None:
        model = MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING
        consumer = PushConsumer(
            "billing", nameserver=cluster.nameserver, consume_from_where=where, message_model=model, offset_dir=str(folder)
        )
        consumer.subscribe(TOPIC)
        consumer.on_event(seen.event)
        (consumer.orderly if kind == "ordered" else consumer.concurrently)(seen.handle)
        async with consumer:
            await consumer.wait_closed()

    return pull if kind == "pull" else push


async def deleted(cluster: TestCluster) -> AdminClient:
    """Fill four queues of the topic with ten messages each, and delete the topic."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 4, ["broker-a"])
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(40):
            await producer.send(Message(TOPIC, b"deleted"), queue=MessageQueue(TOPIC, "broker-a", number % 4))
    await carry_out(TopicDelete(topic=TOPIC, force=True), cluster.nameserver)
    return admin


async def add_queues(admin: AdminClient, count: int) -> None:
    layout = await layout_of(admin, TOPIC)
    await put_in_order(admin, layout, alter_layout(layout, {"broker-a": (count, count)}, writer=7))


async def send_to(cluster: TestCluster, queue_id: int, *bodies: bytes) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, "broker-a", queue_id))


@pytest.mark.parametrize("where", WHERE, ids=lambda where: where.name)
@pytest.mark.parametrize("kind", KINDS)
async def test_queue_that_is_added_to_a_topic_of_a_used_name_has_no_gap(
    lockstep_cluster: TestCluster, tmp_path: Path, kind: str, where: ConsumeFromWhere
) -> None:
    cluster, seen = lockstep_cluster, Seen()
    admin = await deleted(cluster)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    assert await stored(admin, TOPIC, "broker-a") == [(10, 10)], "offsets are not used again"
    await cluster.start("consumer", consumer_of(cluster, kind, where, tmp_path, seen))
    await cluster.advance(seconds=5)
    await add_queues(admin, 2)
    await send_to(cluster, 1, b"0", b"1")
    await cluster.until(lambda: len(seen.bodies) == 2, "both messages")
    await send_to(cluster, 0, b"2")
    await cluster.until(lambda: len(seen.bodies) == 3, "the third message")
    assert (seen.bodies, seen.gaps) == ([b"0", b"1", b"2"], [])


@pytest.mark.parametrize("kind", KINDS)
async def test_consumer_that_runs_while_its_topic_is_created_again_has_no_gap_in_a_queue_that_it_had_consumed(
    lockstep_cluster: TestCluster, tmp_path: Path, kind: str
) -> None:
    cluster, seen = lockstep_cluster, Seen()
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await cluster.start("consumer", consumer_of(cluster, kind, ConsumeFromWhere.FIRST_OFFSET, tmp_path, seen))
    await send_to(cluster, 0, b"0", b"1")
    await cluster.until(lambda: len(seen.bodies) == 2, "both messages")
    await cluster.advance(seconds=5)
    await carry_out(TopicDelete(topic=TOPIC, force=True), cluster.nameserver)
    await cluster.advance(seconds=5)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await send_to(cluster, 0, b"2")
    await cluster.until(lambda: len(seen.bodies) == 3, "the message of the new topic")
    assert (seen.bodies, seen.gaps) == ([b"0", b"1", b"2"], [])
    assert (await stored(admin, TOPIC, "broker-a")) == [(2, 3)]


async def test_group_does_not_lag_by_deleted_messages_in_a_queue_in_which_it_has_not_begun(
    lockstep_cluster: TestCluster, tmp_path: Path
) -> None:
    cluster, seen = lockstep_cluster, Seen()
    admin = await deleted(cluster)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await cluster.start("consumer", consumer_of(cluster, "concurrent", ConsumeFromWhere.FIRST_OFFSET, tmp_path, seen))
    await cluster.advance(seconds=5)
    await cluster.pause("consumer")
    await add_queues(admin, 2)
    await send_to(cluster, 1, b"0")
    report, _ = await read_group(admin, "billing")
    assert report is not None
    assert [(line.queue_id, line.committed_offset, line.lag) for line in report.queues if line.topic == TOPIC] == [(0, 10, 0), (1, None, 1)]
    lines, _ = await list_groups(admin)
    assert [(line.group, line.lag) for line in lines] == [("billing", 1)]
    await cluster.resume("consumer")


async def test_queue_that_was_removed_and_is_added_again_begins_after_the_messages_from_before_for_a_broadcasting_member(
    lockstep_cluster: TestCluster, tmp_path: Path
) -> None:
    cluster, seen = lockstep_cluster, Seen()
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 2, ["broker-a"])
    await send_to(cluster, 1, b"before")
    await add_queues(admin, 1)
    await cluster.start("consumer", consumer_of(cluster, "broadcasting", ConsumeFromWhere.FIRST_OFFSET, tmp_path, seen))
    await cluster.advance(seconds=5)
    await add_queues(admin, 2)
    await send_to(cluster, 1, b"after")
    await cluster.until(lambda: seen.bodies, "a message")
    await cluster.advance(seconds=5)
    assert (seen.bodies, seen.gaps) == ([b"after"], [])
