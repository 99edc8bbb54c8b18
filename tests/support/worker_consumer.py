"""An ordered consumer process for tests. Appends a Deed for each event handled; prints what the consumer tells; can be told to misbehave.

--trouble KIND:QUEUE_ID:OFFSET:SECONDS does that once, at that message of that queue id (of any broker):
    raise, none, wrong       the listener fails SECONDS times (attempts), then handles the message
    loop                     blocks the event loop
    thread                   blocks in a plain listener's thread (with --plain)
    deaf                     swallows cancellation and goes on
    wait                     awaits
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from lockstep.admin.demo.proof import Deed
from lockstep.client import ConsumeOrderlyStatus, MessageExt, OrderlyContext, PushConsumer


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "at_us": time.monotonic_ns() // 1000, **facts}), flush=True)


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        kind, queue_id, offset, amount = (options.trouble or "no:0:-1:0").split(":")
        self.kind, self.place, self.amount = kind, (int(queue_id), int(offset)), float(amount)
        self.met = 0

    def trouble(self, message: MessageExt) -> str:
        """What goes wrong at this message, "" for nothing."""
        if self.kind == "no" or (message.queue_id, message.queue_offset) != self.place:
            return ""
        self.met += 1
        times = self.amount if self.kind in ("raise", "none", "wrong") else 1
        if self.met > times:
            return ""
        say("trouble.begun", kind=self.kind, attempt=self.met)
        return self.kind

    def write(self, message: MessageExt, context: OrderlyContext, begun_us: int) -> None:
        event = json.loads(message.body)
        deed = Deed(
            self.options.name,
            event["order"],
            event["step"],
            str(context.queue),
            context.fence.epoch,
            message.queue_offset,
            begun_us,
            time.monotonic_ns() // 1000,
        )
        os.write(self.file, (deed.line() + "\n").encode())

    async def handle(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        for message in messages:
            begun_us = time.monotonic_ns() // 1000
            match self.trouble(message):
                case "raise":
                    raise RuntimeError("as told")
                case "none":
                    return None
                case "wrong":
                    return "SUCCESS"
                case "loop":
                    time.sleep(self.amount)  # noqa: ASYNC251
                    say("trouble.ended", cancelled=context.cancelled.is_set())
                case "deaf":
                    await deaf_sleep(self.amount)
                    say("trouble.ended", cancelled=context.cancelled.is_set())
                case "wait":
                    await asyncio.sleep(self.amount)
                    say("trouble.ended", cancelled=context.cancelled.is_set())
                case _:
                    await asyncio.sleep(self.options.work_ms / 1000)
            self.write(message, context, begun_us)
        return ConsumeOrderlyStatus.SUCCESS

    def handle_plainly(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        for message in messages:
            begun_us = time.monotonic_ns() // 1000
            if self.trouble(message):
                time.sleep(self.amount)  # noqa: ASYNC251
                say("trouble.ended", cancelled=context.cancelled.is_set(), thread=threading.current_thread().name)
            else:
                time.sleep(self.options.work_ms / 1000)
            self.write(message, context, begun_us)
        return ConsumeOrderlyStatus.SUCCESS


async def deaf_sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def main() -> None:
    options = parser().parse_args()
    worker = Worker(options)
    consumer = PushConsumer(
        options.group,
        nameserver=options.nameserver,
        batch_count=options.batch,
        drain_timeout_ms=options.drain_ms,
        stop_timeout_ms=options.stop_ms,
        commit=options.commit,
        suspend_current_queue_time_ms=options.suspend_ms,
    )
    consumer.subscribe(options.topic)
    consumer.orderly(worker.handle_plainly if options.plain else worker.handle)

    @consumer.on_event
    def told(event: Any) -> None:
        facts = {
            f.name: str(value) if f.name == "queue" else value for f in dataclasses.fields(event) for value in [getattr(event, f.name)]
        }
        say(f"consumer.{type(event).__name__}", **facts)

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with consumer:
        say("consumer.started")
        await stopped.wait()
        say("consumer.stopping")
    say("consumer.stopped")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--group", default="billing")
    options.add_argument("--name", required=True)
    options.add_argument("--file", required=True)
    options.add_argument("--work-ms", type=float, default=1.0)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--drain-ms", type=int, default=30_000)
    options.add_argument("--stop-ms", type=int, default=8_000)
    options.add_argument("--suspend-ms", type=int, default=1_000)
    options.add_argument("--commit", default="interval")
    options.add_argument("--plain", action="store_true")
    options.add_argument("--trouble")
    return options


if __name__ == "__main__":
    asyncio.run(main())
