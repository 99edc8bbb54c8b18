"""Consumers and their services as a program by `lockstep.client.run`. It reports its events as JSON lines.

A group whose name begins with `pull` has a pull consumer, which its own service polls. The others have push consumers.

The body of a message selects the action of the listener: `wait` until the consumer stops and then send one message, `exit` raise
SystemExit(3), `block` block the event loop permanently.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from lockstep.client import (
    ConsumeOrderlyStatus,
    ConsumerState,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    run,
)

LOOK_S = 0.01


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


@asynccontextmanager
async def database() -> AsyncIterator[None]:
    """A service that does not belong to the SDK."""
    say("database.opened", loop=type(asyncio.get_running_loop()).__module__)
    try:
        yield
    finally:
        say("database.closed")


def consumer_of(group: str, nameserver: str, producer: Producer) -> PushConsumer:
    consumer = PushConsumer(group, nameserver=nameserver).subscribe("jobs")

    @consumer.orderly
    async def work(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        say("begun", group=group)
        if messages[0].body == b"exit":
            sys.exit(3)
        if messages[0].body == b"block":
            while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                time.sleep(LOOK_S)  # noqa: ASYNC251
            say("signalled")
            signal.pause()
        while consumer.state is ConsumerState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await producer.send(Message("done", group.encode()))
        say("done", group=group)
        return ConsumeOrderlyStatus.SUCCESS

    return consumer


@asynccontextmanager
async def polled(consumer: PullConsumer) -> AsyncIterator[None]:
    async def poll() -> None:
        async for message in consumer:
            say("polled", body=message.body.decode())

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        await asyncio.wait([polling])
        say("poll.ended", error=type(polling.exception()).__name__)


def services_of(group: str, nameserver: str, producer: Producer) -> list[AbstractAsyncContextManager[object]]:
    if not group.startswith("pull"):
        return [consumer_of(group, nameserver, producer)]
    consumer = PullConsumer(group, nameserver=nameserver).subscribe("jobs")
    return [consumer, polled(consumer)]


def main(nameserver: str, *groups: str) -> None:
    producer = Producer("jobs", nameserver=nameserver)
    run(database(), producer, *(service for group in groups for service in services_of(group, nameserver, producer)))
    say("returned")


if __name__ == "__main__":
    main(*sys.argv[1:])
