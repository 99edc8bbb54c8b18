"""Records the log lines of the cluster's processes, with virtual times: to print one universe, and to count rare places."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

LINES_MAX = 2_000_000


class LogLine(NamedTuple):
    t: float
    machine: str
    process: int
    text: str

    def __str__(self) -> str:
        return f"{self.t:.6f} {self.machine}#{self.process} · {self.text}"


class LogRecorder(logging.Handler):
    """Counts the logged events; keeps the lines too if they are to be printed."""

    def __init__(self, place: Callable[[], tuple[float, str, int]], *, debug: bool) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        """Event → how often."""
        self.facts: dict[str, Counter[str]] = {}
        """Event → "fact=value" → how often, for booleans, byte counts (0 or more) and reasons."""
        self.lines: list[LogLine] = []
        self._place = place
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        event = str(getattr(record, "event", None) or record.getMessage())
        self.counts[event] += 1
        facts: dict[str, Any] = getattr(record, "facts", {})
        for name, value in facts.items():
            if isinstance(value, bool) or name.endswith("_bytes"):
                self.facts.setdefault(event, Counter())[f"{name}={bool(value)}"] += 1
            elif name == "reason":
                self.facts.setdefault(event, Counter())[f"{name}={value}"] += 1
        if self._debug and len(self.lines) < LINES_MAX:
            t, machine, process = self._place()
            self.lines.append(LogLine(t, machine or "world", process, f"{record.levelname.lower()} {record.getMessage()}"))

    def seen(self, event: str) -> None:
        """Count an event that no process can log."""
        self.counts[event] += 1

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Redirect this process's "lockstep" loggers to this handler."""
        root = logging.getLogger("lockstep")
        before = (list(root.handlers), root.level, root.propagate)
        root.handlers[:] = [self]
        root.setLevel(logging.DEBUG if self._debug else logging.INFO)
        root.propagate = False
        try:
            yield
        finally:
            root.handlers[:], root.level, root.propagate = before
