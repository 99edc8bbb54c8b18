"""How far a search has come, at all brokers together, as lines on stderr."""

import sys
from dataclasses import dataclass

from lockstep.admin.render import format_bytes, format_duration
from lockstep.runtime.clock import Clock

FIRST_MS = 2_000
"""A shorter search prints nothing."""
EVERY_MS = 10_000
EVERY_TERMINAL_MS = 500
"""On a terminal the line is written over the one before."""


@dataclass(slots=True)
class Part:
    """What one broker, or one queue, has searched."""

    done: int = 0
    left: int = 0


class SearchProgress:
    """Counts bytes of logs or messages, and for a command prints the rate and the time left while a search lasts."""

    def __init__(self, clock: Clock, unit: str = "bytes", *, printed: bool = False) -> None:
        """`unit`: what is counted. `printed`: whether there are lines on stderr."""
        self._clock = clock
        self._printed = printed
        self.unit = unit
        self._parts: dict[str, Part] = {}
        self._began_ms = clock.monotonic_ms()
        self._terminal = sys.stderr.isatty()
        self._next_ms = self._began_ms + FIRST_MS
        self._width = 0
        """Characters of the line on the terminal."""

    @property
    def done(self) -> int:
        return sum(part.done for part in self._parts.values())

    @property
    def total(self) -> int:
        return sum(part.done + part.left for part in self._parts.values())

    def update(self, name: str, done: int, left: int) -> None:
        """Note that the part `name` has searched `done` more, and what it has left. Print a line if it is time to."""
        part = self._parts.setdefault(name, Part())
        part.done += done
        part.left = left
        now_ms = self._clock.monotonic_ms()
        if not self._printed or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + (EVERY_TERMINAL_MS if self._terminal else EVERY_MS)
        line = f"lockstep: searched {self.describe()}{self._speed(now_ms)}"
        if self._terminal:
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """End the line on the terminal, so that the next output begins a new one."""
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0

    def describe(self) -> str:
        """Return how much was searched, and of how much: "1.2 GB of 80.0 GB"."""
        return f"{self._amount(self.done)} of {self._amount(self.total)}"

    def _amount(self, count: int) -> str:
        return format_bytes(count) if self.unit == "bytes" else f"{count} {self.unit}"

    def _speed(self, now_ms: int) -> str:
        elapsed_ms = now_ms - self._began_ms
        if not self.done or not elapsed_ms:
            return ""
        left_ms = (self.total - self.done) * elapsed_ms // self.done
        return f", {self._amount(self.done * 1_000 // elapsed_ms)}/s, {format_duration(left_ms)} left"
