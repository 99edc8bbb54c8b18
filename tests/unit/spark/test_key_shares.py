"""The expected rows of each key are computed without the rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import ConfigError
from lockstep.spark.key_shares import KeyShares


def rows_of(deal: KeyShares, rows: int) -> list[tuple[int, int]]:
    """Return (key, seq) of each row, as load_rows makes them in Spark."""
    if not deal.skew:
        return [(row % deal.keys, row // deal.keys) for row in range(rows)]
    made = []
    for row in range(rows):
        cycle, position = divmod(row, deal.length)
        key, rank = deal.positions[position]
        made.append((key, cycle * deal.weights[key] + rank))
    return made


@given(st.integers(1, 30), st.integers(0, 200))
def test_without_skew_each_key_has_an_equal_share(keys: int, rows: int) -> None:
    check(KeyShares(keys), rows)


@pytest.mark.parametrize(("keys", "skew", "rows"), [(1, 1.0, 50), (7, 0.8, 120_000), (100, 1.2, 250_001)])
def test_with_skew_lower_keys_have_larger_shares_and_each_key_at_least_one_row(keys: int, skew: float, rows: int) -> None:
    deal = KeyShares(keys, skew, seed=3)
    check(deal, rows)
    assert list(deal.weights) == sorted(deal.weights, reverse=True)
    assert min(deal.weights) >= 1


def check(deal: KeyShares, rows: int) -> None:
    made = rows_of(deal, rows)
    seen = [0] * deal.keys
    for key, seq in made:
        assert seq == seen[key], "the seq of a key counts its rows from 0"
        seen[key] += 1
    assert seen == deal.counts(rows)


def test_seed_determines_only_the_positions() -> None:
    one, other = KeyShares(10, 1.0, 1), KeyShares(10, 1.0, 2)
    assert one.positions != other.positions
    assert one.positions == KeyShares(10, 1.0, 1).positions
    assert one.weights == other.weights


@pytest.mark.parametrize(("keys", "skew"), [(0, 0.0), (5, -1.0), (100_001, 1.0)])
def test_invalid_shares_are_rejected(keys: int, skew: float) -> None:
    with pytest.raises(ConfigError):
        KeyShares(keys, skew)
