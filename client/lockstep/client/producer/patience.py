"""How long a queue is left alone after what went wrong there. Pure."""

BUSY_PAUSE_MS = 50
"""Pause after a refusal, doubled by each further one."""
BUSY_PAUSE_MS_MAX = 1_000
STALL_MS = 1_000
"""A queue that lost a frame to another broker takes no unkeyed sends for this long, doubled each time that it happens again at once."""
STALL_MS_MAX = 10_000
"""RocketMQ 5: the isolation of a broker that did not answer."""


class Patience:
    """Of one queue of one producer."""

    __slots__ = ("_strikes", "not_before_ms", "trusted_ms")

    def __init__(self) -> None:
        self.not_before_ms = 0
        """Nothing is written before."""
        self.trusted_ms = 0
        """When unkeyed sends may come back."""
        self._strikes = 0
        """Frames in a row that ended here without being stored."""

    def reconnected(self) -> None:
        self.not_before_ms = self.trusted_ms = 0

    def stored(self) -> None:
        self.not_before_ms = self._strikes = 0

    def refused(self, refusals: int, hint_ms: object, now_ms: int) -> None:
        """A frame was refused for the time being, so many times by now; the broker may have said how long to wait."""
        pause_ms = hint_ms if type(hint_ms) is int else BUSY_PAUSE_MS << min(refusals - 1, 10)
        self.not_before_ms = now_ms + max(1, min(pause_ms, BUSY_PAUSE_MS_MAX))

    def struck(self, now_ms: int) -> None:
        """A frame ended here without being stored."""
        self._strikes += 1
        self.trusted_ms = now_ms + min(STALL_MS << min(self._strikes - 1, 10), STALL_MS_MAX)
