"""Runs a coroutine in a universe, without pytest."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockstep.testing.simulation import SimLoop

T = TypeVar("T")


LIMIT_S = 2 * 3600.0
"""Virtual time, in addition to that of `advance`, after which a test counts as hanging: some 10 s of real time for an idle cluster."""


def simulated_loop(seed: int) -> SimLoop:
    """Return the event loop of the universe with that seed."""
    loop = SimLoop(seed, trace=False)
    loop.time_limit_s = LIMIT_S
    return loop


def simulate(main: Callable[[], Coroutine[Any, Any, T]], *, seed: int = 0) -> T:
    """Run `main()` in the universe with that seed, and return its result. The same seed repeats the same run.

    Raises:
        SimulationStuckError: no event is left to happen, or two hours have passed in addition to the time of `advance`.
    """
    with asyncio.Runner(loop_factory=lambda: simulated_loop(seed)) as runner:
        return runner.run(main())
