"""A producer and an ordered consumer that run while another client misbehaves, and check their results. A process for tests.

Every send must be acknowledged, every queue must keep its epoch, every key its order, no connection may be lost, and the SDK must log no
warning. A violation is reported as `pair.trouble`, and `pair.progress` counts the handled messages.
"""

import argparse
import asyncio
import json
import logging
import signal
from collections.abc import Sequence
from typing import Any

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer

KEYS = 8
"""Keys with one send in flight each."""
PAUSE_S = 0.02
STEPS_KEPT = 10


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class Warned(logging.Handler):
    """A log handler for the SDK's warnings and lost connections."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.getMessage().startswith("link.lost"):
            say("pair.trouble", what="warned", text=record.getMessage())


class Pair:
    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.epochs: dict[str, int] = {}
        self.next: dict[int, int] = {}
        self.sent = 0
        self.acknowledged = 0
        self.handled = 0

    async def tell(self, producer: Producer, topic: str, key: int) -> None:
        step = 0
        while not self.stopped.is_set():
            self.sent += 1
            try:
                await producer.send(Message(topic, json.dumps([key, step]).encode(), sharding_key=str(key)))
            except Exception as error:
                say("pair.trouble", what="send failed", text=f"{type(error).__name__}: {error}")
            else:
                self.acknowledged += 1
            step += 1
            try:
                await asyncio.wait_for(self.stopped.wait(), PAUSE_S)
            except TimeoutError:
                pass

    async def handle(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        epoch = self.epochs.setdefault(str(context.queue), context.fence.epoch)
        if epoch != context.fence.epoch:
            say("pair.trouble", what="epoch changed", text=f"{context.queue}: {epoch} to {context.fence.epoch}")
            self.epochs[str(context.queue)] = context.fence.epoch
        for message in messages:
            key, step = json.loads(message.body)
            if step != self.next.get(key, 0):
                say("pair.trouble", what="order broken", text=f"key {key}: {step}, expected {self.next.get(key, 0)}")
            self.next[key] = step + 1
            self.handled += 1
            if self.handled % STEPS_KEPT == 0:
                say("pair.progress", sent=self.sent, acknowledged=self.acknowledged, handled=self.handled)
        return ConsumeOrderlyStatus.SUCCESS


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    logging.getLogger("lockstep").addHandler(Warned())
    logging.getLogger("lockstep").setLevel(logging.DEBUG)
    pair = Pair()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pair.stopped.set)
    consumer = PushConsumer("good-consumers", nameserver=options.nameserver).subscribe(options.topic)
    consumer.orderly(pair.handle)

    @consumer.on_event
    def reported(event: Any) -> None:
        if type(event).__name__ != "QueueAssigned":
            say("pair.trouble", what=type(event).__name__, text=str(event))

    async with consumer, Producer("good-producers", nameserver=options.nameserver) as producer, asyncio.TaskGroup() as group:
        say("pair.ready")
        for key in range(KEYS):
            group.create_task(pair.tell(producer, options.topic, key))
    await asyncio.sleep(0)
    say("pair.finished", handled=pair.handled)


if __name__ == "__main__":
    asyncio.run(main())
