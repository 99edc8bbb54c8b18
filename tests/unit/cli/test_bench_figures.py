"""The benchmark prints the figures that it measured."""

import pytest

from lockstep.cli.bench.figures import latency_figure, percentile, rate_figure
from lockstep.cli.bench.producer import CLOCK, Phases, parser
from lockstep.cli.bench.run import BenchPlan
from lockstep.client import Producer
from lockstep.protocol.errors import LocalProtocolError


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 99, 7),
        ([1, 2], 50, 1),
        ([2, 1], 51, 2),
        ([3, 1, 2], 0, 1),
        (range(1, 101), 99, 99),
        (range(1, 101), 100, 100),
        (range(1, 1001), 99, 990),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(list(values), percent) == expected


def test_percentile_of_no_values_raises() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_rates_are_per_second_and_latencies_are_percentiles() -> None:
    assert rate_figure("send", 100, 500, 250_000).rate == 2_000
    figure = latency_figure("one", 100, [30.0, 10.0, 20.0])
    assert (figure.messages, figure.p50_us, figure.p99_us, figure.rate) == (3, 20.0, 30.0, None)


def test_body_too_small_for_its_timestamp_is_rejected() -> None:
    with pytest.raises(LocalProtocolError, match="at least 20 bytes"):
        BenchPlan(count=100, body_bytes=19, window=1, rate=1, queues=1, ordered=True)


@pytest.mark.parametrize("delay_s", [0, 7_200])
def test_stamped_body_has_the_time_at_which_it_is_due(delay_s: int) -> None:
    options = parser().parse_args(f"paced --nameserver n:1 --topic t --count 1 --bytes 100 --delay-s {delay_s}".split())
    phases = Phases(Producer("bench", nameserver="127.0.0.1:1"), options)
    before_us = CLOCK.monotonic_us()
    body = phases.stamped()
    assert before_us <= int(body[:20]) - delay_s * 1_000_000 <= CLOCK.monotonic_us()
    assert len(body) == 100
