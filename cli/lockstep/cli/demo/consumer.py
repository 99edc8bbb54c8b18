"""One consumer process of the demo: appends one line to its own file for each event that it has handled."""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from struct import Struct

from lockstep.cli.demo.order_events import GROUP, TOPIC
from lockstep.cli.demo.proof import HandledEvent
from lockstep.client import ConsumeOrderlyStatus, MessageExt, OrderlyContext, PushConsumer, run
from lockstep.runtime.host import Host

KEY_AND_SEQ = Struct(">iq")


def main() -> None:
    arguments = parser().parse_args()
    clock = Host.current().clock
    file = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = PushConsumer(GROUP, nameserver=arguments.nameserver)
    consumer.subscribe(arguments.topic)
    parse = parse_load_row if arguments.load else parse_order_event

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        for message in messages:
            begun_us = clock.monotonic_us()
            order, step = parse(message.body)
            await asyncio.sleep(arguments.work_ms / 1000)
            fence = context.fence
            event = HandledEvent(
                arguments.name,
                order,
                step,
                str(context.queue),
                fence.epoch,
                message.queue_offset,
                begun_us,
                clock.monotonic_us(),
            )
            os.write(file, (event.line() + "\n").encode())
        return ConsumeOrderlyStatus.SUCCESS

    @asynccontextmanager
    async def announced() -> AsyncIterator[None]:
        print(json.dumps({"event": "consumer.started", "name": arguments.name}), flush=True)
        yield

    run(consumer, announced())


def parse_order_event(body: bytes) -> tuple[int, int]:
    """Return (order, step) of an event that demo.producer sent."""
    event = json.loads(body)
    return event["order"], event["step"]


def parse_load_row(body: bytes) -> tuple[int, int]:
    """Return (key's number, sequence number) of a row of scripts/load_generator.py: bytes 8 to 19."""
    key, seq = KEY_AND_SEQ.unpack_from(body, 8)
    return key, seq


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nameserver", required=True)
    options.add_argument("--name", required=True)
    options.add_argument("--file", required=True, help="append a line to this file for each event handled")
    options.add_argument("--topic", default=TOPIC)
    options.add_argument("--load", action="store_true", help="expect the messages of scripts/load_generator.py")
    options.add_argument("--work-ms", type=float, default=1.0, help="how long handling one event takes (default 1 ms)")
    return options


if __name__ == "__main__":
    main()
