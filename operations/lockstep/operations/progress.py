"""What an operation reports while it runs: notes, and how far a search has come. An operation prints nothing."""

from dataclasses import dataclass

from lockstep.operations.text import format_bytes, format_duration
from lockstep.runtime.clock import Clock


class Reporter:
    """Receives what an operation reports. This one ignores it; the command line prints it to stderr."""

    def note(self, text: str) -> None:
        """Receive a line of text: a step that is done, what the operation waits for, or a broker that fails."""

    def searched(self, search: "SearchProgress") -> None:
        """Receive how far a search has come. Called after each part of it."""

    def search_ended(self) -> None:
        """Receive the end of the search whose progress came last."""


@dataclass(slots=True)
class SearchedPart:
    """What one broker, or one queue, has searched."""

    done: int = 0
    left: int = 0


class SearchProgress:
    """How far a search has come, at all brokers together: counts bytes of logs or messages."""

    def __init__(self, clock: Clock, unit: str = "bytes", reporter: Reporter | None = None) -> None:
        """`unit`: what is counted."""
        self._clock = clock
        self._reporter = reporter or Reporter()
        self.unit = unit
        self._parts: dict[str, SearchedPart] = {}
        self._began_ms = clock.monotonic_ms()

    @property
    def done(self) -> int:
        return sum(part.done for part in self._parts.values())

    @property
    def total(self) -> int:
        return sum(part.done + part.left for part in self._parts.values())

    @property
    def elapsed_ms(self) -> int:
        return self._clock.monotonic_ms() - self._began_ms

    def update(self, name: str, done: int, left: int) -> None:
        """Note that the part `name` has searched `done` more, and what it has left."""
        part = self._parts.setdefault(name, SearchedPart())
        part.done += done
        part.left = left
        self._reporter.searched(self)

    def end(self) -> None:
        """Report the end of the search."""
        self._reporter.search_ended()

    def describe(self) -> str:
        """Return how much was searched, and of how much: "1.2 GB of 80.0 GB"."""
        return f"{self._amount(self.done)} of {self._amount(self.total)}"

    def describe_speed(self) -> str:
        """Return the rate and the time that is left at that rate: "40.0 MB/s, 12 s left". Return "" before anything was searched."""
        done, elapsed_ms = self.done, self.elapsed_ms
        if not done or not elapsed_ms:
            return ""
        left_ms = (self.total - done) * elapsed_ms // done
        return f"{self._amount(done * 1_000 // elapsed_ms)}/s, {format_duration(left_ms)} left"

    def _amount(self, count: int) -> str:
        return format_bytes(count) if self.unit == "bytes" else f"{count} {self.unit}"
