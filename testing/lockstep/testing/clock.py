"""The clock of a test: virtual in the simulator, else real."""

import asyncio

from lockstep.testing.errors import OnlySimulatedError
from lockstep.testing.simulation import SimLoop

REAL_WAIT_MAX_S = 30.0
"""The longest `advance` of a test with real processes."""


class TestClock:
    """Provides `now` and `advance`: in virtual time if the running loop is a SimLoop, else in real time."""

    __test__ = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began_s = self._read()

    @property
    def seed(self) -> int | None:
        """Return the seed of the universe; None in real time."""
        return self._loop.seed if isinstance(self._loop, SimLoop) else None

    @property
    def now(self) -> float:
        """Return the seconds since the clock was made."""
        return round(self._read() - self._began_s, 6)

    def _read(self) -> float:
        """In a simulated program `loop.time()` would be that of its own machine."""
        return self._loop.now if isinstance(self._loop, SimLoop) else self._loop.time()

    async def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let this much time pass for all machines; everything that is due in it happens.

        Raises:
            OnlySimulatedError: in real time, for more than 30 s.
            ValueError: the time is negative.
        """
        total_s = seconds + 60 * minutes + 3600 * hours + 86_400 * days
        if total_s < 0:
            raise ValueError(f"advance by {total_s} s: time does not go back")
        if not isinstance(self._loop, SimLoop) and total_s > REAL_WAIT_MAX_S:
            raise OnlySimulatedError(
                f"advance by {total_s:.0f} s: this test runs in real time, which waits at most {REAL_WAIT_MAX_S:.0f} s"
            )
        if isinstance(self._loop, SimLoop):
            self._loop.time_limit_s += total_s
        await asyncio.sleep(total_s)
