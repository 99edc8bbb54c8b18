"""The session with a broker, in virtual time: proof of life, LOCK, SYNC, fences, rebalance. Each interleaving was a hole once."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from lockstep.client.consumer import Backoff, ConsumeFromWhere, OrderedRetry, OrderlyContext, PushConsumer, QueueGap, QueueRevoked
from lockstep.client.consumer.arrivals import CALM_MS
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import ConsumerGroup, LockAnswer, LockItem, StartPoint, Subscription, SyncAnswer, SyncItem, Verdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import SubscriptionConflict
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from support.consumers import G, Handled, S, consuming, events, stopped
from support.scripted_broker import Lock, LoopClock, advance, scripted_cluster, settle

CALM_S = CALM_MS / 1000
"""Whoever comes later is not waited for."""

pytestmark = pytest.mark.frozen_clock

LOCK, SYNC = RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC
EMPTY_SYNC = -RequestCode.SYNC
QUEUE_0 = MessageQueue("orders", "a", 0)


# --------------------------------------------------------------------------------------------------------------- proof of life


async def test_an_empty_sync_leaves_every_third_of_the_grace_while_a_queue_is_held() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        await advance(1.5)  # the LOCK after the first second proves life too
        before = len(a.bodies(SYNC))
        await advance(6)
        assert len(a.bodies(SYNC)) - before == 6
        assert len(a.server.endpoints) == 1


async def test_the_grace_is_the_one_that_the_last_grant_carried() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()) as consumer:
        a = cluster["a"]
        a.grace_ms = 9_000
        await advance(1.5)  # the LOCK after the first second carries it
        before = len(a.bodies(SYNC))
        await advance(6)
        assert len(a.bodies(SYNC)) - before == 2
        assert consumer.health().brokers[0].grace_ms == 9_000


async def test_an_empty_sync_leaves_every_5_s_while_nothing_is_held() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        a.lists_only[G] = ["zz"]
        async with consuming(cluster, Handled()):
            await advance(1.5)
            before = len(a.bodies(SYNC))
            await advance(15)
            assert 2 <= len(a.bodies(SYNC)) - before <= 3


async def test_proof_of_life_overtakes_a_commit_that_waits_for_the_disk() -> None:
    async with scripted_cluster() as cluster:
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
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()):
            a.mute.add(SYNC)
            for i in range(5):
                a.store("orders", 0, [b"%d" % i])
                await advance(0.3)
            assert len([body for body in a.bodies(SYNC) if body.items]) == 1
            a.answer_kept()
            await advance(0.3)
            assert [item.offset for item in a.sync_items()] == [1, 5]


async def test_past_proven_and_grace_no_batch_starts_cancelled_is_set_and_what_was_fetched_is_kept() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0", b"1", b"2"])
        async with consuming(cluster, handled):
            handled.gate = asyncio.Event()
            a.store("orders", 1, [b"x", b"y"])
            await advance(1.2)
            a.mute |= {SYNC, EMPTY_SYNC, LOCK, RequestCode.HEART_BEAT}
            a.store("orders", 0, [b"3"])
            proven_at = max(seen.at_ms for seen in a.seen if seen.code in (SYNC, LOCK))
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
            pulls = len(a.bodies(RequestCode.PULL_MESSAGE))
            a.answer_kept()
            await advance(0.5)
            assert handled.bodies[-1] == b"y"
            assert not [header for header in a.bodies(RequestCode.PULL_MESSAGE)[pulls:] if header.queue_id == 1 and header.queue_offset < 2]


async def test_time_in_which_the_machine_slept_counts_against_what_is_proven() -> None:
    async with scripted_cluster() as cluster:
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
    async with scripted_cluster() as cluster, consuming(cluster, Handled()) as consumer:
        a = cluster["a"]
        await advance(1.5)
        a.mute.add(EMPTY_SYNC)
        asked = len(a.bodies(SYNC))
        while len(a.bodies(SYNC)) == asked:
            await advance(0.01)
        await advance(0.6)
        a.answer_kept()
        await settle()
        (broker,) = consumer.health().brokers
        assert broker.proven_ago_ms is not None
        assert 600 <= broker.proven_ago_ms < 700


async def test_whoever_waits_for_cancelled_is_woken_when_proof_lapses() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        woken: list[int] = []

        async def patient(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            await context.cancelled.wait()
            woken.append(cluster.host.clock.boot_ms())
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, patient):
            a.mute |= {EMPTY_SYNC, LOCK}
            proven_at = max(seen.at_ms for seen in a.seen if seen.code == LOCK)
            await advance(2.6)
            assert len(woken) == 1
            assert proven_at + 2_500 <= woken[0] <= proven_at + 2_530
            a.answer_kept()


async def test_a_late_answer_on_the_same_connection_lets_the_calls_go_on() -> None:
    async with scripted_cluster() as cluster:
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
            assert a.bodies(RequestCode.HEART_BEAT)[-1].connection == 1


async def test_after_a_reconnect_no_commit_leaves_before_the_first_lock_is_answered() -> None:
    async with scripted_cluster() as cluster:
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
    async with scripted_cluster() as cluster:
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
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        await advance(1.5)
        first = a.bodies(RequestCode.HEART_BEAT)[-1].connection
        asked_at = len(a.seen)
        a.mute |= {EMPTY_SYNC}
        while not any(seen.code == SYNC for seen in a.seen[asked_at:]):
            await advance(0.01)
        await advance(2.9)
        assert a.bodies(RequestCode.HEART_BEAT)[-1].connection == first
        await advance(0.5)
        assert a.bodies(RequestCode.HEART_BEAT)[-1].connection == first + 1


async def test_on_a_new_connection_nothing_is_proven_until_its_first_lock_is_answered() -> None:
    async with scripted_cluster() as cluster:
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
            assert a.bodies(SYNC)  # answered all the while
            assert handled.bodies == [b"0"]
            a.answer_kept()
            await settle()
            assert handled.bodies == [b"0", b"1"]


# --------------------------------------------------------------------------------------------------------------- LOCK and SYNC


async def test_after_a_reconnect_one_lock_names_everything_held_with_epoch_offset_and_attempts() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.answers = [S.SUCCESS, S.SUSPEND_CURRENT_QUEUE_A_MOMENT]
        async with consuming(cluster, handled):
            a.mute.add(SYNC)
            a.store("orders", 0, [b"0", b"1"])
            await settle()
            a.cut()
            a.mute.clear()
            locks = len(a.lock_items())
            await advance(0.5)
            assert a.lock_items()[locks] == (LockItem(G, "orders", 0, 1, 1, 1), LockItem(G, "orders", 1, 1, 0, 0))
            order = [seen.code for seen in a.seen]
            assert order[-1] != RequestCode.HEART_BEAT
            last_beat = len(order) - 1 - order[::-1].index(RequestCode.HEART_BEAT)
            assert order[last_beat + 1] == LOCK
            assert a.progress[G, "orders", 0] == (1, 1)


async def test_lock_leaves_after_a_second_and_every_20_s() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        assert len(a.lock_items()) == 1
        await advance(0.9)
        assert len(a.lock_items()) == 1
        await advance(0.2)
        assert len(a.lock_items()) == 2
        await advance(19.8)
        assert len(a.lock_items()) == 2
        await advance(0.3)
        assert len(a.lock_items()) == 3


async def test_heart_beat_says_what_members_must_agree_on() -> None:
    retry = OrderedRetry(3, Backoff(100, 1.5, 2_000))
    start = {"consume_from_where": ConsumeFromWhere.TIMESTAMP, "consume_timestamp_ms": 7}
    async with scripted_cluster() as cluster, consuming(cluster, Handled(), expression="x || y", allocate="average", retry=retry, **start):
        (group,) = cluster["a"].bodies(RequestCode.HEART_BEAT)[-1].consumers
        assert group == ConsumerGroup(
            G,
            (Subscription("orders", "x || y"),),
            consume_from_where=StartPoint.TIMESTAMP,
            consume_timestamp_ms=7,
            ordered=True,
            allocate="average",
            retry="3 attempts, pause 100 ms x1.5 up to 2000 ms, then block",
        )


async def test_lock_carries_the_lowest_since_that_any_broker_has_named() -> None:
    """A broker that hears of the group for the first time then begins the queues that were added later at 0."""
    async with scripted_cluster("a", "b") as cluster:
        cluster["a"].since, cluster["b"].since = 3, 2
        async with consuming(cluster, Handled()):
            for broker in cluster.brokers.values():
                assert [start.since for start in broker.bodies(LOCK)[0].starts] == [2]


async def test_since_is_heard_from_a_grant_too() -> None:
    async with scripted_cluster("a", "b") as cluster:
        a, b = cluster["a"], cluster["b"]
        a.since, b.since = 2, 5
        a.names_since = b.names_since = False
        async with consuming(cluster, Handled()):
            assert [start.since for start in b.bodies(LOCK)[0].starts] == [None]
            b.steal(G, "orders", 0)
            b.free(G, "orders", 0)
            await advance(0.1)
            assert [start.since for start in b.bodies(LOCK)[-1].starts] == [2]


async def test_a_trigger_during_a_lock_sends_one_more_after_the_answer() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()):
            a.mute.add(LOCK)
            a.free(G, "orders", 0)
            await advance(0.1)
            a.free(G, "orders", 0)
            await advance(0.1)
            assert len(a.lock_items()) == 2
            a.answer_kept()
            await advance(0.05)
            assert len(a.lock_items()) == 3


async def test_a_queue_that_somebody_holds_is_acquired_when_it_is_free() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0"])
        a.locks[G, "orders", 0] = Lock("another", 4)
        async with consuming(cluster, handled):
            assert handled.bodies == []
            a.free(G, "orders", 0)
            await advance(0.05)
            assert handled.bodies == [b"0"]
            assert handled.calls[0][2].fence.epoch == 5


async def test_a_stale_commit_drops_the_queue_and_what_was_fetched_and_acquires_it_anew() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, handled) as consumer:
            told = events(consumer)
            a.locks[G, "orders", 0].epoch += 1
            a.locks[G, "orders", 0].holder = None
            a.progress[G, "orders", 0] = (1, 0)
            handled.gate.set()
            handled.gate = None
            await advance(0.2)
            assert told[0] == QueueRevoked(QUEUE_0, 1, True)
            assert handled.bodies[-1] == b"1"
            assert handled.calls[-1][2].fence.epoch == 3
            assert a.committed(G, "orders", 0) >= 1


async def test_a_stale_pull_of_an_idle_queue_asks_for_it_again_at_once() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        await advance(1.5)
        a.steal(G, "orders", 0)
        a.free(G, "orders", 0, push=False)
        await advance(0.1)
        assert a.locks[G, "orders", 0] == Lock(a.me(), 3)


async def test_a_stale_renewal_of_an_idle_queue_asks_for_it_again_at_once() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        a.mute.add(RequestCode.PULL_MESSAGE)
        async with consuming(cluster, Handled()):
            a.steal(G, "orders", 0)
            a.free(G, "orders", 0, push=False)
            a.cut()
            await advance(0.5)
            assert a.locks[G, "orders", 0] == Lock(a.me(), 3)


async def test_a_stale_pull_drops_the_queue_and_cancels_the_running_call() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        async with consuming(cluster, handled) as consumer:
            told = events(consumer)
            a.store("orders", 0, [b"0"])
            await settle()
            a.steal(G, "orders", 0)
            await settle()
            assert told == [QueueRevoked(QUEUE_0, 1, True)]
            assert handled.calls[0][2].cancelled.is_set()
            a.free(G, "orders", 0)
            await advance(0.1)
            assert a.locks[G, "orders", 0].holder is None, "not locked again while the old listener runs"
            handled.gate.set()
            await advance(0.1)
            assert a.locks[G, "orders", 0].holder == a.me()
            assert [context.fence.epoch for _, _, context in handled.calls] == [1, 3]
            assert not [item for item in a.sync_items() if item.epoch == 1 and item.queue_id == 0], "a void result is not offered"


async def test_a_plain_listener_that_outlives_its_epoch_keeps_the_queue_unlocked() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        finish = threading.Event()
        started: list[int] = []

        def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            started.append(context.fence.epoch)
            finish.wait(60)
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, plain):
            while not started:
                await settle()
            a.steal(G, "orders", 0)
            a.free(G, "orders", 0)
            await advance(0.2)
            assert a.locks[G, "orders", 0].holder is None
            finish.set()
            while len(started) < 2:
                await advance(0.01)
            assert started == [1, 3]


async def test_a_refused_commit_drops_the_queue_and_acquires_it_anew() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled):
            a.sync_script.append(lambda item: SyncAnswer(Verdict.REFUSED, item.epoch, "beyond the end"))
            a.store("orders", 0, [b"0"])
            await advance(0.3)
            assert handled.bodies == [b"0", b"0"]
            assert [context.fence.epoch for _, _, context in handled.calls] == [1, 2]


async def test_a_lock_refused_as_a_whole_is_asked_again_after_a_second() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0"])
        a.mute.add(LOCK)
        async with consuming(cluster, handled):
            (command, endpoint), *_ = a.kept
            a.kept.clear()
            a.mute.clear()
            endpoint.send(command.reply(ResponseCode.SYSTEM_BUSY, "full lane"))
            await advance(0.9)
            assert handled.bodies == []
            await advance(0.2)
            assert handled.bodies == [b"0"]


async def test_answers_that_do_not_fit_their_request_end_the_connection() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.mute.add(LOCK)
        async with consuming(cluster, handled):
            (command, endpoint), *_ = a.kept
            a.kept.clear()
            a.mute.clear()
            endpoint.send(command.reply(body=b"\x81"))
            await advance(1)
            assert [body.connection for body in a.bodies(RequestCode.HEART_BEAT)][-1] > 0
            assert a.locks[G, "orders", 0].holder == a.me()


async def test_two_groups_of_one_loop_share_one_session_and_one_lock() -> None:
    async with scripted_cluster() as cluster:
        a, mine, other = cluster["a"], Handled(), Handled()
        async with consuming(cluster, mine):
            second = PushConsumer("audit", nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
            second.orderly(other)
            await second.start()
            await advance(0.05)
            a.store("orders", 0, [b"0"])
            await settle()
            assert (mine.bodies, other.bodies) == ([b"0"], [b"0"])
            assert {item.group for item in a.lock_items()[-1]} == {G, "audit"}
            assert len(a.server.endpoints) == 1
            await stopped(second)
            await advance(0.1)
            a.store("orders", 0, [b"1"])
            await settle()
            assert (mine.bodies, other.bodies) == ([b"0", b"1"], [b"0"])


async def test_what_an_unreachable_broker_still_holds_is_freed_when_it_comes_back() -> None:
    """The instance lives on with a producer's reference: its session would keep the lock for ever."""
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        keeper = Instance.current(cluster.nameserver, host=cluster.host)
        await keeper.start()
        async with consuming(cluster, Handled(), stop_timeout_ms=100) as consumer:
            a.mute |= {SYNC, LOCK, EMPTY_SYNC, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}
            a.cut()
            await stopped(consumer)
            assert a.locks[G, "orders", 0].holder == a.me()
            a.mute.clear()
            a.cut()
            await advance(2)
            assert a.locks[G, "orders", 0].holder is None
            locks = len(a.lock_items())
            await advance(25)
            assert len(a.lock_items()) == locks
        await keeper.close()


async def test_two_consumers_of_one_group_in_one_loop_share_the_queues() -> None:
    async with scripted_cluster() as cluster:
        a, first, second = cluster["a"], Handled(), Handled()
        async with consuming(cluster, first), consuming(cluster, second):
            await advance(1.5)
            assert len({lock.holder for lock in a.locks.values()}) == 2
            a.store("orders", 0, [b"0"])
            a.store("orders", 1, [b"1"])
            await settle()
            assert sorted([*first.bodies, *second.bodies]) == [b"0", b"1"]
            assert len(first.bodies) == 1


# ------------------------------------------------------------------------------------------------------------------- rebalance


async def test_a_queue_taken_away_drains_and_is_released_with_its_final_offset() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, handled):
            await advance(CALM_S)
            a.set_members(G, a.me(), "!first")
            await advance(0.2)
            assert a.locks[G, "orders", 0].holder == a.me()
            handled.gate.set()
            await advance(0.02)
            assert SyncItem(G, "orders", 0, 1, None, 1, 0, True) in a.sync_items()
            assert handled.bodies == [b"0"]
            assert a.locks[G, "orders", 1].holder == a.me()


async def test_a_call_has_30_s_when_a_rebalance_takes_its_queue_and_8_s_when_the_consumer_stops() -> None:
    for limit_s, drains in ((30, lambda a, _: a.set_members(G, a.me(), "!first")), (8, lambda _, consumer: consumer._stop_soon())):
        async with scripted_cluster() as cluster:
            a, handled = cluster["a"], Handled()
            handled.gate = asyncio.Event()
            a.store("orders", 0, [b"0"])
            async with consuming(cluster, handled) as consumer:
                await advance(CALM_S)
                drains(a, consumer)
                await advance(limit_s - 0.1)
                assert a.locks[G, "orders", 0].holder == a.me()
                await advance(0.2)
                assert SyncItem(G, "orders", 0, 1, None, None, 0, True) in a.sync_items()


async def test_successes_that_were_not_committed_come_again_after_a_drain() -> None:
    def kept(context: OrderlyContext) -> S:
        context.auto_commit = False
        return S.SUCCESS

    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.answers = [S.SUCCESS, kept, kept]
        a.store("orders", 0, [b"0", b"1", b"2"])
        async with consuming(cluster, handled):
            assert handled.bodies == [b"0", b"1", b"2"]
        assert SyncItem(G, "orders", 0, 1, None, 1, 0, True) in a.sync_items()
        assert a.committed(G, "orders", 0) == 1


async def test_a_draining_queue_that_comes_back_goes_on_with_its_epoch() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, handled):
            a.set_members(G, a.me(), "!first")
            await advance(0.2)
            a.set_members(G, a.me())
            await advance(0.2)
            handled.gate.set()
            await advance(0.02)
            assert handled.bodies == [b"0", b"1"]
            assert {context.fence.epoch for _, _, context in handled.calls} == {1}
            assert not [item for item in a.sync_items() if item.release]


async def test_a_release_on_the_way_is_awaited_before_the_queue_is_acquired_anew() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()):
            a.mute.add(SYNC)
            await advance(CALM_S)
            a.set_members(G, a.me(), "!first")
            await advance(0.2)
            assert a.sync_items()[-1].release
            locks = len(a.lock_items())
            a.set_members(G, a.me())
            await advance(0.3)
            assert not [item for items in a.lock_items()[locks:] for item in items if item.queue_id == 0]
            a.answer_kept()
            await advance(0.1)
            assert a.locks[G, "orders", 0].epoch == 2
            assert a.locks[G, "orders", 0].holder == a.me()


async def test_a_release_lost_with_its_connection_is_named_by_the_next_lock_and_sent_again() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()):
            a.mute.add(SYNC)
            await advance(CALM_S)
            a.set_members(G, a.me(), "!first")
            await advance(0.2)
            a.kept.clear()
            a.mute.clear()
            locks = len(a.lock_items())
            a.cut()
            await advance(0.5)
            assert LockItem(G, "orders", 0, 1, 0, 0) in a.lock_items()[locks]
            assert a.locks[G, "orders", 0].holder is None
            assert len([item for item in a.sync_items() if item.release]) == 2


async def test_a_grant_that_arrives_for_a_queue_no_longer_wanted_is_released_at_once() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0"])
        a.mute.add(LOCK)
        async with consuming(cluster, handled):
            await advance(CALM_S)
            a.set_members(G, a.me(), "!first")
            await settle()
            a.answer_kept()
            await advance(0.05)
            assert handled.bodies == []
            assert SyncItem(G, "orders", 0, 1, None, 0, 0, True) in a.sync_items()
            assert a.locks[G, "orders", 0].holder is None


async def test_a_running_member_waits_for_an_old_contract_that_passes_by_itself() -> None:
    """A broker that was down comes back with the contract of members who are gone: that kills nobody."""
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled) as consumer:
            a.refuse[G] = (ResponseCode.SUBSCRIPTION_CONFLICT, f"group {G} has another contract at a{SubscriptionConflict.PASSING}")
            a.members[G] = ["gone"]
            a.term += 1
            a.cut()
            await advance(5)
            assert consumer.health().state.value == "running"
            assert a.members[G] == ["gone"]
            assert len(a.bodies(RequestCode.HEART_BEAT)) < 40
            del a.refuse[G]
            a.set_members(G)
            a.store("orders", 0, [b"0"])
            await advance(1.5)
            assert a.members[G] == [a.me()]
            assert handled.bodies == [b"0"]


async def test_a_list_without_me_is_no_list() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled):
            a.lists_only[G] = ["zz"]
            a.set_members(G, *a.members[G])
            beats = len(a.bodies(RequestCode.HEART_BEAT))
            await advance(3)
            assert len(a.bodies(RequestCode.HEART_BEAT)) > beats
            a.store("orders", 0, [b"0"])
            a.store("orders", 1, [b"1"])
            await settle()
            assert sorted(handled.bodies) == [b"0", b"1"]
            assert not [item for item in a.sync_items() if item.release]


async def test_a_list_that_changes_while_it_is_asked_for_is_asked_for_again_at_once() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()) as consumer:
        a = cluster["a"]
        a.mute.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        a.set_members(G, a.me(), "!first")
        await settle()
        a.answer_kept()
        a.set_members(G, a.me())  # the notice arrives right behind the answer, which does not know of it
        await settle()
        assert len(consumer.health().queues) == 2


async def test_a_lost_notice_heals_within_a_second_by_the_version_in_sync() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        await advance(2)
        a.set_members(G, a.me(), "!first", notify=False)
        await advance(1.1)
        assert a.locks[G, "orders", 0].holder is None


async def test_not_yours_by_an_unchanged_list_asks_for_it_all_the_same() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        a.lock_script.append(lambda item: LockAnswer(G, "orders", item.queue_id, Verdict.NOT_YOURS))
        async with consuming(cluster, Handled()):
            assert len(a.bodies(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == 1


async def test_a_gap_that_a_renewal_tells_is_told_once() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]

        def with_gap(item: LockItem) -> LockAnswer | None:
            first = 4 if item.epoch else None
            return LockAnswer(G, "orders", item.queue_id, Verdict.OK, epoch=1, gap_first=first, gap_end=9)

        async with consuming(cluster, Handled()) as consumer:
            told = events(consumer)
            for _ in range(2):
                a.lock_script.append(with_gap)
                a.push_free(G, "orders", 0)
                await advance(0.05)
            assert told == [QueueGap(MessageQueue("orders", "a", queue_id), 4, 9) for queue_id in (0, 1)]


async def test_not_yours_asks_for_the_list_that_the_broker_has() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]

        def not_yours(item: LockItem) -> LockAnswer | None:
            return LockAnswer(G, "orders", item.queue_id, Verdict.NOT_YOURS) if item.queue_id == 0 else None

        a.lock_script.append(not_yours)
        async with consuming(cluster, Handled()) as consumer:
            a.set_members(G, a.me(), "!first", notify=False)
            await advance(1.2)
            assert [(queue.queue.queue_id, queue.state) for queue in consumer.health().queues] == [(1, "held")]


async def test_a_nameserver_that_forgot_everything_takes_nothing() -> None:
    async with scripted_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        cluster.layouts.clear()
        await advance(65)
        assert not [item for item in a.sync_items() if item.release]
        assert {lock.epoch for lock in a.locks.values()} == {1}


async def test_a_listener_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster() as cluster:
        loop = asyncio.get_running_loop()

        async def blocking(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            loop.stall(1.5)  # type: ignore[attr-defined]
            return S.SUCCESS

        async with consuming(cluster, blocking):
            cluster["a"].store("orders", 0, [b"0"])
            await advance(0.5)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loop.was_blocked")]
    assert len(told) == 1
    assert "blocking" in told[0]
