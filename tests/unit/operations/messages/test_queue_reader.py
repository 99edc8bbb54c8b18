"""A reader of one queue returns each message from its offset up to its end once, whatever the pages are."""

import asyncio

import pytest

from lockstep.client import Message, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

TOPIC = "orders"
COUNT = 20
pytestmark = pytest.mark.lockstep(brokers=1)


async def stored(cluster: TestCluster) -> AdminClient:
    """Store 20 messages in one queue: the sharding keys are k0, k1, k2, k0 …, every fourth has the tag t."""
    await cluster.create_topic(TOPIC, queues=1)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(COUNT):
            message = Message(TOPIC, b"%d" % number, sharding_key=f"k{number % 3}", tags="t" if number % 4 == 0 else None)
            await producer.send(message)
    return AdminClient(Host.current(), cluster.nameserver)


@pytest.mark.parametrize("count", [1, 3, COUNT, 256])
@pytest.mark.parametrize(("offset", "end"), [(0, None), (0, COUNT), (5, 6), (7, 19), (19, None), (COUNT, None), (5, 5), (0, 10_000)])
async def test_each_message_of_the_range_is_returned_once(lockstep_cluster: TestCluster, count: int, offset: int, end: int | None) -> None:
    admin = await stored(lockstep_cluster)
    (broker,) = await admin.brokers()
    reader = QueueReader(admin, broker, TOPIC, 0, offset, end, count=count)
    found = [message.queue_offset for message in await reader.rest()]
    assert found == list(range(offset, COUNT if end is None else min(end, COUNT)))
    assert await reader.next() is None


async def test_page_is_limited_and_says_where_the_next_one_begins(lockstep_cluster: TestCluster) -> None:
    admin = await stored(lockstep_cluster)
    (broker,) = await admin.brokers()
    reader = QueueReader(admin, broker, TOPIC, 0, 4, 11, count=5)
    first = await reader.next()
    assert first is not None
    assert ([each.queue_offset for each in first.messages], reader.offset, reader.ended) == ([4, 5, 6, 7, 8], 9, False)
    assert [each.queue_offset for each in await reader.rest()] == [9, 10]
    assert reader.offset == 11


@pytest.mark.parametrize(("pick", "offsets"), [(Pick(key="k1"), [1, 4, 7, 10, 13, 16, 19]), (Pick(tags="t"), [0, 4, 8, 12, 16])])
async def test_broker_returns_only_what_was_picked(lockstep_cluster: TestCluster, pick: Pick, offsets: list[int]) -> None:
    admin = await stored(lockstep_cluster)
    (broker,) = await admin.brokers()
    reader = QueueReader(admin, broker, TOPIC, 0, 0, None, pick, count=2)
    assert [message.queue_offset for message in await reader.rest()] == offsets
    assert reader.ended


async def test_reader_that_follows_waits_for_new_messages(lockstep_cluster: TestCluster) -> None:
    admin = await stored(lockstep_cluster)
    (broker,) = await admin.brokers()
    reader = QueueReader(admin, broker, TOPIC, 0, COUNT - 1, hold_ms=5_000)
    last, began = await reader.next(), Host.current().clock.monotonic_ms()
    assert last is not None
    assert [each.queue_offset for each in last.messages] == [COUNT - 1]
    empty = await reader.next()
    assert empty is not None
    assert (empty.messages, reader.ended, reader.offset) == ([], False, COUNT)
    assert Host.current().clock.monotonic_ms() - began >= 5_000
    page = asyncio.ensure_future(reader.next())
    async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"new"))
    new = await page
    assert new is not None
    assert [each.queue_offset for each in new.messages] == [COUNT]


@pytest.mark.parametrize(("hold_ms", "offset"), [(0, COUNT + 5), (1_000, COUNT)])
async def test_only_a_reader_that_follows_goes_back_with_the_end_of_the_log(
    lockstep_cluster: TestCluster, hold_ms: int, offset: int
) -> None:
    admin = await stored(lockstep_cluster)
    (broker,) = await admin.brokers()
    reader = QueueReader(admin, broker, TOPIC, 0, COUNT + 5, hold_ms=hold_ms)
    assert await reader.next() is not None
    assert reader.offset == offset
