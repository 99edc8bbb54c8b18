"""One consumer process of the demo: appends one line to its own file for each event that it has handled."""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from struct import Struct

from lockstep.admin.demo.order_events import GROUP, TOPIC
from lockstep.admin.demo.proof import Deed
from lockstep.client import ConsumeOrderlyStatus, MessageExt, OrderlyContext, PushConsumer, run
from lockstep.runtime.host import Host

KEY_AND_SEQ = Struct(">iq")


def main() -> None:
    arguments = parser().parse_args()
    clock = Host.current().clock
    file = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = PushConsumer(GROUP, nameserver=arguments.nameserver)
    consumer.subscribe(arguments.topic)
    event_of = of_load if arguments.load else of_story

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        for message in messages:
            begun_us = clock.monotonic_us()
            order, step = event_of(message.body)
            await asyncio.sleep(arguments.work_ms / 1000)
            fence = context.fence
            deed = Deed(
                arguments.name,
                order,
                step,
                str(context.queue),
                fence.epoch,
                message.queue_offset,
                begun_us,
                clock.monotonic_us(),
            )
            os.write(file, (deed.line() + "\n").encode())
        return ConsumeOrderlyStatus.SUCCESS

    @asynccontextmanager
    async def announced() -> AsyncIterator[None]:
        print(json.dumps({"event": "consumer.started", "name": arguments.name}), flush=True)
        yield

    run(consumer, announced())


def of_story(body: bytes) -> tuple[int, int]:
    """(order, step) of an event that demo.producer told."""
    event = json.loads(body)
    return event["order"], event["step"]


def of_load(body: bytes) -> tuple[int, int]:
    """(key's number, seq) of a row of scripts/load_generator.py: bytes 8 … 20."""
    key, seq = KEY_AND_SEQ.unpack_from(body, 8)
    return key, seq


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nameserver", required=True)
    options.add_argument("--name", required=True)
    options.add_argument("--file", required=True, help="where it appends what it did")
    options.add_argument("--topic", default=TOPIC)
    options.add_argument("--load", action="store_true", help="the messages are those of scripts/load_generator.py")
    options.add_argument("--work-ms", type=float, default=1.0, help="how long handling one event takes")
    return options


if __name__ == "__main__":
    main()
