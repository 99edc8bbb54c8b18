"""An ordered consumer process for tests that joins on SIGUSR1 and says each queue that it is granted. SIGTERM: leave and end."""

import argparse
import asyncio
import signal

from lockstep.client import ConsumeOrderlyStatus, ConsumerEvent, PushConsumer, QueueAssigned, QueueRevoked
from lockstep.runtime.log import announce, configure
from support.cluster import now_us


def say(event: ConsumerEvent) -> None:
    if isinstance(event, QueueAssigned | QueueRevoked):
        announce(f"consumer.{type(event).__name__}", queue=str(event.queue), epoch=event.epoch, at_us=now_us())


async def listen(_messages: object, _context: object) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


async def run(nameserver: str) -> None:
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, told.set)
    announce("worker.ready")
    await told.wait()
    consumer = PushConsumer("billing", nameserver=nameserver)
    consumer.subscribe("orders")
    consumer.orderly(listen)
    consumer.on_event(say)
    loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
    async with consumer:
        announce("worker.joined", at_us=now_us())
        await consumer.wait_closed()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    configure()
    asyncio.run(run(parser.parse_args().nameserver))
