"""The newest messages of a topic: how much is asked for them, how a search goes on, and what one that ends early has found."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.client import Message, MessageQueue, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import Criteria, Found
from lockstep.operations.messages.newest_first import MessagePosition, NewestFirst, Rest, parse_place
from lockstep.operations.messages.topic_search import TopicSearchLimits, find_in_topic
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

TOPIC = "orders"
LIMITS = TopicSearchLimits(3.0, 20_000, 8 << 20, 1.0)
two_brokers = pytest.mark.lockstep(brokers=2)


async def search(
    cluster: TestCluster, limit: int = 10, *, before: str | None = None, limits: TopicSearchLimits | None = LIMITS, **options: Any
) -> Found:
    admin = AdminClient(Host.current(), cluster.nameserver)
    found = Found(limit, SearchProgress(admin.host.clock, "messages"))
    place = None if before is None else parse_place(before)
    await find_in_topic(admin, found, TOPIC, Criteria(TOPIC, **options), before=place, limits=limits)
    return found


async def pages(cluster: TestCluster, limit: int = 10, **options: Any) -> list[list[str]]:
    """Return the bodies on each page, from the newest on."""
    found = await search(cluster, limit, **options)
    all_pages = [[each.body.decode() for each in found.messages]]
    while found.older is not None:
        found = await search(cluster, limit, before=found.older, **options)
        all_pages.append([each.body.decode() for each in found.messages])
    return all_pages


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests for offsets, for offsets by time, and for messages."""
    counts = Counter[str]()
    for name in ("offsets", "offset_by_time", "pull"):
        original = getattr(AdminClient, name)

        async def counted(self: AdminClient, *args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            counts[name] += 1
            return await original(self, *args, **options)

        monkeypatch.setattr(AdminClient, name, counted)
    return counts


async def put(cluster: TestCluster, count: int, *, queues: int) -> None:
    """Send numbered messages to the queues of both brokers in turn."""
    async with Producer("test", nameserver=cluster.nameserver) as producer:
        for number in range(count):
            queue = MessageQueue(TOPIC, f"broker-{'ab'[number % 2]}", number // 2 % queues)
            await producer.send(Message(TOPIC, b"%03d" % number), queue=queue)


def numbered(count: int) -> list[Message]:
    """Return messages with tags and sharding keys."""
    tags = "even", "odd"
    return [Message(TOPIC, b"%03d" % number, tags=tags[number % 2], sharding_key=f"k{number % 5}") for number in range(count)]


@two_brokers
async def test_offsets_are_asked_once_per_broker_and_each_queue_is_read_only_as_far_as_it_can_contribute(
    lockstep_cluster: TestCluster, asked: Counter[str]
) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=100)
    await put(lockstep_cluster, 400, queues=100)
    asked.clear()
    found = await search(lockstep_cluster)
    assert [each.body for each in found.messages] == [b"%03d" % number for number in range(399, 389, -1)]
    assert (asked["offsets"], asked["offset_by_time"]) == (2, 0)
    assert 200 <= asked["pull"] <= 220


@two_brokers
async def test_pages_have_every_message_once_also_of_a_batch_with_one_store_time(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=3)
    async with Producer("test", nameserver=lockstep_cluster.nameserver) as producer:
        for broker in ("a", "b"):
            for queue_id in range(3):
                bodies = [Message(TOPIC, f"{broker}{queue_id}-{number:02}".encode()) for number in range(20)]
                await producer.send_batch(bodies, queue=MessageQueue(TOPIC, f"broker-{broker}", queue_id))
    shown = await pages(lockstep_cluster, 7)
    assert [len(page) for page in shown] == [7] * 17 + [1]
    flat = [body for page in shown for body in page]
    assert sorted(flat) == [f"{broker}{queue_id}-{number:02}" for broker in "ab" for queue_id in range(3) for number in range(20)]
    for queue in {body[:2] for body in flat}:
        assert [body for body in flat if body[:2] == queue] == [f"{queue}-{number:02}" for number in range(19, -1, -1)]


@two_brokers
@pytest.mark.parametrize("options", [{}, {"tags": "odd"}, {"sharding_key": "k3"}, {"body": "7"}, {"tags": "even", "sharding_key": "k2"}])
async def test_search_that_ends_early_goes_on_without_a_gap_or_a_repetition(lockstep_cluster: TestCluster, options: dict[str, str]) -> None:
    """Here each request looks only at the last message of each queue."""
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    async with Producer("test", nameserver=lockstep_cluster.nameserver) as producer:
        for message in numbered(120):
            await producer.send(message)
            await asyncio.sleep(0.001)  # messages of one millisecond have no order among brokers
    shown = await pages(lockstep_cluster, 10, limits=replace(LIMITS, messages=1), **options)
    wanted = [each.body.decode() for each in reversed(numbered(120)) if _matches(each, **options)]
    assert [body for page in shown for body in page] == wanted
    assert min(map(len, shown[:-1])) < 10


def _matches(message: Message, tags: str | None = None, sharding_key: str | None = None, body: str = "") -> bool:
    return tags in (None, message.tags) and sharding_key in (None, message.sharding_key) and body in message.body.decode()


@two_brokers
async def test_one_queue_and_offsets_select(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    await put(lockstep_cluster, 80, queues=2)
    assert await pages(lockstep_cluster, queue=("broker-b", 1), offset_max=11) == [
        [f"{number:03}" for number in range(47, 10, -4)],
        ["007", "003"],
    ]
    assert [each.queue_offset for each in (await search(lockstep_cluster, 8, offset_max=3)).messages] == [3, 3, 3, 3, 2, 2, 2, 2]
    with pytest.raises(ConfigError, match="topic orders has no queue broker-c:0"):
        await search(lockstep_cluster, queue=("broker-c", 0))


@two_brokers
async def test_silent_broker_delays_no_other_one(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    await put(lockstep_cluster, 80, queues=2)
    await lockstep_cluster.pause("broker-b")
    found = await search(lockstep_cluster)
    assert [each.body for each in found.messages] == [b"%03d" % number for number in range(78, 58, -2)]
    assert found.failed == {"broker-b": "it has not responded for 1 s"}
    assert not found.ended_early
    assert found.older is not None


@two_brokers
async def test_queues_that_were_not_looked_at_are_counted_and_what_was_found_is_kept(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=20)
    await put(lockstep_cluster, 40, queues=20)
    pull, pulled = AdminClient.pull, Counter[int]()

    async def stuck(self: AdminClient, *args: Any, **options: Any) -> Any:
        pulled[0] += 1
        if pulled[0] > 16:
            await asyncio.Event().wait()
        return await pull(self, *args, **options)

    monkeypatch.setattr(AdminClient, "pull", stuck)
    found = await search(lockstep_cluster, limits=replace(LIMITS, patience_s=10))
    assert (found.ended_early, found.unlooked, len(found.messages), found.older) == (True, 24, 10, None)


async def test_invalid_tag_is_told_before_anything_is_asked(lockstep_cluster: TestCluster) -> None:
    with pytest.raises(LocalProtocolError, match="names no tag"):
        await search(lockstep_cluster, tags="||")


def test_place_is_read_as_it_was_written() -> None:
    place = MessagePosition(1_700_000_000_123, "room@broker-a.1", 7, 12)
    assert parse_place(str(place)) == place


def test_message_that_an_unread_one_may_precede_is_not_proven() -> None:
    """A queue whose clock was set back keeps its order: what is before a message of 5 ms counts as stored at 5 ms at the latest."""
    order = NewestFirst(3)
    a, b = (Rest(MessageQueue(TOPIC, "a", queue_id), 0, 10, looked=True) for queue_id in range(2))
    order.open([a, b])
    for rest, stored_ms, offset in ((a, 5, 9), (a, 8, 8), (b, 7, 9)):
        place = rest.place_of(cast(Any, SimpleNamespace(stored_ms=stored_ms, queue_offset=offset)))
        rest.newest_ms, rest.end = place.stored_ms, offset
        order.add(place, cast(Any, f"{rest.queue.queue_id}:{offset}"))
    assert order.messages() == ["1:9", "0:9", "0:8"]
    assert order.next_rests(9) == [b]
    assert order.proven() == (["1:9"], MessagePosition(7, "a", 1, 9))
    b.newest_ms, b.end = 4, 0
    assert order.next_rests(9) == []
    assert order.proven() == (["1:9", "0:9", "0:8"], MessagePosition(5, "a", 0, 8))
    assert [a.next_count(selected=False), a.next_count(selected=True)] == [8, 8]
    a.record_bytes = 100_000
    assert [a.next_count(selected=False), a.next_count(selected=True)] == [2, 8]
    order.drop("a")
    assert order.proven() == (["1:9", "0:9", "0:8"], None)


@pytest.mark.parametrize("text", ["", "x", "1:a:2", "1:a:2:3:4", "-1:a:2:3", "1:a b:2:3", f"{2**63}:a:2:3", "1:a:٣:3", "1:a:2:" + "9" * 30])
def test_rubbish_is_no_place(text: str) -> None:
    with pytest.raises(ConfigError, match="is no place to go on from"):
        parse_place(text)
