"""How long a broker's appends to its log took: counts in the buckets of a histogram (BUCKETS_US), and their quantiles. Pure."""

from collections.abc import Sequence
from itertools import accumulate

from lockstep.runtime.metrics import BUCKETS_US

BUCKETS = len(BUCKETS_US) + 1
"""The last one is above the highest bound."""


def counted(before: Sequence[int], now: Sequence[int]) -> list[int] | None:
    """Return the difference of two states of a histogram; None if they are not of these buckets, or the counts have fallen."""
    if len(before) != BUCKETS or len(now) != BUCKETS:
        return None
    counts = [later - earlier for earlier, later in zip(before, now, strict=True)]
    return None if min(counts) < 0 else counts


def quantile(counts: Sequence[int], percent: int) -> int | None:
    """Return the bucket up to which `percent` of 100 are counted; None if nothing is."""
    whole = sum(counts)
    return next((index for index, reached in enumerate(accumulate(counts)) if whole and reached * 100 >= whole * percent), None)


def bound_name(bucket: int | None) -> str | None:
    """Return the bound of a bucket: "≤ 200 µs", "> 5 s" for the last one, None without a bucket."""
    if bucket is None:
        return None
    bound_us = BUCKETS_US[min(bucket, len(BUCKETS_US) - 1)]
    text = f"{bound_us} µs" if bound_us < 1_000 else f"{bound_us // 1_000} ms" if bound_us < 1_000_000 else f"{bound_us // 1_000_000} s"
    return ("≤ " if bucket < len(BUCKETS_US) else "> ") + text
