"""PushConsumer: the effect of each result of a listener."""

import threading
from collections.abc import Callable, Sequence

import pytest

from lockstep.client import Backoff, OrderedRetry, OrderlyContext, QueueBlocked
from lockstep.protocol.bodies import SyncItem
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from support.consumers import G, S, events, one_broker
from support.frozen_loop import advance, settle
from support.loops import turns

pytestmark = pytest.mark.frozen_clock


SUSPEND = S.SUSPEND_CURRENT_QUEUE_A_MOMENT


@pytest.mark.parametrize("wrong", [RuntimeError("no"), "SUCCESS", SUSPEND])
async def test_failed_call_is_retried_and_its_attempts_are_committed(wrong: object) -> None:
    async with one_broker(b"0", b"1", responses=[wrong, wrong], retry=OrderedRetry(backoff=Backoff(1_000, 1.0))) as (a, handled, _):
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
async def test_listener_that_raises_system_exit_ends_the_consumer_before_the_stop_timeout(
    kind: type[BaseException], in_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        nonlocal calls
        calls += 1
        raise kind(3)

    async def on_the_loop(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        return plain(messages, context)

    async with one_broker(b"0", listener=plain if in_thread else on_the_loop) as (a, _, consumer):
        while not calls:
            await turns(1)
        await advance(0.1)
        assert consumer.health().state.value == "failed"
        with pytest.raises(kind, match="3"):
            await consumer.wait_closed()
    assert calls == 1
    assert SyncItem(G, "orders", 0, 1, None, 0, 1, True, f"{kind.__name__}: 3") in a.sync_items(), "released, with one attempt more"
    assert "consumer.failed" in caplog.text
    assert "call.given_up" not in caplog.text


async def test_repeated_failure_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    responses = [ValueError("no"), ValueError("still no"), KeyError("another"), S.SUCCESS, ValueError("the next message")]
    async with one_broker(b"0", b"1", responses=responses, retry=OrderedRetry(backoff=Backoff(10, 1.0))):
        for _ in range(10):
            await advance(0.02)
    reported = [record for record in caplog.records if "call.failed" in record.getMessage()]
    assert [record.exc_info is not None for record in reported] == [True, False, True, True]
    assert "still no" in reported[1].getMessage()


async def test_attempts_are_restored_from_the_grant() -> None:
    progress = {(G, "orders", 0): (1, 5)}
    async with one_broker(b"0", b"1", prepare=lambda a: a.progress.update(progress)) as (_, handled, _):
        assert [(bodies, context.attempt) for _, bodies, context in handled.calls] == [([b"1"], 5)]


async def test_listener_can_set_the_suspend_time_within_limits() -> None:
    def pause(context: OrderlyContext) -> S:
        context.suspend_current_queue_time_ms = 1
        return SUSPEND

    async with one_broker(b"0", responses=[pause]) as (_, handled, _):
        await advance(0.03)
        assert len(handled.calls) == 2


async def test_manual_commit_advances_only_at_commit_and_rollback_redelivers() -> None:
    def manual(status: S) -> Callable[[OrderlyContext], S]:
        def response(context: OrderlyContext) -> S:
            context.auto_commit = False
            return status

        return response

    responses = [manual(S.SUCCESS), manual(S.ROLLBACK), manual(S.SUCCESS), manual(S.COMMIT), manual(S.SUCCESS)]
    async with one_broker(b"0", b"1", b"2", responses=responses) as (a, handled, _):
        await advance(0.2)
        assert a.committed(G, "orders", 0) == 0
        await advance(1.1)
        assert handled.bodies == [b"0", b"1", b"0", b"1", b"2"]
        assert a.committed(G, "orders", 0) == 2
    assert a.committed(G, "orders", 0) == 2  # at a drain, SUCCESSes that were not committed roll back


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_listener_that_returns_none_advances_the_commit_offset_if_it_is_committed_automatically(auto_commit: bool) -> None:
    def listen(context: OrderlyContext) -> None:
        context.auto_commit = auto_commit

    async with one_broker(b"0", b"1", b"2", responses=[listen] * 3) as (a, handled, consumer):
        await advance(1)
        assert handled.bodies == [b"0", b"1", b"2"]
        assert a.committed(G, "orders", 0) == (3 if auto_commit else 0)
        assert consumer.health().ok


async def test_repeatedly_failing_queue_is_reported_blocked_until_it_succeeds() -> None:
    """Attempts are unlimited: QueueBlocked is reported at the third failure, and the calls continue."""
    async with one_broker(b"0", responses=[RuntimeError("poison")] * 4, retry=OrderedRetry(backoff=Backoff(1_000, 1.0))) as (
        _,
        handled,
        consumer,
    ):
        reported = events(consumer)
        for failures in range(1, 5):
            assert len(handled.calls) == failures
            assert [queue.blocked for queue in consumer.health().queues] == [failures >= 3, False]
            assert consumer.health().ok is (failures < 3)
            await advance(1.05)
        assert reported == [QueueBlocked(MessageQueue("orders", "a", 0), 0, 3, "RuntimeError: poison")]
        assert len(handled.calls) == 5
        assert consumer.health().ok


async def test_exhausted_attempts_block_the_queue_until_it_is_resumed() -> None:
    retry = OrderedRetry(max_attempts=2, backoff=Backoff(100, 1.0))
    async with one_broker(b"0", b"1", responses=[RuntimeError("poison")] * 3, retry=retry) as (_, handled, consumer):
        reported = events(consumer)
        await advance(5)
        assert handled.bodies == [b"0", b"0"]
        assert reported == [QueueBlocked(MessageQueue("orders", "a", 0), 0, 2, "RuntimeError: poison")]
        assert [queue.blocked for queue in consumer.health().queues] == [True, False]
        consumer.resume()
        await advance(0.5)
        assert handled.bodies == [b"0", b"0", b"0"]
        consumer.resume()
        await advance(0.5)
        assert handled.bodies == [b"0", b"0", b"0", b"0", b"1"]


async def test_commit_each_waits_for_the_sync_response_before_the_next_batch() -> None:
    async with one_broker(commit="each") as (a, handled, _):
        a.mute.add(RequestCode.SYNC)
        a.store("orders", 0, [b"0", b"1"])
        await settle()
        assert handled.bodies == [b"0"]
        a.process_kept_requests()
        await settle()
        assert handled.bodies == [b"0", b"1"]


async def test_synchronous_listener_runs_in_a_thread() -> None:
    bodies: list[bytes] = []
    names: list[str] = []

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        names.append(threading.current_thread().name)
        bodies.extend(message.body for message in messages)
        return S.SUCCESS

    async with one_broker(b"0", b"1", listener=plain) as (a, _, _):
        while len(bodies) < 2:
            await turns(1)
        assert all("plain" in name for name in names)
        await advance(0.2)
        assert a.committed(G, "orders", 0) == 2
