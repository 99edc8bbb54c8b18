"""A client's session: LOCK and SYNC."""

import threading
from collections.abc import Sequence

import pytest

from lockstep.client import Backoff, ConsumeFromWhere, OrderedRetry, OrderlyContext, PushConsumer, QueueRevoked
from lockstep.protocol.bodies import ConsumerGroup, LockItem, LockVerdict, Subscription, SyncResult
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from support.consumers import G, Handled, S, consuming, events, one_broker, stopped
from support.fake_broker import Lock, frozen_cluster
from support.frozen_loop import advance, settle
from support.session_kit import EMPTY_SYNC, LOCK, SYNC

pytestmark = pytest.mark.frozen_clock


QUEUE_0 = MessageQueue("orders", "a", 0)


async def test_reconnect_sends_one_lock_with_epoch_offset_and_attempts_of_each_held_queue() -> None:
    async with one_broker(responses=[S.SUCCESS, S.SUSPEND_CURRENT_QUEUE_A_MOMENT]) as (a, _, _):
        a.mute.add(SYNC)
        a.store("orders", 0, [b"0", b"1"])
        await settle()
        a.cut()
        a.mute.clear()
        locks = len(a.lock_items())
        await advance(0.5)
        assert a.lock_items()[locks] == (LockItem(G, "orders", 0, 1, 1, 1), LockItem(G, "orders", 1, 1, 0, 0))
        order = [seen.code for seen in a.requests]
        assert order[-1] != RequestCode.HEART_BEAT
        last_beat = len(order) - 1 - order[::-1].index(RequestCode.HEART_BEAT)
        assert order[last_beat + 1] == LOCK
        assert a.progress[G, "orders", 0] == (1, 1)


async def test_lock_is_sent_after_1_s_and_every_20_s() -> None:
    async with one_broker() as (a, _, _):
        assert len(a.lock_items()) == 1
        await advance(0.9)
        assert len(a.lock_items()) == 1
        await advance(0.2)
        assert len(a.lock_items()) == 2
        await advance(19.8)
        assert len(a.lock_items()) == 2
        await advance(0.3)
        assert len(a.lock_items()) == 3


async def test_heartbeat_contains_the_settings_on_which_members_must_agree() -> None:
    retry = OrderedRetry(3, Backoff(100, 1.5, 2_000))
    start = {"consume_from_where": ConsumeFromWhere.TIMESTAMP, "consume_timestamp_ms": 7}
    async with one_broker(expression="x || y", allocate="average", retry=retry, **start) as (a, _, _):
        (group,) = a.received(RequestCode.HEART_BEAT)[-1].consumers
        assert group == ConsumerGroup(
            G,
            (Subscription("orders", "x || y"),),
            consume_from_where=ConsumeFromWhere.TIMESTAMP,
            consume_timestamp_ms=7,
            ordered=True,
            allocate="average",
            retry="3 attempts, pause 100 ms x1.5 up to 2000 ms, then block",
        )


async def test_lock_carries_the_lowest_since_of_all_brokers() -> None:
    """A broker that does not know the group yet then starts queues that were added later at offset 0."""
    async with frozen_cluster("a", "b") as cluster:
        cluster["a"].since, cluster["b"].since = 3, 2
        async with consuming(cluster, Handled()):
            for broker in cluster.brokers.values():
                assert [start.since for start in broker.received(LOCK)[0].starts] == [2]


async def test_since_is_also_learned_from_a_grant() -> None:
    async with frozen_cluster("a", "b") as cluster:
        a, b = cluster["a"], cluster["b"]
        a.since, b.since = 2, 5
        a.names_since = b.names_since = False
        async with consuming(cluster, Handled()):
            assert [start.since for start in b.received(LOCK)[0].starts] == [None]
            b.steal(G, "orders", 0)
            b.free(G, "orders", 0)
            await advance(0.1)
            assert [start.since for start in b.received(LOCK)[-1].starts] == [2]


async def test_free_notice_during_a_lock_sends_another_after_its_response() -> None:
    async with one_broker() as (a, _, _):
        a.mute.add(LOCK)
        a.free(G, "orders", 0)
        await advance(0.1)
        a.free(G, "orders", 0)
        await advance(0.1)
        assert len(a.lock_items()) == 2
        a.process_kept_requests()
        await advance(0.05)
        assert len(a.lock_items()) == 3


async def test_queue_held_by_another_client_is_acquired_when_it_is_free() -> None:
    locks = {(G, "orders", 0): Lock("another", 4)}
    async with one_broker(b"0", prepare=lambda a: a.locks.update(locks)) as (a, handled, _):
        assert handled.bodies == []
        a.free(G, "orders", 0)
        await advance(0.05)
        assert handled.bodies == [b"0"]
        assert handled.calls[0][2].fence.epoch == 5


async def test_stale_commit_revokes_the_queue_and_acquires_it_again() -> None:
    async with one_broker(b"0", b"1", blocked=True) as (a, handled, consumer):
        reported = events(consumer)
        a.locks[G, "orders", 0].epoch += 1
        a.locks[G, "orders", 0].holder = None
        a.progress[G, "orders", 0] = (1, 0)
        handled.gate.set()
        handled.gate = None
        await advance(0.2)
        assert reported[0] == QueueRevoked(QUEUE_0, True, epoch=1, generation=1)
        assert handled.bodies[-1] == b"1"
        assert handled.calls[-1][2].fence.epoch == 3
        assert a.committed(G, "orders", 0) >= 1


async def test_stale_pull_of_an_idle_queue_acquires_it_again_immediately() -> None:
    async with one_broker() as (a, _, _):
        await advance(1.5)
        a.steal(G, "orders", 0)
        a.free(G, "orders", 0, push=False)
        await advance(0.1)
        assert a.locks[G, "orders", 0] == Lock(a.me(), 3)


async def test_stale_renewal_of_an_idle_queue_acquires_it_again_immediately() -> None:
    async with one_broker(prepare=lambda a: a.mute.add(RequestCode.PULL_MESSAGE)) as (a, _, _):
        a.steal(G, "orders", 0)
        a.free(G, "orders", 0, push=False)
        a.cut()
        await advance(0.5)
        assert a.locks[G, "orders", 0] == Lock(a.me(), 3)


async def test_stale_pull_revokes_the_queue_and_cancels_the_running_call() -> None:
    async with one_broker(blocked=True) as (a, handled, consumer):
        reported = events(consumer)
        a.store("orders", 0, [b"0"])
        await settle()
        a.steal(G, "orders", 0)
        await settle()
        assert reported == [QueueRevoked(QUEUE_0, True, epoch=1, generation=1)]
        assert handled.calls[0][2].cancelled.is_set()
        a.free(G, "orders", 0)
        await advance(0.1)
        assert a.locks[G, "orders", 0].holder is None, "not locked again while the old listener runs"
        handled.gate.set()
        await advance(0.1)
        assert a.locks[G, "orders", 0].holder == a.me()
        assert [context.fence.epoch for _, _, context in handled.calls] == [1, 3]
        assert not [item for item in a.sync_items() if item.epoch == 1 and item.queue_id == 0], "a void result is not offered"


async def test_queue_is_not_locked_again_while_a_synchronous_call_of_an_old_epoch_runs() -> None:
    finish = threading.Event()
    started: list[int] = []

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        started.append(context.fence.epoch)
        finish.wait(60)
        return S.SUCCESS

    async with one_broker(b"0", listener=plain) as (a, _, _):
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


async def test_refused_commit_revokes_the_queue_and_acquires_it_again() -> None:
    async with one_broker() as (a, handled, _):
        a.sync_script.append(lambda item: SyncResult(LockVerdict.REFUSED, item.epoch, "beyond the end"))
        a.store("orders", 0, [b"0"])
        await advance(0.3)
        assert handled.bodies == [b"0", b"0"]
        assert [context.fence.epoch for _, _, context in handled.calls] == [1, 2]


async def test_refused_lock_request_is_retried_after_a_second() -> None:
    async with one_broker(b"0", prepare=lambda a: a.mute.add(LOCK)) as (a, handled, _):
        (command, endpoint), *_ = a.kept
        a.kept.clear()
        a.mute.clear()
        endpoint.send(command.reply(ResponseCode.SYSTEM_BUSY, "full lane"))
        await advance(0.9)
        assert handled.bodies == []
        await advance(0.2)
        assert handled.bodies == [b"0"]


async def test_response_that_does_not_fit_its_request_closes_the_connection() -> None:
    async with one_broker(prepare=lambda a: a.mute.add(LOCK)) as (a, _, _):
        (command, endpoint), *_ = a.kept
        a.kept.clear()
        a.mute.clear()
        endpoint.send(command.reply(body=b"\x81"))
        await advance(1)
        assert a.heartbeats[-1].connection == 2
        assert a.locks[G, "orders", 0].holder == a.me()


async def test_two_groups_of_a_client_share_one_session_and_one_lock_request() -> None:
    async with frozen_cluster() as cluster:
        a, mine, other = cluster["a"], Handled(), Handled()
        async with consuming(cluster, mine):
            second = PushConsumer("audit", client=cluster.client).subscribe("orders")
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


async def test_lock_left_at_an_unreachable_broker_is_released_when_it_returns() -> None:
    """The instance remains open because a producer uses it: otherwise its session would keep the lock forever."""
    async with frozen_cluster() as cluster:
        a = cluster["a"]
        keeper = cluster.client.instance()
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


async def test_two_consumers_of_a_group_in_one_loop_divide_the_queues() -> None:
    async with frozen_cluster() as cluster:
        a, first, second = cluster["a"], Handled(), Handled()
        async with consuming(cluster, first), consuming(cluster, second):
            await advance(1.5)
            assert len({lock.holder for lock in a.locks.values()}) == 2
            a.store("orders", 0, [b"0"])
            a.store("orders", 1, [b"1"])
            await settle()
            assert sorted([*first.bodies, *second.bodies]) == [b"0", b"1"]
            assert len(first.bodies) == 1
