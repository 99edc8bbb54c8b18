"""A client whose broker is lost finds the copy that has become its master, without a nameserver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lockstep.client import Producer, PushConsumer
from lockstep.protocol.codes import RequestCode
from support.consumers import G, Handled
from support.fake_broker import FakeBroker, fake_cluster
from support.loops import until
from support.producing import send

pytestmark = pytest.mark.simulated

CODES = (RequestCode.SEND_RECORDS, RequestCode.PULL_MESSAGE, RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC, RequestCode.HEART_BEAT)


class Copies:
    """A master that is routed, the copy that follows it, and a client whose nameserver is gone."""

    def __init__(self, master: FakeBroker, copy: FakeBroker, producer: Producer, handled: Handled) -> None:
        self.master = master
        self.copy = copy
        self.producer = producer
        self.handled = handled

    def promote(self) -> None:
        self.copy.take_over(self.master)
        self.copy.not_leader.clear()

    async def go_on(self) -> None:
        """Send a message and wait until it is handled, each once, at the copy."""
        stored = self.copy.stored
        await send(self.producer, "second", "k")
        await until(lambda: self.handled.bodies[-1:] == [b"second"])
        assert self.copy.stored == [*stored, b"second"]
        assert self.handled.bodies == [b"first", b"second"]
        assert len({context.fence.epoch for _, _, context in self.handled.calls}) == 1
        assert self.producer.possible_duplicates == 0


@asynccontextmanager
async def copies(*, known: bool = True) -> AsyncIterator[Copies]:
    """Run a broker and its copy. A producer and a consumer have used it; the route named the copy if that is `known`."""
    handled = Handled()
    async with fake_cluster("a", topics={"t": 1}) as cluster, AsyncExitStack() as stack:
        master, copy = cluster["a"], await cluster.start_successor("a")
        stack.push_async_callback(copy.stop)
        copy.not_leader.update(CODES)
        master.replicas = (copy.address,) if known else ()
        producer = await stack.enter_async_context(Producer("orders", client=cluster.client))
        consumer = PushConsumer(G, client=cluster.client).subscribe("t")
        consumer.orderly(handled)
        await stack.enter_async_context(consumer)
        await send(producer, "first", "k")
        await until(lambda: handled.bodies == [b"first"])
        await cluster.stop()
        yield Copies(master, copy, producer, handled)


async def test_refused_client_waits_for_the_promotion_and_goes_on_at_the_copy() -> None:
    async with copies() as at:
        await at.master.stop()
        await until(lambda: len(at.copy.heartbeats) > 2)
        at.promote()
        await at.go_on()


async def test_client_of_a_master_that_stands_still_goes_on_at_the_copy_and_not_back() -> None:
    async with copies() as at:
        at.promote()
        at.master.mute.update((*CODES, -RequestCode.SYNC))
        at.master.cut()
        await at.go_on()
        asked = len(at.master.requests)
        at.master.process_kept_requests()
        await asyncio.sleep(60)
        assert (len(at.master.requests), at.master.endpoints) == (asked, [])


async def test_copy_that_is_no_master_does_not_keep_a_client_from_a_slow_one() -> None:
    async with copies() as at:
        at.master.mute.add(RequestCode.HEART_BEAT)
        at.master.cut()
        await until(lambda: len(at.copy.heartbeats) > 1)
        at.master.process_kept_requests()
        await until(lambda: len(at.master.endpoints) == 1)
        await send(at.producer, "second", "k")
        assert at.master.stored == [b"first", b"second"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("code", CODES)
async def test_not_leader_leads_to_the_address_that_it_names(code: RequestCode, known: bool) -> None:
    async with copies(known=known) as at:
        at.promote()
        at.master.leader = at.copy
        at.master.not_leader.update({code, RequestCode.HEART_BEAT})
        if code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ):
            at.master.cut()
        await at.go_on()


async def test_not_leader_that_names_nobody_leads_to_the_next_address() -> None:
    async with copies() as at:
        at.promote()
        at.master.not_leader.add(RequestCode.SEND_RECORDS)
        await at.go_on()
        assert at.master.endpoints == []


async def test_not_leader_that_names_nobody_and_no_other_address_keeps_the_connection() -> None:
    async with copies(known=False) as at:
        (before,) = at.master.endpoints
        at.master.not_leader.add(RequestCode.SEND_RECORDS)
        sending = send(at.producer, "second", "k")
        await asyncio.sleep(2)
        assert at.master.endpoints == [before]
        at.master.not_leader.clear()
        await sending
