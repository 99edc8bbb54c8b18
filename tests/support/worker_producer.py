"""A producer process for tests. It sends numbered events of several keys, one at a time per key, until SIGTERM.

After a response it appends [key, step, queue, offset, time (µs, monotonic)] to its file. Its last line counts acknowledged and attempted
sends per key. A failed send is reported with its outcome. One that is not stored is repeated (with --again), otherwise its key ends there.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lockstep.client import LockstepError, Message, Outcome, Producer, SendError, TransportError
from lockstep.runtime.logs.log import configure

AGAIN_S = 0.1


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at_us": time.monotonic_ns() // 1000, **facts}) + "\n")
    sys.stdout.flush()


class SendRecorder:
    """Sends the steps of the keys and records the acknowledged ones in a file."""

    def __init__(self, options: argparse.Namespace, producer: Producer) -> None:
        self.options = options
        self.producer = producer
        self.file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stopped = asyncio.Event()
        self.reported: dict[int, list[int]] = {}

    async def tell(self, key: int) -> None:
        options, reported = self.options, self.reported.setdefault(key, [0, 0])
        for step in range(options.steps):
            if self.stopped.is_set():
                return
            reported[1] = step + 1
            tag = "even" if (key + step) % options.even_every == 0 else "odd"
            body = json.dumps({"order": key, "step": step}).encode() + b" " * options.padding
            if not await self.send(Message(options.topic, body, tags=tag, sharding_key=None if options.unkeyed else str(key)), key, step):
                return
            reported[0] = step + 1
            if options.pause_ms:
                try:
                    await asyncio.wait_for(self.stopped.wait(), options.pause_ms / 1000)
                except TimeoutError:
                    pass

    async def send(self, message: Message, key: int, step: int) -> bool:
        while True:
            try:
                result = await self.producer.send(message)
            except LockstepError as error:
                outcome = error.outcome.value if isinstance(error, SendError) else None
                say("send.failed", key=key, step=step, error=type(error).__name__, outcome=outcome, text=str(error))
                if not (self.options.again and outcome == Outcome.NOT_STORED.value) or self.stopped.is_set():
                    return False
            else:
                line = json.dumps([key, step, str(result.queue), result.queue_offset, time.monotonic_ns() // 1000])
                os.write(self.file, (line + "\n").encode())
                return True


async def started(make_one: Callable[[], Producer]) -> Producer:
    """Retry the start until a nameserver is reachable, as a supervisor would restart the program."""
    while True:
        producer = make_one()
        try:
            await producer.start()
        except TransportError as error:
            say("worker.again", error=str(error))
            await asyncio.sleep(AGAIN_S)
        else:
            return producer


async def main() -> None:
    options = parser().parse_args()
    configure("info")
    make = partial(
        Producer, options.group, nameserver=options.nameserver, keyed_send_timeout_ms=options.timeout_ms, compress_over_bytes=None
    )
    producer = await started(make)
    teller = SendRecorder(options, producer)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, teller.stopped.set)
    begin = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin.set)
    say("worker.ready")
    if options.hold:
        await begin.wait()
    async with asyncio.TaskGroup() as group:
        for key in range(options.first, options.first + options.keys):
            group.create_task(teller.tell(key))
    await producer.close()
    say("worker.finished", reported=teller.reported, possible_duplicates=producer.possible_duplicates)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--group", default="shop")
    options.add_argument("--file", required=True)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--keys", type=int, default=20)
    options.add_argument("--steps", type=int, default=1_000_000)
    options.add_argument("--pause-ms", type=float, default=20)
    options.add_argument("--padding", type=int, default=0)
    options.add_argument("--even-every", type=int, default=2)
    options.add_argument("--timeout-ms", type=int, default=30_000)
    options.add_argument("--hold", action="store_true", help="begin at SIGUSR1")
    options.add_argument("--again", action="store_true")
    options.add_argument("--unkeyed", action="store_true")
    return options


if __name__ == "__main__":
    asyncio.run(main())
