"""An ordered consumer process for tests. Appends a HandledEvent for each event handled and an Accepted for each accepted
commit; prints the consumer's events and logs as JSON lines, and misbehaves by its options.

SIGTERM  leave the group and exit
SIGUSR1  misbehave once at the next message: `--trouble KIND:AMOUNT` (with --everywhere: once at the next message of each queue)
SIGUSR2  print the held queues

    raise, wrong         the listener fails AMOUNT times at that message, then handles it
    loop                 blocks the event loop for AMOUNT seconds (with --plain: the listener's thread)
    deaf                 ignores cancellation and continues for AMOUNT seconds
    wait                 awaits AMOUNT seconds

With --give-up-after N a batch is dead-lettered after N failures, or with `--on-exhausted park` its key is parked. While the file --broken
exists, the events of the --broken-orders fail, or every third order's.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.demo.proof import HandledEvent
from lockstep.client import Backoff, ConsumeOrderlyStatus, MessageExt, OrderedRetry, OrderlyContext, PushConsumer, TransportError
from lockstep.client.consumer.grants.ownership import QueueOwnership, SentItem
from lockstep.runtime.logs.log import configure
from support.accepted import Accepted

AGAIN_S = 0.1
BROKEN_EVERY = 3
"""While the file --broken exists, one order in so many fails."""


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at_us": now_us(), **facts}) + "\n")
    sys.stdout.flush()


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Trouble:
    """Determines which call fails, and how."""

    def __init__(self, requested: str | None, everywhere: bool) -> None:
        kind, amount = (requested or "none:0").split(":")
        self.kind, self.amount = kind, float(amount)
        self._everywhere = everywhere
        self._armed = False
        self._places: dict[str, int] = {}
        self._met: dict[str, int] = {}

    def arm(self) -> None:
        self._armed = True

    def at(self, message: MessageExt, context: OrderlyContext) -> str:
        """Return the fault of this call, or "" if none."""
        queue = str(context.queue)
        if self._armed and (self._everywhere or not self._places):
            self._places.setdefault(queue, message.queue_offset)
        if self._places.get(queue) != message.queue_offset:
            return ""
        met = self._met[queue] = self._met.get(queue, 0) + 1
        if met > (self.amount if self.kind in ("raise", "wrong") else 1):
            return ""
        say("trouble.begun", kind=self.kind, attempt=context.attempt, **place(message, context))
        return self.kind


def place(message: MessageExt, context: OrderlyContext) -> dict[str, Any]:
    return {"queue": str(context.queue), "offset": message.queue_offset, "epoch": context.fence.epoch}


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.broken = None if options.broken is None else Path(options.broken)
        self.broken_orders = None if options.broken_orders is None else {int(order) for order in options.broken_orders.split(",")}
        self.trouble = Trouble(options.trouble, options.everywhere)
        self.file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, message: MessageExt, context: OrderlyContext, begun_us: int) -> None:
        event = json.loads(message.body)
        handled_event = HandledEvent(
            self.options.name,
            event["order"],
            event["step"],
            str(context.queue),
            context.fence.epoch,
            message.queue_offset,
            begun_us,
            now_us(),
        )
        os.write(self.file, (handled_event.line() + "\n").encode())

    def is_broken(self, message: MessageExt) -> bool:
        if self.broken is None:
            return False
        order = json.loads(message.body)["order"]
        fails = order % BROKEN_EVERY == 0 if self.broken_orders is None else order in self.broken_orders
        return fails and self.broken.exists()

    async def handle(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        try:
            return await self._handle(messages, context)
        except asyncio.CancelledError:
            say("listener.cancelled", **place(messages[0], context))
            raise

    async def _handle(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        begun_us = now_us()
        for message in messages:
            if self.is_broken(message):
                say("listener.failed", attempt=context.attempt, **place(message, context))
                raise RuntimeError("broken")
            kind = self.trouble.at(message, context)
            match kind:
                case "raise":
                    raise RuntimeError("as configured")
                case "wrong":
                    return "SUCCESS"
                case "loop":
                    time.sleep(self.trouble.amount)  # noqa: ASYNC251
                case "deaf":
                    await sleep_despite_cancellation(self.trouble.amount)
                case "wait":
                    await asyncio.sleep(self.trouble.amount)
                case _:
                    await asyncio.sleep(self.options.work_ms / 1000)
            if kind:
                say("trouble.ended", cancelled=context.cancelled.is_set(), **place(message, context))
            self.write(message, context, begun_us)
        return ConsumeOrderlyStatus.SUCCESS

    def handle_plainly(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        begun_us = now_us()
        for message in messages:
            if self.trouble.at(message, context):
                time.sleep(self.trouble.amount)
                say(
                    "trouble.ended", cancelled=context.cancelled.is_set(), thread=threading.current_thread().name, **place(message, context)
                )
            else:
                time.sleep(self.options.work_ms / 1000)
            self.write(message, context, begun_us)
        return ConsumeOrderlyStatus.SUCCESS


async def sleep_despite_cancellation(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def record_accepted(name: str, path: str) -> None:
    """Write a line to the file for each response that moves a committed offset, from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    record_committed = QueueOwnership._record_committed

    def record_committed_and_write(ownership: QueueOwnership, sent: SentItem) -> None:
        before = ownership.committed_offset
        record_committed(ownership, sent)
        if ownership.committed_offset > before:
            accepted = Accepted(name, str(ownership.queue), ownership.token, before, ownership.committed_offset, now_us())
            os.write(file, (accepted.line() + "\n").encode())

    QueueOwnership._record_committed = record_committed_and_write  # type: ignore[assignment, method-assign]


def print_held(consumer: PushConsumer) -> None:
    """Print counts, bytes and spans, which `health()` does not report completely."""
    membership = consumer._membership
    held = [(worker, worker.grant.messages) for worker in (membership.workers if membership else []) if worker.grant]
    say(
        "consumer.held",
        queues={
            str(worker.queue): {
                "state": worker.ownership.state.value,
                "count": m.count,
                "bytes": m.size_bytes,
                "span": m.span,
                "next": m.next_offset,
            }
            for worker, m in held
        },
    )


def retry_of(options: argparse.Namespace) -> OrderedRetry:
    backoff = Backoff(first_ms=options.backoff_ms, factor=1.0)
    if options.give_up_after is None:
        return OrderedRetry(backoff=backoff)
    return OrderedRetry(max_attempts=options.give_up_after, backoff=backoff, on_exhausted=options.on_exhausted)


def make(options: argparse.Namespace, worker: Worker) -> PushConsumer:
    consumer = PushConsumer(
        options.group,
        nameserver=options.nameserver,
        batch_count=options.batch,
        drain_timeout_ms=options.drain_ms,
        stop_timeout_ms=options.stop_ms,
        commit=options.commit,
        suspend_current_queue_time_ms=options.suspend_ms,
        retry=retry_of(options),
        queue_count_max=options.count_max,
        queue_bytes_max=options.bytes_max,
        queue_span_max=options.span_max,
        contract_version=options.contract_version,
        order_by=options.order_by,
        concurrency=options.concurrency,
    )
    consumer.subscribe(options.topic, options.tags)
    consumer.orderly(worker.handle_plainly if options.plain else worker.handle)

    @consumer.on_event
    def reported(event: Any) -> None:
        facts = {
            f.name: str(value) if f.name == "queue" else value for f in dataclasses.fields(event) for value in [getattr(event, f.name)]
        }
        say(f"consumer.{type(event).__name__}", **facts)

    return consumer


async def started(make_one: Callable[[], PushConsumer]) -> PushConsumer:
    """Retry the start until a nameserver is reachable, as a supervisor would restart the program."""
    while True:
        consumer = make_one()
        try:
            return await consumer.start()
        except TransportError as error:
            say("worker.again", error=str(error))
            await asyncio.sleep(AGAIN_S)


async def main() -> None:
    options = parser().parse_args()
    configure("info")
    record_accepted(options.name, options.accepted)
    worker = Worker(options)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, worker.trouble.arm)
    if options.armed:
        worker.trouble.arm()
    consumer = await started(lambda: make(options, worker))
    loop.add_signal_handler(signal.SIGUSR2, print_held, consumer)
    say("worker.ready")
    await stopped.wait()
    say("worker.stopping")
    await consumer.stop()
    say("worker.stopped")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--tags", default="*")
    options.add_argument("--group", default="billing")
    options.add_argument("--name", required=True)
    options.add_argument("--file", required=True)
    options.add_argument("--accepted", required=True)
    options.add_argument("--work-ms", type=float, default=1.0)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--drain-ms", type=int, default=30_000)
    options.add_argument("--stop-ms", type=int, default=8_000)
    options.add_argument("--suspend-ms", type=int, default=1_000)
    options.add_argument("--backoff-ms", type=int, default=100)
    options.add_argument("--give-up-after", type=int)
    options.add_argument("--on-exhausted", default="dlq", choices=["dlq", "park"])
    options.add_argument("--broken")
    options.add_argument("--broken-orders")
    options.add_argument("--commit", default="interval")
    options.add_argument("--count-max", type=int, default=1_000)
    options.add_argument("--bytes-max", type=int, default=100 << 20)
    options.add_argument("--span-max", type=int, default=2_000)
    options.add_argument("--contract-version", type=int, default=0)
    options.add_argument("--order-by", default="queue", choices=["queue", "sharding_key"])
    options.add_argument("--concurrency", type=int, default=20)
    options.add_argument("--plain", action="store_true")
    options.add_argument("--trouble")
    options.add_argument("--everywhere", action="store_true")
    options.add_argument("--armed", action="store_true")
    return options


if __name__ == "__main__":
    asyncio.run(main())
