"""Helpers for tests of a producer against scripted brokers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TypeVar

from lockstep.client import Message, Producer, SendResult
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.encoder import FrameEncoder
from lockstep.protocol.messages.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from support.fake_broker import FakeBroker, FakeCluster, Step, fake_cluster, ignore, respond_later, take
from support.loops import until

T = TypeVar("T")
QUICK = ProducerConfig(send_timeout_ms=400, keyed_send_timeout_ms=1_200, attempt_timeout_ms=40)
IMPATIENT = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40)
"""Keyed sends that the broker ignores fail soon."""


def new_encoder() -> FrameEncoder:
    """Return an encoder with a fixed clock and fixed ids."""
    return FrameEncoder(UniqueKeys(bytes(UNIQUE_PREFIX_BYTES)), lambda: 1_700_000_000_000, None)


def message(body: str = "x", topic: str = "t", sharding_key: str | None = None) -> Message:
    return Message(topic, body.encode(), sharding_key=sharding_key)


def keyed(bodies: Iterable[str], keys: Iterable[str]) -> list[Message]:
    """Return a message for each body with the corresponding key."""
    return [message(body, sharding_key=key) for body, key in zip(bodies, keys, strict=True)]


@asynccontextmanager
async def producing(cluster: FakeCluster, config: ProducerConfig = QUICK) -> AsyncIterator[Producer]:
    async with Producer("orders", nameserver=cluster.nameserver, **asdict(config)) as producer:
        yield producer


@asynccontextmanager
async def one_queue(config: ProducerConfig = QUICK) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    """Run one broker with one queue and a producer connected to it."""
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"))
        yield cluster.brokers["a"], producer


def send(producer: Producer, body: str, key: str | None = None, timeout_ms: int | None = None) -> "asyncio.Future[SendResult]":
    return asyncio.ensure_future(producer.send(message(body, sharding_key=key), timeout_ms=timeout_ms))


async def hold_frame(broker: FakeBroker, then: Step = take) -> Callable[[], None]:
    """Wait until the broker has the next frame. Return a function that takes the step `then`."""
    held: list[Callable[[], None]] = []
    broker.script.append(respond_later(held, then))
    await until(lambda: len(held) == 1)
    return held[0]


async def held_send(
    broker: FakeBroker, producer: Producer, body: str, key: str | None = None, *, then: Step = take
) -> tuple["asyncio.Future[SendResult]", Callable[[], None]]:
    """Send a message, and wait until the broker has its frame. Return the send, and a function that takes the step `then`."""
    return send(producer, body, key), await hold_frame(broker, then)


async def ignored(broker: FakeBroker, sending: "asyncio.Future[T]") -> "asyncio.Future[T]":
    """Let the broker ignore all frames until its script is cleared. Return when it has the frame of this send."""
    seen = len(broker.sends)
    broker.script.extend([ignore] * 1_000)
    await until(lambda: len(broker.sends) > seen)
    return sending


async def stop_and_wait_for_link_down(broker: FakeBroker, producer: Producer) -> None:
    assert producer._shell is not None
    link = producer._shell.instance.link(broker.name)
    assert link is not None
    await broker.stop()
    await until(lambda: not link.up)


async def sends(
    producer: Producer, bodies: Sequence[str], *, sharding_key: str | None = None, **how: object
) -> list[SendResult | BaseException]:
    sending = [producer.send(message(body, sharding_key=sharding_key), **how) for body in bodies]  # type: ignore[arg-type]
    return await asyncio.gather(*sending, return_exceptions=True)
