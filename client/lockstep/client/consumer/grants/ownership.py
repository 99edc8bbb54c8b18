"""One queue between a consumer and its broker: which calls of the listener are allowed, and how LOCK and SYNC name the queue.

RocketMQ: RebalanceImpl, ProcessQueue.locked.

    state      event     → state        cause
    WANTED     GRANTED     HELD         LOCK without an epoch was granted
    HELD       STALE       GONE         a higher epoch exists, or the grant ended
    DRAINING   ENDED       RELEASING    the running call's result is known; without a call at once
    DRAINING   LIMIT       RELEASING    the call runs past the drain limit: a release without an offset fences it
    DRAINING   STALE       GONE
    RELEASING  SENT        RELEASED     the release was sent in a SYNC
    RELEASING  STALE       GONE
    RELEASED   CONFIRMED   GONE
    RELEASED   STALE       GONE
    RELEASED   LOST        UNSURE       the connection was lost: the next LOCK names the queue, and its response decides
    UNSURE     RENEWED     RELEASING
    UNSURE     STALE       GONE
    GONE       GRANTED     RELEASING    a grant for a queue that is no longer wanted is released at once

`wanted` (list and layout assign the queue to this client, and the consumer is not stopping) changes the state after each event: WANTED not
wanted → GONE; HELD not wanted → DRAINING; DRAINING or RELEASING wanted again → HELD under its grant (the release was not sent); GONE wanted
→ WANTED. RELEASED and UNSURE remain: the response comes first, then the queue is acquired again. RELEASING remains too if the grant came
when the queue was not wanted: nothing consumes under it.

A pair that is not in the table changes nothing. Each grant has a fencing token; a response about another token than the current one is
ignored. The meaning of the token, the granting side, and the end of a grant depend on the policy (GrantPolicy): the machine is the same for
all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.bodies import LockItem, LockResult, LockVerdict, SyncItem, SyncResult
from lockstep.protocol.done_ranges import Ranges
from lockstep.protocol.topics.queue import MessageQueue


class OwnershipState(Enum):
    WANTED = "wanted"
    HELD = "held"
    DRAINING = "draining"
    RELEASING = "releasing"
    RELEASED = "released"
    UNSURE = "unsure"
    GONE = "gone"


class OwnershipEvent(Enum):
    GRANTED = "granted"
    RENEWED = "renewed"
    STALE = "stale"
    ENDED = "ended"
    LIMIT = "limit"
    SENT = "sent"
    CONFIRMED = "confirmed"
    LOST = "lost"


TRANSITIONS: Mapping[tuple[OwnershipState, OwnershipEvent], OwnershipState] = {
    (OwnershipState.WANTED, OwnershipEvent.GRANTED): OwnershipState.HELD,
    (OwnershipState.HELD, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.DRAINING, OwnershipEvent.ENDED): OwnershipState.RELEASING,
    (OwnershipState.DRAINING, OwnershipEvent.LIMIT): OwnershipState.RELEASING,
    (OwnershipState.DRAINING, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASING, OwnershipEvent.SENT): OwnershipState.RELEASED,
    (OwnershipState.RELEASING, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.CONFIRMED): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.LOST): OwnershipState.UNSURE,
    (OwnershipState.UNSURE, OwnershipEvent.RENEWED): OwnershipState.RELEASING,
    (OwnershipState.UNSURE, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.GONE, OwnershipEvent.GRANTED): OwnershipState.RELEASING,
}

DEMAND_TRANSITIONS: Mapping[tuple[OwnershipState, bool], OwnershipState] = {
    (OwnershipState.WANTED, False): OwnershipState.GONE,
    (OwnershipState.HELD, False): OwnershipState.DRAINING,
    (OwnershipState.DRAINING, True): OwnershipState.HELD,
    (OwnershipState.RELEASING, True): OwnershipState.HELD,
    (OwnershipState.GONE, True): OwnershipState.WANTED,
}


class GrantPolicy(Enum):
    """How a member acquires a queue, and which other members a grant excludes."""

    LOCKED = "locked"
    """LOCK grants the queue to one member at a time, under an epoch: the token. The grant lasts while proof of life is renewed, and a
    result counts only while it lasts."""
    SHARED = "shared"
    """QUERY_CONSUMER_OFFSET grants the queue, under the generation of the group's progress: the token. No other member is excluded: when
    the list assigns the queue to another one, that one begins at the committed offset at once, while the calls that run here finish. A
    release is the last commit. No proof of life is needed, and after a lost connection the last commit is sent again."""
    LOCAL = "local"
    """The member grants the queue to itself, under a number from its own file: the token. No broker is involved (broadcasting)."""


_HELD, _DRAINING = OwnershipState.HELD, OwnershipState.DRAINING
_HOLDING = frozenset({OwnershipState.HELD, OwnershipState.DRAINING, OwnershipState.RELEASING, OwnershipState.UNSURE})
"""LOCK names the queue with the token in these states. RELEASED is not one of them: its release was sent earlier on this connection."""
_WITH_TOKEN = _HOLDING | {OwnershipState.RELEASED}


def nothing_done(offset: int) -> Ranges:
    """Return no range: the messages of the queue are finished in its order."""
    return ()


@dataclass(frozen=True, slots=True)
class SentItem:
    """One item as it was sent in SYNC or LOCK: its response concerns this and nothing later."""

    ownership: "QueueOwnership"
    token: int | None
    """None if it requested a grant."""
    offset: int | None
    attempts: int
    release: bool = False


class QueueOwnership:
    """The machine of one (group, queue). All its methods are called on the event loop; times are boot-clock milliseconds.

    `changed` counts the state's changes: a caller compares it after an await.
    """

    __slots__ = (
        "_committed",
        "_fenced",
        "_last_sent",
        "_was_held",
        "attempts",
        "cancel_at_ms",
        "changed",
        "done_ranges",
        "drain_at_ms",
        "error",
        "generation",
        "group",
        "in_lock",
        "offset",
        "outlived",
        "policy",
        "queue",
        "running",
        "state",
        "token",
        "wanted",
    )

    def __init__(self, group: str, queue: MessageQueue, policy: GrantPolicy = GrantPolicy.LOCKED) -> None:
        self.group = group
        self.queue = queue
        self.policy = policy
        self.state = OwnershipState.GONE
        self.wanted = False
        self.running = False
        """A listener call of this process works on the queue, under any epoch. While it does, the queue is not locked again."""
        self.outlived = False
        """A call of another consumer of this process, which stopped without it, still works on the queue. The queue is not locked again
        either."""
        self.in_lock = False
        """A request for it without an epoch has no response yet: a LOCK, QUERY_CONSUMER_OFFSET, or the read of a local file."""
        self.token = 0
        """The fencing token of the current grant, or of the last one."""
        self.generation: int | None = None
        """The generation of the group's progress under that grant; None in broadcasting."""
        self.offset = 0
        """The next offset to consume, according to the results so far; valid while a grant is held."""
        self.attempts = 0
        self.error: str | None = None
        """Why the last of these attempts failed."""
        self.drain_at_ms: int | None = None
        self.cancel_at_ms: int | None = None
        self.changed = 0
        self._fenced = False
        """The release is sent without an offset, because a call still runs past its limit."""
        self._was_held = False
        """The current grant has been HELD: its messages are fetched and consumed since then."""
        self.done_ranges: Callable[[int], Ranges] = nothing_done
        """Returns the finished offsets above `offset`, to which it is applied; of the current grant."""
        self._last_sent: tuple[int, int, Ranges] = (0, 0, ())
        """The (offset, attempts, done ranges) that were sent last on this connection."""
        self._committed: tuple[int, int] = (0, 0)
        """The (offset, attempts) that the broker has confirmed last."""

    def __repr__(self) -> str:
        return f"<{self.group} {self.queue} {self.state.value} token {self.token} offset {self.offset}{' running' if self.running else ''}>"

    # -------------------------------------------------------------------------------------------------------------- grant

    @property
    def exclusive(self) -> bool:
        """Return whether the broker grants the queue to one member at a time: results count only while life is proven."""
        return self.policy is GrantPolicy.LOCKED

    @property
    def epoch(self) -> int | None:
        """Return the token of a grant that no other member shares; None in a concurrent group."""
        return None if self.policy is GrantPolicy.SHARED else self.token

    @property
    def names(self) -> dict[str, int | None]:
        """Return the `epoch` and the `generation` of the grant, as events and logs name them."""
        return {"epoch": self.epoch, "generation": self.generation}

    # -------------------------------------------------------------------------------------------------------------- state

    def _on(self, event: OwnershipEvent) -> bool:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self._become(after)
        return True

    def _become(self, state: OwnershipState) -> None:
        if state is not OwnershipState.RELEASING or self._was_held:
            state = DEMAND_TRANSITIONS.get((state, self.wanted), state)
        if state is OwnershipState.DRAINING and not self.running:
            state = OwnershipState.RELEASING
        if state is OwnershipState.HELD:
            self.drain_at_ms = self.cancel_at_ms = None
            self._fenced = False
            self._was_held = True
        if state is not self.state:
            self.state = state
            self.changed += 1

    @property
    def holds(self) -> bool:
        """Return whether a grant is held as far as this side knows: under a lock, proof of life is due every grace/3."""
        return self.state in _WITH_TOKEN

    @property
    def done(self) -> bool:
        """Return whether nothing is left to send, to receive or to wait for: the queue can be forgotten."""
        return self.state is OwnershipState.GONE and not self.running and not self.in_lock

    # --------------------------------------------------------------------------------------------------------------- plan

    def want(self) -> None:
        """Want the queue: list and layout assign it to this client."""
        self.wanted = True
        self._become(self.state)

    def unwant(self, now_ms: int, drain_ms: int) -> None:
        """Stop wanting the queue: list or layout took it away, or the consumer stops. A running call gets `drain_ms`, or less if an earlier
        limit is sooner."""
        self.wanted = False
        limit = now_ms + drain_ms
        if self.drain_at_ms is None or limit < self.drain_at_ms:
            self.drain_at_ms = limit
            self.cancel_at_ms = limit - min(drain_ms // 4, 5_000)
        self._become(self.state)
        if self.state is not OwnershipState.DRAINING:
            self.drain_at_ms = self.cancel_at_ms = None

    def tick(self, now_ms: int) -> bool:
        """Check the drain limit. Return True if it has passed and the running call was given up."""
        if self.state is OwnershipState.DRAINING and self.drain_at_ms is not None and now_ms >= self.drain_at_ms:
            self._fenced = True
            self.drain_at_ms = self.cancel_at_ms = None
            return self._on(OwnershipEvent.LIMIT)
        return False

    # -------------------------------------------------------------------------------------------------------------- calls

    def call_started(self) -> None:
        assert self.state is _HELD, self
        assert not self.running, self
        self.running = True

    def call_ended(self, token: int, offset: int, attempts: int) -> bool:
        """Record the end of the running call under the grant `token`, with results up to `offset`. Return False if they are void,
        because that grant is gone."""
        self.running = False
        self._fenced = False
        state = self.state
        counts = token == self.token and (state is _HELD or state in _HOLDING)
        if counts:
            self.offset = offset
            self.attempts = attempts
        if state is _DRAINING:
            self._on(OwnershipEvent.ENDED)
        return counts

    def progressed(self, token: int, offset: int, attempts: int = 0) -> None:
        """Move progress without the end of the last call: everything below `offset` was filtered, removed or finished, and `attempts` calls
        of the batch that begins there have failed."""
        state = self.state
        higher = offset > self.offset or (offset == self.offset and attempts > self.attempts)
        if token == self.token and higher and (state is _HELD or state in _HOLDING):
            self.offset = offset
            self.attempts = attempts

    # --------------------------------------------------------------------------------------------------------------- LOCK

    def pull_fence(self, token: int) -> tuple[int | None, int | None]:
        """Return the (epoch, generation) that a pull under this grant has."""
        if self.policy is GrantPolicy.LOCKED:
            return token, None
        return None, token if self.policy is GrantPolicy.SHARED else None

    @property
    def may_acquire(self) -> bool:
        """Return whether the queue is wanted and not held, and no call of this process works on it."""
        return self.state is OwnershipState.WANTED and not self.running and not self.outlived

    def lock_item(self) -> LockItem | None:
        """Return the item by which LOCK names the queue now; None if it does not."""
        if self.policy is not GrantPolicy.LOCKED:
            return None
        if self.may_acquire:
            return LockItem(self.group, self.queue.topic, self.queue.queue_id)
        if self.state in _HOLDING:
            done = self.done_ranges(self.offset) or None
            return LockItem(self.group, self.queue.topic, self.queue.queue_id, self.token, self.offset, self.attempts, done)
        return None

    def lock_sent(self, item: LockItem) -> SentItem:
        if item.epoch is None:
            self.in_lock = True
        elif item.offset is not None:
            self._last_sent = (item.offset, item.attempts, item.done or ())
        return SentItem(self, item.epoch, item.offset, item.attempts)

    def handle_lock_response(self, sent: SentItem, result: LockResult) -> OwnershipEvent | None:
        """Return the event that the response is: GRANTED, RENEWED, STALE, or None (refused temporarily, or about a grant that is gone)."""
        if sent.token is None:
            self.in_lock = False
            if result.verdict is not LockVerdict.OK or self.state not in (OwnershipState.WANTED, OwnershipState.GONE):
                return None
            self._grant(result)
            self._on(OwnershipEvent.GRANTED)
            return OwnershipEvent.GRANTED
        if sent.token != self.token or self.state not in _WITH_TOKEN:
            return None
        if result.verdict is LockVerdict.OK and result.epoch == sent.token:
            self._record_committed(sent)
            self._on(OwnershipEvent.RENEWED)
            return OwnershipEvent.RENEWED
        return OwnershipEvent.STALE if self._on(OwnershipEvent.STALE) else None

    def lock_failed(self) -> None:
        """Record that the LOCK was refused as a whole."""
        self.in_lock = False
        self._last_sent = (*self._committed, ())

    def _record_committed(self, sent: SentItem) -> None:
        """Record confirmed progress. Responses to LOCK and SYNC come in the order in which the log confirms them: the higher one counts."""
        if sent.offset is not None:
            self._committed = max(self._committed, (sent.offset, sent.attempts))

    def _grant(self, result: LockResult) -> None:
        shared = self.policy is GrantPolicy.SHARED
        self.token = result.generation if shared else result.epoch
        self.generation = None if self.policy is GrantPolicy.LOCAL else result.generation
        self.offset = result.offset
        self.attempts = result.attempts
        self.error = None
        self._committed = (result.offset, result.attempts)
        self._last_sent = (*self._committed, ())
        self.done_ranges = nothing_done
        self._fenced = self._was_held = False

    # --------------------------------------------------------------------------------------------------------------- SYNC

    def _has_news(self, done: Ranges) -> bool:
        if self.state is OwnershipState.RELEASING:
            return True
        return self.state in (OwnershipState.HELD, OwnershipState.DRAINING) and self._last_sent != (self.offset, self.attempts, done)

    @property
    def committed_offset(self) -> int:
        """Return the offset below which the broker has confirmed every result."""
        return self._committed[0]

    def sync_item(self) -> SyncItem | None:
        """Return the item by which SYNC names the queue now; None if there is nothing to send."""
        done = self.done_ranges(self.offset)
        if not self._has_news(done):
            return None
        place = (self.group, self.queue.topic, self.queue.queue_id)
        if self.policy is GrantPolicy.SHARED:  # a release is a commit as well: finished messages count, even if calls still run
            return SyncItem(*place, None, self.token, self.offset)
        release = self.state is OwnershipState.RELEASING
        offset = None if release and self._fenced else self.offset
        attempts = 0 if offset is None else self.attempts
        error = self.error if attempts else None
        return SyncItem(*place, self.token, None, offset, attempts, release, error, None if offset is None else done or None)

    def sync_sent(self, item: SyncItem) -> SentItem:
        assert self.token in (item.epoch, item.generation), (self, item)
        if item.offset is not None:
            self._last_sent = (item.offset, item.attempts, item.done or ())
        release = self._on(OwnershipEvent.SENT)
        return SentItem(self, self.token, item.offset, item.attempts, release)

    def handle_sync_response(self, sent: SentItem, result: SyncResult) -> OwnershipEvent | None:
        """Return CONFIRMED, STALE, or None if the response is about a grant that is gone."""
        if sent.token != self.token or self.state not in _WITH_TOKEN or (result.epoch is not None and result.epoch != sent.token):
            return None
        if result.verdict is not LockVerdict.OK and not sent.release:
            return OwnershipEvent.STALE if self._on(OwnershipEvent.STALE) else None
        if result.verdict is LockVerdict.OK:
            self._record_committed(sent)
        if sent.release:
            self._on(OwnershipEvent.CONFIRMED if result.verdict is not LockVerdict.STALE else OwnershipEvent.STALE)
        return OwnershipEvent.STALE if result.verdict is LockVerdict.STALE else OwnershipEvent.CONFIRMED

    # --------------------------------------------------------------------------------------------------------- connection

    def stale(self, token: int) -> bool:
        """End the grant, because a request under `token` was refused as stale. Return False if that grant is gone already."""
        return token == self.token and self.state in _WITH_TOKEN and self._on(OwnershipEvent.STALE)

    def disconnected(self) -> None:
        """Record that the connection was lost. Requests without a response are repeated: by the next LOCK, which names the queue with its
        epoch, or by the next SYNC if nothing is locked."""
        self.in_lock = False
        self._on(OwnershipEvent.LOST)
        if self.policy is GrantPolicy.SHARED:
            self._last_sent = (*self._committed, ())
            self._on(OwnershipEvent.RENEWED)

    # ------------------------------------------------------------------------------------------------------ shared, and local

    @property
    def may_query(self) -> bool:
        """Return whether QUERY_CONSUMER_OFFSET has to request the queue."""
        return self.policy is GrantPolicy.SHARED and self.may_acquire and not self.in_lock

    def grant_requested(self) -> SentItem:
        """Record that a grant is being requested, by QUERY_CONSUMER_OFFSET or from the member's file. Return the item that its response
        concerns."""
        self.in_lock = True
        return SentItem(self, None, None, 0)

    def released_locally(self) -> None:
        """RELEASING → GONE: the offset is in the member's table."""
        self._on(OwnershipEvent.SENT)
        self._on(OwnershipEvent.CONFIRMED)

    def stored_locally(self, token: int, offset: int, attempts: int) -> None:
        """Record that the member's file has this progress. Progress of an earlier grant is ignored: the current grant may have begun before
        it."""
        if token == self.token:
            self._committed = max(self._committed, (offset, attempts))
