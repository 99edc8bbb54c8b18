"""The consumer process of a benchmark: consumes a number of messages and prints the figure that it measured."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict

from lockstep.cli.bench.figures import Figure, latency_figure, rate_figure
from lockstep.client import ConcurrentlyContext, ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt, OrderlyContext, PushConsumer
from lockstep.runtime.clock import Clock
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.garbage_collector import collect_less_often

CLOCK = Clock()
PROGRESS_S = 0.25


class Counter:
    """A listener that only reads each body and counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.total: int = options.count
        self.stamped: bool = options.stamped
        self.count = 0
        self.begun_us = 0
        self.ended_us = 0

        self.latencies_us: list[float] = []
        self.done = asyncio.Event()

    async def in_order(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        self._count(messages)
        return ConsumeOrderlyStatus.SUCCESS

    async def concurrently(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        self._count(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def _count(self, messages: Sequence[MessageExt]) -> None:
        if not self.begun_us:
            self.begun_us = CLOCK.monotonic_us()
        for message in messages:
            body = message.body
            if self.stamped and len(body) >= 20:
                self.latencies_us.append(CLOCK.monotonic_us() - int(body[:20]))
        self.count = len(self.latencies_us) if self.stamped else self.count + len(messages)
        if self.count >= self.total and not self.ended_us:
            self.ended_us = CLOCK.monotonic_us()
            self.done.set()

    async def print_progress(self) -> None:
        while not self.done.is_set():
            print(json.dumps({"event": "bench.progress", "done": self.count, "total": self.total}), flush=True)
            await asyncio.sleep(PROGRESS_S)


def figure_of(counter: Counter, options: argparse.Namespace) -> Figure:
    if options.stamped:
        return latency_figure("end to end", options.bytes, counter.latencies_us)
    per_call = "1 per call" if options.batch == 1 else f"up to {options.batch} per call"
    how = "concurrently" if options.concurrently else "in order"
    return rate_figure(f"consume {how}, {per_call}", options.bytes, counter.count, counter.ended_us - counter.begun_us)


async def main() -> None:
    options = parser().parse_args()
    counter = Counter(options)
    consumer = PushConsumer(options.group, nameserver=options.nameserver, batch_count=options.batch)
    consumer.subscribe(options.topic)
    if options.concurrently:
        consumer.concurrently(counter.concurrently)
    else:
        consumer.orderly(counter.in_order)
    async with consumer, asyncio.TaskGroup() as group:
        print(json.dumps({"event": "bench.begun"}), flush=True)
        group.create_task(counter.print_progress())
        await counter.done.wait()
        print(json.dumps({"event": "bench.figure", **asdict(figure_of(counter, options))}), flush=True)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--group", required=True)
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--bytes", type=int, required=True)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--concurrently", action="store_true", help="consume concurrently instead of in order")
    options.add_argument("--stamped", action="store_true", help="measure latency from the timestamps in the bodies")
    return options


if __name__ == "__main__":
    collect_less_often()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
