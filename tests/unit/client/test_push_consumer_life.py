"""PushConsumer: start, stop, health."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from lockstep.client import ConsumerEvent, OrderlyContext, PushConsumer, QueueAssigned, QueueRevoked
from lockstep.protocol.bodies import SyncItem
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import ConfigError, LocalProtocolError, StateError, SubscriptionConflictError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from support.consumers import G, Handled, S, events, new_consumer, one_broker, stopped
from support.fake_broker import frozen_cluster
from support.frozen_loop import advance, settle
from support.loops import turns

pytestmark = pytest.mark.frozen_clock


async def test_start_while_it_runs_missing_listener_and_missing_subscription_raise() -> None:
    async with frozen_cluster() as cluster:
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host)
        with pytest.raises(StateError, match="start it"):
            await PushConsumer("g").wait_closed()
        with pytest.raises(StateError, match="no listener"):
            await consumer.start()
        consumer.orderly(Handled())
        with pytest.raises(ConfigError, match="subscribes to nothing"):
            await consumer.start()
        with pytest.raises(StateError, match="listener already"):
            consumer.orderly(Handled())
        consumer.subscribe("orders")
        await consumer.start()
        with pytest.raises(StateError, match="running"):
            await consumer.start()
        with pytest.raises(StateError, match="contract"):
            consumer.subscribe("bills")
        await stopped(consumer)


async def test_consumer_is_alive_from_its_start_to_its_stop_while_a_broker_is_down_too() -> None:
    async with frozen_cluster() as cluster:
        consumer = new_consumer(cluster, Handled())
        assert not consumer.health().alive
        await consumer.start()
        await settle()
        assert consumer.health().alive
        for broker in cluster.brokers.values():
            await broker.stop()
        await advance(5)
        assert (consumer.health().alive, consumer.health().ok) == (True, False)
        await stopped(consumer)
        assert not consumer.health().alive


async def test_invalid_group_topic_or_expression_is_rejected() -> None:
    with pytest.raises(LocalProtocolError):
        PushConsumer("no blanks")
    with pytest.raises(LocalProtocolError):
        PushConsumer(G).subscribe("no blanks")
    with pytest.raises(LocalProtocolError):
        PushConsumer(G).subscribe("orders", "||")


def test_tag_expression_with_a_comma_is_logged_as_suspicious(caplog: pytest.LogCaptureFixture) -> None:
    PushConsumer(G).subscribe("orders", "a || b")
    assert caplog.text == ""
    PushConsumer(G).subscribe("orders", "a, b || c")
    (reported,) = caplog.records
    assert (
        reported.getMessage() == "subscription.odd_tag group=billing topic=orders tag=a, b taken_as=one tag; write several tags as a || b"
    )


async def test_stop_leaves_the_group_and_then_releases_each_queue_when_its_call_ends() -> None:
    async with one_broker() as (a, handled, consumer):
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0", b"1"])
        await settle()
        stop = asyncio.ensure_future(consumer.stop())
        await settle()
        codes = [seen.code for seen in a.requests]
        assert a.members[G] == []
        assert [item for item in a.sync_items() if item.release] == [SyncItem(G, "orders", 1, 1, None, 0, 0, True)]
        assert codes.index(RequestCode.UNREGISTER_CLIENT) < len(codes) - 1 - codes[::-1].index(RequestCode.SYNC)
        handled.gate.set()
        await settle()
        assert stop.done()
        assert handled.bodies == [b"0"]
    assert a.sync_items()[-1] == SyncItem(G, "orders", 0, 1, None, 1, 0, True)


async def test_heartbeat_in_flight_during_a_stop_does_not_rejoin_the_group() -> None:
    async with one_broker() as (a, handled, consumer):
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0"])
        await settle()
        a.mute.add(RequestCode.HEART_BEAT)
        a.cut()
        await advance(0.5)
        assert a.kept, "the HEART_BEAT of the next connection waits"
        stop = asyncio.ensure_future(consumer.stop())
        await settle()
        a.process_kept_requests()
        await advance(0.1)
        assert a.members[G] == []
        assert not stop.done(), "and its queue still drains"
        handled.gate.set()
        await advance(0.2)
        assert stop.done()


async def test_stop_past_the_drain_limit_cancels_the_call_and_releases_the_queue_without_an_offset() -> None:
    seen: list[str] = []

    async def stubborn(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        waiting = asyncio.ensure_future(context.cancelled.wait())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(f"cancelled {waiting.done()}")
            raise
        return S.SUCCESS

    async with one_broker(b"0", listener=stubborn, stop_timeout_ms=4_000) as (a, _, consumer):
        stop = asyncio.ensure_future(consumer.stop())
        await advance(3.9)
        assert seen == []
        assert a.locks[G, "orders", 0].holder is not None
        await advance(0.2)
        assert seen == ["cancelled True"]
        assert SyncItem(G, "orders", 0, 1, None, None, 0, True) in a.sync_items()
        await advance(0.1)
        assert stop.done()


async def test_stop_does_not_wait_for_a_listener_that_ignores_cancellation() -> None:
    let_go = asyncio.Event()

    async def deaf(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return S.SUCCESS

    async with one_broker(b"0", listener=deaf, stop_timeout_ms=1_000) as (a, _, consumer):
        stop = asyncio.ensure_future(consumer.stop())
        await advance(1.5)
        assert a.locks[G, "orders", 0].holder is None
        await advance(3.5)
        assert stop.done()
    let_go.set()
    await settle()
    assert a.committed(G, "orders", 0) == 0


async def test_stop_fences_a_synchronous_listener_past_the_drain_limit_and_does_not_wait_for_it() -> None:
    finish = threading.Event()
    seen: list[bool] = []

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        seen.append(context.cancelled.is_set())
        finish.wait(60)
        seen.append(context.cancelled.is_set())
        return S.SUCCESS

    try:
        async with one_broker(b"0", listener=plain, stop_timeout_ms=1_000) as (a, _, consumer):
            while not seen:
                await turns(1)
            stop = asyncio.ensure_future(consumer.stop())
            await advance(1.1)
            assert SyncItem(G, "orders", 0, 1, None, None, 0, True) in a.sync_items()
            await advance(4)
            assert stop.done()
    finally:
        finish.set()
    while len(seen) < 2:
        await turns(1)
    assert seen == [False, True]
    assert a.committed(G, "orders", 0) == 0


async def test_stop_called_by_a_listener_raises() -> None:
    refused: list[str] = []

    async def suicidal(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        try:
            await consumer.stop()
        except StateError as error:
            refused.append(str(error))
        return S.SUCCESS

    async with one_broker(listener=suicidal) as (a, _, consumer):
        a.store("orders", 0, [b"0"])
        await settle()
        assert len(refused) == 1


async def test_temporary_subscription_conflict_is_raised_after_the_grace_and_joined_brokers_are_left() -> None:
    async with frozen_cluster("a", "b") as cluster:
        a, b = cluster["a"], cluster["b"]
        b.refuse[G] = SubscriptionConflictError(
            f'group "{G}": orders "x" here, "y" there' + SubscriptionConflictError.TEMPORARY,
        )
        consumer = new_consumer(cluster, Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(3)
        assert not start.done()
        await advance(3)
        with pytest.raises(SubscriptionConflictError, match="here"):
            await start
        assert a.members[G] == []
        assert a.lock_items() == []
        b.refuse.clear()
        await consumer.start()
        await settle()
        assert a.members[G] == [a.me()]
        await stopped(consumer)


async def test_temporary_subscription_conflict_is_retried() -> None:
    async with frozen_cluster() as cluster:
        a = cluster["a"]
        a.refuse[G] = SubscriptionConflictError(f'group "{G}"' + SubscriptionConflictError.TEMPORARY)
        consumer = new_consumer(cluster, Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(2)
        a.refuse.clear()
        await advance(0.5)
        assert start.done()
        await start
        await stopped(consumer)


async def test_conflict_with_a_connected_member_is_raised_immediately() -> None:
    async with frozen_cluster() as cluster:
        cluster["a"].refuse[G] = SubscriptionConflictError(f'group "{G}"')
        consumer = new_consumer(cluster, Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(0.2)
        assert start.done()
        with pytest.raises(SubscriptionConflictError):
            await start


async def test_wait_closed_raises_the_refusal_of_a_running_member() -> None:
    async with one_broker() as (a, _, consumer):
        a.refuse[G] = SubscriptionConflictError(f'group "{G}"')
        a.cut()
        await advance(0.5)
        with pytest.raises(SubscriptionConflictError):
            await consumer.wait_closed()
        assert consumer.health().state.value == "failed"


async def test_events_and_health_report_the_held_queues() -> None:
    async with frozen_cluster() as cluster:
        consumer = new_consumer(cluster, Handled())
        reported = events(consumer)

        @consumer.on_event
        def broken(event: ConsumerEvent) -> None:
            raise RuntimeError("a callback must not end consumption")

        assert not consumer.health().ok
        async with consumer:
            await settle()
            assert reported == [QueueAssigned(MessageQueue("orders", "a", number), 0, epoch=1, generation=1) for number in range(2)]
            health = consumer.health()
            assert health.ok
            assert [queue.state for queue in health.queues] == ["held", "held"]
        assert reported[2:] == [QueueRevoked(MessageQueue("orders", "a", number), False, epoch=1, generation=1) for number in range(2)]
        await consumer.wait_closed()
