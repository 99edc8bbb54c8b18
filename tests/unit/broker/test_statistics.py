"""The samples from which RocketMQ's tools read rates: what counts, and that it counts from the start."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.broker.classic.statistics import APPEND_RANGES, Statistics, append_ranges
from lockstep.broker.processors.pull import Delivered
from lockstep.protocol.names import SCHEDULE_TOPIC, STATE_TOPIC
from lockstep.runtime.metrics import BUCKETS_US, DurationHistogram
from support.clocks import LoopClock
from support.loops import FrozenLoop

pytestmark = pytest.mark.frozen_clock


class Counts:
    """The totals of a store, of its writer, of a pull processor and of the failed messages."""

    def __init__(self) -> None:
        self.stored = {("orders", 0): (100, 0), ("orders", 1): (20, 0), (SCHEDULE_TOPIC, 2): (7, 0), (STATE_TOPIC, 0): (9, 0)}
        self.delivered: dict[tuple[str, str], Delivered] = {}
        self.found_count = self.empty_count = 0
        self.counts: dict[tuple[str, str], int] = {}
        self.writer = self
        self.append_latency = DurationHistogram()

    def queue_totals(self) -> Iterator[tuple[str, int, int, int]]:
        return ((topic, count, count, size) for (topic, _), (count, size) in list(self.stored.items()))


async def test_rates_and_windows_count_what_users_store_and_receive_since_the_start(frozen: FrozenLoop) -> None:
    counts: Any = Counts()
    statistics = Statistics("shops")
    task = asyncio.create_task(statistics.run(counts, counts, counts, LoopClock()))
    await frozen.advance(1)
    counts.stored |= {("orders", 1): (50, 3_000), (SCHEDULE_TOPIC, 2): (99, 1_000), ("new", 0): (10, 500)}
    counts.delivered = {("orders", "billing"): Delivered(25, 2_500, 0)}
    counts.found_count, counts.empty_count = 5, 2
    counts.counts = {("orders", "billing"): 3}
    counts.append_latency.observe(20_000)
    await frozen.advance(10)
    await frozen.advance(1)  # a window is sampled in each turn
    put, transferred, found, missed = statistics.rates.per_s()
    assert [rates[0] for rates in (put, transferred, found, missed)] == [4.0, 2.5, 0.5, 0.2]
    sums = {}
    for name, key in (("TOPIC_PUT_NUMS", "orders"), ("TOPIC_PUT_SIZE", "orders"), ("TOPIC_PUT_NUMS", "new")):
        sums[name, key] = statistics.windows[name].read(key)
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
        sums[name, "orders@billing"] = statistics.windows[name].read("orders@billing")
    for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
        sums[name, "shops"] = statistics.windows[name].read("shops")
    assert [counted["statsMinute"].sum for counted in sums.values() if counted] == [30, 3_000, 10, 25, 2_500, 3, 40, 25]
    times = statistics.append_times.read("[10~50ms]")
    assert (statistics.put_bytes, times and times["statsMinute"].sum) == (3_500, 1)
    assert statistics.windows["TOPIC_PUT_NUMS"].read(SCHEDULE_TOPIC) is None
    assert statistics.windows["TOPIC_PUT_NUMS"].read(STATE_TOPIC) is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_write_counts_in_the_range_of_its_time_or_in_the_slowest_that_its_bucket_covers() -> None:
    for took_us, name in (
        (1_000, "[<=0ms]"),
        (1_001, "[0~10ms]"),
        (100_000, "[50~100ms]"),
        (150_000, "[200~500ms]"),
        (1_500_000, "[4~5s]"),
    ):
        timing = DurationHistogram()
        timing.observe(took_us)
        assert append_ranges(timing) == {each: int(each == name) for each in APPEND_RANGES}
    timing = DurationHistogram()
    timing.observe(BUCKETS_US[-1] + 1)
    assert append_ranges(timing)["[10s~]"] == 1
    assert timing.max_us == BUCKETS_US[-1] + 1
