"""Sends, calls and requests of a client go with their last reference, however they end, not when the garbage collector runs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from lockstep.client import (
    BatchSendError,
    Consuming,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    ReplyTimeoutError,
    SendError,
    Sending,
)
from lockstep.client.producer.config import ProducerConfig
from lockstep.protocol.errors import LockstepError, MessageIllegalError, ServiceNotAvailableError
from lockstep.testing import TestCluster, simulate
from support.cycles import collector_off
from support.fake_broker import FakeBroker, FakeCluster, fake_cluster, ignore, refuse
from support.loops import turns, until
from support.producing import keyed, message, producing
from support.requesting import push_reply

pytestmark = pytest.mark.simulated

QUICK = ProducerConfig(
    send_timeout_ms=200, keyed_send_timeout_ms=400, attempt_timeout_ms=40, auto_create_topics=False, in_flight_count_max=4
)


class Hook:
    def before_send(self, sending: Sending) -> None:
        pass

    def after_send(self, sending: Sending) -> None:
        pass

    def before_consume(self, consuming: Consuming) -> None:
        pass

    def after_consume(self, consuming: Consuming) -> None:
        pass


class World:
    def __init__(self, cluster: FakeCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.brokers["a"]

    async def _fails(self, send: Awaitable[Any], kind: type[BaseException] = SendError) -> None:
        try:
            await send
        except kind:
            return
        finally:
            del send  # a future that fails holds the error, whose traceback holds this frame
        pytest.fail(f"no {kind.__name__}")

    async def stored(self) -> None:
        await self.producer.send(message("x"))

    async def refused_at_once(self) -> None:
        self.broker.script.append(refuse(MessageIllegalError("too odd")))
        await self._fails(self.producer.send(message("x")), MessageIllegalError)

    async def refused_until_the_deadline(self) -> None:
        self.broker.script.extend([refuse(ServiceNotAvailableError("disk"))] * 200)
        await self._fails(self.producer.send(message("x")), ServiceNotAvailableError)
        await self._fails(self.producer.send(message("x", sharding_key="k")))
        self.broker.script.clear()

    async def without_response(self) -> None:
        self.broker.script.extend([ignore] * 200)
        await self._fails(self.producer.send(message("x")))
        sends = [self.producer.send(each) for each in keyed("abcdef", "kkkkkk")]  # some wait for the in-flight limit
        for error in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(error, SendError)
        self.broker.script.clear()
        del error

    async def of_a_batch(self) -> None:
        self.broker.script.extend([ignore] * 200)
        await self._fails(self.producer.send_batch([message("x"), message("y", sharding_key="k")]), BatchSendError)
        self.broker.script.clear()

    async def posted(self) -> None:
        self.broker.script.extend([ignore] * 200)
        await self._fails(await self.producer.post(message("x")))
        self.broker.script.clear()
        await (await self.producer.post(message("x")))

    async def delayed(self) -> None:
        await self._fails(self.producer.send(message("x", "missing"), delay_level=3), LockstepError)

    async def to_no_topic(self) -> None:
        await self._fails(self.producer.send(message("x", "missing")), LockstepError)
        await self._fails(self.producer.send_batch([message("x"), message("x", "missing")]), LockstepError)

    async def to_no_queue(self) -> None:
        await self._fails(self.producer.send(message("x"), queue=MessageQueue("t", "nobody", 7)), LockstepError)
        await self._fails(self.producer.send(message("x"), selector=lambda layout, key: {}["missing"]), KeyError)

    async def cancelled(self) -> None:
        self.broker.script.append(ignore)
        sending = asyncio.ensure_future(self.producer.send(message("x")))
        await turns(3)
        sending.cancel()
        await self._fails(sending, asyncio.CancelledError)

    async def requested(self) -> None:
        await self._fails(self.producer.request(message("x")), ReplyTimeoutError)
        await self._fails(self.producer.request(message("x", "missing")), LockstepError)
        self.broker.script.append(refuse(MessageIllegalError("too odd")))
        await self._fails(self.producer.request(message("x")), MessageIllegalError)
        self.broker.script.extend([ignore] * 200)
        await self._fails(self.producer.request(message("x")))
        asking = asyncio.ensure_future(self.producer.request(message("x")))
        await turns(3)
        asking.cancel()
        await self._fails(asking, asyncio.CancelledError)
        self.broker.script.clear()

    async def answered(self) -> None:
        seen = len(self.broker.sends)
        asking = asyncio.ensure_future(self.producer.request(message("x")))
        await until(lambda: len(self.broker.sends) > seen)
        sent = self.broker.sends[-1]
        await push_reply(sent.endpoint, sent.messages[0], b"y")
        assert (await asking).body == b"y"

    async def with_hooks(self) -> None:
        self.producer.add_hook(Hook())
        await self.refused_at_once()
        await self.requested()
        await self.of_a_batch()
        await self.posted()
        self.producer._hooks = ()

    async def lost_connection(self) -> None:
        self.broker.script.extend([ignore] * 3)
        sends = [asyncio.ensure_future(self.producer.send(message("x"))) for _ in range(3)]
        await until(lambda: bool(self.broker.sends))
        await self.broker.stop()
        for each in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(each, SendError)
        self.broker.script.clear()
        await self.broker.start()
        del each
        assert self.producer._shell is not None
        link = self.producer._shell.instance.link("a")
        await until(lambda: link is not None and link.up)


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    name: scenario for name, scenario in vars(World).items() if not name.startswith("_") and name not in ("broker", "lost_connection")
}


async def check(scenario: Callable[[World], Awaitable[None]]) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, QUICK) as producer:
        world = World(cluster, producer)

        async def run() -> None:
            await scenario(world)
            assert producer._sends is not None
            heap = producer._sends._shell.expiry._heap
            await until(lambda: not heap, "every deadline has passed")

        await world.stored()
        await run()  # what is made once
        with collector_off():
            await run()
            world.broker.sends.clear()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_sends_are_freed_without_the_collector(name: str) -> None:
    await check(SCENARIOS[name])


@pytest.mark.both_loops
async def test_sends_on_a_lost_connection_are_freed_without_the_collector() -> None:
    """On real sockets: the simulator's transports refer to each other."""
    await check(World.lost_connection)


class ListenerFailedError(Exception):
    """What the listeners raise."""


@pytest.mark.parametrize("hooks", [(), (Hook(),)], ids=["", "hooks"])
@pytest.mark.parametrize("kind", ["orderly", "concurrently"])
def test_failed_calls_of_listeners_are_freed_without_the_collector(kind: str, hooks: tuple[Hook, ...]) -> None:
    failed: list[bytes] = []

    async def listen(messages: Sequence[MessageExt], context: object) -> None:
        if messages[0].body not in failed:
            failed.append(messages[0].body)
            raise ListenerFailedError(messages[0].body)

    async def main() -> None:
        async with TestCluster() as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
            await cluster.create_topic("orders", queues=1)
            consumer = PushConsumer("billing", nameserver=cluster.nameserver)
            consumer.subscribe("orders")
            for hook in hooks:
                consumer.add_hook(hook)
            getattr(consumer, kind)(listen)
            async with consumer:
                for number in range(2):
                    with collector_off() if number else nullcontext():
                        await producer.send(Message("orders", b"%d" % number))
                        await cluster.advance(seconds=60)
            assert failed == [b"0", b"1"]

    simulate(main)
