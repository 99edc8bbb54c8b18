"""Wall time that advances with the boot clock and follows the wall clock only in recorded steps.

Store times, delays and ages are measured in wall time, and wall clocks jump: because of a wrong time server, a resumed virtual machine, or
a person. Most jumps are soon corrected. The steady time is the boot clock plus an offset. Only `follow` changes the offset, and it
returns each change, so that the caller can record it:

| difference between wall clock and steady time     | `follow`                          |
|---------------------------------------------------|-----------------------------------|
| at most 250 ms                                    | changes nothing                   |
| at most 2 s                                       | steps to it, forward or back      |
| more, for less than 5 minutes                     | changes nothing                   |
| more, and the same for 5 minutes without a break  | steps to it, forward or back      |

A start continues from the last reading of the same boot, by the boot clock, as if the process had never ended. Without a reading it uses
its wall clock, unless that is earlier than the newest record of the log: then the time continues from there until `follow` steps.
"""

from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.log import get_logger

log = get_logger("runtime.clock")

NEAR_MS = 2_000
"""Two clocks that differ by less agree: it covers the slewing of a time server, and the time between two readings."""
TRUST_MS = 300_000
"""A jump that lasts this long is permanent."""
STEP_MS = 250
"""The wall clock is not followed while it differs by at most this."""
LOOK_MS_MAX = 10_000
"""At most this much of the time between two readings counts as observed: a process that was suspended for an hour has observed nothing."""


class SteadyClock:
    """Call `now_ms` or `follow` every few seconds; otherwise a lasting jump is not recognized as one."""

    __slots__ = ("_ahead_ms", "_clock", "_looked_ms", "_offset_ms", "_stray_ms", "_strayed_for_ms")

    def __init__(self, clock: Clock, newest_ms: int = 0, ahead_ms: int | None = None) -> None:
        """`newest_ms` is the latest time that is known to be in the past. `ahead_ms` is the steady time minus the boot clock, by an earlier
        reading; by default the wall clock is believed."""
        self._clock = clock
        boot_ms = clock.boot_ms()
        offset_ms = clock.wall_ms() - boot_ms if ahead_ms is None else ahead_ms
        self._offset_ms = max(offset_ms, newest_ms - boot_ms)
        """Steady time minus the boot clock."""
        self._ahead_ms = 0
        """By how much the wall clock was ahead of the steady time at the last reading."""
        self._stray_ms: int | None = None
        """By how much the wall clock has been ahead since it differs by more than NEAR_MS."""
        self._strayed_for_ms = 0
        self._looked_ms = boot_ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970. It advances with the boot clock; only `follow` changes it otherwise, forward or back."""
        return self.reading()[1]

    def reading(self) -> tuple[int, int]:
        """Return (boot clock, `now_ms`) at one moment, from which a later start in this boot continues."""
        boot_ms = self._clock.boot_ms()
        self._ahead_ms = self._clock.wall_ms() - boot_ms - self._offset_ms
        if -NEAR_MS <= self._ahead_ms <= NEAR_MS:
            self._stray_ms = None
        else:
            self._watch(boot_ms, self._ahead_ms)
        self._looked_ms = boot_ms
        return boot_ms, boot_ms + self._offset_ms

    def follow(self) -> int:
        """Step to the wall clock if it differs by more than STEP_MS and is near, or has differed for TRUST_MS.

        Return the change of the steady time in ms, or 0 if it continues by the boot clock.
        """
        self.now_ms()
        by_ms = self._ahead_ms
        if self._stray_ms is None:
            if abs(by_ms) <= STEP_MS:
                return 0
        elif self._strayed_for_ms < TRUST_MS:
            return 0
        else:
            log.warning("clock.followed", by_ms=by_ms)
        self._offset_ms += by_ms
        self._stray_ms, self._ahead_ms = None, 0
        return by_ms

    def _watch(self, boot_ms: int, stray_ms: int) -> None:
        if self._stray_ms is None or abs(stray_ms - self._stray_ms) > NEAR_MS:
            self._stray_ms, self._strayed_for_ms = stray_ms, 0
            log.warning("clock.jumped", ahead_ms=stray_ms, then=f"it is followed if it lasts for {TRUST_MS} ms")
            return
        self._strayed_for_ms += min(boot_ms - self._looked_ms, LOOK_MS_MAX)
