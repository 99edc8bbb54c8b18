"""How far the wall clock of another machine is ahead of this one's, from the times of requests and responses. Pure."""

RENEWED_MS = 600_000
"""A better measurement counts for this long: clocks drift, and some are set."""


class ClockOffset:
    """The best of the last measurements. A difference that the duration of the request explains is none."""

    def __init__(self) -> None:
        self._offset_ms = 0
        self._error_ms: int | None = None
        """The difference is known to this; None before the first measurement."""
        self._at_ms = 0

    def measure(self, sent_ms: int, received_ms: int, theirs_ms: int) -> None:
        """Add one measurement.

        Args:
            sent_ms: When the request was sent, by this machine's wall clock, in ms since 1970.
            received_ms: When its response came, by the same clock.
            theirs_ms: The other clock at some time between these two.
        """
        if received_ms < sent_ms:
            return  # this machine's clock was set back
        error_ms = (received_ms - sent_ms + 1) // 2 + 1
        offset_ms = theirs_ms - (sent_ms + received_ms) // 2
        if self._error_ms is not None and abs(sent_ms - self._at_ms) < RENEWED_MS and error_ms >= self._error_ms:
            agrees = abs(offset_ms - self._offset_ms) <= error_ms + self._error_ms
            if agrees:
                return
        self._offset_ms, self._error_ms, self._at_ms = offset_ms, error_ms, sent_ms

    @property
    def ms(self) -> int:
        """Return by how many milliseconds the other clock is ahead; negative if it is behind, 0 if it may be equal."""
        return 0 if self._error_ms is None or abs(self._offset_ms) <= self._error_ms else self._offset_ms

    @property
    def least_ms(self) -> int:
        """Return by how many milliseconds the clocks differ at least."""
        return 0 if self._error_ms is None else max(0, abs(self._offset_ms) - self._error_ms)
