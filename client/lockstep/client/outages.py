"""When a broker that is not connected is reported: after a second, then every 30 s until it is back. Pure."""

REPORT_AFTER_MS = 1_000
"""A broker that restarts, or a connection that is replaced, is back sooner."""
REPORT_EVERY_MS = 30_000


class Outages:
    """The brokers that are not connected. All times are monotonic, in ms."""

    __slots__ = ("_due_ms", "_since_ms")

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        self._due_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._since_ms)

    def begin(self, broker: str, now_ms: int) -> None:
        """The broker is not connected, from now on if it was before."""
        self._since_ms.setdefault(broker, now_ms)
        self._due_ms.setdefault(broker, now_ms + REPORT_AFTER_MS)

    def end(self, broker: str, now_ms: int) -> int | None:
        """The broker is connected. Return for how many ms it was not, if that was reported, otherwise None."""
        since_ms, due_ms = self._since_ms.pop(broker, now_ms), self._due_ms.pop(broker, now_ms)
        return now_ms - since_ms if due_ms - since_ms > REPORT_AFTER_MS else None

    def due(self, now_ms: int) -> list[tuple[str, int]]:
        """Return each broker that is to be reported now, and for how many ms it has not been connected."""
        names = [broker for broker, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for broker in names:
            self._due_ms[broker] = now_ms + REPORT_EVERY_MS
        return [(broker, now_ms - self._since_ms[broker]) for broker in names]
