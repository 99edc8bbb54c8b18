"""A process with several ordered consumers for tests: they join on SIGUSR1, print their grants, and leave on SIGTERM."""

import argparse
import asyncio
import os
import signal
from functools import partial

from lockstep.client import ConsumeOrderlyStatus, ConsumerEvent, PushConsumer, QueueAssigned
from lockstep.runtime.logs.log import announce, configure
from support.cluster import now_us


def say(number: int, event: ConsumerEvent) -> None:
    if isinstance(event, QueueAssigned):
        member = f"{os.getpid()}-{number}"
        announce("consumer.QueueAssigned", queue=str(event.queue), epoch=event.epoch, member=member, at_us=now_us())


async def listen(_messages: object, _context: object) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


async def member(nameserver: str, number: int, ended: asyncio.Event) -> None:
    consumer = PushConsumer("billing", nameserver=nameserver)
    consumer.subscribe("orders")
    consumer.orderly(listen)
    consumer.on_event(partial(say, number))
    async with consumer:
        announce("worker.joined", at_us=now_us())
        await ended.wait()


async def run(nameserver: str, count: int) -> None:
    reported, ended, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, reported.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    announce("worker.ready")
    await reported.wait()
    async with asyncio.TaskGroup() as members:
        for number in range(count):
            members.create_task(member(nameserver, number, ended))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--members", type=int, required=True)
    options = parser.parse_args()
    configure()
    asyncio.run(run(options.nameserver, options.members))
