"""The session with a broker, in virtual time: proof of life, LOCK, SYNC, fences, rebalance. Each interleaving was a hole once."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import OrderlyContext
from lockstep.protocol.bodies import LockItem
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.message import MessageExt
from support.clocks import LoopClock
from support.consumers import G, Handled, S, consuming
from support.fake_broker import frozen_cluster
from support.frozen import advance, settle
from support.session_kit import EMPTY_SYNC, LOCK, SYNC

pytestmark = pytest.mark.frozen_clock


async def test_an_empty_sync_leaves_every_third_of_the_grace_while_a_queue_is_held() -> None:
    async with frozen_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        await advance(1.5)  # the LOCK after the first second proves life too
        before = len(a.received(SYNC))
        await advance(6)
        assert len(a.received(SYNC)) - before == 6
        assert len(a.server.endpoints) == 1


async def test_the_grace_is_the_one_that_the_last_grant_carried() -> None:
    async with frozen_cluster() as cluster, consuming(cluster, Handled()) as consumer:
        a = cluster["a"]
        a.grace_ms = 9_000
        await advance(1.5)  # the LOCK after the first second carries it
        before = len(a.received(SYNC))
        await advance(6)
        assert len(a.received(SYNC)) - before == 2
        assert consumer.health().brokers[0].grace_ms == 9_000


async def test_an_empty_sync_leaves_every_5_s_while_nothing_is_held() -> None:
    async with frozen_cluster() as cluster:
        a = cluster["a"]
        a.lists_only[G] = ["zz"]
        async with consuming(cluster, Handled()):
            await advance(1.5)
            before = len(a.received(SYNC))
            await advance(15)
            assert 2 <= len(a.received(SYNC)) - before <= 3


async def test_proof_of_life_overtakes_a_commit_that_waits_for_the_disk() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled):
            a.mute.add(SYNC)
            a.store("orders", 0, [b"0"])
            await advance(8)
            a.store("orders", 0, [b"1"])
            await settle()
            assert handled.bodies == [b"0", b"1"]
            assert len(a.server.endpoints) == 1
            a.answer_kept()
            await advance(0.3)
            assert a.committed(G, "orders", 0) == 2


async def test_no_more_than_one_sync_with_items_is_in_flight() -> None:
    async with frozen_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()):
            a.mute.add(SYNC)
            for i in range(5):
                a.store("orders", 0, [b"%d" % i])
                await advance(0.3)
            assert len([body for body in a.received(SYNC) if body.items]) == 1
            a.answer_kept()
            await advance(0.3)
            assert [item.offset for item in a.sync_items()] == [1, 5]


async def test_past_proven_and_grace_no_batch_starts_cancelled_is_set_and_what_was_fetched_is_kept() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0", b"1", b"2"])
        async with consuming(cluster, handled):
            handled.gate = asyncio.Event()
            a.store("orders", 1, [b"x", b"y"])
            await advance(1.2)
            a.mute |= {SYNC, EMPTY_SYNC, LOCK, RequestCode.HEART_BEAT}
            a.store("orders", 0, [b"3"])
            proven_at = max(seen.at_ms for seen in a.requests if seen.code in (SYNC, LOCK))
            clock = cluster.host.clock
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
            a.answer_kept()
            await advance(0.5)
            assert handled.bodies[-1] == b"y"
            assert not [
                header for header in a.received(RequestCode.PULL_MESSAGE)[pulls:] if header.queue_id == 1 and header.queue_offset < 2
            ]


async def test_time_in_which_the_machine_slept_counts_against_what_is_proven() -> None:
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


async def test_what_is_proven_is_when_the_question_left_not_when_the_answer_came() -> None:
    async with frozen_cluster() as cluster, consuming(cluster, Handled()) as consumer:
        a = cluster["a"]
        await advance(1.5)
        a.mute.add(EMPTY_SYNC)
        asked = len(a.received(SYNC))
        while len(a.received(SYNC)) == asked:
            await advance(0.01)
        await advance(0.6)
        a.answer_kept()
        await settle()
        (broker,) = consumer.health().brokers
        assert broker.proven_ago_ms is not None
        assert 600 <= broker.proven_ago_ms < 700


async def test_whoever_waits_for_cancelled_is_woken_when_proof_lapses() -> None:
    async with frozen_cluster() as cluster:
        a = cluster["a"]
        woken: list[int] = []

        async def patient(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            await context.cancelled.wait()
            woken.append(cluster.host.clock.boot_ms())
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, patient):
            a.mute |= {EMPTY_SYNC, LOCK}
            proven_at = max(seen.at_ms for seen in a.requests if seen.code == LOCK)
            await advance(2.6)
            assert len(woken) == 1
            assert proven_at + 2_500 <= woken[0] <= proven_at + 2_530
            a.answer_kept()


async def test_a_late_answer_on_the_same_connection_lets_the_calls_go_on() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled):
            await advance(1.5)
            a.mute |= {EMPTY_SYNC}
            await advance(2.9)
            a.store("orders", 0, [b"0"])
            await settle()
            assert handled.bodies == []
            a.answer_kept()
            await settle()
            assert handled.bodies == [b"0"]
            assert a.received(RequestCode.HEART_BEAT)[-1].connection == 1


async def test_after_a_reconnect_no_commit_leaves_before_the_first_lock_is_answered() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0"])
        async with consuming(cluster, handled):
            a.mute |= {LOCK}
            a.cut()
            await advance(0.5)
            handled.gate.set()
            await advance(0.5)
            assert a.sync_items() == []
            a.answer_kept()
            await advance(0.2)
            assert a.committed(G, "orders", 0) == 1


async def test_a_result_that_ends_past_the_deadline_is_still_offered_with_its_epoch() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0"])
        async with consuming(cluster, handled):
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


async def test_one_empty_sync_unanswered_for_the_grace_closes_the_connection_and_reconnects() -> None:
    async with frozen_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
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


async def test_on_a_new_connection_nothing_is_proven_until_its_first_lock_is_answered() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled):
            handled.gate = asyncio.Event()
            a.store("orders", 0, [b"0", b"1"])
            await settle()
            a.mute |= {LOCK}
            a.cut()
            await advance(6)
            handled.gate.set()
            await advance(2)
            assert a.received(SYNC)  # was answered all the time
            assert handled.bodies == [b"0"]
            a.answer_kept()
            await settle()
            assert handled.bodies == [b"0", b"1"]
