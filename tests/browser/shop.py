"""The programs of a shop, whose cluster the pictures show: they sell, remind, settle, bill, mail, report and audit."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import sin
from typing import Any

from browser.pages import GROUP, TOPIC
from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    Message,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionStatus,
)

ORDERS = 400
STEPS = ("created", "paid", "shipped")
REMINDERS = (timedelta(minutes=8), timedelta(minutes=30), timedelta(hours=1), timedelta(hours=2))
"""How long after an order its customer is reminded. The shop runs for less, so that all reminders wait."""
RETRY = OrderedRetry(max_attempts=3, on_exhausted="park", backoff=Backoff(first_ms=500, max_ms=500))


def order_event(number: int) -> Message:
    """Return the event with this number: a step of one of ORDERS orders."""
    order, step = number % ORDERS, STEPS[number // ORDERS % len(STEPS)]
    body = {"order": order, "event": step, "amount": 5 + number * 37 % 400, "currency": "EUR"}
    return Message(TOPIC, json.dumps(body).encode(), tags=step, keys=[f"order-{order}"], sharding_key=f"order-{order}")


@dataclass
class Shop:
    """The shop, and what goes wrong in it."""

    nameserver: str
    declined: set[str] = field(default_factory=set)
    """Orders whose cards are declined."""
    unanswered: set[str] = field(default_factory=set)
    """Orders for which the bank does not respond."""

    async def sell(self) -> None:
        """Send events, 4 to 10 a second."""
        async with Producer("shop", nameserver=self.nameserver) as producer:
            number = 0
            while True:
                await producer.send(order_event(number))
                number += 1
                await asyncio.sleep(1 / (7 + 3 * sin(number / 250)))

    async def remind(self) -> None:
        """Send reminders that wait for their time: the first one of every third order, the second one of every fourth, and so on."""
        async with Producer("reminders", nameserver=self.nameserver) as producer:
            number = 0
            while True:
                message = Message(TOPIC, b'{"event": "reminder"}', tags="reminder", keys=[f"order-{number}"])
                for count, delay in enumerate(REMINDERS, 3):
                    if number % count == 0:
                        await producer.send(message, delay=delay)
                number += 1
                await asyncio.sleep(2)

    async def settle(self) -> None:
        """Settle orders, one a minute, with a bank that does not say whether it has paid: the transactions stay undecided."""
        producer = TransactionProducer("payments", nameserver=self.nameserver)
        producer.check(lambda *_: TransactionStatus.UNKNOWN)
        async with producer:
            number = 3
            while True:
                with suppress(TimeoutError):
                    async with producer.transaction() as payment:
                        await payment.send(order_event(number + ORDERS))
                        raise TimeoutError
                number += 57
                await asyncio.sleep(60)

    async def bill(self) -> None:
        """Bill orders, each in order."""
        consumer = self._consumer(GROUP, retry=RETRY)
        consumer.orderly(self.charge)
        await _run(consumer)

    async def mail(self) -> None:
        """Mail customers, in any order; some have no address."""
        consumer = self._consumer("mailing", max_reconsume_times=1)
        consumer.concurrently(self.notify)
        await _run(consumer)

    async def report(self) -> None:
        """Report orders, more slowly than they come."""
        consumer = self._consumer("reports")
        consumer.orderly(self.write_report)
        await _run(consumer)

    async def audit(self) -> None:
        """Audit orders."""
        consumer = self._consumer("audit")
        consumer.orderly(self.record)
        await _run(consumer)

    def _consumer(self, group: str, **settings: Any) -> PushConsumer:
        return PushConsumer(group, nameserver=self.nameserver, **settings).subscribe(TOPIC)

    async def charge(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(0.02)
        for message in messages:
            if message.sharding_key in self.declined:
                raise RuntimeError("the card was declined")
            if message.sharding_key in self.unanswered:
                await self.ask_bank()

    async def ask_bank(self) -> None:
        """Wait for a response that does not come."""
        await asyncio.get_running_loop().create_future()

    async def notify(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
        await asyncio.sleep(0.02)
        if any(message.tags == "shipped" and message.sharding_key in ("order-5", "order-160") for message in messages):
            raise RuntimeError("the customer has no address")

    async def write_report(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(1.3)

    async def record(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(0.01)


async def _run(consumer: PushConsumer) -> None:
    async with consumer:
        await consumer.wait_closed()
