"""Detects a listener that blocks the event loop, which must run to keep locks."""

import asyncio
from collections import deque
from collections.abc import Callable

from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

BEAT_MS = 250
BLOCKED_MS = 1_000
REMEMBERED_MS = 60_000
"""How long a block is reported to operators."""


class LoopWatch:
    """Beats every 250 ms. If no beat came for a second while a call was running, logs a warning with the listener's name.

    Runners call `call_ended`, because a call may end in the loop turn that it blocked, before the next beat.
    """

    def __init__(self, host: Host, listener_name: str, running: Callable[[], bool]) -> None:
        self._clock = host.clock
        self._name = listener_name
        self._running = running
        self._handle: asyncio.TimerHandle | None = None
        self._beat_ms = host.clock.boot_ms()
        """The boot time of the last beat."""
        self._blocks: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_MS // BLOCKED_MS)
        """The boot times at which blocks were noticed, and how long they lasted."""

    def start(self) -> None:
        self._beat_ms = self._clock.boot_ms()
        self._again()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def longest_ms(self, now_ms: int) -> int:
        """Return how long the longest block of the last minute lasted, or 0 if there was none of a second or more."""
        while self._blocks and now_ms - self._blocks[0][0] > REMEMBERED_MS:
            self._blocks.popleft()
        return max((blocked_ms for _, blocked_ms in self._blocks), default=0)

    def call_ended(self, started_ms: int, ended_ms: int) -> None:
        """Handle the end of a call of the listener (boot times)."""
        blocked_ms = ended_ms - max(started_ms, self._beat_ms)
        if blocked_ms >= BLOCKED_MS:
            self._blocked(blocked_ms)

    def _blocked(self, blocked_ms: int) -> None:
        self._beat_ms = self._clock.boot_ms()
        self._blocks.append((self._beat_ms, blocked_ms))
        advice = "make it await, or declare it as a plain `def`, which runs in a thread"
        log.warning("loop.was_blocked", listener=self._name, blocked_ms=blocked_ms, advice=advice)

    def _again(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(BEAT_MS / 1000, self._beat)

    def _beat(self) -> None:
        now_ms = self._clock.boot_ms()
        late_ms = now_ms - self._beat_ms - BEAT_MS
        if late_ms >= BLOCKED_MS and self._running():
            self._blocked(late_ms)
        self._beat_ms = now_ms
        self._again()
