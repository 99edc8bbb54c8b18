"""How many sends of a producer may wait. One that can't be kept is refused when it is called, so that the event loop lives."""

from collections.abc import Callable

from lockstep.client.producer.pacing.expiry import Expiry

PERIOD_MS = 1_000
"""The time over which stored messages are counted."""


class WaitingRoom:
    """Counts the messages that wait, for their topic's route or for room in the in-flight limit, and those that are stored meanwhile.

    Any number may wait until there have been waiting sends for a whole period. From then on a send is refused if more messages would wait
    than `count_max`, and more than are stored before its deadline at the rate of the last period; the same applies to bytes. While brokers
    are down the rate is 0.

    A period ends by a timer, not when a send looks at the clock: a program that calls 100,000 sends in one turn of the loop keeps the loop
    from reading responses, which does not mean that there are none.
    """

    __slots__ = (
        "_begun_ms",
        "_byte_count_max",
        "_bytes_per_ms",
        "_count_max",
        "_count_per_ms",
        "_emptied",
        "_expiry",
        "_now_ms",
        "_stored_bytes",
        "_stored_count",
        "_watching",
        "byte_count",
        "count",
        "limited",
    )

    def __init__(self, count_max: int, byte_count_max: int) -> None:
        self.count = 0
        self.byte_count = 0
        self.limited = False
        """There were waiting sends all the time since a period began that has ended. The rates are known."""
        self._count_max = count_max
        self._byte_count_max = byte_count_max
        self._watching = False
        """A period has begun."""
        self._begun_ms = 0
        """When it began."""
        self._emptied = False
        """No send waited for a moment of it."""
        self._stored_count = 0
        self._stored_bytes = 0
        self._count_per_ms = 0.0
        self._bytes_per_ms = 0.0
        self._expiry: Expiry | None = None
        self._now_ms: Callable[[], int] | None = None

    def begin(self, expiry: Expiry, now_ms: Callable[[], int]) -> None:
        """Set the timer and the clock (monotonic ms). The producer has started."""
        self._expiry = expiry
        self._now_ms = now_ms

    def has_place(self, count: int, byte_count: int, timeout_ms: int) -> bool:
        """Return whether a send may wait that has so much time. One that would wait alone always may."""
        if not self.limited or not self.count:
            return True
        count_max = max(self._count_max, self._count_per_ms * timeout_ms)
        byte_count_max = max(self._byte_count_max, self._bytes_per_ms * timeout_ms)
        return self.count + count <= count_max and self.byte_count + byte_count <= byte_count_max

    def enter(self, count: int, byte_count: int) -> None:
        """Count messages that begin to wait."""
        self.count += count
        self.byte_count += byte_count
        if not self._watching:
            self._watching = True
            self._begin_period()

    def leave(self, count: int, byte_count: int) -> None:
        """Stop counting messages that wait no longer."""
        self.count -= count
        self.byte_count -= byte_count
        if not self.count:
            self.limited = False
            self._emptied = True

    def record_stored(self, count: int, byte_count: int) -> None:
        """Count messages that are stored, whether they have waited or not."""
        self._stored_count += count
        self._stored_bytes += byte_count

    @property
    def stored_per_s(self) -> int:
        """Return how many messages were stored in each second of the last period."""
        return round(self._count_per_ms * 1_000)

    def done(self) -> bool:
        return False

    def expire(self) -> None:
        """End a period, and begin the next one if sends wait."""
        assert self._now_ms is not None
        took_ms = max(1, self._now_ms() - self._begun_ms)
        self._count_per_ms, self._bytes_per_ms = self._stored_count / took_ms, self._stored_bytes / took_ms
        self._watching = self.count > 0
        if self._watching:
            self.limited = not self._emptied
            self._begin_period()

    def _begin_period(self) -> None:
        assert self._expiry is not None
        assert self._now_ms is not None
        self._begun_ms = self._now_ms()
        self._emptied = False
        self._stored_count = self._stored_bytes = 0
        self._expiry.add(self._begun_ms + PERIOD_MS, self)
