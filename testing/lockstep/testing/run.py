"""A universe for a coroutine, without pytest."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockstep.testing.simulation import SimLoop

T = TypeVar("T")


LIMIT_S = 2 * 3600.0
"""Virtual time, beside what `advance` adds, after which a test counts as hanging: some 10 s of real time for an idle cluster."""


def simulated_loop(seed: int) -> SimLoop:
    """The universe of that number."""
    loop = SimLoop(seed, trace=False)
    loop.time_limit_s = LIMIT_S
    return loop


def simulate(main: Callable[[], Coroutine[Any, Any, T]], *, seed: int = 0) -> T:
    """Runs `main()` in the universe of that number and returns its result: one seed, one run.

    SimulationStuckError when nothing would ever happen again, or when two hours have passed beside what `advance` was asked for.
    """
    with asyncio.Runner(loop_factory=lambda: simulated_loop(seed)) as runner:
        return runner.run(main())
