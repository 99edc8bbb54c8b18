"""Steps of the clock that stamps records: when the record at a position was stored, by the current setting of the clock.

A record of the same boot as a step is moved by the step: its age is known from the boot clock. For later boots only the sum of the steps of
each boot counts: a sum forward is added, a sum back only to stamps later than the clock showed after the last step.

The list has at most STEPS_MAX steps. Above that one step is removed. This moves records to later times, never to earlier ones, and the step
is chosen whose removal moves them least. A step forward is merged into the one after it, a step back into the one before it:

    steps at 10, 20, 30:    +300 −400 +1000    stamps below 10 are moved by +900, below 20 by +600, below 30 by +1000
    without the first:           −100 +1000    stamps below 20 are moved by +900, below 30 by +1000
    without the second:     −100      +1000    stamps below 10 are moved by +900, below 30 by +1000
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

STEPS_MAX = 256
"""Largest number of steps that are stored."""


class ClockStep(NamedTuple):
    """Records from `position` on are stamped by a clock that was set by `by_ms`, and then showed `after_ms`."""

    position: int
    by_ms: int
    after_ms: int
    since: int
    """Records from here to `position` were stamped in the same boot, so their age is exact. `position` if that is not known."""
    late_ms: int = 0
    """If steps were removed between the previous step and this one: the upper limit by which records there count as stored too late, and by
    which their stamps may fall.
    """


class StampRange(NamedTuple):
    """From the end of the previous range to `end` stamps rise. If steps were removed there, they may fall by at most `fall_ms`."""

    end: int
    fall_ms: int


RISING = (StampRange(sys.maxsize, 0),)
"""All stamps rise."""


class _Boot(NamedTuple):
    since: int
    by_ms: int
    """The sum of its steps."""
    after_ms: int
    """The time that the clock showed after the last of them."""


class ClockSteps:
    """The steps of one log, in order."""

    __slots__ = ("_boots", "_fresh", "_places", "_positions", "kept")

    def __init__(self, steps: Iterable[ClockStep] = ()) -> None:
        self.kept: list[ClockStep] = []
        self._fresh = False
        """Whether the three fields below belong to `kept`."""
        self._positions: list[int] = []
        self._places: list[tuple[int, int]] = []
        """For each step: (index of its boot in `_boots`, sum of it and the later ones of the same boot)."""
        self._boots: list[_Boot] = []
        for step in steps:
            self.add_step(step)

    def add_step(self, step: ClockStep) -> None:
        self.kept.append(step)
        if len(self.kept) > STEPS_MAX:
            self._remove_one()
        self._fresh = False

    def forget_before(self, start: int) -> None:
        """Remove the steps up to `start`: no record is below it any more."""
        self.kept = [step for step in self.kept if step.position > start]
        self._fresh = False

    def true_ms(self, position: int, stamp_ms: int) -> int:
        if not self._fresh:
            self._look_up()
        index = bisect_right(self._positions, position)
        if index == len(self._positions):
            return stamp_ms
        boot, behind_ms = self._places[index]
        if self._boots[boot].since <= position:
            stamp_ms += behind_ms
            boot += 1
        for at in range(boot, len(self._boots)):
            _, by_ms, after_ms = self._boots[at]
            if by_ms > 0 or stamp_ms > after_ms:
                stamp_ms += by_ms
        return stamp_ms

    def rising_ranges(self) -> list[StampRange]:
        """Return the ranges. Each ends where the clock was set back; the last one has no end."""
        found: list[StampRange] = []
        fall_ms = 0
        for step in self.kept:
            fall_ms = max(fall_ms, step.late_ms)
            if step.by_ms < 0:
                found.append(StampRange(step.position, fall_ms))
                fall_ms = 0
        return [*found, StampRange(sys.maxsize, fall_ms)]

    def _look_up(self) -> None:
        self._positions = [step.position for step in self.kept]
        self._places, self._boots = [], []
        for since, group in groupby(self.kept, lambda step: step.since):
            steps = list(group)
            left_ms = total_ms = sum(step.by_ms for step in steps)
            for step in steps:
                self._places.append((len(self._boots), left_ms))
                left_ms -= step.by_ms
            self._boots.append(_Boot(since, total_ms, steps[-1].after_ms))
        self._fresh = True

    def _remove_one(self) -> None:
        """Remove a step, never the newest: new records are exact."""
        steps = self.kept
        self._look_up()
        best: tuple[int, int] | None = None
        before_ms = 0
        for index in range(len(steps) - 1):
            if (late_ms := self._late_without(index)) is not None:
                if not self._has_one_before(index) and steps[index].by_ms < 0 and index:
                    late_ms = max(late_ms, before_ms - steps[index].by_ms)
                best = min(best or (late_ms, index), (late_ms, index))
            before_ms = max(before_ms, steps[index].late_ms)
        assert best is not None, "of three steps one can be removed"
        self._remove(best[1])

    def _remove(self, index: int) -> None:
        steps, late_ms = self.kept, self._late_without(index)
        assert late_ms is not None
        step, following = steps[index], steps[index + 1]
        if step.by_ms >= 0:
            following = following._replace(by_ms=following.by_ms + step.by_ms)
        elif self._has_one_before(index):
            before = steps[index - 1]
            steps[index - 1] = before._replace(by_ms=before.by_ms + step.by_ms, after_ms=step.after_ms)
        else:  # what is before it is of earlier boots
            steps[:index] = [each._replace(late_ms=each.late_ms - step.by_ms) for each in steps[:index]]
        steps[index + 1] = following._replace(late_ms=late_ms)
        del steps[index]

    def _has_one_before(self, index: int) -> bool:
        """Return whether there is an earlier step in the same boot."""
        return index > 0 and self.kept[index - 1].since == self.kept[index].since

    def _late_without(self, index: int) -> int | None:
        """Return by how much records near this step would count as stored too late without it. None if some would count as too early."""
        step, following = self.kept[index], self.kept[index + 1]
        if step.by_ms < 0:
            return max(step.late_ms - step.by_ms, following.late_ms)
        (boot, _), (following_boot, _) = self._places[index : index + 2]
        if boot != following_boot and (self._boots[boot].by_ms < 0 or self._boots[following_boot].by_ms < 0):
            return None
        return max(step.late_ms, step.by_ms + following.late_ms)
