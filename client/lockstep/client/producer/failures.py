"""Sends that fail together. Each loop turn ends some of them, in order, however many there are."""

import asyncio
from collections import deque
from collections.abc import Iterator

FAILURES_PER_TURN = 256


class Failures:
    """Runs iterators of which each step ends at most one send of the producer."""

    __slots__ = ("_handle", "_loop", "_pending", "_running")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Iterator[None]] = deque()
        self._handle: asyncio.Handle | None = None
        self._running = False

    def add(self, endings: Iterator[None]) -> None:
        """Run these after all that were added before. If none is pending, run the first ones now."""
        self._pending.append(endings)
        if self._handle is None and not self._running:
            self._run()

    def _run(self) -> None:
        self._handle = None
        self._running = True
        try:
            for _ in range(FAILURES_PER_TURN):
                while self._pending and next(self._pending[0], self) is self:
                    self._pending.popleft()
                if not self._pending:
                    break
        finally:
            self._running = False
            if self._pending:
                self._handle = self._loop.call_soon(self._run)
