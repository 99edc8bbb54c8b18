"""A consumer's session with a broker, in virtual time: liveness, LOCK, SYNC, fencing, rebalance. Each test reproduces a former bug."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import OrderlyContext
from lockstep.protocol.bodies import LockItem
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.messages.message import MessageExt
from support.clocks import LoopClock
from support.consumers import G, Handled, S, consuming, one_broker
from support.fake_broker import frozen_cluster
from support.frozen_loop import advance, settle
from support.session_kit import EMPTY_SYNC, LOCK, SYNC

pytestmark = pytest.mark.frozen_clock


async def test_empty_sync_is_sent_every_third_of_the_grace_period_while_a_queue_is_held() -> None:
    async with one_broker() as (a, _, _):
        await advance(1.5)  # the LOCK after the first second proves life too
        before = len(a.received(SYNC))
        await advance(6)
        assert len(a.received(SYNC)) - before == 6
        assert len(a.server.endpoints) == 1


async def test_grace_period_is_taken_from_the_last_grant() -> None:
    async with one_broker() as (a, _, consumer):
        a.grace_ms = 9_000
        await advance(1.5)  # the LOCK after the first second carries it
        before = len(a.received(SYNC))
        await advance(6)
        assert len(a.received(SYNC)) - before == 2
        assert consumer.health().brokers[0].grace_ms == 9_000


async def test_empty_sync_is_sent_every_5_s_while_no_queue_is_held() -> None:
    async with one_broker(prepare=lambda a: a.lists_only.update({G: ["zz"]})) as (a, _, _):
        await advance(1.5)
        before = len(a.received(SYNC))
        await advance(15)
        assert 2 <= len(a.received(SYNC)) - before <= 3


async def test_empty_sync_proves_liveness_while_a_commit_is_pending() -> None:
    async with one_broker() as (a, handled, _):
        a.mute.add(SYNC)
        a.store("orders", 0, [b"0"])
        await advance(8)
        a.store("orders", 0, [b"1"])
        await settle()
        assert handled.bodies == [b"0", b"1"]
        assert len(a.server.endpoints) == 1
        a.process_kept_requests()
        await advance(0.3)
        assert a.committed(G, "orders", 0) == 2


async def test_no_more_than_one_sync_with_items_is_in_flight() -> None:
    async with one_broker() as (a, _, _):
        a.mute.add(SYNC)
        for i in range(5):
            a.store("orders", 0, [b"%d" % i])
            await advance(0.3)
        assert len([body for body in a.received(SYNC) if body.items]) == 1
        a.process_kept_requests()
        await advance(0.3)
        assert [item.offset for item in a.sync_items()] == [1, 5]


async def test_expired_lease_cancels_calls_starts_no_batch_and_keeps_fetched_messages() -> None:
    async with one_broker(b"0", b"1", b"2") as (a, handled, _):
        handled.gate = asyncio.Event()
        a.store("orders", 1, [b"x", b"y"])
        await advance(1.2)
        a.mute |= {SYNC, EMPTY_SYNC, LOCK, RequestCode.HEART_BEAT}
        a.store("orders", 0, [b"3"])
        proven_at = max(seen.at_ms for seen in a.requests if seen.code in (SYNC, LOCK))
        clock = a.host.clock
        context = handled.calls[3][2]
        while clock.boot_ms() < proven_at + 2_480:
            assert not context.cancelled.is_set()
            await advance(0.01)
        await advance(0.05)
        assert context.cancelled.is_set()
        handled.gate.set()
        await settle()
        assert handled.bodies == [b"0", b"1", b"2", b"x", b"3"]  # y was fetched, and waits
        pulls = len(a.received(RequestCode.PULL_MESSAGE))
        a.process_kept_requests()
        await advance(0.5)
        assert handled.bodies[-1] == b"y"
        assert not [header for header in a.received(RequestCode.PULL_MESSAGE)[pulls:] if header.queue_id == 1 and header.queue_offset < 2]


async def test_lease_expires_during_system_sleep() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        clock = cluster.host.clock
        assert isinstance(clock, LoopClock)
        clock.slept_ms = 500_000
        async with consuming(cluster, handled):
            await advance(1.5)
            clock.slept_ms += 2_600
            a.store("orders", 0, [b"0"])
            await settle()
            assert handled.bodies == [], "the broker may have given the queue to somebody else meanwhile"
            await advance(1)
            assert handled.bodies == [b"0"]


async def test_lease_is_measured_from_the_send_time_of_the_sync_request() -> None:
    async with one_broker() as (a, _, consumer):
        await advance(1.5)
        a.mute.add(EMPTY_SYNC)
        requested = len(a.received(SYNC))
        while len(a.received(SYNC)) == requested:
            await advance(0.01)
        await advance(0.6)
        a.process_kept_requests()
        await settle()
        (broker,) = consumer.health().brokers
        assert broker.proven_ago_ms is not None
        assert 600 <= broker.proven_ago_ms < 700


async def test_waiting_on_cancelled_wakes_when_the_lease_expires() -> None:
    woken: list[float] = []

    async def patient(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        await context.cancelled.wait()
        woken.append(asyncio.get_running_loop().time() * 1_000)
        return S.SUCCESS

    async with one_broker(b"0", listener=patient) as (a, _, _):
        a.mute |= {EMPTY_SYNC, LOCK}
        proven_at = max(seen.at_ms for seen in a.requests if seen.code == LOCK)
        await advance(2.6)
        assert len(woken) == 1
        assert proven_at + 2_500 <= woken[0] <= proven_at + 2_530
        a.process_kept_requests()


async def test_late_sync_response_on_the_same_connection_resumes_calls() -> None:
    async with one_broker() as (a, handled, _):
        await advance(1.5)
        a.mute |= {EMPTY_SYNC}
        await advance(2.9)
        a.store("orders", 0, [b"0"])
        await settle()
        assert handled.bodies == []
        a.process_kept_requests()
        await settle()
        assert handled.bodies == [b"0"]
        assert a.received(RequestCode.HEART_BEAT)[-1].connection == 1


async def test_no_commit_is_sent_after_a_reconnect_before_the_first_lock_response() -> None:
    async with one_broker(b"0", blocked=True) as (a, handled, _):
        a.mute |= {LOCK}
        a.cut()
        await advance(0.5)
        handled.gate.set()
        await advance(0.5)
        assert a.sync_items() == []
        a.process_kept_requests()
        await advance(0.2)
        assert a.committed(G, "orders", 0) == 1


async def test_result_after_the_lease_expires_is_committed_with_its_epoch() -> None:
    async with one_broker(b"0", blocked=True) as (a, handled, _):
        a.mute |= {SYNC, EMPTY_SYNC, LOCK}
        await advance(2.8)
        handled.gate.set()
        await advance(0.01)
        a.cut()
        a.mute.clear()
        await advance(1.2)
        locks = [items for items in a.lock_items() if any(item.epoch for item in items)]
        assert LockItem(G, "orders", 0, 1, 1, 0) in locks[-1]
        assert a.committed(G, "orders", 0) == 1


async def test_empty_sync_without_response_for_the_grace_period_triggers_a_reconnect() -> None:
    async with one_broker() as (a, _, _):
        await advance(1.5)
        first = a.received(RequestCode.HEART_BEAT)[-1].connection
        asked_at = len(a.requests)
        a.mute |= {EMPTY_SYNC}
        while not any(seen.code == SYNC for seen in a.requests[asked_at:]):
            await advance(0.01)
        await advance(2.9)
        assert a.received(RequestCode.HEART_BEAT)[-1].connection == first
        await advance(0.5)
        assert a.received(RequestCode.HEART_BEAT)[-1].connection == first + 1


async def test_new_connection_grants_no_lease_until_its_first_lock_response() -> None:
    async with one_broker() as (a, handled, _):
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0", b"1"])
        await settle()
        a.mute |= {LOCK}
        a.cut()
        await advance(6)
        handled.gate.set()
        await advance(2)
        assert a.received(SYNC)  # the broker responds to SYNC during the time
        assert handled.bodies == [b"0"]
        a.process_kept_requests()
        await settle()
        assert handled.bodies == [b"0", b"1"]
