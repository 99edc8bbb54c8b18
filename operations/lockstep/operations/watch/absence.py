"""Brokers that give no figures: why, since when, and for how long the courses of sums wait for them. Pure.

A sum is always over the brokers that respond, and the others are named beside it. In its course, a broker that responded a moment ago and
does not now is a gap, so that its absence is never a fall; after AWAITED_MS the course goes on without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lockstep.operations.brokers.rates import Looks
from lockstep.protocol.bodies import Overview

AWAITED_MS = 30_000


class Why(Enum):
    """Why a broker gives no figures."""

    SILENT = "silent"
    GONE = "gone"
    """It is not registered, and does not respond any more."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A broker without figures."""

    why: Why
    reason: str
    answered_ms: int | None
    """When it last responded, in ms since 1970; None if it has not since the watch began."""


@dataclass(frozen=True, slots=True)
class _Answer:
    at_ms: int
    wall_ms: int
    figures: Overview


class Answers:
    """The last figures of each broker."""

    def __init__(self) -> None:
        self._last: dict[str, _Answer] = {}

    def add(self, looks: Looks, at_ms: int, wall_ms: int) -> None:
        """Add what brokers have responded, at this time by the monotonic clock and by the wall clock. Forget brokers that are not named."""
        last = {name: self._last[name] for name in looks if name in self._last}
        self._last = last | {name: _Answer(at_ms, wall_ms, look) for name, look in looks.items() if isinstance(look, Overview)}

    def within(self, age_ms: int, now_ms: int) -> Mapping[str, Overview]:
        """Return the brokers that have responded within this time, and their last figures."""
        return {name: each.figures for name, each in self._last.items() if now_ms - each.at_ms < age_ms}

    def wall_ms(self, broker: str) -> int | None:
        """Return when the broker last responded, in ms since 1970; None if it has not."""
        return self._last[broker].wall_ms if broker in self._last else None
