"""Delays the rebalance of a group while members join one after another, so that each queue moves once and not for each of them. Pure.

    a member joins, CALM_MS or more after the last one      at once
    a member joins sooner after another                     QUIET_MS after the last of them, LONGEST_MS after the first that waits
    a member has left, or a layout changed                  at once, with all members that have joined

Consumption continues during the delay: the holder of a queue keeps it, and a free queue goes to the member that the list names. This
applies to ordered groups; in a concurrent group both members would consume. Kafka: group.initial.rebalance.delay.ms.
"""

CALM_MS = 1_000
QUIET_MS = 500
LONGEST_MS = 2_000


class RebalanceDelay:
    """The delay of one group, as one member sees it. Times are milliseconds of any clock that does not jump."""

    __slots__ = ("_first_ms", "_last_ms", "due_ms")

    def __init__(self) -> None:
        self.due_ms: int | None = None
        """When to rebalance for new members; None if no member waits for that."""
        self._first_ms = 0
        self._last_ms: int | None = None

    def member_joined(self, now_ms: int) -> None:
        """Record that a new member is on a list, or that this member has just joined."""
        soon = self._last_ms is not None and now_ms - self._last_ms < CALM_MS
        self._last_ms = now_ms
        if self.due_ms is not None:
            self.due_ms = min(now_ms + QUIET_MS, self._first_ms + LONGEST_MS)
        elif soon:
            self._first_ms, self.due_ms = now_ms, now_ms + QUIET_MS

    def rebalanced(self) -> None:
        """Record that a rebalance has used the present lists."""
        self.due_ms = None
