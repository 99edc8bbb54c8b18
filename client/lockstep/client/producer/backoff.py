"""How long a queue pauses after refusals and lost frames, and how long its broker takes to respond. Pure."""

from collections import deque

BUSY_PAUSE_MS = 50
"""Pause after a refusal, doubled by each further one."""
BUSY_PAUSE_MS_MAX = 1_000
STALL_MS = 1_000
"""A queue that lost a frame to another broker takes no unkeyed sends for this long, doubled if the next frame is lost too."""
STALL_MS_MAX = 10_000
"""The longest such time. RocketMQ 5: the isolation of a broker that did not respond."""
ANSWERS = 128
"""The number of recent responses that are remembered."""
ANSWER_MARGIN = 2
"""A response is expected within this many times the slowest of them."""


class ResponseTimes:
    """How long one broker takes to respond to the frames of one topic."""

    __slots__ = ("_took_ms",)

    def __init__(self) -> None:
        self._took_ms: deque[int] = deque(maxlen=ANSWERS)

    def took(self, took_ms: int) -> None:
        """Record that a response came, or was abandoned, this long after its frame was written."""
        self._took_ms.append(took_ms)

    @property
    def slowest_ms(self) -> int:
        """Return the time of the slowest recent response; 0 if there was none."""
        return max(self._took_ms, default=0)

    @property
    def expected_ms(self) -> int:
        """Return how long the response to a frame that is written now may take."""
        return ANSWER_MARGIN * self.slowest_ms


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

    def struck(self, now_ms: int) -> None:
        """Record that a frame ended here without being stored."""
        self._strikes += 1
        self.trusted_ms = now_ms + min(STALL_MS << min(self._strikes - 1, 10), STALL_MS_MAX)
