"""Ends many sends, and admits many that wait, however many there are: each turn of the loop has time for some."""

import asyncio
from collections import deque
from collections.abc import Iterator

from lockstep.client.producer.pacing.turn_share import share_us
from lockstep.runtime.clock import Clock

OWN_US_MIN = 1_000
"""The steps of one turn take at least so long themselves, however long the tasks that they woke took the last time."""


class Ends:
    """Runs iterators of which each step ends or admits at most one send of the producer.

    A step wakes the caller's task, which runs in the next turn and usually takes longer than the step. So its time counts too: it is
    measured from a callback that is scheduled before the steps of a turn to one that is scheduled after them.
    """

    __slots__ = (
        "_ended_us",
        "_factor",
        "_handle",
        "_limit_us",
        "_loop",
        "_marked",
        "_marked_us",
        "_now_us",
        "_pending",
        "_running",
        "_took_us",
    )

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_us = clock.monotonic_us
        self._pending: deque[Iterator[None]] = deque()
        self._handle: asyncio.Handle | None = None
        """Continues in the next turn."""
        self._running = False
        self._marked = False
        """Steps have run in this turn, and `_mark` is scheduled."""
        self._marked_us = 0
        """When the tasks that the last turn's steps woke began to run."""
        self._took_us = 0
        """How long the steps of this turn took."""
        self._ended_us = 0
        """When the last of them ended."""
        self._factor = 1.0
        """How long the steps of a turn and what they woke took, in times of the steps alone."""
        self._limit_us = 0.0
        """How long the steps of this turn may take."""

    def add(self, steps: Iterator[None], *, first: bool = False) -> None:
        """Run these steps after all that were added before, or before them: now, as far as this turn has time for them."""
        (self._pending.appendleft if first else self._pending.append)(steps)
        if self._handle is None and not self._running:
            self._run()

    def _run(self) -> None:
        begun_us = self._now_us()
        if not self._marked:
            self._begin_turn(begun_us)
        self._handle = None
        self._running = True
        end_us = begun_us + self._limit_us - self._took_us
        try:
            while self._pending:
                steps = self._pending[0]
                if next(steps, self) is self:
                    self._pending.remove(steps)
                elif self._now_us() >= end_us:
                    break
        finally:
            self._running = False
            self._ended_us = self._now_us()
            self._took_us += self._ended_us - begun_us
            if self._pending:
                self._handle = self._loop.call_soon(self._run)

    def _begin_turn(self, now_us: int) -> None:
        others_us = 0
        if self._handle is not None:
            others_us = self._marked_us - self._ended_us
            self._factor = 1 + (now_us - self._marked_us) / max(1, self._took_us)
        self._limit_us = max(share_us(others_us) / self._factor, OWN_US_MIN)
        self._took_us = 0
        self._marked = True
        self._loop.call_soon(self._mark)

    def _mark(self) -> None:
        self._marked = False
        self._marked_us = self._now_us()
