"""A concurrent consumer process for tests. Appends a line `body retries result at_ms` for each message of each call; at_ms is boot time.

With --name the messages are events of worker_producer.py, and the lines those of worker_consumer.py (the epoch is 0).

On SIGTERM it leaves the group and exits.
"""

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from lockstep.cli.demo.proof import HandledEvent
from lockstep.client import ConcurrentlyContext, ConsumeConcurrentlyStatus, MessageExt, PushConsumer
from lockstep.client.consumer.calls.concurrent_model import ConcurrentRunner
from lockstep.runtime.logs.log import announce, configure

DONE, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def fails(self, message: MessageExt) -> bool:
        return message.reconsume_times < self.options.fail_times and message.body.startswith(self.options.fail.encode())

    def note(self, message: MessageExt, result: str) -> None:
        if self.options.name:
            event, at_us = json.loads(message.body), time.monotonic_ns() // 1000
            queue = f"{message.topic}@{message.broker_name}:{message.queue_id}"
            handled = HandledEvent(self.options.name, event["order"], event["step"], queue, 0, message.queue_offset, at_us, at_us)
            os.write(self.file, (handled.line() + "\n").encode())
            return
        line = f"{message.body.decode()} {message.reconsume_times} {result} {time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000}\n"
        os.write(self.file, line.encode())

    async def listen(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        if self.options.work_ms:
            await asyncio.sleep(self.options.work_ms / 1000)
        for index, message in enumerate(messages):
            if self.fails(message):
                context.ack_index = index - 1
                for other in messages[index:]:
                    self.note(other, "later")
                return DONE if index else LATER
            self.note(message, "done")
        return DONE

    async def run(self) -> None:
        options = self.options
        settings: dict[str, Any] = {"batch_count": options.batch_count, "max_reconsume_times": options.max_reconsume_times}
        consumer = PushConsumer(options.group, nameserver=options.nameserver, concurrency=options.concurrency, **settings)
        consumer.subscribe(options.topic)
        consumer.concurrently(self.listen)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
        async with consumer:
            announce("worker.ready")
            await consumer.wait_closed()


def die_after_send_back() -> None:
    """Kill this process once the broker has accepted the first send back and before its progress is committed."""
    original = ConcurrentRunner._send_back

    async def send_back(*arguments: Any) -> bool:
        taken = await original(*arguments)
        if taken:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken

    ConcurrentRunner._send_back = send_back  # type: ignore[assignment, method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--name", default="", help="write lines of handled events, under this name")
    parser.add_argument("--group", default="mailing")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--fail", default="", help="messages that begin so fail")
    parser.add_argument("--fail-times", type=int, default=0)
    parser.add_argument("--work-ms", type=int, default=0)
    parser.add_argument("--batch-count", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--max-reconsume-times", type=int, default=16)
    parser.add_argument("--die-after-send-back", action="store_true")
    options = parser.parse_args()
    configure("error")
    if options.die_after_send_back:
        die_after_send_back()
    asyncio.run(Worker(options).run())


if __name__ == "__main__":
    main()
