"""A producer against scripted brokers: what its tests share."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict

from lockstep.client import (
    Message,
    Producer,
    SendResult,
)
from lockstep.client.producer.config import ProducerConfig
from support.fake_broker import (
    FakeBroker,
    FakeCluster,
    fake_cluster,
)
from support.loops import until

QUICK = ProducerConfig(send_timeout_ms=400, keyed_send_timeout_ms=1_200, attempt_timeout_ms=40)


def message(body: str = "x", topic: str = "t") -> Message:
    return Message(topic, body.encode())


@asynccontextmanager
async def producing(cluster: FakeCluster, config: ProducerConfig = QUICK) -> AsyncIterator[Producer]:
    async with Producer("orders", nameserver=cluster.address, **asdict(config)) as producer:
        yield producer


@asynccontextmanager
async def one_queue(config: ProducerConfig = QUICK) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    """One broker, one queue, its link up: what follows is about that queue alone."""
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"))
        yield cluster.brokers["a"], producer


async def stop_and_be_noticed(broker: FakeBroker, producer: Producer) -> None:
    assert producer._shared is not None
    link = producer._shared.instance.link(broker.name)
    assert link is not None
    await broker.stop()
    await until(lambda: not link.up)


async def sends(producer: Producer, bodies: Sequence[str], **how: object) -> list[SendResult | BaseException]:
    return await asyncio.gather(*[producer.send(message(body), **how) for body in bodies], return_exceptions=True)  # type: ignore[arg-type]
