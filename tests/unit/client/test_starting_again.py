"""Producers and consumers that a module makes are started again: per test, or per lifespan of an application."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from lockstep.client import (
    ConsumeFromWhere,
    ConsumerState,
    GivenId,
    Message,
    MessageExt,
    MessageQueue,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    StateError,
    TransportError,
)
from lockstep.client.sync import Producer as BlockingProducer
from support.cluster_thread import cluster_in_a_thread

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_in_a_thread(tmp_path_factory.mktemp("up")) as address:
        yield address


def send(nameserver: str, topic: str, body: bytes) -> MessageQueue:
    """Send a message from a loop of its own. Return its queue."""
    with BlockingProducer("shop", nameserver=nameserver) as producer:
        return producer.send(Message(topic, body, sharding_key="k")).queue


def test_producer_is_started_again_on_another_loop(nameserver: str) -> None:
    producer = Producer("shop", nameserver=nameserver)

    async def work(*bodies: bytes) -> list[int]:
        async with producer:
            sent = [await producer.send(Message("sent-again", body, sharding_key="k")) for body in bodies]
        assert repr(producer) == "<Producer shop closed>"
        with pytest.raises(StateError, match="producer shop is closed"):
            await producer.send(Message("sent-again", b"no"))
        return [result.queue_offset for result in sent]

    assert asyncio.run(work(b"1", b"2")) == [0, 1]
    assert asyncio.run(work(b"3")) == [2]
    assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


def test_producer_that_was_closed_before_its_first_start_can_be_started(nameserver: str) -> None:
    producer = Producer("shop", nameserver=nameserver)

    async def work() -> int:
        await producer.close()
        async with producer:
            return (await producer.send(Message("closed-first", b"1"))).queue_offset

    assert asyncio.run(work()) == 0


async def test_producer_whose_start_failed_can_be_started() -> None:
    producer = Producer("shop", nameserver="127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(TransportError, match="127\\.0\\.0\\.1:1"):
            await producer.start()
        assert repr(producer) == "<Producer shop new>"
    await producer.close()
    with pytest.raises(TransportError):
        await producer.start()
    assert repr(producer) == "<Producer shop closed>"


def test_producer_with_a_given_id_starts_once(nameserver: str) -> None:
    """A second start would number its frames from 0 again, and the broker would take them for repetitions."""
    producer = Producer("shop", nameserver=nameserver, given_id=GivenId("0" * 32, 0, 0))

    async def work() -> None:
        async with producer:
            pass
        with pytest.raises(StateError, match="given id is for one start"):
            await producer.start()

    asyncio.run(work())


def test_blocking_producer_is_started_again_after_a_close(nameserver: str) -> None:
    producer = BlockingProducer("shop", nameserver=nameserver)
    offsets = []
    for body in (b"1", b"2"):
        with producer:
            offsets.append(producer.send(Message("blocking-again", body, sharding_key="k")).queue_offset)
        with pytest.raises(StateError, match="is closed"):
            producer.send(Message("blocking-again", b"no"))
    assert offsets == [0, 1]


@pytest.mark.parametrize("kind", ["orderly", "concurrently"])
def test_push_consumer_is_started_again_on_another_loop(nameserver: str, kind: str) -> None:
    handled: list[bytes] = []
    came: list[asyncio.Event] = []
    topic, group = f"again-{kind}", f"billing-{kind}"
    consumer = PushConsumer(group, nameserver=nameserver, consume_from_where=FIRST).subscribe(topic)

    async def handle(messages: Sequence[MessageExt], context: object) -> None:
        handled.extend(message.body for message in messages)
        came[-1].set()

    getattr(consumer, kind)(handle)

    async def work() -> None:
        came.append(asyncio.Event())
        async with consumer:
            await came[-1].wait()
        assert consumer.state is ConsumerState.STOPPED
        await consumer.wait_closed()

    for body in (b"1", b"2"):
        send(nameserver, topic, body)
        asyncio.run(work())
    assert handled == [b"1", b"2"]


def test_pull_consumer_is_started_again_on_another_loop(nameserver: str) -> None:
    consumer = PullConsumer("reports", nameserver=nameserver, consume_from_where=FIRST).subscribe("pulled-again")

    async def work() -> bytes:
        async with consumer:
            (message,) = await consumer.poll(20_000)
            consumer.pause()
            await consumer.commit()
            return message.body

    for body in (b"1", b"2"):
        send(nameserver, "pulled-again", body)
        assert asyncio.run(work()) == body, "the pause of the first start is forgotten, its commit is not"


def test_assigned_queues_are_kept_for_the_next_start(nameserver: str) -> None:
    consumer = PullConsumer("by-hand", nameserver=nameserver, consume_from_where=FIRST)

    async def work() -> list[bytes]:
        async with consumer:
            return [message.body for message in await consumer.poll(20_000)]

    asyncio.run(consumer.assign([send(nameserver, "assigned", b"1")]))
    assert asyncio.run(work()) == [b"1"]
    assert asyncio.run(work()) == [b"1"], "it was not committed"
    asyncio.run(consumer.assign([]))
    with pytest.raises(StateError, match="by-hand is stopped: start it again"):
        asyncio.run(consumer.poll())


def test_consumer_that_failed_can_be_started_again(nameserver: str) -> None:
    consumer = PushConsumer("failing", nameserver=nameserver, consume_from_where=FIRST).subscribe("failed")
    handled: list[bytes] = []
    came: list[asyncio.Event] = []

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if not came:
            raise SystemExit(5)
        handled.extend(message.body for message in messages)
        came[-1].set()

    async def fail() -> None:
        async with consumer:
            with pytest.raises(SystemExit):
                await consumer.wait_closed()
        assert consumer.state is ConsumerState.FAILED

    async def work() -> None:
        came.append(asyncio.Event())
        async with consumer:
            assert consumer.failure is None
            await came[-1].wait()

    send(nameserver, "failed", b"1")
    asyncio.run(fail())
    asyncio.run(work())
    assert handled == [b"1"]
    assert consumer.state is ConsumerState.STOPPED


def test_subscription_can_change_between_two_starts(nameserver: str) -> None:
    consumer = PullConsumer("moving", nameserver=nameserver, consume_from_where=FIRST).subscribe("first-topic")

    async def work(body: bytes) -> None:
        async with consumer:
            with pytest.raises(StateError, match="can't change while the consumer runs"):
                consumer.subscribe("second-topic")
            while body not in [message.body for message in await consumer.poll(20_000)]:
                pass

    for topic in ("first-topic", "second-topic"):
        send(nameserver, topic, topic.encode())
    asyncio.run(work(b"first-topic"))
    consumer.subscribe("second-topic")
    asyncio.run(work(b"second-topic"))
