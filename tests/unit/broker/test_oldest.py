"""The age of the oldest message that waits: which messages are read for it, and what is remembered of them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.figures.oldest import REMEMBERED_MS, Flow, OldestMessages
from lockstep.broker.store import StoreCorruptError
from lockstep.protocol.errors import SystemBusyError
from support.coordination_kit import TOPIC, Bench, layout

QUEUES = 100
SECOND_MS = 1_000


@dataclass
class Log:
    """A store in whose queues message n was stored at n seconds; each queue may be later by some seconds."""

    now: int = 1_000 * SECOND_MS
    later: dict[int, int] = field(default_factory=dict)
    first: int = 0
    read: list[tuple[int, int]] = field(default_factory=list)
    error: Exception | None = None

    def now_ms(self) -> int:
        return self.now

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.first, 900

    def stored_ms(self, position: int, stamp_ms: int) -> int:
        return stamp_ms

    async def read_or_wait(self, topic: str, queue_id: int, offset: int, count: int, size: int) -> Any:
        self.read.append((queue_id, offset))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(parts=[b"%d" % ((offset + self.later.get(queue_id, 0)) * SECOND_MS)])


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is its stamp."""
    monkeypatch.setattr("lockstep.broker.figures.oldest.RecordView", lambda data: SimpleNamespace(physical_offset=0, store_ms=int(data)))


class Broker:
    def __init__(self) -> None:
        self.log = Log()
        self.bench = Bench(layout(queues=QUEUES))
        self.oldest = OldestMessages(self.log, SimpleNamespace(coordination=self.bench.c))  # type: ignore[arg-type]

    def commit(self, group: str, *offsets: int) -> None:
        """Set the progress in the queues 0, 1, …"""
        for queue_id, offset in enumerate(offsets):
            self.bench.c.legacy.update_offset(99, (group, TOPIC, queue_id), offset, self.bench.now_ms)

    def pass_time(self, ms: int) -> None:
        self.log.now += ms
        self.bench.now_ms += ms

    async def ages(self, looked_up_max: int, *groups: str) -> dict[str, int]:
        """Return group → age in seconds, and note what was read."""
        self.log.read.clear()
        progress = self.bench.c.state.progress
        behind: dict[Flow, int] = {}
        for group in groups:
            count = sum(each.lag(900) > 0 for _, each in progress.progress_in_topic(group, TOPIC))
            behind |= {(TOPIC, group): count} if count else {}
        found = await self.oldest.ages(behind, looked_up_max)
        assert len(self.log.read) <= looked_up_max
        return {group: age_ms // SECOND_MS for (_, group), age_ms in found.items()}


async def test_group_with_many_queues_that_lag_leaves_reads_for_the_others() -> None:
    on = Broker()
    on.commit("a", *range(500, 560))
    on.commit("b", 700)
    on.commit("c", 800, 600)
    assert await on.ages(50, "a", "b", "c") == {"a": 500, "b": 300, "c": 400}


async def test_flows_above_the_limit_take_turns_and_are_remembered_for_a_while() -> None:
    """Their queues move all the time."""
    on = Broker()
    groups = [f"g{number}" for number in range(10)]
    known: list[int] = []
    for turn in range(5):
        for group in groups:
            on.commit(group, 100 + turn)
        known.append(len(await on.ages(4, *groups)))
        on.pass_time(5 * SECOND_MS)
    assert known == [4, 8, 10, 10, 10]
    on.pass_time(REMEMBERED_MS)
    for group in groups:
        on.commit(group, 500)
    assert len(await on.ages(4, *groups)) == 4, "the others are too old"


async def test_queue_that_stands_is_read_once_and_grows_older() -> None:
    on = Broker()
    on.commit("a", *range(500, 520))
    assert await on.ages(5, "a") == {"a": 500}
    for _ in range(3):
        await on.ages(5, "a")
    on.pass_time(60 * SECOND_MS)
    assert await on.ages(5, "a") == {"a": 560}
    assert on.log.read == [], "all 20 were read before"


async def test_queue_that_stands_is_found_among_busy_ones_with_more_lag() -> None:
    on = Broker()
    on.log.later = dict.fromkeys(range(1, 41), 850)  # their messages are younger, though they have more of them
    on.commit("a", 890)
    for turn in range(3):
        on.pass_time(SECOND_MS)
        for queue_id in range(1, 41):
            on.bench.c.legacy.update_offset(99, ("a", TOPIC, queue_id), 100 + turn, on.bench.now_ms)
        found = await on.ages(1, "a")
    assert found == {"a": 113}


async def test_flow_without_lag_is_forgotten_and_retention_begins_at_the_first_message() -> None:
    on = Broker()
    on.commit("a", 100)
    on.log.first = 300
    assert await on.ages(5, "a") == {"a": 700}
    on.commit("a", 900)
    assert await on.ages(5, "a") == {}
    assert on.oldest._flows == {}


@pytest.mark.parametrize("error", [OSError(5, "read"), StoreCorruptError("damaged"), SystemBusyError("busy")])
async def test_message_that_cannot_be_read_has_no_age(error: Exception) -> None:
    on = Broker()
    on.commit("a", 100)
    on.log.error = error
    assert await on.ages(5, "a") == {}
    on.log.error = None
    assert await on.ages(5, "a") == {"a": 900}


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(0, 900), min_size=1, max_size=12), max_size=6), st.integers(0, 30))
async def test_ages_are_exact_with_enough_reads_and_never_too_high_with_fewer(offsets: dict[str, list[int]], spare: int) -> None:
    on = Broker()
    for group, each in offsets.items():
        on.commit(group, *each)
    exact = {group: 1_000 - min(each) for group, each in offsets.items() if min(each) < 900}
    lagging = sum(offset < 900 for each in offsets.values() for offset in each)
    few = await on.ages(max(1, lagging // 3), *offsets)
    assert all(age <= exact[group] for group, age in few.items())
    assert await on.ages(lagging + spare, *offsets) == exact
