"""A producer process for tests: sends numbered events of some keys, each key's one after the other, until it is told to stop.

Before a send it prints nothing; after an answer it appends [key, step, queue, offset] to its file. The last line it prints counts what
was tried and acknowledged per key.
"""

import argparse
import asyncio
import json
import os
import signal

from lockstep.client import LockstepError, Message, Producer


async def main() -> None:
    options = parser().parse_args()
    file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    told: dict[int, list[int]] = {}
    async with Producer(options.group, nameserver=options.nameserver) as producer, asyncio.TaskGroup() as group:
        print(json.dumps({"event": "producer.started"}), flush=True)
        for key in range(options.first, options.first + options.keys):
            told[key] = [0, 0]
            group.create_task(tell(producer, options, key, told[key], stopped, file))
    print(json.dumps({"event": "producer.finished", "told": told, "possible_duplicates": producer.possible_duplicates}), flush=True)


async def tell(producer: Producer, options: argparse.Namespace, key: int, told: list[int], stopped: asyncio.Event, file: int) -> None:
    for step in range(options.steps):
        if stopped.is_set():
            return
        told[1] = step + 1
        message = Message(options.topic, json.dumps({"order": key, "step": step}).encode() + b" " * options.padding)
        while True:
            try:
                result = await producer.send(message, sharding_key=str(key))
            except LockstepError as error:
                print(
                    json.dumps({"event": "send.failed", "key": key, "step": step, "error": type(error).__name__, "text": str(error)}),
                    flush=True,
                )
                return
            break
        told[0] = step + 1
        os.write(file, (json.dumps([key, step, str(result.queue), result.queue_offset]) + "\n").encode())
        if options.pause_ms:
            try:
                await asyncio.wait_for(stopped.wait(), options.pause_ms / 1000)
            except TimeoutError:
                pass


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--nameserver", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--group", default="shop")
    options.add_argument("--file", required=True)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--keys", type=int, default=20)
    options.add_argument("--steps", type=int, default=1_000_000)
    options.add_argument("--pause-ms", type=float, default=20)
    options.add_argument("--padding", type=int, default=0)
    return options


if __name__ == "__main__":
    asyncio.run(main())
