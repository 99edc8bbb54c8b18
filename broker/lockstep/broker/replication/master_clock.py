"""The clock of a master's store, as a replica knows it: a failover continues it, whatever the wall clock of the other machine shows. Pure.

Each response of the master has its time. By how much that is ahead of the boot clock here is the same for each of them, except that a
response which was delayed shows less. So the highest value counts, until lower ones have come for LOWER_MS: then the master's clock was set
back. Another master may have another clock: nothing is concluded from that of the one before.
"""

NEAR_MS = 250
"""Responses that show at most so much less were delayed a little: nothing is concluded from them."""
LOWER_MS = 2_000


class MasterClock:
    """Call `heard` with each response."""

    def __init__(self) -> None:
        self.ahead_ms: int | None = None
        """The time of the master's store minus the boot clock of this machine; None if it is not known."""
        self._lower_ms: int | None = None
        """The highest of the lower values that came one after the other. None if the last one was not lower."""
        self._lower_since_ms = 0
        self._term = 0

    def heard(self, term: int, boot_ms: int, time_ms: int) -> None:
        """Take note of a response of the master of a term with the time `time_ms`, which has arrived at `boot_ms`."""
        ahead_ms = time_ms - boot_ms
        if term != self._term:
            self._term, self.ahead_ms = term, None
        if self.ahead_ms is None or ahead_ms >= self.ahead_ms - NEAR_MS:
            self.ahead_ms = ahead_ms if self.ahead_ms is None else max(ahead_ms, self.ahead_ms)
            self._lower_ms = None
            return
        if self._lower_ms is None:
            self._lower_ms, self._lower_since_ms = ahead_ms, boot_ms
        self._lower_ms = max(ahead_ms, self._lower_ms)
        if boot_ms - self._lower_since_ms >= LOWER_MS:
            self.ahead_ms, self._lower_ms = self._lower_ms, None
