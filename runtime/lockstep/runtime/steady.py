"""Wall time that does not follow a jump of the wall clock before the jump has lasted.

Stamps, delays and ages are counted in wall time, and wall clocks jump: by a wrong time server, a virtual machine that is resumed, a person.
Most jumps are over soon. Here time goes on with the boot clock while the wall clock is elsewhere, and may follow after five minutes:

| the wall clock is, beside what is expected        | `now_ms`                                                      |
|---------------------------------------------------|---------------------------------------------------------------|
| within 2 s                                        | follows it, but never falls: it waits until it is passed. More |
|                                                   | than 250 ms forward in all only by `follow`                   |
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
STEP_MS = 250
"""So much further ahead than the boot clock counts is not told by `follow`."""
DRIFT = 20
"""The boot clock and the wall clock may differ in speed by one part in so many."""
LOOK_MS_MAX = 10_000
"""Between two looks no more than this counts as seen: a process that stood still for an hour has seen nothing."""


class SteadyClock:
    """`now_ms` or `follow` has to be called every few seconds, or a jump that lasts is not seen to last."""

    __slots__ = ("_ahead_ms", "_clock", "_last_ms", "_looked_ms", "_offset_ms", "_stray_ms", "_strayed_for_ms", "_told_ms")

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
        self._told_ms = self._offset_ms
        """What that was when `follow` returned it last."""
        self._ahead_ms = 0
        """How far the wall clock was ahead of the time here at the last look."""
        self._last_ms = newest_ms
        self._stray_ms: int | None = None
        """How far ahead the wall clock has been since it was further than NEAR_MS from here."""
        self._strayed_for_ms = 0
        self._looked_ms = boot_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970. Never less than before, but after `follow`."""
        boot_ms = self._clock.boot_ms()
        wall_ms = self._clock.wall_ms()
        stray_ms = wall_ms - boot_ms - self._offset_ms
        if -NEAR_MS <= stray_ms <= NEAR_MS:
            self._offset_ms += min(stray_ms, self._told_ms + STEP_MS - self._offset_ms)
            self._stray_ms = None
        else:
            self._watch(boot_ms, stray_ms)
        self._looked_ms = boot_ms
        self._ahead_ms = wall_ms - boot_ms - self._offset_ms
        now_ms = boot_ms + self._offset_ms
        if now_ms < self._last_ms <= now_ms + NEAR_MS:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    def follow(self) -> int:
        """Follows the wall clock, also where it has been elsewhere for TRUST_MS.

        Returns by how many ms the time here has changed beside the boot clock since the last time that was returned: 0 for up to STEP_MS
        forward, and for small changes back.
        """
        self.now_ms()
        lasted = self._stray_ms is not None and self._strayed_for_ms >= TRUST_MS
        if lasted:
            self._last_ms += self._ahead_ms
            log.warning("clock.followed", by_ms=self._ahead_ms)
        if lasted or self._stray_ms is None:
            self._offset_ms += self._ahead_ms
            self._stray_ms, self._ahead_ms = None, 0
        by_ms = self._offset_ms - self._told_ms
        if not lasted and by_ms <= STEP_MS:
            return 0
        self._told_ms = self._offset_ms
        return by_ms

    def _watch(self, boot_ms: int, stray_ms: int) -> None:
        if self._stray_ms is None or abs(stray_ms - self._stray_ms) > NEAR_MS:
            self._stray_ms, self._strayed_for_ms = stray_ms, 0
            log.warning("clock.jumped", ahead_ms=stray_ms, then=f"it is followed when it has lasted for {TRUST_MS} ms")
            return
        self._strayed_for_ms += min(boot_ms - self._looked_ms, LOOK_MS_MAX)
