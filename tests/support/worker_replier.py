"""A consumer that replies, as a process. It announces each request that it has, and replies when it gets SIGUSR1, to that one and all later
ones.

On SIGTERM it leaves the group and exits.
"""

import argparse
import asyncio
import signal
from collections.abc import Sequence

from lockstep.client import ConcurrentlyContext, MessageExt, PushConsumer
from lockstep.runtime.logs.log import announce, configure


async def main(options: argparse.Namespace) -> None:
    loop, opened, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, opened.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    consumer = PushConsumer(options.group, nameserver=options.nameserver).subscribe(options.topic)

    @consumer.concurrently
    async def reply(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> None:
        for message in messages:
            announce("replier.has", body=message.body.decode())
            await opened.wait()
            await consumer.reply(message, f"{options.name}: {message.body.decode()}".encode(), timeout_ms=20_000)
            announce("replier.replied", body=message.body.decode())

    async with consumer:
        announce("worker.ready")
        await ended.wait()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--group", default="pricing")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--name", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    configure(level="warning")
    asyncio.run(main(parse()))
