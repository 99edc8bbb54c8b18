"""A token bucket: how much of something may be used, by time. Pure: time is passed in."""


class TokenBucket:
    """Holds what may be used at once, at most that of one second. It is filled at its rate, when it is looked at.

    What is used may be more than it holds: the debt is paid off before anything else may be used. So one use may be larger than a
    second's worth, and all uses of any time are at most those of that time and of one second more, and the last one.
    """

    __slots__ = ("_filled_ms", "_level", "rate_per_s")

    def __init__(self, rate_per_s: int, now_ms: int) -> None:
        """`rate_per_s` is 1 or more."""
        self.rate_per_s = rate_per_s
        self._level = rate_per_s * 1000
        """What it holds, in thousandths, so that a millisecond adds a whole number; negative: the debt."""
        self._filled_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return how long nothing may be used, in ms; 0 if something may be now."""
        self._fill(now_ms)
        return 0 if self._level > 0 else -self._level // self.rate_per_s + 1

    def take(self, count: int, now_ms: int) -> None:
        """Use `count`, whether it is there or not."""
        self._fill(now_ms)
        self._level -= count * 1000

    def change_rate(self, rate_per_s: int, now_ms: int) -> None:
        """Fill it at another rate from now on. A debt remains, and is paid off at the new rate."""
        self._fill(now_ms)
        self.rate_per_s = rate_per_s
        self._level = min(self._level, rate_per_s * 1000)

    def _fill(self, now_ms: int) -> None:
        if now_ms > self._filled_ms:
            self._level = min(self._level + self.rate_per_s * (now_ms - self._filled_ms), self.rate_per_s * 1000)
            self._filled_ms = now_ms
