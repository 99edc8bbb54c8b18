"""A rebalance is delayed only while several members join."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.consumer.rebalance_delay import CALM_MS, LONGEST_MS, QUIET_MS, RebalanceDelay


@pytest.mark.parametrize("before", [[], [0], [0, 10_000], [0, 400, 900]])
def test_join_after_a_calm_period_rebalances_immediately(before: list[int]) -> None:
    arrivals = RebalanceDelay()
    for now_ms in before:
        arrivals.member_joined(now_ms)
    arrivals.rebalanced()
    arrivals.member_joined((before or [0])[-1] + CALM_MS)
    assert arrivals.due_ms is None


def test_join_soon_after_another_delays_the_rebalance_until_joins_cease() -> None:
    arrivals = RebalanceDelay()
    arrivals.member_joined(0)
    arrivals.member_joined(CALM_MS - 1)
    assert arrivals.due_ms == CALM_MS - 1 + QUIET_MS
    arrivals.member_joined(CALM_MS + 99)
    assert arrivals.due_ms == CALM_MS + 99 + QUIET_MS


def test_rebalance_ends_the_delay() -> None:
    arrivals = RebalanceDelay()
    arrivals.member_joined(0)
    arrivals.member_joined(1)
    arrivals.rebalanced()
    assert arrivals.due_ms is None


@given(st.lists(st.integers(0, 3_000), max_size=60))
def test_rebalance_delay_has_an_upper_limit(steps_ms: list[int]) -> None:
    arrivals, now_ms, waiting_since_ms = RebalanceDelay(), 0, None
    for step_ms in steps_ms:
        now_ms += step_ms
        if arrivals.due_ms is not None and arrivals.due_ms <= now_ms:
            arrivals.rebalanced()
            waiting_since_ms = None
        arrivals.member_joined(now_ms)
        if arrivals.due_ms is not None:
            waiting_since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
            assert arrivals.due_ms <= waiting_since_ms + LONGEST_MS
            assert arrivals.due_ms <= now_ms + QUIET_MS
