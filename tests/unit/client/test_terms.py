"""A client that has heard of a term of a broker name uses no connection to a lower one (ordering.md 1.10)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lockstep.client import Producer, PushConsumer
from lockstep.client.instance import Instance
from lockstep.protocol.codes import RequestCode
from support.consumers import G, Handled
from support.fake_broker import FakeBroker, FakeCluster, fake_cluster
from support.instance_kit import instance_of, linked
from support.loops import until
from support.producing import send

pytestmark = pytest.mark.simulated

CODES = (RequestCode.SEND_RECORDS, RequestCode.PULL_MESSAGE, RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC, RequestCode.HEART_BEAT)


class Routed:
    """The nameserver and the client that asks it."""

    def __init__(self, cluster: FakeCluster, instance: Instance) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.instance = instance

    def to(self, broker: FakeBroker) -> None:
        """Let the nameserver name this broker, and the client ask for its routes."""
        self.cluster.brokers["a"] = broker
        self.instance.watch.refresh_soon()


@asynccontextmanager
async def two_starts() -> AsyncIterator[tuple["Routed", FakeBroker, FakeBroker]]:
    """Run a cluster, its routed broker "a" of term 1, and a broker "a" of term 2 at another address."""
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        old = cluster["a"]
        new = await cluster.start_successor("a")
        try:
            async with instance_of(cluster, client=cluster.client) as instance:
                yield Routed(cluster, instance), old, new
        finally:
            await old.stop()
            await new.stop()


@asynccontextmanager
async def consuming(routed: Routed, handled: Handled) -> AsyncIterator[None]:
    consumer = PushConsumer(G, client=routed.client).subscribe("t")
    consumer.orderly(handled)
    async with consumer:
        yield


@pytest.mark.parametrize("users", ["producer", "consumer", "both"])
async def test_route_of_a_higher_term_cuts_the_link_and_a_late_one_does_not_lead_back(users: str) -> None:
    handled = Handled()
    async with two_starts() as (routed, old, new), AsyncExitStack() as stack:
        if users != "consumer":
            producer = await stack.enter_async_context(Producer("orders", client=routed.client))
            await send(producer, "first", "k")
            new.take_over(old)
        if users != "producer":
            await stack.enter_async_context(consuming(routed, handled))
        await until(lambda: bool(old.endpoints))
        routed.to(new)
        routed_at = asyncio.get_running_loop().time()
        await until(lambda: bool(new.endpoints) and not old.endpoints)
        assert asyncio.get_running_loop().time() - routed_at < 2, "the next HEART_BEAT would leave it too, after seconds"
        asked, stored = len(old.requests), old.stored
        if users == "consumer":
            new.store("t", 0, [b"second"])
        else:
            await send(producer, "second", "k")
        if users != "producer":
            await until(lambda: handled.bodies[-1:] == [b"second"])
        routed.to(old)  # a nameserver that is out of date
        await asyncio.sleep(60)
        assert new.stored == [*stored, b"second"]
        assert (len(old.requests), old.stored, old.endpoints) == (asked, stored, [])
        assert len(new.endpoints) == 1


async def test_term_that_the_broker_itself_has_named_counts_as_that_of_a_route() -> None:
    async with two_starts() as (routed, old, new), Producer("orders", client=routed.client) as producer:
        old.term = 5
        routed.cluster.brokers["a"] = FakeBroker(
            "a", routed.cluster.host, 1, address=old.address
        )  # the nameserver has not heard of the last start
        await send(producer, "first", "k")
        routed.to(new)
        await asyncio.sleep(2)
        await send(producer, "second", "k")
        assert (old.stored, new.requests) == ([b"first", b"second"], [])
        old.term = 4
        old.cut()
        sending = send(producer, "third", "k")
        await asyncio.sleep(2)
        assert len(old.sends) == 2, "an earlier start has taken the address: its response to HEART_BEAT is refused"
        old.term = 5
        await sending
        assert (old.stored, new.requests) == ([b"first", b"second", b"third"], [])


@pytest.mark.parametrize("code", CODES)
async def test_not_leader_asks_for_the_route_and_loses_repeats_and_fails_nothing(code: RequestCode) -> None:
    handled = Handled()
    async with two_starts() as (routed, old, new), Producer("orders", client=routed.client) as producer, consuming(routed, handled):
        await send(producer, "first", "k")
        await until(lambda: handled.bodies == [b"first"])
        asked = routed.cluster.requested
        old.not_leader.add(code)
        await asyncio.wait([asyncio.ensure_future(routed.instance.heartbeat_now())])
        sending = send(producer, "second", "k")
        await until(lambda: routed.cluster.requested > asked)
        await asyncio.sleep(3)
        new.take_over(old)
        routed.cluster.brokers["a"] = new
        old.not_leader.update(CODES)
        assert (await sending).queue_offset == 1
        await until(lambda: handled.bodies[-1:] == [b"second"])
        assert new.stored == [b"first", b"second"]
        assert producer.possible_duplicates == 0


@pytest.mark.parametrize("connected", [False, True])
async def test_consumer_starts_although_the_routed_broker_is_not_the_leader_and_consumes_when_another_is_routed(connected: bool) -> None:
    handled = Handled()
    async with two_starts() as (routed, old, new):
        if connected:
            await linked(routed.instance)
        old.requests.clear()
        old.not_leader.update(CODES)
        new.store("t", 0, [b"first"])
        async with consuming(routed, handled):
            assert {each.code for each in old.requests} == {RequestCode.HEART_BEAT}
            routed.cluster.brokers["a"] = new
            await until(lambda: handled.bodies == [b"first"])


async def test_attempt_that_hangs_at_the_old_address_ends_when_the_new_one_is_known() -> None:
    async with two_starts() as (routed, old, new), Producer("orders", client=routed.client) as producer:
        old.mute.add(RequestCode.HEART_BEAT)
        sending = send(producer, "first", "k")
        await until(lambda: bool(old.heartbeats))
        asked_at = asyncio.get_running_loop().time()
        routed.to(new)
        await sending
        assert asyncio.get_running_loop().time() - asked_at < 2, "HEART_BEAT has 3 s for its response"
