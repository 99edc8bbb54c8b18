"""Wall time that does not follow a jump of the wall clock before the jump has lasted.

Stamps, delays and ages are counted in wall time, and wall clocks jump: by a wrong time server, a virtual machine that is resumed, a person.
Most jumps are over soon. Here time goes on with the boot clock while the wall clock is elsewhere, and may follow after five minutes:

| the wall clock is, beside what is expected        | `now_ms`                                                      |
|---------------------------------------------------|---------------------------------------------------------------|
| within 2 s                                        | follows it, but never falls: it waits until it is passed      |
| further ahead or behind, for less than 5 minutes  | goes on as before, by the boot clock                          |
| the same for 5 minutes on end                     | the same; `follow` steps to it, also back                     |

A start goes on from the last reading of the same boot, by the boot clock, as if the process had never ended. Without one it believes its
wall clock, unless that is behind the newest record of the log: then it has to last as well.
"""

from lockstep.runtime.clock import Clock
from lockstep.runtime.log import get_logger

log = get_logger("runtime.clock")

NEAR_MS = 2_000
"""Two clocks that differ by less agree: what a time server slews, and what passes between two looks."""
TRUST_MS = 300_000
"""A jump that lasts so long is no jump."""
DRIFT = 20
"""The boot clock and the wall clock may differ in speed by one part in so many."""
LOOK_MS_MAX = 10_000
"""Between two looks no more than this counts as seen: a process that stood still for an hour has seen nothing."""


class SteadyClock:
    """`now_ms` or `follow` has to be called every few seconds, or a jump that lasts is not seen to last."""

    __slots__ = ("_clock", "_last_ms", "_looked_ms", "_offset_ms", "_stray_ms", "_strayed_for_ms")

    def __init__(self, clock: Clock, newest_ms: int = 0, reading: tuple[int, int] | None = None) -> None:
        """`newest_ms`: the latest time that is known to have been before now. `reading`: the boot clock and the time here at one moment of
        this boot; the wall clock is believed where it agrees with them.
        """
        self._clock = clock
        boot_ms, now_ms = clock.boot_ms(), clock.wall_ms()
        if reading is not None:
            passed_ms = boot_ms - reading[0]
            if abs(now_ms - reading[1] - passed_ms) > NEAR_MS + passed_ms // DRIFT:
                now_ms = reading[1] + passed_ms
        self._offset_ms = (now_ms if now_ms >= newest_ms - NEAR_MS else newest_ms) - boot_ms
        """Time here minus the boot clock."""
        self._last_ms = newest_ms
        self._stray_ms: int | None = None
        """How far ahead the wall clock has been since it was further than NEAR_MS from here."""
        self._strayed_for_ms = 0
        self._looked_ms = boot_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970. Never less than before, but after `follow`."""
        boot_ms = self._clock.boot_ms()
        stray_ms = self._clock.wall_ms() - boot_ms - self._offset_ms
        if -NEAR_MS <= stray_ms <= NEAR_MS:
            self._offset_ms += stray_ms
            self._stray_ms = None
        elif stray_ms:
            self._watch(boot_ms, stray_ms)
        self._looked_ms = boot_ms
        now_ms = boot_ms + self._offset_ms
        if now_ms < self._last_ms <= now_ms + NEAR_MS:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    def follow(self) -> int:
        """Steps to the wall clock where that has been elsewhere for TRUST_MS. Returns by how many ms, 0 where it has not."""
        self.now_ms()
        stray_ms = self._stray_ms
        if stray_ms is None or self._strayed_for_ms < TRUST_MS:
            return 0
        self._offset_ms += stray_ms
        self._last_ms += stray_ms
        self._stray_ms = None
        log.warning("clock.followed", by_ms=stray_ms)
        return stray_ms

    def _watch(self, boot_ms: int, stray_ms: int) -> None:
        if self._stray_ms is None or abs(stray_ms - self._stray_ms) > NEAR_MS:
            self._stray_ms, self._strayed_for_ms = stray_ms, 0
            log.warning("clock.jumped", ahead_ms=stray_ms, then=f"it is followed when it has lasted for {TRUST_MS} ms")
            return
        self._strayed_for_ms += min(boot_ms - self._looked_ms, LOOK_MS_MAX)
