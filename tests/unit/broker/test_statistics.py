"""The samples from which RocketMQ's tools read rates: what counts, and that it counts from the start."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.broker.classic.admin_broker import Statistics
from lockstep.broker.processors.pull import Delivered
from lockstep.protocol.names import SCHEDULE_TOPIC, STATE_TOPIC
from support.clocks import LoopClock
from support.loops import FrozenLoop

pytestmark = pytest.mark.frozen_clock


class Counts:
    """The totals of a store and of a pull processor."""

    def __init__(self) -> None:
        self.stored = {("orders", 0): (100, 0), ("orders", 1): (20, 0), (SCHEDULE_TOPIC, 2): (7, 0), (STATE_TOPIC, 0): (9, 0)}
        self.delivered: dict[tuple[str, str], Delivered] = {}
        self.found_count = self.empty_count = 0

    def queue_totals(self) -> Iterator[tuple[str, int, int, int]]:
        return ((topic, count, count, size) for (topic, _), (count, size) in list(self.stored.items()))


async def test_rates_and_windows_count_what_users_store_and_receive_since_the_start(frozen: FrozenLoop) -> None:
    counts: Any = Counts()
    statistics = Statistics()
    task = asyncio.create_task(statistics.run(counts, counts, LoopClock()))
    await frozen.advance(1)
    counts.stored |= {("orders", 1): (50, 3_000), (SCHEDULE_TOPIC, 2): (99, 1_000), ("new", 0): (10, 500)}
    counts.delivered = {("orders", "billing"): Delivered(25, 2_500, 0)}
    counts.found_count, counts.empty_count = 5, 2
    await frozen.advance(10)
    put, transferred, found, missed = statistics.rates.per_s()
    assert [rates[0] for rates in (put, transferred, found, missed)] == [4.0, 2.5, 0.5, 0.2]
    sums = {}
    for name, key in (("TOPIC_PUT_NUMS", "orders"), ("TOPIC_PUT_SIZE", "orders"), ("TOPIC_PUT_NUMS", "new")):
        sums[name, key] = statistics.windows[name].read(key)
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
        sums[name, "orders@billing"] = statistics.windows[name].read("orders@billing")
    assert [counted["statsMinute"].sum for counted in sums.values() if counted] == [30, 3_000, 10, 25, 2_500]
    assert statistics.windows["TOPIC_PUT_NUMS"].read(SCHEDULE_TOPIC) is None
    assert statistics.windows["TOPIC_PUT_NUMS"].read(STATE_TOPIC) is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
