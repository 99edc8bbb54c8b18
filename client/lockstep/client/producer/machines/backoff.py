"""How long a queue pauses after refusals and lost frames. Pure."""

BUSY_PAUSE_MS = 50
"""Pause after a refusal, doubled by each further one."""
BUSY_PAUSE_MS_MAX = 1_000
STALL_MS = 1_000
"""A queue that lost a frame to another broker takes no unkeyed sends for this long, doubled if the next frame is lost too."""
STALL_MS_MAX = 10_000
"""The longest such time. RocketMQ 5: the isolation of a broker that did not respond."""


class QueueBackoff:
    """The pauses of one queue of one producer."""

    __slots__ = ("_strikes", "not_before_ms", "refusals", "trusted_ms")

    def __init__(self) -> None:
        self.not_before_ms = 0
        """Nothing is written before this time."""
        self.trusted_ms = 0
        """Unkeyed sends may be added again from this time on."""
        self._strikes = 0
        """Consecutive frames that ended here without being stored."""
        self.refusals = 0
        """Consecutive refusals since a frame was stored or failed."""

    def reconnected(self) -> None:
        self.not_before_ms = self.trusted_ms = 0

    def stored(self) -> None:
        self.not_before_ms = self._strikes = self.refusals = 0

    def refused(self, hint_ms: object, now_ms: int) -> None:
        """Pause after a frame was refused temporarily. `hint_ms` is the pause that the broker may have named. `refusals` counts this
        refusal already."""
        pause_ms = hint_ms if type(hint_ms) is int else BUSY_PAUSE_MS << min(max(self.refusals - 1, 0), 10)
        self.not_before_ms = now_ms + max(1, min(pause_ms, BUSY_PAUSE_MS_MAX))

    def frame_lost(self, now_ms: int) -> None:
        """Record that a frame ended here without being stored."""
        self._strikes += 1
        self.trusted_ms = now_ms + min(STALL_MS << min(self._strikes - 1, 10), STALL_MS_MAX)
