"""A client's session: rebalance."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import OrderlyContext, QueueGap
from lockstep.client.consumer.membership import ROUND_MS
from lockstep.client.consumer.rebalance_delay import CALM_MS
from lockstep.protocol.bodies import LockItem, LockResult, LockVerdict, SyncItem
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import SubscriptionConflictError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from support.consumers import G, Handled, S, consuming, events, one_broker
from support.fake_broker import frozen_cluster
from support.frozen_loop import advance, settle
from support.session_kit import LOCK, SYNC

CALM_S = CALM_MS / 1000
"""A member that joins after this time does not delay the rebalance."""


pytestmark = pytest.mark.frozen_clock


async def test_revoked_queue_drains_and_is_released_with_its_final_offset() -> None:
    async with one_broker(b"0", b"1", blocked=True) as (a, handled, _):
        await advance(CALM_S)
        a.set_members(G, a.me(), "!first")
        await advance(0.2)
        assert a.locks[G, "orders", 0].holder == a.me()
        handled.gate.set()
        await advance(0.02)
        assert SyncItem(G, "orders", 0, 1, None, 1, 0, True) in a.sync_items()
        assert handled.bodies == [b"0"]
        assert a.locks[G, "orders", 1].holder == a.me()


async def test_drain_limit_is_30_s_for_a_rebalance_and_8_s_for_a_stop() -> None:
    for limit_s, drains in ((30, lambda a, _: a.set_members(G, a.me(), "!first")), (8, lambda _, consumer: consumer._stop_soon())):
        async with one_broker(b"0", blocked=True) as (a, _, consumer):
            await advance(CALM_S)
            drains(a, consumer)
            await advance(limit_s - 0.1)
            assert a.locks[G, "orders", 0].holder == a.me()
            await advance(0.2)
            assert SyncItem(G, "orders", 0, 1, None, None, 0, True) in a.sync_items()


async def test_uncommitted_successes_are_redelivered_after_a_drain() -> None:
    def kept(context: OrderlyContext) -> S:
        context.auto_commit = False
        return S.SUCCESS

    async with one_broker(b"0", b"1", b"2", responses=[S.SUCCESS, kept, kept]) as (a, handled, _):
        assert handled.bodies == [b"0", b"1", b"2"]
    assert SyncItem(G, "orders", 0, 1, None, 1, 0, True) in a.sync_items()
    assert a.committed(G, "orders", 0) == 1


async def test_draining_queue_that_is_wanted_again_keeps_its_epoch() -> None:
    async with one_broker(b"0", b"1", blocked=True) as (a, handled, _):
        a.set_members(G, a.me(), "!first")
        await advance(0.2)
        a.set_members(G, a.me())
        await advance(0.2)
        handled.gate.set()
        await advance(0.02)
        assert handled.bodies == [b"0", b"1"]
        assert {context.fence.epoch for _, _, context in handled.calls} == {1}
        assert not [item for item in a.sync_items() if item.release]


async def test_queue_is_acquired_again_only_after_the_response_to_its_release() -> None:
    async with one_broker() as (a, _, _):
        a.mute.add(SYNC)
        await advance(CALM_S)
        a.set_members(G, a.me(), "!first")
        await advance(0.2)
        assert a.sync_items()[-1].release
        locks = len(a.lock_items())
        a.set_members(G, a.me())
        await advance(0.3)
        assert not [item for items in a.lock_items()[locks:] for item in items if item.queue_id == 0]
        a.process_kept_requests()
        await advance(0.1)
        assert a.locks[G, "orders", 0].epoch == 2
        assert a.locks[G, "orders", 0].holder == a.me()


async def test_release_lost_with_its_connection_is_sent_again_after_the_next_lock() -> None:
    async with one_broker() as (a, _, _):
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


async def test_grant_of_an_unwanted_queue_is_released_immediately() -> None:
    async with one_broker(b"0", prepare=lambda a: a.mute.add(LOCK)) as (a, handled, _):
        await advance(CALM_S)
        a.set_members(G, a.me(), "!first")
        await settle()
        a.process_kept_requests()
        await advance(0.05)
        assert handled.bodies == []
        assert SyncItem(G, "orders", 0, 1, None, 0, 0, True) in a.sync_items()
        assert a.locks[G, "orders", 0].holder is None


async def test_running_member_retries_during_a_temporary_conflict() -> None:
    """A broker that was down returns with the contract of members that have left. This ends no running member."""
    async with one_broker() as (a, handled, consumer):
        a.refuse[G] = SubscriptionConflictError(
            f"group {G} has another contract at a{SubscriptionConflictError.TEMPORARY}",
        )
        a.members[G] = ["gone"]
        a.term += 1
        a.cut()
        await advance(5)
        assert consumer.health().state.value == "running"
        assert a.members[G] == ["gone"]
        assert len(a.received(RequestCode.HEART_BEAT)) < 40
        del a.refuse[G]
        a.set_members(G)
        a.store("orders", 0, [b"0"])
        await advance(1.5)
        assert a.members[G] == [a.me()]
        assert handled.bodies == [b"0"]


async def test_member_list_without_this_member_is_ignored() -> None:
    async with one_broker() as (a, handled, _):
        a.lists_only[G] = ["zz"]
        a.set_members(G, *a.members[G])
        beats = len(a.received(RequestCode.HEART_BEAT))
        await advance(3)
        assert len(a.received(RequestCode.HEART_BEAT)) > beats
        a.store("orders", 0, [b"0"])
        a.store("orders", 1, [b"1"])
        await settle()
        assert sorted(handled.bodies) == [b"0", b"1"]
        assert not [item for item in a.sync_items() if item.release]


async def test_member_list_that_changes_during_its_request_is_requested_again() -> None:
    async with one_broker() as (a, _, consumer):
        a.mute.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        a.set_members(G, a.me(), "!first")
        await settle()
        a.process_kept_requests()
        a.set_members(G, a.me())  # the notice arrives right after the response, which does not include it
        await settle()
        assert len(consumer.health().queues) == 2


async def test_list_version_in_the_sync_response_makes_up_for_a_lost_notice() -> None:
    async with one_broker() as (a, _, _):
        await advance(2)
        a.set_members(G, a.me(), "!first", notify=False)
        await advance(1.1)
        assert a.locks[G, "orders", 0].holder is None


async def test_not_yours_requests_the_member_list_even_if_its_version_is_unchanged() -> None:
    def not_yours(item: LockItem) -> LockResult:
        return LockResult(G, "orders", item.queue_id, LockVerdict.NOT_YOURS)

    async with one_broker(prepare=lambda a: a.lock_script.append(not_yours)) as (a, _, _):
        assert len(a.received(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == 1


async def test_gap_in_a_renewal_is_reported_once() -> None:
    def with_gap(item: LockItem) -> LockResult | None:
        first = 4 if item.epoch else None
        return LockResult(G, "orders", item.queue_id, LockVerdict.OK, epoch=1, gap_first=first, gap_end=9)

    async with one_broker() as (a, _, consumer):
        reported = events(consumer)
        for _ in range(2):
            a.lock_script.append(with_gap)
            a.push_free(G, "orders", 0)
            await advance(0.05)
        assert reported == [QueueGap(MessageQueue("orders", "a", queue_id), 4, 9) for queue_id in (0, 1)]


async def test_not_yours_requests_the_brokers_member_list() -> None:
    def not_yours(item: LockItem) -> LockResult | None:
        return LockResult(G, "orders", item.queue_id, LockVerdict.NOT_YOURS) if item.queue_id == 0 else None

    async with one_broker(prepare=lambda a: a.lock_script.append(not_yours)) as (a, _, consumer):
        a.set_members(G, a.me(), "!first", notify=False)
        await advance(1.2)
        assert [(queue.queue.queue_id, queue.state) for queue in consumer.health().queues] == [(1, "held")]


async def test_nameserver_that_lost_all_routes_revokes_no_queue() -> None:
    async with frozen_cluster() as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        cluster.layouts.clear()
        await advance(65)
        assert not [item for item in a.sync_items() if item.release]
        assert {lock.epoch for lock in a.locks.values()} == {1}


@pytest.mark.parametrize("before_s", [0, 0.6])
async def test_listener_that_blocks_the_loop_is_logged_by_name(before_s: float, caplog: pytest.LogCaptureFixture) -> None:
    """This includes a listener that ends in the loop turn that it blocked, after an await."""
    loop = asyncio.get_running_loop()

    async def blocking(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        await asyncio.sleep(before_s)
        loop.stall(1.5)  # type: ignore[attr-defined]
        return S.SUCCESS

    async with one_broker(listener=blocking) as (a, _, _):
        a.store("orders", 0, [b"0"])
        await advance(1)
    reported = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loop.was_blocked")]
    assert len(reported) == 1
    assert "blocking" in reported[0]


async def test_rocketmq_strategies_rebalance_when_the_broker_whose_list_they_use_returns() -> None:
    """Its list is unchanged. Only the connection shows that the broker is reachable again (seed long 960232)."""
    async with frozen_cluster("a", "b") as cluster:
        a, b = cluster["a"], cluster["b"]
        async with consuming(cluster, Handled(), allocate="average_by_circle"):
            b.set_members(G, "!cannot reach a", a.me())
            await advance(CALM_S)
            assert [b.locks[G, "orders", queue].holder for queue in (0, 1)] == [a.me()] * 2
            a.mute.add(RequestCode.HEART_BEAT)
            a.cut()
            await advance(ROUND_MS / 1000 + 1)
            assert [b.locks[G, "orders", queue].holder for queue in (0, 1)] == [None, a.me()]
            a.process_kept_requests()
            await advance(2)
            assert [b.locks[G, "orders", queue].holder for queue in (0, 1)] == [a.me()] * 2
