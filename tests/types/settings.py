"""Calls that mypy and pyright must accept, and calls that they must refuse. `scripts/wheel` checks this file; nothing runs it.

A call that is refused has a comment for each checker, and a comment that is not needed is an error.
"""

from typing import assert_type

from lockstep.client import Client, ConsumeFromWhere, LatencyFaults, Message, OrderedRetry, Producer, PullConsumer, PushConsumer, SendResult
from lockstep.client.sync import Producer as BlockingProducer


class OwnProducer(Producer):
    """A subclass calls the constructor with keywords too."""

    def __init__(self) -> None:
        super().__init__("shop", send_timeout_ms=500)


def accepted() -> None:
    client = Client("10.0.0.5:9876", heartbeat_interval_ms=10_000)
    Client(nameserver=["10.0.0.5:9876"])
    producer = Producer("shop", client=client, compress_over_bytes=None, latency_faults=LatencyFaults())
    assert_type(producer, Producer)
    assert_type(producer.config.send_timeout_ms, int)
    Producer(group="shop", nameserver="10.0.0.5:9876", auto_create_topics=False)
    blocking = BlockingProducer("shop", nameserver="10.0.0.5:9876", send_timeout_ms=500)
    assert_type(blocking.send(Message("orders", b"paid"), timeout_ms=500), SendResult)
    assert_type(blocking.send_batch([Message("orders", b"paid")]), list[SendResult])
    consumer = PushConsumer("billing", commit="each", retry=OrderedRetry(max_attempts=3), consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    assert_type(consumer, PushConsumer)
    assert_type(PullConsumer("audit", poll_count=10).subscribe("orders"), PullConsumer)


def refused() -> None:
    Client(heartbeat_ms=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Client(heartbeat_interval_ms="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Producer()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Producer("shop", "10.0.0.5:9876")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Producer("shop", send_timeout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Producer("shop", send_timeout_ms=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Producer("shop", send_timeout_ms=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BlockingProducer("shop", client=Client())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    BlockingProducer("shop").send(Message("orders", b"paid"), timeout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PushConsumer("billing", commit="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PushConsumer("billing", retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PushConsumer("billing", poll_count=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PullConsumer("audit", concurrency=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PullConsumer("audit", consume_from_where="FIRST_OFFSET")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
