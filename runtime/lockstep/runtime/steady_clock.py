"""Wall time that goes on with the boot clock, and that follows the wall clock in recorded steps alone.

Store times, delays and ages are counted in wall time, and wall clocks jump: by a wrong time server, a virtual machine that is resumed, a
person. Most jumps are over soon. The time here is the boot clock plus an offset. Only `follow` changes the offset, and it returns each
change, so that the caller can record it:

| the wall clock is, beside the time here           | `follow`                          |
|---------------------------------------------------|-----------------------------------|
| within 250 ms                                     | changes nothing                   |
| within 2 s                                        | steps to it, forward or back      |
| further ahead or behind, for less than 5 minutes  | changes nothing                   |
| the same for 5 minutes on end                     | steps to it, forward or back      |

A start goes on from the last reading of the same boot, by the boot clock, as if the process had never ended. Without one it believes its
wall clock, unless that is behind the newest record of the log: then the time goes on from there until `follow` steps.
"""

from lockstep.runtime.clock import Clock
from lockstep.runtime.log import get_logger

log = get_logger("runtime.clock")

NEAR_MS = 2_000
"""Two clocks that differ by less agree: what a time server slews, and what passes between two looks."""
TRUST_MS = 300_000
"""A jump that lasts so long is no jump."""
STEP_MS = 250
"""The wall clock is not followed while it differs by no more than this."""
LOOK_MS_MAX = 10_000
"""Between two looks no more than this counts as seen: a process that stood still for an hour has seen nothing."""


class SteadyClock:
    """`now_ms` or `follow` has to be called every few seconds, or a jump that lasts is not seen to last."""

    __slots__ = ("_ahead_ms", "_clock", "_looked_ms", "_offset_ms", "_stray_ms", "_strayed_for_ms")

    def __init__(self, clock: Clock, newest_ms: int = 0, reading: tuple[int, int] | None = None) -> None:
        """`newest_ms`: the latest time that is known to have been before now. `reading`: the boot clock and the time here at one moment of
        this boot.
        """
        self._clock = clock
        boot_ms = clock.boot_ms()
        offset_ms = clock.wall_ms() - boot_ms if reading is None else reading[1] - reading[0]
        self._offset_ms = max(offset_ms, newest_ms - boot_ms)
        """Time here minus the boot clock."""
        self._ahead_ms = 0
        """How far the wall clock was ahead of the time here at the last look."""
        self._stray_ms: int | None = None
        """How far ahead the wall clock has been since it was further than NEAR_MS from here."""
        self._strayed_for_ms = 0
        self._looked_ms = boot_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970. Goes forward as the boot clock does; only `follow` changes it otherwise, forward or back."""
        return self.reading()[1]

    def reading(self) -> tuple[int, int]:
        """(boot clock, `now_ms`) at one moment: what a later start in this boot goes on from."""
        boot_ms = self._clock.boot_ms()
        self._ahead_ms = self._clock.wall_ms() - boot_ms - self._offset_ms
        if -NEAR_MS <= self._ahead_ms <= NEAR_MS:
            self._stray_ms = None
        else:
            self._watch(boot_ms, self._ahead_ms)
        self._looked_ms = boot_ms
        return boot_ms, boot_ms + self._offset_ms

    def follow(self) -> int:
        """Steps to the wall clock where it is elsewhere by more than STEP_MS and near, or has been elsewhere for TRUST_MS.

        Returns by how many ms the time here was changed: 0 where it goes on by the boot clock.
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
            log.warning("clock.jumped", ahead_ms=stray_ms, then=f"it is followed when it has lasted for {TRUST_MS} ms")
            return
        self._strayed_for_ms += min(boot_ms - self._looked_ms, LOOK_MS_MAX)
