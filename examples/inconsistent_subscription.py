"""Two members of one group that subscribe to different tags: how RocketMQ loses messages that way, and how to see it.

The published experiment: A subscribes to tagA, B to tagB; a topic has four queues, and eight messages of tagB are sent round robin. In a
group with `--subscription-policy classic` the broker keeps one subscription for all members, as RocketMQ does: that of the member that
registered, or was granted queues, last. Here that is B. A owns half of the queues, receives their messages, drops them by its own tag, and
commits its progress. No member reports an error, every message is CONSUMED, and half of them are lost. When B has left, A's subscription
applies to the group again, and the same messages are CONSUMED_BUT_FILTERED. When nobody is left, RocketMQ says NOT_ONLINE of each message;
lockstep still says CONSUMED, since the group's progress is past it, and beside it that no member is connected.

    lockstep up &
    python examples/inconsistent_subscription.py

With the default policy, strict, B is rejected at its start with an error that names both members.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.client import ConcurrentlyContext, ConsumeConcurrentlyStatus, Message, MessageExt, MessageQueue, Producer, PushConsumer

NAMESERVER = os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")
TOPIC, GROUP, BROKER = "inconsistent", "inconsistent-group", "broker-a"


async def lockstep(*arguments: str) -> Any:
    """Run a command and return the JSON that it prints."""
    command = ("lockstep", *arguments, "--nameserver", NAMESERVER, "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0, command
    return json.loads(out)


def member(tag: str, got: list[str]) -> PushConsumer:
    consumer = PushConsumer(GROUP, nameserver=NAMESERVER, allocate="average")
    consumer.subscribe(TOPIC, tag)

    @consumer.concurrently
    async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        got.extend(message.body.decode() for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return consumer


def queues_of(consumer: PushConsumer) -> list[int]:
    return sorted(each.queue.queue_id for each in consumer.health().queues if each.queue.topic == TOPIC)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def start_members(a_got: list[str], b_got: list[str]) -> tuple[PushConsumer, PushConsumer]:
    """Start A, and B when A has all queues, so that B is the last to get some. "average" goes by client id, and B's is to be the higher."""
    a, b = member("tagA", a_got), member("tagB", b_got)
    await a.start()
    await until(lambda: queues_of(a) == [0, 1, 2, 3])
    await b.start()
    if str(a.health().client_id) < str(b.health().client_id):
        return a, b
    await b.stop()
    await a.stop()
    return await start_members(a_got, b_got)


async def until_broker_holds(tag: str) -> None:
    """Wait until this is the subscription of the group, which has one for all members."""
    while (await lockstep("group", "show", GROUP))["subscription"].get(TOPIC) != tag:
        pass


async def offsets() -> list[int | None]:
    shown = await lockstep("group", "show", GROUP)
    return [each["committed_offset"] for each in shown["queues"] if each["topic"] == TOPIC]


async def tracks(ids: Sequence[str]) -> list[str]:
    shown = await asyncio.gather(*(lockstep("message", "show", id_, "--track") for id_ in ids))
    return [each["track"] for message in shown for each in message["track"] if each["group"] == GROUP]


async def main() -> None:
    await lockstep("topic", "create", TOPIC, "--queues", "4")
    await lockstep("group", "create", GROUP, "--subscription-policy", "classic")
    a_got: list[str] = []
    b_got: list[str] = []
    a, b = await start_members(a_got, b_got)
    await until(lambda: (queues_of(a), queues_of(b)) == ([0, 1], [2, 3]))
    await until_broker_holds("tagB")

    async with Producer("experiment", nameserver=NAMESERVER) as producer:
        messages = [Message(TOPIC, f"B{number}".encode(), tags="tagB") for number in range(8)]
        sent = [await producer.send(each, queue=MessageQueue(TOPIC, BROKER, number % 4)) for number, each in enumerate(messages)]
    ids = [each.offset_message_id for each in sent]
    while await offsets() != [2, 2, 2, 2]:
        pass
    print("A got:", " ".join(sorted(a_got)) or "nothing")
    print("B got:", " ".join(sorted(b_got)) or "nothing")
    print("offsets:", *await offsets())
    print("tracks:", *await tracks(ids))

    await b.stop()
    await until_broker_holds("tagA")
    print("B has left; tracks:", *await tracks(ids))
    await a.stop()
    print("nobody is left; tracks:", *await tracks(ids))


asyncio.run(main())
