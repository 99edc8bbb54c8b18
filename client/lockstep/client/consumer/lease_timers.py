"""When a session says what to one broker: proof of life, LOCK, SYNC. Pure: all times are boot-clock milliseconds that are passed in.

*proven* is the send time of the last answered SYNC or LOCK on the connection; on a new connection nothing is proven until its first LOCK
is answered (the value of the connection before stands meanwhile). The broker can have seen a close no earlier than proven, so it grants to
nobody else before proven + grace: this side starts nothing after proven + grace − 500 ms.
"""

from dataclasses import dataclass

LONG_AGO_MS = -(1 << 62)
"""Due at once; a deadline that was never ahead."""
GRACE_MS = 3_000
"""Until the first answer names the broker's own."""
MARGIN_MS = 500
"""From the last start of a call to the moment at which the broker may grant the queue to another; covers drift and a slow start."""
IDLE_PROOF_MS = 5_000
"""A session says something at least this often, and four times in the time after which it would end."""
FIRST_LOCK_MS = 1_000
LOCK_EVERY_MS = 20_000
"""RocketMQ: ConsumeMessageOrderlyService's lockMQPeriodically."""
LOCK_SPACING_MS = 10
"""Between two LOCKs that triggers ask for: bounds a loop of trigger and refusal at 100/s."""
SYNC_SPACING_MS = 100
"""Between two SYNCs with items, unless one of them can't wait."""


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request that proves something when it is answered."""

    connection: int
    sent_ms: int
    lock: bool


class ProofOfLife:
    """Proof of life at one broker."""

    __slots__ = ("_connection", "_empty", "_idle_ms", "_last_empty_ms", "_locked", "_proven_grace_ms", "grace_ms", "proven_ms")

    def __init__(self) -> None:
        self.grace_ms = GRACE_MS
        self.proven_ms: int | None = None
        self._proven_grace_ms = GRACE_MS
        """What the broker that answered then gives: one that was started anew with a longer grace may not revive an old proof."""
        self._connection = 0
        """0: none."""
        self._locked = False
        self._empty: list[ProofRequest] = []
        self._last_empty_ms = 0
        self._idle_ms = IDLE_PROOF_MS

    def connected(self, connection: int, now_ms: int, grace_ms: int, session_timeout_ms: int) -> None:
        """`connection`: a number that rises with each connect, ≥ 1. The rest as the broker says."""
        self._idle_ms = min(IDLE_PROOF_MS, session_timeout_ms // 4)
        self._connection = connection
        self._locked = False
        self._empty.clear()
        self._last_empty_ms = now_ms
        self.grace_ms = grace_ms

    def cut(self) -> None:
        self._connection = 0
        self._locked = False
        self._empty.clear()

    @property
    def is_locked(self) -> bool:
        """The first LOCK of this connection was answered."""
        return self._locked

    @property
    def deadline_ms(self) -> int:
        """No call starts at this time or later. Before anything was proven: always past."""
        return LONG_AGO_MS if self.proven_ms is None else self.proven_ms + min(self._proven_grace_ms, self.grace_ms) - MARGIN_MS

    def sent(self, now_ms: int, *, lock: bool = False, empty: bool = False) -> ProofRequest:
        stamp = ProofRequest(self._connection, now_ms, lock)
        if empty:
            self._empty.append(stamp)
            self._last_empty_ms = now_ms
        return stamp

    def answered(self, stamp: ProofRequest) -> None:
        if stamp.connection != self._connection:
            return
        if stamp in self._empty:
            del self._empty[: self._empty.index(stamp) + 1]  # answered in order: what left before it is answered or never will be
        if stamp.lock:
            self._locked = True
        if self._locked and (self.proven_ms is None or stamp.sent_ms > self.proven_ms):
            self.proven_ms = stamp.sent_ms
            self._proven_grace_ms = self.grace_ms

    def _interval_ms(self, holding: bool) -> int:
        return min(self._idle_ms, max(self.grace_ms // 3, 1)) if holding else self._idle_ms

    def due_ms(self, holding: bool) -> int:
        """When an empty SYNC is due: it overtakes whatever waits for the disk, and is left out while other answers prove as much."""
        last = self._last_empty_ms if self.proven_ms is None or not self._locked else max(self._last_empty_ms, self.proven_ms)
        return last + self._interval_ms(holding)

    def silent_at_ms(self) -> int | None:
        """When the oldest unanswered empty SYNC makes the connection count as dead; None: none is out."""
        return self._empty[0].sent_ms + self.grace_ms if self._empty else None


class LockSchedule:
    """One LOCK in flight per broker, and again if a trigger came meanwhile."""

    __slots__ = ("_asked", "_last_ms", "_next_ms", "in_flight")

    def __init__(self) -> None:
        self.in_flight = False
        self._asked = False
        self._last_ms: int | None = None
        self._next_ms = 0

    def connected(self, now_ms: int) -> None:
        """The first request after HEART_BEAT is a LOCK with everything held, at once."""
        self.in_flight = False
        self._asked = True
        self._last_ms = None
        self._next_ms = now_ms + FIRST_LOCK_MS

    def trigger(self) -> None:
        self._asked = True

    def due_ms(self) -> int | None:
        """When the next LOCK is due; None: while one is in flight."""
        if self.in_flight:
            return None
        if not self._asked:
            return self._next_ms
        return LONG_AGO_MS if self._last_ms is None else min(self._last_ms + LOCK_SPACING_MS, self._next_ms)

    def sent(self, now_ms: int) -> None:
        self.in_flight = True
        self._asked = False
        first = self._last_ms is None
        self._last_ms = now_ms
        self._next_ms = now_ms + (FIRST_LOCK_MS if first else LOCK_EVERY_MS)

    def answered(self) -> None:
        self.in_flight = False

    def failed(self, now_ms: int) -> None:
        """Refused as a whole: again in a second."""
        self.in_flight = False
        self._asked = False
        self._next_ms = now_ms + FIRST_LOCK_MS


class SyncSchedule:
    """One SYNC with items in flight per broker; the next leaves when it is answered and 100 ms have passed, at once where one is urgent."""

    __slots__ = ("_last_ms", "_urgent", "in_flight")

    def __init__(self) -> None:
        self.in_flight = False
        self._urgent = False
        self._last_ms = LONG_AGO_MS

    def cut(self) -> None:
        self.in_flight = False

    def hurry(self) -> None:
        """A release, or a commit that a runner waits for."""
        self._urgent = True

    def due_ms(self) -> int | None:
        """When items may leave; None: while some are in flight."""
        if self.in_flight:
            return None
        return LONG_AGO_MS if self._urgent else self._last_ms + SYNC_SPACING_MS

    def calm(self) -> None:
        """There was nothing to say after all."""
        self._urgent = False

    def sent(self, now_ms: int) -> None:
        self.in_flight = True
        self._urgent = False
        self._last_ms = now_ms

    def answered(self) -> None:
        self.in_flight = False
