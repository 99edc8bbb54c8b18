"""Rates and totals of days, from samples."""

from lockstep.broker.classic.rates import DAY_MS, Rates, Totals


def sampled(*puts: int, step_ms: int = 10_002, began_ms: int = 5_000) -> Rates:
    """Return rates with a sample every `step_ms`: timers are a little late."""
    rates = Rates()
    rates.begin(began_ms, 0)
    for number, put in enumerate(puts, 1):
        rates.add(began_ms + number * step_ms, number * step_ms, Totals(put, 2 * put, 3, 4))
    return rates


def test_rates_are_those_of_the_last_10_60_and_600_seconds() -> None:
    puts = [100 * number for number in range(1, 101)] + [20_000]
    put, transferred, found, missed = sampled(*puts, step_ms=10_000).per_s()
    assert put == (1_000.0, (20_000 - 9_500) / 60, (20_000 - 4_100) / 600)
    assert transferred == tuple(2 * rate for rate in put)
    assert (found, missed) == ((0.0,) * 3, (0.0,) * 3)


def test_period_that_is_longer_than_the_time_since_the_start_counts_as_that_time() -> None:
    put, *_ = sampled(100, 400, step_ms=10_000).per_s()
    assert put == (30.0, 20.0, 20.0)


def test_late_samples_are_still_neighbours() -> None:
    put, *_ = sampled(100, 400).per_s()
    assert put[0] == 300 / 10.002


def test_rates_are_zero_without_samples() -> None:
    assert Rates().per_s() == (((0.0,) * 3),) * 4


def test_only_ten_minutes_of_samples_are_kept() -> None:
    assert len(sampled(*range(1_000))._samples) <= 62


def test_totals_of_mornings_move_with_each_day() -> None:
    rates = Rates()
    rates.begin(0, DAY_MS - 15_000)
    for number, put in enumerate((10, 20, 30), 1):
        rates.add(number * 10_000, DAY_MS - 15_000 + number * 10_000, Totals(put))
    assert (rates.yesterday_morning.put, rates.this_morning.put, rates.newest.put) == (0, 10, 30)
    rates.add(DAY_MS, 2 * DAY_MS, Totals(70))
    assert (rates.yesterday_morning.put, rates.this_morning.put, rates.newest.put) == (10, 30, 70)
    rates.add(5 * DAY_MS, 6 * DAY_MS, Totals(80))
    assert (rates.yesterday_morning.put, rates.this_morning.put) == (70, 70), "it was suspended for days"
