"""A broadcasting member or a pull consumer as a process. Appends a line `pid topic@broker:queue offset body` for each message handled.

On SIGTERM it leaves the group and exits.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ConsumerState,
    MessageExt,
    MessageModel,
    OrderlyContext,
    PullConsumer,
    PushConsumer,
)
from lockstep.runtime.logs.log import announce, configure


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def note(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            await asyncio.sleep(self.options.work_ms / 1000)
            place = f"{message.topic}@{message.broker_name}:{message.queue_id} {message.queue_offset}"
            os.write(self.file, f"{os.getpid()} {place} {message.body.decode()}\n".encode())

    async def broadcast(self) -> None:
        options = self.options
        consumer = PushConsumer(
            options.group,
            nameserver=options.nameserver,
            message_model=MessageModel.BROADCASTING,
            offset_dir=options.offset_dir,
            instance_name=options.instance,
        )
        consumer.subscribe(options.topic)
        if options.ordered:

            @consumer.orderly
            async def in_order(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                await self.note(messages)
                return ConsumeOrderlyStatus.SUCCESS

        else:

            @consumer.concurrently
            async def handle(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                await self.note(messages)
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
        async with consumer:
            announce("worker.ready")
            await consumer.wait_closed()

    async def pull(self) -> None:
        consumer = PullConsumer(self.options.group, nameserver=self.options.nameserver, auto_commit=self.options.mode == "loop")
        consumer.subscribe(self.options.topic)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
        async with consumer:
            announce("worker.ready")
            if self.options.mode == "loop":
                async for message in consumer:
                    await self.note([message])
                return
            while consumer.state is ConsumerState.RUNNING:
                await self.note(await consumer.poll(500))
                if consumer.state is ConsumerState.RUNNING:
                    await consumer.commit()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["broadcast", "poll", "loop"])
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--group", default="prices")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--work-ms", type=float, default=1.0)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--offset-dir", default="")
    parser.add_argument("--instance", default="default")
    options = parser.parse_args()
    configure("error")
    worker = Worker(options)
    asyncio.run(worker.broadcast() if options.mode == "broadcast" else worker.pull())


if __name__ == "__main__":
    main()
