"""How long a queue is left alone after what went wrong there, and how long its broker takes to answer. Pure."""

from collections import deque

BUSY_PAUSE_MS = 50
"""Pause after a refusal, doubled by each further one."""
BUSY_PAUSE_MS_MAX = 1_000
STALL_MS = 1_000
"""A queue that lost a frame to another broker takes no unkeyed sends for this long, doubled each time that it happens again at once."""
STALL_MS_MAX = 10_000
"""RocketMQ 5: the isolation of a broker that did not answer."""
ANSWERS = 128
"""As many recent answers are remembered."""
ANSWER_MARGIN = 2
"""A frame is expected to be answered within this many times the slowest of them."""


class ResponseTimes:
    """How long one broker takes to answer the frames of one topic."""

    __slots__ = ("_took_ms",)

    def __init__(self) -> None:
        self._took_ms: deque[int] = deque(maxlen=ANSWERS)

    def took(self, took_ms: int) -> None:
        """An answer came, or was given up, this long after its frame was written."""
        self._took_ms.append(took_ms)

    @property
    def slowest_ms(self) -> int:
        """The slowest recent answer; 0 where there was none."""
        return max(self._took_ms, default=0)

    @property
    def expected_ms(self) -> int:
        """How long the answer to a frame may take that is written now."""
        return ANSWER_MARGIN * self.slowest_ms


class QueueBackoff:
    """Of one queue of one producer."""

    __slots__ = ("_strikes", "not_before_ms", "refusals", "trusted_ms")

    def __init__(self) -> None:
        self.not_before_ms = 0
        """Nothing is written before."""
        self.trusted_ms = 0
        """When unkeyed sends may come back."""
        self._strikes = 0
        """Frames in a row that ended here without being stored."""
        self.refusals = 0
        """Refusals in a row, since a frame was stored or failed."""

    def reconnected(self) -> None:
        self.not_before_ms = self.trusted_ms = 0

    def stored(self) -> None:
        self.not_before_ms = self._strikes = self.refusals = 0

    def refused(self, hint_ms: object, now_ms: int) -> None:
        """A frame was refused for the time being; the broker may have said how long to wait. `refusals` counts it already."""
        pause_ms = hint_ms if type(hint_ms) is int else BUSY_PAUSE_MS << min(max(self.refusals - 1, 0), 10)
        self.not_before_ms = now_ms + max(1, min(pause_ms, BUSY_PAUSE_MS_MAX))

    def struck(self, now_ms: int) -> None:
        """A frame ended here without being stored."""
        self._strikes += 1
        self.trusted_ms = now_ms + min(STALL_MS << min(self._strikes - 1, 10), STALL_MS_MAX)
