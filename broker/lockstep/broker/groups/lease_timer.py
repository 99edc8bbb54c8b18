"""The timer of leases, sessions and grace periods. It sleeps until the first of them may end."""

import asyncio
from collections.abc import Callable

from lockstep.broker.groups.coordination import TICK_MS_MAX, Coordination
from lockstep.runtime.host import Host
from lockstep.runtime.timer import Timer

LATE_MS = 100
"""A lease timer that fires this late shows that the process was suspended or blocked: received data is read first."""


class LeaseTimer:
    """Calls Coordination.tick when it is due, at most 1 s after the last time, so that a grace period that begins in between does not end
    unnoticed.

    It is never called from the close of a connection: after this process was suspended or blocked, data from clients is read before leases
    end.
    """

    def __init__(
        self,
        host: Host,
        coordination: Coordination,
        shakes_hands: Callable[[], bool] = lambda: False,
        is_suspended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`shakes_hands` returns whether connections are being opened: after a start, their clients may be members. `is_suspended` returns
        whether clients are refused because nobody can say who the master is.
        """
        self._is_suspended = is_suspended
        self._shakes_hands = shakes_hands
        self._clock = host.clock
        self._coordination = coordination
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._loop, self._tick, LATE_MS)

    def start(self) -> None:
        self._tick()

    def _tick(self) -> None:
        now_ms = self._clock.boot_ms()
        due_ms = now_ms + TICK_MS_MAX
        try:
            if self._shakes_hands():
                self._coordination.extend_start_grace(now_ms)
            if self._is_suspended():
                self._coordination.keep_sessions(now_ms)
            due_ms = self._coordination.tick(now_ms)
        finally:
            # Even after an error: without a next tick no session would ever end again.
            self._timer.set(self._loop.time() + max(1, due_ms - now_ms) / 1000)

    def stop(self) -> None:
        self._timer.cancel()
