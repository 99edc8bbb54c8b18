"""The end of many sends takes a share of each loop turn: as long as everything else takes, between SHARE_US_MIN and SHARE_US_MAX."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from lockstep.client.producer.pacing.ends import OWN_US_MIN, Ends
from lockstep.client.producer.pacing.turn_share import SHARE_US_MAX, SHARE_US_MIN, share_us
from support.clocks import WorkClock
from support.loops import turns

STEP_US = 10


def nothing() -> None: ...


def steps(count: int, done: list[str], name: str = "", wakes: Callable[[], None] = nothing) -> Iterator[None]:
    """End `count` sends, each of which wakes a task."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        done.append(name)
        loop.call_soon(wakes)
        yield


async def counts(done: list[str], total: int) -> list[int]:
    """Return how many ended in each turn."""
    ended = [len(done)]
    while len(done) < total:
        before = len(done)
        await turns(1)
        ended.append(len(done) - before)
    return ended


@pytest.mark.parametrize(
    ("others_us", "share"),
    [
        (0, SHARE_US_MIN),
        (SHARE_US_MIN - 1, SHARE_US_MIN),
        (SHARE_US_MIN, SHARE_US_MIN),
        (SHARE_US_MIN + 1, SHARE_US_MIN + 1),
        (SHARE_US_MAX - 1, SHARE_US_MAX - 1),
        (SHARE_US_MAX, SHARE_US_MAX),
        (SHARE_US_MAX + 1, SHARE_US_MAX),
    ],
)
def test_share_is_the_time_of_everything_else_within_its_bounds(others_us: int, share: int) -> None:
    assert share_us(others_us) == share


async def test_a_turn_of_an_idle_loop_ends_as_many_sends_as_the_least_share_has_time_for() -> None:
    done: list[str] = []
    Ends(WorkClock(STEP_US)).add(steps(5_000, done))
    ended = await counts(done, 5_000)
    assert len(ended) >= 5
    assert all(1 <= count <= SHARE_US_MIN // STEP_US for count in ended[:-1])


async def test_several_calls_of_one_turn_have_one_share() -> None:
    done: list[str] = []
    ends = Ends(WorkClock(STEP_US))
    for _ in range(50):
        ends.add(steps(100, done))
    assert len(done) <= SHARE_US_MIN // STEP_US
    await counts(done, 5_000)


@pytest.mark.parametrize(("app_us", "turns_max"), [(SHARE_US_MAX, 5), (SHARE_US_MAX // 2, 8), (10 * SHARE_US_MAX, 5)])
async def test_ends_take_as_long_as_an_application_that_keeps_the_loop(app_us: int, turns_max: int) -> None:
    """20,000 sends take 200 ms. With a fixed share, or a fixed number in each turn, their ends would be delayed by many of its turns."""
    clock, loop, done = WorkClock(STEP_US), asyncio.get_running_loop(), list[str]()

    def application() -> None:
        clock.worked_us += app_us
        if len(done) < 20_000:
            loop.call_soon(application)

    application()
    Ends(clock).add(steps(20_000, done))
    ended = await counts(done, 20_000)
    assert len(ended) <= turns_max
    assert max(ended) <= SHARE_US_MAX // STEP_US


@pytest.mark.parametrize("woken_us", [20, 90, 990])
async def test_the_tasks_that_ended_sends_wake_count_too(woken_us: int) -> None:
    clock, done = WorkClock(STEP_US), list[str]()

    def runs() -> None:
        clock.worked_us += woken_us

    Ends(clock).add(steps(5_000, done, "", runs))
    first, *others = await counts(done, 5_000)
    least = OWN_US_MIN // STEP_US
    assert first <= SHARE_US_MIN // STEP_US
    assert max(others) <= max(least, SHARE_US_MIN // (STEP_US + woken_us) + 1)


async def test_what_is_past_its_deadline_ends_before_the_rest_of_what_began_earlier() -> None:
    done: list[str] = []
    ends = Ends(WorkClock(STEP_US))
    ends.add(steps(3_000, done, "other"))
    begun = len(done)
    ends.add(steps(100, done, "last"))
    ends.add(steps(100, done, "late"), first=True)
    await counts(done, 3_200)
    assert done == ["other"] * begun + ["late"] * 100 + ["other"] * (3_000 - begun) + ["last"] * 100
