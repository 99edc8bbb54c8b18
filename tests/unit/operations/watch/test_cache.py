"""Answers that are looked at: one request for all who look, and none while nobody does."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lockstep.operations.watch import cache
from lockstep.operations.watch.cache import Cache
from lockstep.protocol.errors import TransportError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host

pytestmark = pytest.mark.simulated


class Source:
    """Counts what it is asked. Each answer takes `takes_s`, or fails with `error`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.takes_s = 0.01
        self.error: TransportError | None = None
        self.tasks = Tasks()
        self.cache = Cache(Host.current().clock, self.tasks, self.ask)

    async def ask(self, key: str) -> int:
        self.asked.append(key)
        number = len(self.asked)
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    source = Source()
    yield source
    await source.tasks.cancel_all()


async def test_all_who_look_at_once_share_one_request(source: Source) -> None:
    answers = await asyncio.gather(*(source.cache.look("a") for _ in range(10)))
    assert {answer.value for answer in answers} == {1}
    assert source.asked == ["a"]


async def test_later_look_gets_the_last_answer_at_once_and_a_newer_one_is_requested(source: Source) -> None:
    await source.cache.look("a")
    await asyncio.sleep(1)
    await source.cache.look("a")
    assert source.asked == ["a"]
    await asyncio.sleep(cache.FRESH_MS / 1000)
    source.takes_s = 60
    assert (await source.cache.look("a")).value == 1
    await asyncio.sleep(0)
    assert source.asked == ["a", "a"]
    assert (await source.cache.look("a")).value == 1
    await asyncio.sleep(60)
    assert source.asked == ["a", "a"]
    assert (await source.cache.look("a")).value == 2


async def test_fresh_look_waits_for_the_request_that_runs_and_not_for_ever(source: Source) -> None:
    await source.cache.look("a")
    assert (await source.cache.look("a", fresh=True)).value == 1
    await asyncio.sleep(3_600)
    assert (await source.cache.look("a", fresh=True)).value == 2
    await asyncio.sleep(3_600)
    source.takes_s = 1_000
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await source.cache.look("a", fresh=True)
    assert (answer.value, answer.request is not None) == (2, True)
    assert loop.time() - began <= cache.FIRST_S + 1


async def test_expensive_answer_is_requested_less_often(source: Source) -> None:
    source.takes_s = 3
    await source.cache.look("a")
    await asyncio.sleep(119)
    await source.cache.look("a")
    assert source.asked == ["a"]
    await asyncio.sleep(2)
    await source.cache.look("a")
    await asyncio.sleep(0)
    assert source.asked == ["a", "a"]


async def test_failure_is_told_and_the_last_value_stays(source: Source) -> None:
    await source.cache.look("a")
    source.error = TransportError("nobody is there")
    await asyncio.sleep(3)
    await source.cache.look("a")
    await asyncio.sleep(3)
    answer = await source.cache.look("a")
    assert (answer.value, str(answer.error)) == (1, "nobody is there")
    source.error = None
    await asyncio.sleep(3)
    await source.cache.look("a")
    await asyncio.sleep(1)
    assert (answer.value, answer.error) == (4, None)


async def test_first_look_does_not_wait_for_ever(source: Source) -> None:
    source.takes_s = 1_000
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await source.cache.look("a")
    assert (answer.value, answer.error) == (None, None)
    assert loop.time() - began <= cache.FIRST_S + 1


async def test_what_nobody_looked_at_for_longest_is_forgotten(source: Source) -> None:
    for number in range(cache.KEPT_MAX):
        await source.cache.look(str(number))
    await source.cache.look("0")
    await source.cache.look("another")
    count = len(source.asked)
    await source.cache.look("0")
    assert len(source.asked) == count
    await source.cache.look("1")
    assert source.asked[count:] == ["1"]


async def test_request_that_took_long_is_repeated_within_half_a_minute(source: Source) -> None:
    """It took long because a server did not respond, perhaps."""
    source.takes_s = cache.FIRST_S / 2
    await source.cache.look("a")
    await asyncio.sleep(cache.LONGEST_MS / 1000 - 1)
    await source.cache.look("a")
    assert source.asked == ["a"]
    await asyncio.sleep(1)
    await source.cache.look("a")
    await asyncio.sleep(0)
    assert source.asked == ["a", "a"]


async def test_page_that_shows_more_than_an_answer_does_not_wait_for_it(source: Source) -> None:
    source.takes_s = 5
    assert (await source.cache.look("a", wait=False)).value is None
    await asyncio.sleep(6)
    assert (await source.cache.look("a", wait=False)).value == 1


async def test_look_says_how_old_an_answer_may_be(source: Source) -> None:
    await source.cache.look("a")
    await asyncio.sleep(59)
    await source.cache.look("a", fresh_ms=60_000)
    assert source.asked == ["a"]
    await asyncio.sleep(2)
    await source.cache.look("a", fresh_ms=60_000)
    await asyncio.sleep(0)
    assert source.asked == ["a", "a"]
