"""PushConsumer against a scripted broker, in virtual time: membership, calls, results, stop."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from lockstep.client.consumer import (
    Backoff,
    ConsumerEvent,
    OrderedRetry,
    OrderlyContext,
    PushConsumer,
    QueueAssigned,
    QueueBlocked,
    QueueGap,
    QueueRevoked,
)
from lockstep.protocol.bodies import SyncItem
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import ConfigError, LocalProtocolError, RequestCodeNotSupported, StateError, SubscriptionConflict
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from support.consumers import G, Handled, S, consuming, events, stopped
from support.loops import turns
from support.scripted_broker import advance, pulled, scripted_cluster, settle

pytestmark = pytest.mark.frozen_clock

SUSPEND = S.SUSPEND_CURRENT_QUEUE_A_MOMENT


# ------------------------------------------------------------------------------------------------------------ the ordinary way


async def test_messages_are_consumed_in_order_and_committed_within_100_ms() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0", b"1", b"2"])
        async with consuming(cluster, handled):
            assert handled.bodies == [b"0", b"1", b"2"]
            await advance(0.15)
            assert a.committed(G, "orders", 0) == 3
            a.store("orders", 0, [b"3"])
            await settle()
            assert handled.bodies[-1] == b"3"
        assert a.committed(G, "orders", 0) == 4
        assert a.locks[G, "orders", 0].holder is None


async def test_the_first_request_after_heart_beat_is_one_lock_with_everything_wanted_and_the_start_policy() -> None:
    async with scripted_cluster(topics={"orders": 2, "bills": 1}) as cluster, consuming(cluster, Handled()):
        a = cluster["a"]
        joined = [seen.code for seen in a.seen].index(RequestCode.LOCK_BATCH_MQ)
        first = a.bodies(RequestCode.LOCK_BATCH_MQ)[0]
        assert joined > 0
        assert {(item.topic, item.queue_id, item.epoch) for item in first.items} == {
            ("orders", 0, None),
            ("orders", 1, None),
            ("bills", 0, None),
        }
        assert {start.topic for start in first.starts} == {"orders", "bills"}


async def test_a_batch_holds_at_most_batch_count_messages() -> None:
    async with scripted_cluster() as cluster:
        cluster["a"].store("orders", 0, [b"%d" % i for i in range(7)])
        handled = Handled()
        async with consuming(cluster, handled, batch_count=3):
            assert [len(bodies) for _, bodies, _ in handled.calls] == [3, 3, 1]


async def test_the_context_names_queue_fence_and_attempt() -> None:
    async with scripted_cluster() as cluster:
        cluster["a"].store("orders", 1, [b"x"])
        handled = Handled()
        async with consuming(cluster, handled):
            _, _, context = handled.calls[0]
            assert context.queue == MessageQueue("orders", "a", 1)
            assert context.fence.epoch == cluster["a"].locks[G, "orders", 1].epoch
            assert (context.attempt, context.auto_commit, context.cancelled.is_set()) == (0, True, False)


async def test_two_brokers_are_consumed_side_by_side() -> None:
    async with scripted_cluster("a", "b") as cluster:
        handled = Handled()
        async with consuming(cluster, handled):
            for name in ("a", "b"):
                cluster[name].store("orders", 0, [name.encode()])
            await settle()
            assert sorted(handled.bodies) == [b"a", b"b"]


async def test_a_topic_created_after_the_start_is_consumed() -> None:
    async with scripted_cluster(topics={"orders": 1, "later": 1}) as cluster:
        later = cluster.layouts.pop("later")
        handled = Handled()
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("later")
        consumer.orderly(handled)
        await consumer.start()
        cluster.layouts["later"] = later
        cluster["a"].store("later", 0, [b"x"])
        await advance(2.5)
        assert handled.bodies == [b"x"]
        await stopped(consumer)


async def test_a_start_before_any_broker_has_registered_consumes_when_one_has() -> None:
    """Everything may be started at once, in any order."""
    async with scripted_cluster(topics={"orders": 1}) as cluster:
        cluster.ready = False
        handled = Handled()
        async with consuming(cluster, handled):
            cluster.ready = True
            cluster["a"].store("orders", 0, [b"x"])
            await advance(2.5)
            assert handled.bodies == [b"x"]


async def test_only_matching_tags_are_handed_over_and_progress_moves_over_the_rest() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        for tag, body in (("no", b"0"), ("yes", b"1"), (None, b"2"), ("yes", b"3"), ("no", b"4")):
            a.store("orders", 0, [body], tags=tag)
        async with consuming(cluster, handled, expression="yes || perhaps"):
            assert handled.bodies == [b"1", b"3"]
            await advance(0.2)
            assert a.committed(G, "orders", 0) == 5


# --------------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("wrong", [RuntimeError("no"), None, "SUCCESS", SUSPEND])
async def test_a_failed_call_is_repeated_with_one_attempt_more_which_is_stored(wrong: object) -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.answers = [wrong, wrong]
        a.store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, handled, retry=OrderedRetry(backoff=Backoff(1_000, 1.0))):
            assert handled.bodies == [b"0"]
            await advance(0.3)
            assert a.progress[G, "orders", 0] == (0, 1)
            await advance(0.5)
            assert len(handled.calls) == 1
            await advance(0.4)
            await advance(1.1)
            assert handled.bodies == [b"0", b"0", b"0", b"1"]
            assert [context.attempt for _, _, context in handled.calls] == [0, 1, 2, 0]


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_listener_that_exits_ends_the_consumer_without_waiting_for_the_stop_timeout(
    kind: type[BaseException], in_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster() as cluster:
        a, calls = cluster["a"], 0

        def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            nonlocal calls
            calls += 1
            raise kind(3)

        async def on_the_loop(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            return plain(messages, context)

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, plain if in_thread else on_the_loop) as consumer:
            while not calls:
                await turns(1)
            await advance(0.1)
            assert consumer.health().state.value == "failed"
            with pytest.raises(kind, match="3"):
                await consumer.wait_closed()
        assert calls == 1
        assert SyncItem(G, "orders", 0, 1, None, 0, 1, True) in a.sync_items(), "released, with one attempt more"
    assert "consumer.failed" in caplog.text
    assert "call.given_up" not in caplog.text


async def test_a_failure_is_told_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster() as cluster:
        handled = Handled()
        handled.answers = [ValueError("no"), ValueError("still no"), KeyError("another"), S.SUCCESS, ValueError("the next message")]
        cluster["a"].store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, handled, retry=OrderedRetry(backoff=Backoff(10, 1.0))):
            for _ in range(10):
                await advance(0.02)
    told = [record for record in caplog.records if "call.failed" in record.getMessage()]
    assert [record.exc_info is not None for record in told] == [True, False, True, True]
    assert "still no" in told[1].getMessage()


async def test_attempts_are_restored_from_the_grant() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"0", b"1"])
        a.progress[G, "orders", 0] = (1, 5)
        async with consuming(cluster, handled):
            assert [(bodies, context.attempt) for _, bodies, context in handled.calls] == [([b"1"], 5)]


async def test_a_listener_may_choose_its_pause_and_it_is_clamped() -> None:
    async with scripted_cluster() as cluster:
        handled = Handled()

        def pause(context: OrderlyContext) -> S:
            context.suspend_current_queue_time_ms = 1
            return SUSPEND

        handled.answers = [pause]
        cluster["a"].store("orders", 0, [b"0"])
        async with consuming(cluster, handled):
            await advance(0.03)
            assert len(handled.calls) == 2


async def test_manual_commit_moves_nothing_until_commit_and_rollback_brings_everything_back() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()

        def manual(status: S) -> Callable[[OrderlyContext], S]:
            def answer(context: OrderlyContext) -> S:
                context.auto_commit = False
                return status

            return answer

        handled.answers = [manual(S.SUCCESS), manual(S.ROLLBACK), manual(S.SUCCESS), manual(S.COMMIT), manual(S.SUCCESS)]
        a.store("orders", 0, [b"0", b"1", b"2"])
        async with consuming(cluster, handled):
            await advance(0.2)
            assert a.committed(G, "orders", 0) == 0
            await advance(1.1)
            assert handled.bodies == [b"0", b"1", b"0", b"1", b"2"]
            assert a.committed(G, "orders", 0) == 2
        assert a.committed(G, "orders", 0) == 2  # at a drain, SUCCESSes that were not committed roll back


async def test_exhausted_attempts_block_the_queue_until_it_is_resumed() -> None:
    async with scripted_cluster() as cluster:
        handled = Handled()
        handled.answers = [RuntimeError("poison")] * 3
        cluster["a"].store("orders", 0, [b"0", b"1"])
        retry = OrderedRetry(max_attempts=2, backoff=Backoff(100, 1.0))
        async with consuming(cluster, handled, retry=retry) as consumer:
            told = events(consumer)
            await advance(5)
            assert handled.bodies == [b"0", b"0"]
            assert told == [QueueBlocked(MessageQueue("orders", "a", 0), 0, 2, "RuntimeError: poison")]
            assert [queue.blocked for queue in consumer.health().queues] == [True, False]
            consumer.resume()
            await advance(0.5)
            assert handled.bodies == [b"0", b"0", b"0"]
            consumer.resume()
            await advance(0.5)
            assert handled.bodies == [b"0", b"0", b"0", b"0", b"1"]


async def test_commit_each_waits_for_the_answer_before_the_next_batch() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled, commit="each"):
            a.mute.add(RequestCode.SYNC)
            a.store("orders", 0, [b"0", b"1"])
            await settle()
            assert handled.bodies == [b"0"]
            a.answer_kept()
            await settle()
            assert handled.bodies == [b"0", b"1"]


async def test_plain_functions_run_in_a_thread() -> None:
    async with scripted_cluster() as cluster:
        bodies: list[bytes] = []
        names: list[str] = []

        def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            names.append(threading.current_thread().name)
            bodies.extend(message.body for message in messages)
            return S.SUCCESS

        cluster["a"].store("orders", 0, [b"0", b"1"])
        async with consuming(cluster, plain):
            while len(bodies) < 2:
                await turns(1)
            assert all("plain" in name for name in names)
            await advance(0.2)
            assert cluster["a"].committed(G, "orders", 0) == 2


# ----------------------------------------------------------------------------------------------------------- gaps, flow, pause


async def test_gaps_are_told_and_jumped() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        a.store("orders", 0, [b"%d" % i for i in range(5)])
        a.pull_script.append(lambda header: pulled(ResponseCode.PULL_OFFSET_MOVED, 3) if header.queue_id == 0 else None)
        a.pull_script.append(lambda header: pulled(ResponseCode.PULL_OFFSET_MOVED, 3) if header.queue_id == 0 else None)
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(handled)
        told = events(consumer)
        await consumer.start()
        await settle()
        assert QueueGap(MessageQueue("orders", "a", 0), 0, 3) in told
        assert handled.bodies == [b"3", b"4"]
        await stopped(consumer)
        assert a.committed(G, "orders", 0) == 5


async def test_no_more_than_the_threshold_is_held_while_the_listener_stands_still() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        handled.gate = asyncio.Event()
        a.store("orders", 0, [b"x"] * 100)
        async with consuming(cluster, handled, queue_count_max=10) as consumer:
            await advance(1)
            assert consumer.health().queues[0].fetched_count == 10
            assert all(header.max_msg_nums <= 10 for header in a.bodies(RequestCode.PULL_MESSAGE))
            handled.gate.set()
            await advance(0.1)
            assert len(handled.bodies) == 100


async def test_a_pause_stops_pulls_and_batches_and_neither_locks_nor_rebalance() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled) as consumer:
            consumer.pause()
            pulls = len(a.bodies(RequestCode.PULL_MESSAGE))
            a.store("orders", 0, [b"0"])
            await settle()
            a.set_members(G, a.me(), "zz")
            await advance(21)
            assert handled.bodies == []
            assert len(a.bodies(RequestCode.PULL_MESSAGE)) == pulls
            assert a.locks[G, "orders", 0].holder == a.me()
            assert a.locks[G, "orders", 1].holder is None
            consumer.resume()
            await settle()
            assert handled.bodies == [b"0"]


# ------------------------------------------------------------------------------------------------------------------ start, stop


async def test_a_second_start_a_missing_listener_and_a_missing_subscription_are_refused() -> None:
    async with scripted_cluster() as cluster:
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
        with pytest.raises(StateError, match="stopped"):
            await consumer.start()


async def test_bad_names_are_refused_at_once() -> None:
    with pytest.raises(LocalProtocolError):
        PushConsumer("no blanks")
    with pytest.raises(LocalProtocolError):
        PushConsumer(G).subscribe("no blanks")
    with pytest.raises(LocalProtocolError):
        PushConsumer(G).subscribe("orders", "||")


def test_a_subscription_that_looks_like_a_mistyped_list_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    PushConsumer(G).subscribe("orders", "a || b")
    assert caplog.text == ""
    PushConsumer(G).subscribe("orders", "a, b || c")
    (told,) = caplog.records
    assert told.getMessage() == "subscription.odd_tag group=billing topic=orders tag=a, b taken_as=one tag; several are written: a || b"


async def test_a_stop_leaves_the_group_first_and_releases_each_queue_as_its_listener_ends() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled) as consumer:
            handled.gate = asyncio.Event()
            a.store("orders", 0, [b"0", b"1"])
            await settle()
            stop = asyncio.ensure_future(consumer.stop())
            await settle()
            codes = [seen.code for seen in a.seen]
            assert a.members[G] == []
            assert [item for item in a.sync_items() if item.release] == [SyncItem(G, "orders", 1, 1, None, 0, 0, True)]
            assert codes.index(RequestCode.UNREGISTER_CLIENT) < len(codes) - 1 - codes[::-1].index(RequestCode.SYNC)
            handled.gate.set()
            await settle()
            assert stop.done()
            assert handled.bodies == [b"0"]
        assert a.sync_items()[-1] == SyncItem(G, "orders", 0, 1, None, 1, 0, True)


async def test_a_heart_beat_on_its_way_when_the_consumer_leaves_does_not_keep_it_on_the_list() -> None:
    async with scripted_cluster() as cluster:
        a, handled = cluster["a"], Handled()
        async with consuming(cluster, handled) as consumer:
            handled.gate = asyncio.Event()
            a.store("orders", 0, [b"0"])
            await settle()
            a.mute.add(RequestCode.HEART_BEAT)
            a.cut()
            await advance(0.5)
            assert a.kept, "the HEART_BEAT of the next connection waits"
            stop = asyncio.ensure_future(consumer.stop())
            await settle()
            a.answer_kept()
            await advance(0.1)
            assert a.members[G] == []
            assert not stop.done(), "and its queue still drains"
            handled.gate.set()
            await advance(0.2)
            assert stop.done()


async def test_past_the_drain_limit_the_queue_is_released_without_an_offset_and_the_listener_is_cancelled() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        seen: list[str] = []

        async def stubborn(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            waiting = asyncio.ensure_future(context.cancelled.wait())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(f"cancelled {waiting.done()}")
                raise
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, stubborn, stop_timeout_ms=4_000) as consumer:
            stop = asyncio.ensure_future(consumer.stop())
            await advance(3.9)
            assert seen == []
            assert a.locks[G, "orders", 0].holder is not None
            await advance(0.2)
            assert seen == ["cancelled True"]
            assert SyncItem(G, "orders", 0, 1, None, None, 0, True) in a.sync_items()
            await advance(0.1)
            assert stop.done()


async def test_a_listener_that_ignores_cancellation_is_left_behind_and_the_stop_ends() -> None:
    async with scripted_cluster() as cluster:
        a, let_go = cluster["a"], asyncio.Event()

        async def deaf(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        async with consuming(cluster, deaf, stop_timeout_ms=1_000) as consumer:
            stop = asyncio.ensure_future(consumer.stop())
            await advance(1.5)
            assert a.locks[G, "orders", 0].holder is None
            await advance(3.5)
            assert stop.done()
        let_go.set()
        await settle()
        assert a.committed(G, "orders", 0) == 0


async def test_a_plain_listener_past_the_drain_limit_is_fenced_and_the_stop_does_not_wait_for_it() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        finish = threading.Event()
        seen: list[bool] = []

        def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            seen.append(context.cancelled.is_set())
            finish.wait(60)
            seen.append(context.cancelled.is_set())
            return S.SUCCESS

        a.store("orders", 0, [b"0"])
        try:
            async with consuming(cluster, plain, stop_timeout_ms=1_000) as consumer:
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


async def test_a_stop_inside_a_listener_is_refused() -> None:
    async with scripted_cluster() as cluster:
        refused: list[str] = []

        async def suicidal(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            try:
                await consumer.stop()
            except StateError as error:
                refused.append(str(error))
            return S.SUCCESS

        cluster["a"].store("orders", 0, [b"0"])
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(suicidal)
        await consumer.start()
        await settle()
        assert len(refused) == 1
        await stopped(consumer)


async def test_a_refused_contract_leaves_the_joined_brokers_and_is_raised_after_the_grace() -> None:
    async with scripted_cluster("a", "b") as cluster:
        a, b = cluster["a"], cluster["b"]
        b.refuse[G] = (ResponseCode.SUBSCRIPTION_CONFLICT, f'group "{G}": orders "x" here, "y" there' + SubscriptionConflict.PASSING)
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(3)
        assert not start.done()
        await advance(3)
        with pytest.raises(SubscriptionConflict, match="here"):
            await start
        assert a.members[G] == []
        assert a.lock_items() == []
        b.refuse.clear()
        await consumer.start()
        await settle()
        assert a.members[G] == [a.me()]
        await stopped(consumer)


async def test_a_conflict_with_members_in_their_grace_is_retried_quietly() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        a.refuse[G] = (ResponseCode.SUBSCRIPTION_CONFLICT, f'group "{G}"' + SubscriptionConflict.PASSING)
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(2)
        a.refuse.clear()
        await advance(0.5)
        assert start.done()
        await start
        await stopped(consumer)


async def test_a_conflict_with_a_member_who_is_there_is_raised_at_once() -> None:
    async with scripted_cluster() as cluster:
        cluster["a"].refuse[G] = (ResponseCode.SUBSCRIPTION_CONFLICT, f'group "{G}"')
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(Handled())
        start = asyncio.ensure_future(consumer.start())
        await advance(0.2)
        assert start.done()
        with pytest.raises(SubscriptionConflict):
            await start


async def test_a_broker_without_a_needed_feature_is_named_and_nothing_starts() -> None:
    async with scripted_cluster() as cluster:
        cluster["a"].features = ("records",)
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(Handled())
        with pytest.raises(RequestCodeNotSupported, match="broker a lacks ordered, sync"):
            await consumer.start()
        assert cluster["a"].members[G] == []


async def test_a_running_member_that_is_refused_drains_and_wait_closed_raises() -> None:
    async with scripted_cluster() as cluster:
        a = cluster["a"]
        async with consuming(cluster, Handled()) as consumer:
            a.refuse[G] = (ResponseCode.SUBSCRIPTION_CONFLICT, f'group "{G}"')
            a.cut()
            await advance(0.5)
            with pytest.raises(SubscriptionConflict):
                await consumer.wait_closed()
            assert consumer.health().state.value == "failed"


async def test_events_and_health_tell_what_is_held() -> None:
    async with scripted_cluster() as cluster:
        consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe("orders")
        consumer.orderly(Handled())
        told = events(consumer)

        @consumer.on_event
        def broken(event: ConsumerEvent) -> None:
            raise RuntimeError("a callback must not end consumption")

        assert not consumer.health().ok
        async with consumer:
            await settle()
            assert told == [QueueAssigned(MessageQueue("orders", "a", 0), 1, 0), QueueAssigned(MessageQueue("orders", "a", 1), 1, 0)]
            health = consumer.health()
            assert health.ok
            assert [queue.state for queue in health.queues] == ["held", "held"]
        assert told[2:] == [QueueRevoked(MessageQueue("orders", "a", 0), 1, False), QueueRevoked(MessageQueue("orders", "a", 1), 1, False)]
        await consumer.wait_closed()
