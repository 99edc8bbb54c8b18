"""One service with every kind of client: it takes orders, ships them in order, mails the customers and keeps an audit.

    lockstep up &
    python examples/shop.py

Each order's steps are shipped one after the other (an ordered consumer); mails go out in any order, and one that fails is retried (a
concurrent consumer); the audit reads at its own pace (a pull consumer). `examples/test_shop.py` tests the same code without a server.
"""

# pyright: strict

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lockstep.client import (
    Client,
    ConcurrentlyContext,
    Message,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    run,
)

TOPIC = "shop-orders"
ORDERS = 10
STEPS = ("created", "paid", "shipped")


@dataclass
class Shop:
    """Records what the service has done, in place of a database."""

    shipped: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Order → its handled steps, in order."""
    mailed: set[str] = field(default_factory=set[str])
    audited: list[str] = field(default_factory=list[str])
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when every order was shipped, mailed and audited."""

    def look(self) -> None:
        """Called after each change."""
        shipped = sum(steps[-1] == STEPS[-1] for steps in self.shipped.values())
        if shipped == len(self.mailed) == ORDERS and len(self.audited) >= ORDERS * len(STEPS):
            self.complete.set()


async def take_order(producer: Producer, order: str) -> bool:
    """Send the steps of an order in sequence. Return whether all of them were stored."""
    for step in STEPS:
        message = Message(TOPIC, step.encode(), tags=step, keys=[order], sharding_key=order)
        try:
            await producer.send(message, require="durable")
        except SendError as error:
            print("order", order, "stopped at", step, "which is", error.outcome.value, flush=True)
            return False
    return True


def shipping(client: Client, shop: Shop) -> PushConsumer:
    """The ordered consumer: a step that fails is tried again before the next step of any order of its queue."""
    consumer = PushConsumer("shop-shipping", client=client, retry=OrderedRetry(max_attempts=16))
    consumer.subscribe(TOPIC)

    @consumer.orderly
    async def ship(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        for message in messages:
            steps = shop.shipped[str(message.sharding_key)]
            if message.tags not in steps:  # a message may be delivered again
                steps.append(str(message.tags))
        shop.look()

    return consumer


def mailing(client: Client, shop: Shop) -> PushConsumer:
    """The concurrent consumer: a mail that fails is sent back to the broker and redelivered later."""
    consumer = PushConsumer("shop-mailing", client=client, concurrency=10, max_reconsume_times=3)
    consumer.subscribe(TOPIC, "shipped")

    @consumer.concurrently
    async def mail(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
        for message in messages:
            if message.reconsume_times == 0 and message.sharding_key == "1002":
                context.delay_level_when_next_consume = 1  # in a second
                raise ConnectionError("the mail server does not answer")
            shop.mailed.add(str(message.sharding_key))
        shop.look()

    return consumer


def auditing(client: Client) -> PullConsumer:
    """The pull consumer: its caller decides when to poll."""
    return PullConsumer("shop-audit", client=client).subscribe(TOPIC)


@asynccontextmanager
async def audited(consumer: PullConsumer, shop: Shop) -> AsyncGenerator[None, None]:
    """Poll until the consumer is stopped."""

    async def poll() -> None:
        async for message in consumer:
            shop.audited.append(f"{message.sharding_key} {message.body.decode()}")
            shop.look()

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        await polling


@asynccontextmanager
async def customers(producer: Producer, consumers: Sequence[PushConsumer | PullConsumer], shop: Shop) -> AsyncGenerator[None, None]:
    """Customers who order all at once. When everything is done the consumers are stopped, which ends `run`."""

    async def order() -> None:
        await asyncio.gather(*[take_order(producer, str(number)) for number in range(1001, 1001 + ORDERS)])
        await shop.complete.wait()
        await asyncio.gather(*[consumer.stop() for consumer in consumers])

    ordering = asyncio.create_task(order())
    try:
        yield
    finally:
        ordering.cancel()  # a signal was received before everything was done
        await asyncio.wait([ordering])


def main() -> None:
    client, shop = Client(os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")), Shop()  # all share its connections
    producer = Producer("shop", client=client)
    ships, mails, audit = shipping(client, shop), mailing(client, shop), auditing(client)
    run(producer, ships, mails, audit, audited(audit, shop), customers(producer, [ships, mails, audit], shop))
    in_order = all(tuple(steps) == STEPS for steps in shop.shipped.values())
    print(len(shop.shipped), "orders shipped" + (", each in order" if in_order else ""), flush=True)
    print(len(shop.mailed), "customers mailed,", len(shop.audited), "steps audited", flush=True)


if __name__ == "__main__":
    main()
