"""One broker as the queues of one topic see it. Pure."""

from collections import deque

RESPONSES = 128
"""The number of recent responses whose times are kept."""
RESPONSE_MARGIN = 2
"""A response is expected within this many times the slowest of them."""


class BrokerResponses:
    """Whether the broker is connected, how often it was, and how fast it responds."""

    __slots__ = ("_took_ms", "connects", "name", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.connects = 0
        self._took_ms: deque[int] = deque(maxlen=RESPONSES)

    def record_response(self, took_ms: int) -> None:
        """Record that a response came, or was abandoned, this long after its frame was written."""
        self._took_ms.append(took_ms)

    @property
    def slowest_ms(self) -> int:
        """Return the time of the slowest recent response; 0 if there was none."""
        return max(self._took_ms, default=0)

    @property
    def expected_ms(self) -> int:
        """Return how long the response to a frame that is written now may take."""
        return RESPONSE_MARGIN * self.slowest_ms
