"""Results of a listener, and its context."""

import functools
import json
from collections.abc import Sequence

import pytest

from lockstep.client.consumer.calls.listener import (
    STEPS,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Fence,
    OrderlyContext,
    QueueAction,
    check_listener,
    is_async,
    listener_name,
    read_call,
    read_concurrent_call,
)
from lockstep.client.consumer.calls.retry import Backoff, OrderedRetry, clamp_suspend_ms
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.protocol.bodies import ConsumeFromWhere, MessageModel
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue

S = ConsumeOrderlyStatus
SUSPEND = S.SUSPEND_CURRENT_QUEUE_A_MOMENT
FENCE = Fence("g", "t", "broker-a", 3, (12 << 32) + 7, (12 << 32) + 5)


def context(lapsed: bool = False) -> OrderlyContext:
    return OrderlyContext(MessageQueue("t", "broker-a", 3), FENCE, 0, lambda: lapsed)


@pytest.mark.parametrize(
    ("auto_commit", "status", "step"),
    [
        (True, S.SUCCESS, QueueAction.COMMIT),
        (True, S.COMMIT, QueueAction.COMMIT),
        (True, S.ROLLBACK, QueueAction.COMMIT),
        (True, SUSPEND, QueueAction.PUT_BACK),
        (False, S.SUCCESS, QueueAction.KEEP),
        (False, S.COMMIT, QueueAction.COMMIT),
        (False, S.ROLLBACK, QueueAction.ROLL_BACK),
        (False, SUSPEND, QueueAction.PUT_BACK),
    ],
)
def test_result_actions_of_auto_and_manual_commit_equal_rocketmqs(auto_commit: bool, status: S, step: QueueAction) -> None:
    assert STEPS[auto_commit, status] is step


def test_action_table_covers_every_status() -> None:
    assert len(STEPS) == 2 * len(S)


@pytest.mark.parametrize("wrong", [42, lambda: None, lambda messages: None, lambda messages, context, more: None])
def test_listener_must_accept_messages_and_context(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"a function of \(messages, context\)"):
        check_listener(wrong)


@pytest.mark.parametrize("fine", [lambda m, c: None, lambda *both: None, lambda m, c, more=1: None, functools.partial(max, 1), divmod])
def test_any_callable_with_two_positional_arguments_is_a_valid_listener(fine: object) -> None:
    check_listener(fine)


def concurrent() -> ConcurrentlyContext:
    return ConcurrentlyContext(MessageQueue("t", "broker-a", 3), 1, lambda: False)


@pytest.mark.parametrize("wrong", ["SUCCESS", 0, True, object(), ConsumeConcurrentlyStatus.CONSUME_SUCCESS])
def test_invalid_listener_result_fails_the_batch_with_an_error_that_shows_it(wrong: object) -> None:
    status, why = read_call(context(), wrong, None)
    assert status is SUSPEND
    assert isinstance(why, str)
    assert repr(wrong)[:20] in why
    assert "expected None or a ConsumeOrderlyStatus" in why
    assert read_concurrent_call(concurrent(), S.SUCCESS, None) == (
        ConsumeConcurrentlyStatus.RECONSUME_LATER,
        f"the listener returned {S.SUCCESS!r}, expected None or a ConsumeConcurrentlyStatus",
    )


def test_listener_result_none_means_success() -> None:
    assert read_call(context(), None, None) == (S.SUCCESS, None)
    assert read_concurrent_call(concurrent(), None, None) == (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None)


def test_error_of_a_listener_counts_whatever_its_context_says() -> None:
    error, ordered = ValueError("no"), context()
    ordered.auto_commit = 2  # type: ignore[assignment]
    assert read_call(ordered, None, error) == (SUSPEND, error)
    assert read_concurrent_call(concurrent(), None, error) == (ConsumeConcurrentlyStatus.RECONSUME_LATER, error)


@pytest.mark.parametrize("wrong", [1, 0, None, "no"])
def test_auto_commit_is_a_bool_and_ack_index_an_int_or_the_call_has_failed(wrong: object) -> None:
    """Otherwise a listener that acknowledges a part of its batch would acknowledge all of it."""
    ordered, other = context(), concurrent()
    ordered.auto_commit = wrong  # type: ignore[assignment]
    other.ack_index = float("nan") if isinstance(wrong, int) else wrong  # type: ignore[assignment]
    expected = f"the listener set auto_commit to {wrong!r}, expected True or False"
    assert read_call(ordered, S.SUCCESS, None) == (SUSPEND, expected)
    expected = f"the listener set ack_index to {other.ack_index!r}, expected an int"
    assert read_concurrent_call(other, None, None) == (ConsumeConcurrentlyStatus.RECONSUME_LATER, expected)


def test_coroutine_as_listener_result_is_invalid_and_emits_no_warning() -> None:
    async def inner() -> None: ...

    status, why = read_call(context(), inner(), None)
    assert status is SUSPEND
    assert isinstance(why, str)
    assert "async def" in why


def test_status_result_is_returned_unchanged() -> None:
    assert [read_call(context(), status, None) for status in S] == [(status, None) for status in S]


def test_fence_is_immutable_and_its_numbers_are_strings_in_json() -> None:
    numbers = {"queue": 3, "epoch": str((12 << 32) + 7), "generation": str((12 << 32) + 5)}
    assert json.loads(FENCE.to_json()) == {"group": "g", "topic": "t", "broker": "broker-a", **numbers}
    with pytest.raises(AttributeError):
        FENCE.epoch = 1  # type: ignore[misc]


def test_cancelled_stays_set_once_observed() -> None:
    late = [False]
    call = OrderlyContext(MessageQueue("t", "broker-a", 3), FENCE, 0, lambda: late[0])
    assert not call.cancelled.is_set()
    late[0] = True
    assert call.cancelled.is_set()
    late[0] = False
    assert call.cancelled.is_set()
    assert bool(call.cancelled)


async def test_cancel_wakes_waiters_of_cancelled() -> None:
    call = context()
    waiting = call.cancelled.wait()
    waiting.send(None)  # type: ignore[attr-defined]
    call.cancel()
    with pytest.raises(StopIteration):
        waiting.send(None)  # type: ignore[attr-defined]
    assert await call.cancelled.wait()


def test_is_async_detects_partials_and_callable_objects() -> None:
    async def async_(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        return S.SUCCESS

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        return S.SUCCESS

    class Both:
        async def __call__(self, messages: Sequence[MessageExt], context: OrderlyContext) -> S:
            return S.SUCCESS

    assert is_async(async_)
    assert is_async(functools.partial(async_))
    assert is_async(Both())
    assert not is_async(plain)
    assert listener_name(plain).endswith("plain")
    assert listener_name(Both()).endswith("Both")


@pytest.mark.parametrize(("given", "used"), [(-1, 10), (9, 10), (10, 10), (29_999, 29_999), (30_000, 30_000), (30_001, 30_000)])
def test_suspend_time_is_clamped_to_10_ms_and_30_s(given: int, used: int) -> None:
    assert clamp_suspend_ms(given) == used


def test_backoff_doubles_from_1_s_to_30_s() -> None:
    assert [Backoff().pause_ms(attempts) for attempts in (1, 2, 3, 5, 6, 1_000_000)] == [1_000, 2_000, 4_000, 16_000, 30_000, 30_000]


def test_blocked_queue_with_unlimited_attempts_is_reported_at_3_and_each_doubling() -> None:
    retry = OrderedRetry()
    assert [attempts for attempts in range(1, 50) if retry.reports_blocked(attempts)] == [3, 6, 12, 24, 48]
    assert not retry.exhausted(1_000_000)


def test_limited_attempts_report_blocked_when_exhausted() -> None:
    retry = OrderedRetry(max_attempts=2)
    assert [retry.reports_blocked(attempts) for attempts in (1, 2, 3)] == [False, True, True]
    assert [retry.exhausted(attempts) for attempts in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_count": 0},
        {"batch_count": 1_025},
        {"queue_count_max": 0},
        {"pull_bytes": (1 << 20) + 1},
        {"suspend_current_queue_time_ms": 9},
        {"commit": "sometimes"},
        {"consume_from_where": ConsumeFromWhere.TIMESTAMP},
        {"message_model": MessageModel.BROADCASTING, "retry": OrderedRetry(max_attempts=1, on_exhausted="dlq")},
        {"offset_dir": ""},
        {"instance_name": "../x"},
        {"instance_name": ".hidden"},
        {"instance_name": ""},
        {"allocate": "by_moon"},
        {"consume_from_where": "FIRST_OFFSET"},
        {"message_model": "BROADCASTING"},
        {"retry": 5},
    ],
)
def test_error_for_an_invalid_consumer_setting_names_it(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=list(wrong)[-1]):
        ConsumerConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda: OrderedRetry(max_attempts=0),
        lambda: OrderedRetry(on_exhausted="dlq"),
        lambda: Backoff(factor=0.5),
        lambda: Backoff(factor=1e6),
    ],
)  # type: ignore[arg-type]
def test_invalid_retry_policy_is_rejected(build: object) -> None:
    with pytest.raises(ConfigError):
        build()  # type: ignore[operator]
