"""Failing messages: retried with the broker's delays, then stored as dead letters, listed, and replayed when the cause is fixed.

lockstep up &
python examples/dead_letters.py
"""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

from lockstep.client import ConcurrentlyContext, ConsumeConcurrentlyStatus, Message, MessageDeadLettered, MessageExt, Producer, PushConsumer

NAMESERVER = os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")
TOPIC, GROUP = "mails", "mailing"
ONE_SECOND = 1
"""The delay level. With 0, RocketMQ's table applies: 10 s after the first failure, then 30 s, 1 min, … 2 h."""


async def lockstep(*arguments: str) -> Any:
    """Run a command and return the JSON that it prints."""
    command = ("lockstep", *arguments, "--nameserver", NAMESERVER, "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0, command
    return json.loads(out)


async def main() -> None:
    mended, all_sent = asyncio.Event(), asyncio.Event()
    dead = asyncio.Queue[MessageDeadLettered]()
    consumer = PushConsumer(GROUP, nameserver=NAMESERVER, max_reconsume_times=1)
    consumer.subscribe(TOPIC)
    consumer.on_event(lambda event: dead.put_nowait(event) if isinstance(event, MessageDeadLettered) else None)

    @consumer.concurrently
    async def mail(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        if message.body == b"nobody@nowhere" and not mended.is_set():
            print(message.body.decode(), "fails, retry", message.reconsume_times)
            context.delay_level_when_next_consume = ONE_SECOND
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        print("mailed to", message.body.decode())
        if mended.is_set():
            all_sent.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async with Producer("shop", nameserver=NAMESERVER) as producer, consumer:
        await producer.send(Message(TOPIC, b"nobody@nowhere"))
        event = await dead.get()
        print("given up after", event.attempts, "attempts:", event.error)
        (letter,) = (await lockstep("dlq", "ls", GROUP))["dead_letters"]
        print("dead letter:", letter["body"], "from", letter["origin_topic"], "because", letter["reason"])
        mended.set()
        replayed = await lockstep("dlq", "replay", GROUP)
        await all_sent.wait()
        print("handed out again:", replayed["count"])


asyncio.run(main())
