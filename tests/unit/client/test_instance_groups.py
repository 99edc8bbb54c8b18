"""An instance and its groups: joining, refusals, leaving."""

import asyncio
import gc
from functools import partial

import pytest

from lockstep.client import StateError, SubscriptionConflictError
from lockstep.protocol.bodies import HeartbeatReply
from lockstep.protocol.errors import BrokerError, DuplicateClientIdError, NoPermissionError, ServiceNotAvailableError
from support.fake_broker import ANY_GROUP, fake_cluster
from support.instance_kit import HookRecorder, billing, instance_of, linked, registered
from support.loops import LoopWatch, turns, until

pytestmark = pytest.mark.simulated


async def test_join_asks_brokers_in_name_order_and_then_every_heartbeat_names_the_group() -> None:
    async with registered("c", "a", "b") as (cluster, instance, recorder):
        for broker in cluster.brokers.values():
            assert [body.consumers for body in broker.heartbeats] == [()]
        journal = cluster.brokers["a"].journal
        assert journal is not None
        journal.clear()
        await instance.join("billing")
        assert journal == ["a HEART_BEAT", "b HEART_BEAT", "c HEART_BEAT"]
        for broker in cluster.brokers.values():
            assert broker.heartbeats[-1].consumers == (billing(),)
        assert len(recorder.views) == 3


async def test_broker_discovered_during_a_join_is_joined_too() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        late = cluster.brokers.pop("b")
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            instance.register_consumer("billing", billing, HookRecorder().hooks())
            (link,) = await linked(instance)
            beat = link.heartbeat

            async def beat_late() -> HeartbeatReply:
                cluster.brokers["b"] = late
                await until(lambda: bool(late.heartbeats))
                return await beat()

            link.heartbeat = beat_late  # type: ignore[method-assign]
            await instance.join("billing")
            assert [group.group for group in late.heartbeats[-1].consumers] == ["billing"]


async def test_join_waits_for_every_connection_attempt_before_joining_any_broker() -> None:
    async with registered("a", "b") as (cluster, instance, _):
        _, second = instance.links()
        tried = asyncio.Event()
        second.wait_first_attempt = tried.wait  # type: ignore[method-assign]
        joining = asyncio.ensure_future(instance.join("billing"))
        await turns(10)
        assert not any(beat.consumers for beat in cluster.brokers["a"].heartbeats)
        tried.set()
        await joining
        assert all(broker.heartbeats[-1].consumers for broker in cluster.brokers.values())


async def test_join_refused_by_one_broker_leaves_the_joined_ones_and_raises() -> None:
    async with registered("a", "b", "c") as (cluster, instance, recorder):
        cluster.brokers["b"].refuse[ANY_GROUP] = SubscriptionConflictError("group billing has another contract at b: subscriptions")
        with pytest.raises(SubscriptionConflictError, match="billing"):
            await instance.join("billing")
        assert cluster.brokers["a"].left == ["billing"]
        assert all(body.consumers == () for body in cluster.brokers["c"].heartbeats)
        assert recorder.refusals == [], "it is raised, not reported to the hook"
        await instance.heartbeat_now()
        assert cluster.brokers["a"].heartbeats[-1].consumers == ()
        cluster.brokers["b"].refuse.clear()
        await instance.join("billing")


async def test_broker_that_is_down_during_the_join_gets_the_group_when_it_connects() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        await cluster.brokers["a"].stop()
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            instance.register_consumer("billing", billing, HookRecorder().hooks())
            await instance.watch.route("t")
            await instance.join("billing")
            assert cluster.brokers["b"].heartbeats[-1].consumers == (billing(),)
            cluster.brokers["a"].term += 1
            await cluster.brokers["a"].start()
            await until(lambda: bool(cluster.brokers["a"].heartbeats))
            assert cluster.brokers["a"].heartbeats[0].consumers == (billing(),)


@pytest.mark.parametrize(
    "error", [SubscriptionConflictError("group billing has another contract at a"), DuplicateClientIdError("a living session has it")]
)
async def test_refused_running_member_is_notified_and_removed_from_heartbeats(error: BrokerError) -> None:
    async with registered("a") as (cluster, instance, recorder):
        (link,) = instance.links()
        await instance.join("billing")
        broker = cluster.brokers["a"]
        broker.refuse[ANY_GROUP] = error
        link.reconnect("test")
        await until(lambda: link.up)
        assert [type(refusal) for refusal in recorder.refusals] == [type(error)]
        assert broker.heartbeats[-1].consumers == ()


@pytest.mark.parametrize("refusal", [NoPermissionError, ServiceNotAvailableError])
@pytest.mark.parametrize("remark", ["b knows 1 groups, 1 are allowed: group audit is refused", "the disk is nearly full"])
async def test_broker_that_temporarily_rejects_a_group_stays_connected_and_accepts_it_later(
    refusal: type[BrokerError], remark: str
) -> None:
    """The broker was away when the group joined, so the refusal meets the handshake of its link."""
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        broker = cluster.brokers["b"]
        await broker.stop()
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            recorder = HookRecorder()
            for group in ("billing", "audit"):
                instance.register_consumer(group, partial(billing, group), recorder.hooks())
            await instance.watch.route("t")
            await instance.join("billing")
            await instance.join("audit")
            broker.refuse["audit"] = refusal(remark)
            broker.term += 1
            await broker.start()
            await until(lambda: ("up", "b") in recorder.events)
            assert recorder.refusals == []
            broker.refuse.clear()
            clock = instance.host.clock
            await until(lambda: all(each.is_named("b", clock.monotonic_ms()) for each in instance._consumers.values()))
            await instance.heartbeat_now()
            assert sorted(each.group for each in broker.heartbeats[-1].consumers) == ["audit", "billing"]


@pytest.mark.parametrize("temporary", ["", SubscriptionConflictError.TEMPORARY])
async def test_conflict_of_another_group_of_the_client_does_not_fail_a_join(temporary: str) -> None:
    async with registered("a") as (cluster, instance, recorder):
        others = HookRecorder()
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        await instance.join("audit")
        broker = cluster.brokers["a"]
        broker.refuse["audit"] = SubscriptionConflictError(f"group audit has another contract at a{temporary}")
        await instance.join("billing")
        assert [group.group for group in broker.heartbeats[-1].consumers] == ["billing"]
        assert recorder.refusals == []
        assert len(others.refusals) == (0 if temporary else 1)


async def test_conflict_refuses_only_the_group_that_it_names() -> None:
    async with registered("a") as (cluster, instance, recorder):
        others = HookRecorder()
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        await instance.join("billing")
        await instance.join("audit")
        cluster.brokers["a"].refuse[ANY_GROUP] = SubscriptionConflictError("group audit has another contract at a")
        await instance.heartbeat_now()
        assert (len(recorder.refusals), len(others.refusals)) == (0, 1)
        cluster.brokers["a"].refuse.clear()
        await instance.heartbeat_now()
        assert cluster.brokers["a"].heartbeats[-1].consumers == (billing(),)


async def test_leave_is_sent_to_every_broker_and_hooks_run_until_unregistered() -> None:
    async with registered("a", "b") as (cluster, instance, recorder):
        links = instance.links()
        await instance.join("billing")
        await instance.leave("billing")
        assert [broker.left for broker in cluster.brokers.values()] == [["billing"], ["billing"]]
        links[0].reconnect("test")
        await until(lambda: links[0].up)
        assert cluster.brokers["a"].heartbeats[-1].consumers == ()
        assert recorder.events[-1] == ("up", "a")
        instance.unregister_consumer("billing")
        heard = len(recorder.events)
        links[0].reconnect("test")
        await until(lambda: links[0].up)
        assert len(recorder.events) == heard


async def test_cancelled_leave_leaves_no_unretrieved_future(loop_watch: LoopWatch) -> None:
    async with registered("a", "b") as (cluster, instance, _):
        links = instance.links()
        await instance.join("billing")
        for broker in cluster.brokers.values():
            broker.stop_reading()
        leaving = asyncio.ensure_future(instance.leave("billing"))
        await turns(2)
        leaving.cancel()
        await turns(2)
        for link in links:
            link.reconnect("test")
        await until(lambda: all(link.connection == 2 and link.up for link in links))
        gc.collect()
        assert loop_watch.errors == []


async def test_registering_a_group_twice_raises() -> None:
    async with registered("a") as (_, instance, _):
        with pytest.raises(StateError, match="billing"):
            instance.register_consumer("billing", billing, HookRecorder().hooks())
