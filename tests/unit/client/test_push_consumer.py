"""PushConsumer against a scripted broker, in virtual time: membership, calls, results, stop."""

import pytest

from lockstep.client import QueueGap
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.topics.queue import MessageQueue
from support.consumers import G, Handled, consuming, events, new_consumer, one_broker, stopped
from support.fake_broker import frozen_cluster, pulled
from support.frozen_loop import advance, settle

pytestmark = pytest.mark.frozen_clock


# ------------------------------------------------------------------------------------------------------------------------- delivery


async def test_messages_are_consumed_in_order_and_committed_within_100_ms() -> None:
    async with one_broker(b"0", b"1", b"2") as (a, handled, _):
        assert handled.bodies == [b"0", b"1", b"2"]
        await advance(0.15)
        assert a.committed(G, "orders", 0) == 3
        a.store("orders", 0, [b"3"])
        await settle()
        assert handled.bodies[-1] == b"3"
    assert a.committed(G, "orders", 0) == 4
    assert a.locks[G, "orders", 0].holder is None


async def test_first_request_after_the_heartbeat_is_one_lock_with_all_wanted_queues_and_start_policies() -> None:
    async with frozen_cluster(topics={"orders": 2, "bills": 1}) as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        joined = [seen.code for seen in a.requests].index(RequestCode.LOCK_BATCH_MQ)
        first = a.received(RequestCode.LOCK_BATCH_MQ)[0]
        assert joined > 0
        assert {(item.topic, item.queue_id, item.epoch) for item in first.items} == {
            ("orders", 0, None),
            ("orders", 1, None),
            ("bills", 0, None),
        }
        assert {start.topic for start in first.starts} == {"orders", "bills"}


async def test_batch_has_at_most_batch_count_messages() -> None:
    async with one_broker(*[b"%d" % i for i in range(7)], batch_count=3) as (_, handled, _):
        assert [len(bodies) for _, bodies, _ in handled.calls] == [3, 3, 1]


async def test_context_has_queue_fence_and_attempt() -> None:
    async with one_broker(b"x") as (a, handled, _):
        _, _, context = handled.calls[0]
        assert context.queue == MessageQueue("orders", "a", 0)
        assert context.fence.epoch == a.locks[G, "orders", 0].epoch
        assert (context.attempt, context.auto_commit, context.cancelled.is_set()) == (0, True, False)


async def test_topic_created_after_start_is_consumed() -> None:
    async with frozen_cluster(topics={"orders": 1, "later": 1}) as cluster:
        later = cluster.layouts.pop("later")
        handled = Handled()
        consumer = new_consumer(cluster, handled, "later")
        await consumer.start()
        cluster.layouts["later"] = later
        cluster["a"].store("later", 0, [b"x"])
        await advance(2.5)
        assert handled.bodies == [b"x"]
        await stopped(consumer)


async def test_consumer_started_before_any_broker_has_registered_consumes_later() -> None:
    """Processes can be started in any order."""
    async with frozen_cluster(topics={"orders": 1}) as cluster:
        cluster.ready = False
        handled = Handled()
        async with consuming(cluster, handled):
            cluster.ready = True
            cluster["a"].store("orders", 0, [b"x"])
            await advance(2.5)
            assert handled.bodies == [b"x"]


async def test_only_messages_with_matching_tags_are_delivered_and_progress_passes_the_others() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        for tag, body in (("no", b"0"), ("yes", b"1"), (None, b"2"), ("yes", b"3"), ("no", b"4")):
            a.store("orders", 0, [body], tags=tag)
        async with consuming(cluster, handled, expression="yes || perhaps"):
            assert handled.bodies == [b"1", b"3"]
            await advance(0.2)
            assert a.committed(G, "orders", 0) == 5


# ------------------------------------------------------------------------------------------------------------------------ gaps, flow, pause


async def test_member_ahead_of_a_restored_backup_is_told_before_anything_new_is_stored() -> None:
    async with one_broker(b"0", b"1", b"2") as (a, handled, consumer):
        reported = events(consumer)
        del a.records["orders", 0][1:]
        a.progress[G, "orders", 0] = (1, 0)
        a.steal(G, "orders", 0)
        await settle()
        a.free(G, "orders", 0)
        await advance(1.0)
        assert QueueGap(MessageQueue("orders", "a", 0), 1, 3) in reported
        a.store("orders", 0, [b"new"])
        await settle()
        assert handled.bodies == [b"0", b"1", b"2", b"new"]


async def test_offset_gap_is_reported_and_skipped() -> None:
    async with frozen_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"%d" % i for i in range(5)])
        a.pull_script.extend([lambda header: pulled(ResponseCode.PULL_OFFSET_MOVED, 3) if header.queue_id == 0 else None] * 2)
        consumer = new_consumer(cluster, handled)
        reported = events(consumer)
        await consumer.start()
        await settle()
        assert QueueGap(MessageQueue("orders", "a", 0), 0, 3) in reported
        assert handled.bodies == [b"3", b"4"]
        await stopped(consumer)
        assert a.committed(G, "orders", 0) == 5


async def test_at_most_queue_count_max_messages_are_fetched_while_the_listener_blocks() -> None:
    async with one_broker(*[b"x"] * 100, blocked=True, queue_count_max=10) as (a, handled, consumer):
        await advance(1)
        assert consumer.health().queues[0].fetched_count == 10
        assert all(header.max_msg_nums <= 10 for header in a.received(RequestCode.PULL_MESSAGE))
        handled.gate.set()
        await advance(0.1)
        assert len(handled.bodies) == 100


async def test_pause_stops_pulls_and_calls_but_not_locks_or_rebalance() -> None:
    async with one_broker() as (a, handled, consumer):
        consumer.pause()
        pulls = len(a.received(RequestCode.PULL_MESSAGE))
        a.store("orders", 0, [b"0"])
        await settle()
        a.set_members(G, a.me(), "zz")
        await advance(21)
        assert handled.bodies == []
        assert len(a.received(RequestCode.PULL_MESSAGE)) == pulls
        assert a.locks[G, "orders", 0].holder == a.me()
        assert a.locks[G, "orders", 1].holder is None
        consumer.resume()
        await settle()
        assert handled.bodies == [b"0"]
