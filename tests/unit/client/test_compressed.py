"""Bodies are stored compressed by every send method and delivered uncompressed to every kind of consumer."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    RemoteProtocolError,
)
from lockstep.client.producer.config import ProducerConfig
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.names import dlq_topic
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.testing import TestCluster, simulate

LARGE = json.dumps([{"order": number, "state": "paid"} for number in range(400)]).encode()
ON, OFF = ProducerConfig(), ProducerConfig(compress_over_bytes=None)


def is_small(message: MessageExt) -> bool:
    return message.sys_flag == 0x301 and message.body_bytes < len(LARGE) // 4


def test_every_send_method_compresses_and_listeners_get_the_uncompressed_body() -> None:
    """Also for retries, dead letters and delays: the broker copies the stored body."""
    sent = {kind: b"%s %s" % (kind.encode(), LARGE) for kind in ("send", "keyed", "batch", "oneway", "delayed")}
    tries: dict[bytes, int] = {}
    ordered: list[MessageExt] = []
    dead: list[MessageExt] = []

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=2)
            again = PushConsumer("again", nameserver=cluster.nameserver, max_reconsume_times=1)
            again.subscribe("orders")

            @again.concurrently
            async def fail(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                assert all(map(is_small, messages))
                tries[messages[0].body] = tries.get(messages[0].body, 0) + 1
                return ConsumeConcurrentlyStatus.RECONSUME_LATER

            once = PushConsumer("once", nameserver=cluster.nameserver)
            once.subscribe("orders")

            @once.orderly
            async def take(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                ordered.extend(messages)
                return ConsumeOrderlyStatus.SUCCESS

            async with again, once, Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", sent["send"]))
                await producer.send(Message("orders", sent["keyed"], sharding_key="1"))
                await producer.send_batch([Message("orders", sent["batch"])])
                await producer.send_oneway(Message("orders", sent["oneway"]))
                await producer.send(Message("orders", sent["delayed"]), delay_level=1)
                await cluster.advance(seconds=30)
            morgue = PushConsumer("morgue", nameserver=cluster.nameserver)
            morgue.subscribe(dlq_topic("again"))

            @morgue.orderly
            async def bury(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                dead.extend(messages)
                return ConsumeOrderlyStatus.SUCCESS

            async with morgue:
                await cluster.advance(seconds=5)

    simulate(main)
    assert sorted(message.body for message in ordered) == sorted(sent.values())
    assert tries == dict.fromkeys(sent.values(), 2)
    assert sorted(message.body for message in dead) == sorted(sent.values())
    assert all(map(is_small, ordered + dead))


def test_pull_consumer_gets_the_uncompressed_body() -> None:
    async def main() -> list[MessageExt]:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            consumer = PullConsumer("puller", nameserver=cluster.nameserver)
            consumer.subscribe("orders")
            async with consumer, Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", LARGE))
                found: list[MessageExt] = []
                while not found:
                    found += await consumer.poll(1_000)
                return found

    (message,) = simulate(main)
    assert is_small(message)
    assert message.body == LARGE


@pytest.mark.parametrize(("config", "small"), [(ON, True), (OFF, False)])
def test_compress_over_bytes_none_disables_compression(config: ProducerConfig, small: bool) -> None:
    found: list[MessageExt] = []

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            consumer = PushConsumer("g", nameserver=cluster.nameserver)
            consumer.subscribe("orders")

            @consumer.orderly
            async def take(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                found.extend(messages)
                return ConsumeOrderlyStatus.SUCCESS

            over = config.compress_over_bytes
            async with consumer, Producer("shop", nameserver=cluster.nameserver, compress_over_bytes=over) as producer:
                await producer.send(Message("orders", LARGE))
                await cluster.advance(seconds=1)

    simulate(main)
    assert [message.body for message in found] == [LARGE]
    assert is_small(found[0]) is small


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "4096"])
def test_invalid_compress_over_bytes_is_rejected(limit: object) -> None:
    with pytest.raises(ConfigError, match="compress_over_bytes"):
        ProducerConfig(compress_over_bytes=limit)  # type: ignore[arg-type]


def test_invalid_compressed_body_fails_only_its_own_message() -> None:
    """Another client stored the body. Reading it raises, the message is retried and dead-lettered, and its queue continues."""
    wrong: list[str] = []
    taken: list[bytes] = []

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            retry = OrderedRetry(max_attempts=2, on_exhausted="dlq")
            consumer = PushConsumer("billing", nameserver=cluster.nameserver, retry=retry)
            consumer.subscribe("orders")

            @consumer.orderly
            async def take(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                try:
                    taken.append(messages[0].body)
                except RemoteProtocolError as error:
                    wrong.append(str(error))
                    raise
                return ConsumeOrderlyStatus.SUCCESS

            async with consumer, Producer("shop", nameserver=cluster.nameserver) as producer:
                first = await producer.send(Message("orders", b"first"))
                rubbish = encode_record(b"orders", first.queue.queue_id, b"rubbish", b"", sys_flag=0x301, born_ms=5)
                queue = MessageQueue("orders", first.queue.broker_name, first.queue.queue_id)
                await producer.send_records(queue, rubbish, [len(rubbish)])
                await producer.send(Message("orders", b"last"))
                await cluster.advance(seconds=30)
                await asyncio.sleep(0)

    simulate(main)
    assert taken == [b"first", b"last"]
    assert len(wrong) == 2
    assert all("is not a zlib stream" in each for each in wrong)
