"""What the broker counts for RocketMQ's tools, by samples every 10 s. RocketMQ: BrokerStatsManager, StoreStatsService."""

import asyncio
import sys
from collections import Counter

from lockstep.broker.classic.rates import SAMPLE_MS, Rates, Totals
from lockstep.broker.classic.windows import STEP_S, Windows
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.store import Store
from lockstep.protocol.names import is_system_topic
from lockstep.runtime.clock import Clock
from lockstep.runtime.metrics import DurationHistogram, Slices

TOPIC_PUT_SIZE, BROKER_PUT_NUMS, BROKER_GET_NUMS = "TOPIC_PUT_SIZE", "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
STATISTICS = ("TOPIC_PUT_NUMS", TOPIC_PUT_SIZE, "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", BROKER_PUT_NUMS, BROKER_GET_NUMS)
"""RocketMQ's names of the statistics that this broker has."""
APPEND_RANGES = {
    "[<=0ms]": 1_000,
    "[0~10ms]": 10_000,
    "[10~50ms]": 50_000,
    "[50~100ms]": 100_000,
    "[100~200ms]": 200_000,
    "[200~500ms]": 500_000,
    "[500ms~1s]": 1_000_000,
    "[1~2s]": 2_000_000,
    "[2~3s]": 3_000_000,
    "[3~4s]": 4_000_000,
    "[4~5s]": 5_000_000,
    "[5~10s]": 10_000_000,
    "[10s~]": sys.maxsize,
}
"""RocketMQ's ranges for the time that a write took → the upper bound in µs."""


def append_ranges(latency: DurationHistogram) -> dict[str, int]:
    """Return the counts by RocketMQ's ranges. A bucket that covers several of them counts in the slowest."""
    counts = dict.fromkeys(APPEND_RANGES, 0)
    for bound_us, count in zip((*latency.bounds, sys.maxsize), latency.counts, strict=True):
        counts[next(name for name, upper_us in APPEND_RANGES.items() if bound_us <= upper_us)] += count
    return counts


class Statistics:
    """Samples of what was stored, delivered and sent back since the start: by the broker, of each topic, of each group in a topic."""

    def __init__(self, cluster: str) -> None:
        """RocketMQ names the whole broker by its `cluster`."""
        self._cluster = cluster
        self.rates = Rates()
        self.windows = {name: Windows() for name in STATISTICS}
        """RocketMQ's names of statistics → topic, TOPIC@GROUP, or cluster, → counts."""
        self.append_times = Windows()
        """Writes of the log, by the range that RocketMQ has for the time that they took."""
        self.put_bytes = 0
        """Bytes of the messages stored since the start, at the last sample."""

    async def run(self, store: Store, pulls: PullProcessor, failed: FailedMessages, clock: Clock) -> None:
        """Sample every SAMPLE_MS, for ever."""
        before = await self._read_counts(store, pulls, failed)
        for name, windows in self.windows.items():
            windows.begin(before[name])
        self.append_times.begin(append_ranges(store.writer.append_latency))
        stored_before = before[BROKER_PUT_NUMS][self._cluster]
        self.rates.begin(clock.monotonic_ms(), clock.wall_ms())
        while True:
            await asyncio.sleep(SAMPLE_MS / 1000)
            counts = await self._read_counts(store, pulls, failed)
            put, transferred = counts[BROKER_PUT_NUMS][self._cluster], counts[BROKER_GET_NUMS][self._cluster]
            self.put_bytes = sum(counts[TOPIC_PUT_SIZE].values())
            totals = Totals(put - stored_before, transferred, pulls.found_count, pulls.empty_count)
            self.rates.add(clock.monotonic_ms(), clock.wall_ms(), totals)
            self.append_times.add(append_ranges(store.writer.append_latency))
            for name, windows in self.windows.items():
                windows.add(counts[name])
                await asyncio.sleep(0)

    async def _read_counts(self, store: Store, pulls: PullProcessor, failed: FailedMessages) -> dict[str, Counter[str]]:
        """Return the totals by the names of STATISTICS."""
        messages, sizes, got, got_sizes, sent_back = (Counter[str]() for _ in range(5))
        slices = Slices()
        for topic, count, _, size in store.queue_totals():
            await slices.step()
            if not is_system_topic(topic):
                messages[topic] += count
                sizes[topic] += size
        for (topic, group), given in list(pulls.delivered.items()):
            await slices.step()
            got[f"{topic}@{group}"], got_sizes[f"{topic}@{group}"] = given.messages, given.size
        for (topic, group), times in list(failed.counts.items()):
            await slices.step()
            sent_back[f"{topic}@{group}"] = times
        whole = (Counter({self._cluster: sum(counts.values())}) for counts in (messages, got))
        return dict(zip(STATISTICS, (messages, sizes, got, got_sizes, sent_back, *whole), strict=True))


assert SAMPLE_MS == STEP_S * 1_000
