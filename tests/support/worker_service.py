"""Two consumers and what their listeners need, as a program by `lockstep.client.run`. JSON lines tell what happens.

A message's body says what its listener does: `wait` until the consumer stops, and then send one message; `exit` raises
SystemExit(3); `block` blocks the event loop for good.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lockstep.client import ConsumeOrderlyStatus, ConsumerState, Message, MessageExt, OrderlyContext, Producer, PushConsumer, run

LOOK_S = 0.01


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


@asynccontextmanager
async def database() -> AsyncIterator[None]:
    """A service that is none of ours."""
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


def main(nameserver: str, *groups: str) -> None:
    producer = Producer("jobs", nameserver=nameserver)
    run(database(), producer, *(consumer_of(group, nameserver, producer) for group in groups))
    say("returned")


if __name__ == "__main__":
    main(*sys.argv[1:])
