"""Time. The only product module that imports `time`: all others receive a Clock or now_ms."""

import time

_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that includes suspension of the machine; elsewhere the monotonic clock has to suffice."""


class Clock:
    """The clocks of this machine. The simulator provides another one per host (drift, jumps of the wall clock)."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        """Return a time for time-outs. It never decreases, has no date, and may stop while the machine is suspended."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """Return `monotonic_ms` in microseconds, for latencies."""
        return time.monotonic_ns() // 1_000

    def boot_ms(self) -> int:
        """Return a time for leases. It never decreases and includes suspension: a laptop that was suspended for an hour has lost its
        leases."""
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Return ms since 1970, which may jump in both directions. For timestamps that people read, never for decisions."""
        return time.time_ns() // 1_000_000
