"""Two brokers that create topics get the first message of the same topics concurrently: every message is consumed."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.client import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, OrderlyContext, PushConsumer
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from support.processes import Program, program

pytestmark = pytest.mark.e2e

TOPICS = tuple(f"new-{number}" for number in range(20))


def broker(name: str, store: Path, nameserver: str) -> tuple[str, ...]:
    options = ("--name", name, "--listen", "127.0.0.1:0", "--store", str(store / name), "--segment-mib", "1", "--nameserver", nameserver)
    return "lockstep.broker", *options, "--auto-create-topics"


async def send(address: str, topic: str) -> bytes:
    """Send to a topic that does not exist, as a classic client; return the body."""
    body = f"{topic} at {address}".encode()
    header = to_plain(SendMessageHeader("prod", topic, 0))
    response = await call(Host.real(), address, RequestCode.SEND_MESSAGE, header, body, timeout_ms=10_000)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return body


async def consumed(nameserver: str, bodies: set[bytes]) -> None:
    """Wait until a group has received all of them."""
    left, done = set(bodies), asyncio.Event()
    consumer = PushConsumer("readers", nameserver=nameserver, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    for topic in TOPICS:
        consumer.subscribe(topic)

    @consumer.orderly
    async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
        left.difference_update(message.body for message in messages)
        if not left:
            done.set()
        return ConsumeOrderlyStatus.SUCCESS

    async with consumer, asyncio.timeout(60):
        await done.wait()


async def test_all_messages_of_a_topic_created_concurrently_by_two_brokers_are_consumed(tmp_path: Path) -> None:
    with program("lockstep.nameserver", "--listen", "127.0.0.1:0", event="nameserver.started") as routes:
        where = str(routes.started["address"])
        with (
            program(*broker("broker-a", tmp_path, where), event="broker.started") as one,
            program(*broker("broker-b", tmp_path, where), event="broker.started") as other,
        ):
            both: tuple[Program, ...] = (one, other)
            # Neither broker gets the other's layout before it has made its own.
            routes.process.send_signal(signal.SIGSTOP)
            try:
                bodies = await asyncio.gather(*[send(str(each.started["address"]), topic) for topic in TOPICS for each in both])
            finally:
                routes.process.send_signal(signal.SIGCONT)
            await consumed(where, set(bodies))
