"""A peer can cause at most ten log lines per event and second."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.logs import log_limit
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import EVENTS_MAX, PERIOD_MS, EventLimit, log_limited
from support.until import until


def test_ten_events_of_a_name_pass_per_second_and_the_rest_is_counted() -> None:
    table = EventLimit()
    assert [table.allows("refused", 5) for _ in range(15)] == [True] * 10 + [False] * 5
    assert table.allows("failed", 5), "each name is counted by itself"
    assert table.due_ms() == 1_005
    assert table.pop_ended(1_004) == []
    assert table.pop_ended(1_005) == [("refused", 5)]
    assert table.pop_ended(9_999) == []
    assert table.allows("refused", 1_005)
    assert table.due_ms() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=400))
def test_each_event_passes_or_is_counted_and_any_second_has_at_most_two_periods_of_events(steps: list[tuple[str, int]]) -> None:
    table, now_ms = EventLimit(), 0
    happened, reported, passed = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0), list[tuple[str, int]]()
    for event, later_ms in steps:
        now_ms += later_ms
        for name, count in table.pop_ended(now_ms):
            reported[name] += count
        happened[event] += 1
        if table.allows(event, now_ms):
            passed.append((event, now_ms))
    for name, count in table.pop_ended(now_ms + PERIOD_MS):
        reported[name] += count
    for name in "abc":
        times = [at for event, at in passed if event == name]
        assert len(times) + reported[name] == happened[name]
        for begin in times:
            assert len([at for at in times if begin <= at < begin + PERIOD_MS]) <= 2 * EVENTS_MAX


@pytest.mark.parametrize("make", [new_event_loop, asyncio.new_event_loop], ids=["usual", "asyncio"])
def test_count_of_suppressed_events_is_logged_when_the_second_ends(make: object, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        logger = get_logger("test")
        for number in range(13):
            log_limited(logger, "warning", "peer.odd", number=number)
        await until(lambda: len(caplog.records) > EVENTS_MAX)

    with asyncio.Runner(loop_factory=make) as runner:  # type: ignore[arg-type]
        runner.run(main())
    *lines, last = [record.getMessage() for record in caplog.records]
    assert lines == [f"peer.odd number={number}" for number in range(10)]
    assert last == "events.left_out left_out=peer.odd count=3 period_ms=1000"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_closed_loop_leaves_no_event_limit() -> None:
    async def main() -> None:
        log_limited(get_logger("test"), "info", "peer.odd")

    before = len(log_limit._logs)
    for _ in range(3):
        asyncio.run(main())
    assert len(log_limit._logs) <= before + 1
