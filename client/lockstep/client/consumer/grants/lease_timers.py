"""The times at which a session sends requests to one broker: proof of life, LOCK, SYNC. Pure: times are boot-clock milliseconds that are
passed in.

*proven* is the send time of the last SYNC or LOCK with a response on the connection. On a new connection nothing is proven until the
response to its first LOCK; until then the value of the connection before is kept. The broker can't have seen the connection close before
*proven*, so it grants the queues to no other member before proven + grace. This side starts no call after proven + grace − 500 ms.
"""

from dataclasses import dataclass

LONG_AGO_MS = -(1 << 62)
"""A time in the past: a request that is due at once, or a deadline that has always passed."""
GRACE_MS = 3_000
"""The grace until the first response names the broker's own."""
MARGIN_MS = 500
"""Time from the last start of a call to the moment at which the broker may grant the queue to another. It covers clock drift and a slow
start."""
IDLE_PROOF_MS = 5_000
"""A session sends something at least this often, and four times per session timeout."""
FIRST_LOCK_MS = 1_000
LOCK_EVERY_MS = 20_000
"""RocketMQ: ConsumeMessageOrderlyService's lockMQPeriodically."""
LOCK_SPACING_MS = 10
"""Time between two LOCKs that triggers request: bounds a loop of trigger and refusal at 100/s."""
SYNC_SPACING_MS = 100
"""Time between two SYNCs with items, unless one of them is urgent."""


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request that proves life when its response comes."""

    connection: int
    sent_ms: int
    lock: bool


class ProofOfLife:
    """The proof of life at one broker."""

    __slots__ = (
        "_connection",
        "_empty",
        "_idle_ms",
        "_last_empty_ms",
        "_locked",
        "_proven_grace_ms",
        "deadline_ms",
        "grace_ms",
        "proven_ms",
    )

    def __init__(self) -> None:
        self.deadline_ms = LONG_AGO_MS
        """The time from which no call starts; always in the past before the first proof. It is read before each call of a listener."""
        self.grace_ms = GRACE_MS
        self.proven_ms: int | None = None
        self._proven_grace_ms = GRACE_MS
        """The grace of the broker that responded then: one that was restarted with a longer grace must not renew an old proof."""
        self._connection = 0
        """0 if there is none."""
        self._locked = False
        self._empty: list[ProofRequest] = []
        self._last_empty_ms = 0
        self._idle_ms = IDLE_PROOF_MS

    def connected(self, connection: int, now_ms: int, grace_ms: int, session_timeout_ms: int) -> None:
        """`connection`: a number that rises with each connect, at least 1. The broker names the other values."""
        self._idle_ms = min(IDLE_PROOF_MS, session_timeout_ms // 4)
        self._connection = connection
        self._locked = False
        self._empty.clear()
        self._last_empty_ms = now_ms
        self.set_grace(grace_ms)

    def set_grace(self, grace_ms: int) -> None:
        """Take over the grace that the broker names."""
        self.grace_ms = grace_ms
        self._set_deadline()

    def disconnected(self) -> None:
        self._connection = 0
        self._locked = False
        self._empty.clear()

    @property
    def is_locked(self) -> bool:
        """Return whether the first LOCK of this connection has a response."""
        return self._locked

    def _set_deadline(self) -> None:
        if self.proven_ms is not None:
            self.deadline_ms = self.proven_ms + min(self.grace_ms, self._proven_grace_ms) - MARGIN_MS

    def sent(self, now_ms: int, *, lock: bool = False, empty: bool = False) -> ProofRequest:
        stamp = ProofRequest(self._connection, now_ms, lock)
        if empty:
            self._empty.append(stamp)
            self._last_empty_ms = now_ms
        return stamp

    def responded(self, stamp: ProofRequest) -> None:
        if stamp.connection != self._connection:
            return
        if stamp in self._empty:
            del self._empty[: self._empty.index(stamp) + 1]  # responses come in order: earlier requests have theirs or will never have one
        if stamp.lock:
            self._locked = True
        if self._locked and (self.proven_ms is None or stamp.sent_ms > self.proven_ms):
            self.proven_ms = stamp.sent_ms
            self._proven_grace_ms = self.grace_ms
            self._set_deadline()

    def _interval_ms(self, holding: bool) -> int:
        return min(self._idle_ms, max(self.grace_ms // 3, 1)) if holding else self._idle_ms

    def due_ms(self, holding: bool) -> int:
        """Return when an empty SYNC is due. It overtakes requests that wait for the disk, and is omitted while other responses prove
        life."""
        last = self._last_empty_ms if self.proven_ms is None or not self._locked else max(self._last_empty_ms, self.proven_ms)
        return last + self._interval_ms(holding)

    def silent_at_ms(self) -> int | None:
        """Return when the oldest empty SYNC without a response makes the connection count as dead; None if none is outstanding."""
        return self._empty[0].sent_ms + self.grace_ms if self._empty else None


class LockSchedule:
    """One LOCK in flight per broker, and another one if a trigger comes before its response."""

    __slots__ = ("_asked", "_last_ms", "_next_ms", "in_flight")

    def __init__(self) -> None:
        self.in_flight = False
        self._asked = False
        self._last_ms: int | None = None
        self._next_ms = 0

    def connected(self, now_ms: int) -> None:
        """Schedule a LOCK of all held queues at once: it is the first request after HEART_BEAT."""
        self.in_flight = False
        self._asked = True
        self._last_ms = None
        self._next_ms = now_ms + FIRST_LOCK_MS

    def trigger(self) -> None:
        self._asked = True

    def due_ms(self) -> int | None:
        """Return when the next LOCK is due; None while one is in flight."""
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

    def responded(self) -> None:
        self.in_flight = False

    def failed(self, now_ms: int) -> None:
        """Schedule the next attempt a second later, because LOCK was refused as a whole."""
        self.in_flight = False
        self._asked = False
        self._next_ms = now_ms + FIRST_LOCK_MS


class SyncSchedule:
    """One SYNC with items in flight per broker. The next is sent after its response and after 100 ms; at once if it is urgent."""

    __slots__ = ("_last_ms", "_urgent", "in_flight")

    def __init__(self) -> None:
        self.in_flight = False
        self._urgent = False
        self._last_ms = LONG_AGO_MS

    def disconnected(self) -> None:
        self.in_flight = False

    def send_soon(self) -> None:
        """Send the next SYNC at once: for a release, or a commit that a runner waits for."""
        self._urgent = True

    def due_ms(self) -> int | None:
        """Return when items may be sent; None while some are in flight."""
        if self.in_flight:
            return None
        return LONG_AGO_MS if self._urgent else self._last_ms + SYNC_SPACING_MS

    def cancel_send(self) -> None:
        """Cancel the request, because there is nothing to send."""
        self._urgent = False

    def sent(self, now_ms: int) -> None:
        self.in_flight = True
        self._urgent = False
        self._last_ms = now_ms

    def responded(self) -> None:
        self.in_flight = False
