"""The laws of a token bucket: never more than its rate and one second's worth, nothing lost, and the wait that it tells is exact."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.security.token_bucket import TokenBucket

RATES = st.integers(1, 10_000_000)
STEPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 20_000_000)), max_size=60)
"""(time that passes in ms, size of a use)"""


@given(RATES, STEPS)
def test_uses_of_any_time_are_at_most_those_of_the_rate_a_second_more_and_the_last_one(rate: int, steps: list[tuple[int, int]]) -> None:
    now, uses = 7, list[tuple[int, int]]()
    bucket = TokenBucket(rate, now)
    for passed, size in steps:
        now += passed
        if not bucket.wait_ms(now):
            bucket.take(size, now)
            uses.append((now, size))
    for first in range(len(uses)):
        for last in range(first, len(uses)):
            took_ms = uses[last][0] - uses[first][0]
            assert sum(size for _, size in uses[first:last]) * 1000 <= rate * (took_ms + 1000)


@given(RATES, STEPS)
def test_wait_is_over_exactly_when_it_says_and_nothing_is_lost_to_its_looks(rate: int, steps: list[tuple[int, int]]) -> None:
    now = 7
    bucket, other = TokenBucket(rate, now), TokenBucket(rate, now)
    for passed, size in steps:
        for each in range(passed % 5):
            bucket.wait_ms(now + each)
        now += passed
        assert bucket.wait_ms(now) == other.wait_ms(now), "an earlier time, and looks in between, change nothing"
        bucket.take(size, now)
        other.take(size, now)
        wait_ms = bucket.wait_ms(now)
        if wait_ms:
            assert bucket.wait_ms(now + wait_ms - 1) == 1
            assert bucket.wait_ms(now + wait_ms) == 0
            now += wait_ms
            other.wait_ms(now)


def test_other_rate_holds_from_its_beginning_and_a_debt_is_paid_at_it() -> None:
    bucket = TokenBucket(100, 0)
    bucket.take(600, 0)
    assert bucket.wait_ms(0) == 5_001
    bucket.change_rate(1_000, 1_000)
    assert bucket.wait_ms(1_000) == 401
    bucket.change_rate(10, 100_000)
    bucket.take(10, 100_000)
    assert bucket.wait_ms(100_000) == 1, "it holds a second's worth of the lower rate"
