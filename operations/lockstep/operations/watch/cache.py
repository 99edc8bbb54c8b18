"""Cached results for pages that are refreshed: the last one is returned at once, and a look at an old one requests a newer one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.protocol.errors import LockstepError, without_frames
from lockstep.runtime.clock import Clock
from lockstep.runtime.daemon import Tasks

K = TypeVar("K")
V = TypeVar("V")

FRESH_MS = 2_000
"""The age in milliseconds from which a look repeats the request."""
COST_FACTOR = 40
"""The time between two requests is at least this many times what the last one took: the queues of a group with 10,000 of them cost the
brokers a tenth of a second or more."""
LONGEST_MS = 30_000
"""That time is not longer than this: a request also takes long while a server does not respond."""
FIRST_S = 10.0
"""How long the first look waits."""
KEPT_MAX = 64


@dataclass(slots=True)
class CachedResult(Generic[V]):
    """The last result of one request."""

    value: V | None = None
    error: LockstepError | None = None
    """Why the last request failed; `value` is that of the last one that did not."""
    at_ms: int = 0
    """When the last request ended, by the monotonic clock."""
    read_ms: int | None = None
    """When the request for `value` began, in ms since 1970; None without a value."""
    took_ms: int = 0
    request: "asyncio.Task[None] | None" = None


class Cache(Generic[K, V]):
    """Question → its last answer. `ask` is called for a question at most once at a time, however many look at the answer."""

    def __init__(self, clock: Clock, tasks: Tasks, ask: Callable[[K], Awaitable[V]], *, cost_factor: int = COST_FACTOR) -> None:
        self._clock = clock
        self._tasks = tasks
        self._ask = ask
        self._cost_factor = cost_factor
        self._answers: dict[K, CachedResult[V]] = {}
        """The one that was looked at last is the last."""

    async def look(self, key: K, *, fresh: bool = False, wait: bool = True, fresh_ms: int = FRESH_MS) -> CachedResult[V]:
        """Return the last answer, at once if there is one. The first look waits for it, for at most FIRST_S.

        `fresh`: every look waits like that for the request that is running then, if one is. For a program, which asks once. Without `wait`
        no look waits, for a page that shows more than this. An answer older than `fresh_ms` is requested again.
        """
        answer = self._answers.pop(key, None) or CachedResult()
        self._answers[key] = answer
        while len(self._answers) > KEPT_MAX:
            del self._answers[next(iter(self._answers))]
        now_ms = self._clock.monotonic_ms()
        is_first = answer.value is None and answer.error is None
        if answer.request is None and (is_first or now_ms - answer.at_ms >= max(fresh_ms, self._pause_ms(answer.took_ms))):
            answer.request = self._tasks.spawn(self._refresh(key, answer, now_ms), f"look at {key}")
        if wait and (is_first or fresh) and answer.request is not None:
            await asyncio.wait([answer.request], timeout=FIRST_S)
        return answer

    async def _refresh(self, key: K, answer: CachedResult[V], began_ms: int) -> None:
        wall_ms = self._clock.wall_ms()
        try:
            answer.value, answer.error = await self._ask(key), None
            answer.read_ms = wall_ms
        except LockstepError as error:
            answer.error = without_frames(error)
        finally:
            answer.at_ms = self._clock.monotonic_ms()
            answer.took_ms = answer.at_ms - began_ms
            answer.request = None

    def _pause_ms(self, took_ms: int) -> int:
        """Return the time to the next request after one that took so long."""
        return min(max(FRESH_MS, self._cost_factor * took_ms), LONGEST_MS)
