"""Helpers for tests of request and reply in a simulated cluster."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockstep.client import ConcurrentlyContext, Message, MessageExt, Producer, PushConsumer, Reply
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.tools import PushReplyHeader
from lockstep.protocol.messages.properties import encode_properties
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.testing import TestCluster

TOPIC, GROUP = "quotes", "pricing"
Handler = Callable[[PushConsumer, MessageExt], Awaitable[object]]


async def answer(consumer: PushConsumer, message: MessageExt) -> None:
    await consumer.reply(message, b"answer to " + message.body)


class Replier:
    """A concurrent consumer that handles each request in a task of the listener. `seen` are those that have begun."""

    def __init__(self, nameserver: str, handler: Handler, **settings: Any) -> None:
        self.seen: list[MessageExt] = []
        self.errors: list[Exception] = []
        """Of handlers, in their order."""
        self.consumer = consumer = PushConsumer(settings.pop("group", GROUP), nameserver=nameserver, **settings).subscribe(TOPIC)

        @consumer.concurrently
        async def handle(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> None:
            for message in messages:
                self.seen.append(message)
                try:
                    await handler(consumer, message)
                except Exception as error:
                    self.errors.append(error)


class World:
    """A cluster with the topic `quotes`, a producer, and a consumer that replies by `handler`."""

    def __init__(self, cluster: TestCluster, producer: Producer, replier: Replier) -> None:
        self.cluster = cluster
        self.producer = producer
        self.replier = replier

    def ask(self, body: bytes = b"AAPL", timeout_ms: int = 2_000, **how: Any) -> "asyncio.Future[Reply]":
        return asyncio.ensure_future(self.producer.request(Message(TOPIC, body), timeout_ms=timeout_ms, **how))

    async def until_seen(self, count: int = 1) -> None:
        await self.cluster.until(lambda: len(self.replier.seen) >= count, "the replier has the request")

    async def until_errors(self, count: int = 1) -> None:
        await self.cluster.until(lambda: len(self.replier.errors) >= count, "a reply has failed")


@asynccontextmanager
async def world(handler: Handler = answer, *, brokers: int = 1, queues: int = 1, **settings: Any) -> AsyncIterator[World]:
    """`settings` are those of the producer."""
    async with TestCluster(brokers=brokers) as cluster:
        await cluster.create_topic(TOPIC, queues=queues)
        replier = Replier(cluster.nameserver, handler)
        async with replier.consumer, Producer("asking", nameserver=cluster.nameserver, **settings) as producer:
            yield World(cluster, producer, replier)


class Gate:
    """A handler that replies when the test lets it."""

    def __init__(self, handler: Handler = answer) -> None:
        self.opened = asyncio.Event()
        self._handler = handler

    async def __call__(self, consumer: PushConsumer, message: MessageExt) -> None:
        await self.opened.wait()
        await self._handler(consumer, message)


async def push_reply(
    endpoint: Endpoint, request: MessageExt, body: bytes, *, sys_flag: int = 0, reply_id: str = "R" * 32, **more: str
) -> Command:
    """Pass a reply on to a requester as a broker does. Return its response."""
    names = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
    properties = {name: request.all_properties[name] for name in names} | {"MSG_TYPE": "reply", "UNIQ_KEY": reply_id} | more
    text = encode_properties(properties).decode()
    header = PushReplyHeader("g", "c_REPLY_TOPIC", "TBW102", 4, 0, sys_flag, 1, 0, text, 0, False, "10.0.0.9:1", "10.0.0.1:1", 1)
    return await endpoint.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, to_plain(header), body, timeout_ms=1_000)
