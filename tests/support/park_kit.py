"""Members that park poisoned keys, for tests of on_exhausted="park"."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep.client import (
    Backoff,
    ConsumerEvent,
    KeyParked,
    KeyResumed,
    Message,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
)
from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.subscription import Expression
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkedKey
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

GROUP, TOPIC = "billing", "orders"
PARK = OrderedRetry(max_attempts=3, on_exhausted="park", backoff=Backoff(first_ms=100, max_ms=100))

both_orders = pytest.mark.parametrize("order_by", ["queue", "sharding_key"])


@dataclass
class Poison:
    """What fails, for all members."""

    keys: set[str] = field(default_factory=set)


@dataclass
class Worker:
    """A member, with what its listener accepted."""

    cluster: TestCluster
    poison: Poison
    order_by: str
    work_s: float = 0.01
    settings: dict[str, Any] = field(default_factory=dict)
    expression: Expression = "*"
    got: list[MessageExt] = field(default_factory=list)
    events: list[ConsumerEvent] = field(default_factory=list)
    consumer: PushConsumer | None = None

    async def listen(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(self.work_s)
        if any(message.sharding_key in self.poison.keys for message in messages):
            raise RuntimeError("poisoned")
        self.got += messages

    async def run(self) -> None:
        settings = {"order_by": self.order_by, "retry": PARK, **self.settings}
        self.consumer = consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **settings).subscribe(TOPIC, self.expression)
        consumer.on_event(self.events.append)
        consumer.orderly(self.listen)
        async with consumer:
            await consumer.wait_closed()

    @property
    def parked(self) -> list[tuple[str, int]]:
        return [(each.key, each.offset) for each in self.events if isinstance(each, KeyParked)]

    @property
    def resumed(self) -> list[str]:
        return [each.key for each in self.events if isinstance(each, KeyResumed)]

    def of_key(self, key: str | None) -> list[int]:
        return [int(message.body) for message in self.got if message.sharding_key == key]


async def poisoned(
    cluster: TestCluster, order_by: str, *, poison: Poison, count: int = 100, keys: int = 10, work_s: float = 0.01, **settings: Any
) -> Worker:
    """Return a member, "a", that has parked the poisoned keys and handled the others of the numbers 0 … count − 1."""
    await cluster.create_topic(TOPIC, queues=1)
    worker = Worker(cluster, poison, order_by, settings=settings)
    await cluster.start("a", worker.run)
    await send(cluster, count, keys)
    others = sum(f"k{n % keys}" not in poison.keys for n in range(count))
    await cluster.until(lambda: len(worker.got) == others and len(worker.parked) == len(poison.keys), "every other key")
    await cluster.settled(GROUP)
    worker.work_s = work_s
    return worker


async def send(cluster: TestCluster, count: int, keys: int, *, start: int = 0, tags: str | None = None) -> None:
    """Send the numbers from `start` on; number n has the key k(n mod keys)."""
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n, sharding_key=f"k{n % keys}", tags=tags) for n in range(start, start + count)])


async def drop(cluster: TestCluster, key: str | None = None) -> tuple[ParkedKey, ...]:
    """Drop a parked key, or all of them. Return the keys."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    (broker,) = await admin.brokers()
    return (await admin.control_parked(broker, ParkControlBody(ParkAction.DROP, GROUP, None, key))).keys


async def dead_letters(cluster: TestCluster, least: int) -> list[int]:
    """Return the numbers in the dead-letter topic, at least this many."""
    letters: list[int] = []
    reader = PushConsumer("letters", nameserver=cluster.nameserver).subscribe(f"%DLQ%{GROUP}")

    @reader.orderly
    async def read(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        letters.extend(int(message.body) for message in messages)

    async with reader:
        await cluster.until(lambda: len(letters) >= least, "the dead letters")
        await cluster.advance(seconds=1)
    return letters


Send = Callable[[], Awaitable[Command]]


def around_requests(
    monkeypatch: pytest.MonkeyPatch, code: RequestCode, around: Callable[[BrokerLink, Any, Send], Awaitable[Command]]
) -> None:
    """Let `around(link, header, send)` answer the requests of this code in place of the broker; `send()` sends the request."""
    send = BrokerLink.request

    def wrapped(self: BrokerLink, requested: int, header: object = None, *facts: Any, **how: Any) -> asyncio.Future[Command]:
        if requested != code:
            return send(self, requested, header, *facts, **how)
        return asyncio.ensure_future(around(self, header, lambda: send(self, requested, header, *facts, **how)))

    monkeypatch.setattr(BrokerLink, "request", wrapped)
