"""Time. The only module of the product that touches `time`: everything else is handed a Clock, or now_ms."""

import time

_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that goes on while the machine is suspended; elsewhere the monotonic one has to do."""


class Clock:
    """The clocks of this machine. The simulator hands out another one per host (drift, jumps of the wall)."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        """Never falls, has no date, may stand still while the machine is suspended. For time-outs."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """As `monotonic_ms`, finer: for latencies."""
        return time.monotonic_ns() // 1_000

    def boot_ms(self) -> int:
        """Never falls, goes on while the machine is suspended. For leases: a laptop that slept an hour has lost them."""
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """ms since 1970, may jump both ways. For stamps that people read, never for a decision."""
        return time.time_ns() // 1_000_000
