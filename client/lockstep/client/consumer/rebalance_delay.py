"""When a group shares its queues anew: members who come one after the other cost each queue one move, not one each. Pure.

    somebody comes, nobody came less than CALM_MS before      at once
    somebody comes soon after another                         QUIET_MS after the last of them, LONGEST_MS after the first that waits
    somebody is gone, a layout changed                        at once, with everybody who has come

Nobody stands still meanwhile: who holds a queue goes on with it, and a free one goes to whom the list names. So it is for ordered groups;
in a concurrent one both would consume. Kafka: group.initial.rebalance.delay.ms.
"""

CALM_MS = 1_000
QUIET_MS = 500
LONGEST_MS = 2_000


class RebalanceDelay:
    """Of one group, as one member sees them. Times in ms of any clock that does not jump."""

    __slots__ = ("_first_ms", "_last_ms", "due_ms")

    def __init__(self) -> None:
        self.due_ms: int | None = None
        """When to share anew for those who have come; None: nobody waits for it."""
        self._first_ms = 0
        self._last_ms: int | None = None

    def came(self, now_ms: int) -> None:
        """Somebody new is on a list, or this member itself has just joined."""
        soon = self._last_ms is not None and now_ms - self._last_ms < CALM_MS
        self._last_ms = now_ms
        if self.due_ms is not None:
            self.due_ms = min(now_ms + QUIET_MS, self._first_ms + LONGEST_MS)
        elif soon:
            self._first_ms, self.due_ms = now_ms, now_ms + QUIET_MS

    def shared(self) -> None:
        """The queues are shared by the lists of now."""
        self.due_ms = None
