"""A producer process for tests. On SIGUSR1 it starts many sends of one shared body, on SIGUSR2 it prints its memory use.

All messages share the body, so the process grows only by the client's state of sends in flight.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
from typing import Any

from lockstep.client import LockstepError, Message, Producer
from lockstep.runtime.logs.log import configure

TIMEOUT_MS = 600_000
"""No send ends by its deadline, however busy the machine is: the sends wait while their broker is stopped."""


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Flood:
    def __init__(self, options: argparse.Namespace, producer: Producer) -> None:
        self.options = options
        self.producer = producer
        self.acknowledged = 0
        self.errors: list[str] = []

    def tell(self) -> None:
        producer = self.producer
        say(
            "flood.state",
            acknowledged=self.acknowledged,
            failed=len(self.errors),
            in_flight_count=producer.in_flight_count,
            in_flight_bytes=producer.in_flight_bytes,
            resident_bytes=resident_bytes(),
        )

    async def send(self, message: Message) -> None:
        try:
            await self.producer.send(message)
            self.acknowledged += 1
        except LockstepError as error:
            self.errors.append(f"{type(error).__name__}: {error}")


async def main() -> None:
    options = parser().parse_args()
    configure("info")
    terms = {"in_flight_bytes_max": options.in_flight_bytes, "keyed_send_timeout_ms": TIMEOUT_MS}
    async with Producer("flood", nameserver=options.nameserver, **terms) as producer:
        flood = Flood(options, producer)
        body = os.urandom(options.body_bytes)
        for key in range(100):
            await flood.send(Message(options.topic, body, sharding_key=str(key)))
        begin = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, begin.set)
        loop.add_signal_handler(signal.SIGUSR2, flood.tell)
        say("worker.ready")
        await begin.wait()
        async with asyncio.TaskGroup() as group:
            for key in range(options.count):
                group.create_task(flood.send(Message(options.topic, body, sharding_key=str(key))))
    say("flood.finished", acknowledged=flood.acknowledged, errors=flood.errors[:5], possible_duplicates=producer.possible_duplicates)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--body-bytes", type=int, required=True)
    options.add_argument("--in-flight-bytes", type=int, required=True)
    return options


if __name__ == "__main__":
    asyncio.run(main())
