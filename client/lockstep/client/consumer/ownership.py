"""One queue between a consumer and its broker: who may call the listener, what LOCK and SYNC say of it.

RocketMQ: RebalanceImpl, ProcessQueue.locked.

    state      event     → state        what happened
    WANTED     GRANTED     HELD         LOCK without an epoch was answered OK
    HELD       STALE       GONE         a higher epoch exists, or the grant ended
    DRAINING   ENDED       RELEASING    the running call's result is in; without a call at once
    DRAINING   LIMIT       RELEASING    the call runs past the drain limit: a release without an offset fences it
    DRAINING   STALE       GONE
    RELEASING  SENT        RELEASED     the release left in a SYNC
    RELEASING  STALE       GONE
    RELEASED   ANSWERED    GONE
    RELEASED   STALE       GONE
    RELEASED   CUT         UNSURE       the connection broke: the next LOCK names it and tells
    UNSURE     RENEWED     RELEASING
    UNSURE     STALE       GONE
    GONE       GRANTED     RELEASING    a grant for a queue no longer wanted is released at once

`wanted` (list and layout give the queue to this client, and the consumer is not stopping) bends the state after each event:
WANTED not wanted → GONE; HELD not wanted → DRAINING; DRAINING or RELEASING wanted again → HELD under its grant (the release was not sent);
GONE wanted → WANTED. RELEASED and UNSURE stay: the response comes first, then the queue is acquired again.

A pair that is not in the table changes nothing. Each grant has a fencing token; a response about another token than the current one is
ignored. What the token is, who grants, and what ends a grant depend on the policy (GrantPolicy): the machine is the same for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.bodies import LockItem, LockResult, LockVerdict, SyncItem, SyncResult
from lockstep.protocol.queue import MessageQueue


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
    ANSWERED = "answered"
    CUT = "cut"


TRANSITIONS: Mapping[tuple[OwnershipState, OwnershipEvent], OwnershipState] = {
    (OwnershipState.WANTED, OwnershipEvent.GRANTED): OwnershipState.HELD,
    (OwnershipState.HELD, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.DRAINING, OwnershipEvent.ENDED): OwnershipState.RELEASING,
    (OwnershipState.DRAINING, OwnershipEvent.LIMIT): OwnershipState.RELEASING,
    (OwnershipState.DRAINING, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASING, OwnershipEvent.SENT): OwnershipState.RELEASED,
    (OwnershipState.RELEASING, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.ANSWERED): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.RELEASED, OwnershipEvent.CUT): OwnershipState.UNSURE,
    (OwnershipState.UNSURE, OwnershipEvent.RENEWED): OwnershipState.RELEASING,
    (OwnershipState.UNSURE, OwnershipEvent.STALE): OwnershipState.GONE,
    (OwnershipState.GONE, OwnershipEvent.GRANTED): OwnershipState.RELEASING,
}

BENDS: Mapping[tuple[OwnershipState, bool], OwnershipState] = {
    (OwnershipState.WANTED, False): OwnershipState.GONE,
    (OwnershipState.HELD, False): OwnershipState.DRAINING,
    (OwnershipState.DRAINING, True): OwnershipState.HELD,
    (OwnershipState.RELEASING, True): OwnershipState.HELD,
    (OwnershipState.GONE, True): OwnershipState.WANTED,
}


class GrantPolicy(Enum):
    """How a member acquires a queue, and what the grant excludes."""

    LOCKED = "locked"
    """LOCK grants the queue to one member at a time, under an epoch: the token. The grant lasts while proof of life is renewed, and a
    result counts only while it lasts."""
    SHARED = "shared"
    """QUERY_CONSUMER_OFFSET grants the queue, under the generation of the group's progress: the token. No other member is excluded: when
    the list gives the queue to another one, that one begins at the committed offset at once, and the calls that run here finish beside
    it. A release is the last commit. No life has to be proven, and after a lost connection the last commit is sent again."""
    LOCAL = "local"
    """The member grants the queue to itself, under a number from its own file: the token. Broadcasting: no broker has a part in it."""


_HOLDING = frozenset({OwnershipState.HELD, OwnershipState.DRAINING, OwnershipState.RELEASING, OwnershipState.UNSURE})
"""Named in LOCK with the token. RELEASED is not: its release left earlier on this very connection."""
_WITH_TOKEN = _HOLDING | {OwnershipState.RELEASED}


@dataclass(frozen=True, slots=True)
class SentItem:
    """One item as it left in SYNC or LOCK: its answer is about this and nothing later."""

    ownership: "QueueOwnership"
    token: int | None
    """None: it asked for a grant."""
    offset: int | None
    attempts: int
    release: bool = False


class QueueOwnership:
    """The machine of one (group, queue). All its methods are plain calls on the event loop; times are boot-clock milliseconds.

    `changed` counts the state's changes: a shell that looks again after an await compares it.
    """

    __slots__ = (
        "_fenced",
        "_settled",
        "_told",
        "attempts",
        "cancel_at_ms",
        "changed",
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
        """A listener call of this process works on the queue, under whichever epoch: while it does, the queue is not locked again."""
        self.outlived = False
        """A call of another consumer of this process, one that has stopped without it, still works on the queue: likewise."""
        self.in_lock = False
        """Named without an epoch in a LOCK that is not answered yet."""
        self.token = 0
        """The fencing token of the current grant, or of the last one."""
        self.generation: int | None = None
        """The generation of the group's progress under that grant; None in broadcasting."""
        self.offset = 0
        """Next offset to consume, as far as results are in; valid while a grant is held."""
        self.attempts = 0
        self.error: str | None = None
        """Why the last of these attempts failed."""
        self.drain_at_ms: int | None = None
        self.cancel_at_ms: int | None = None
        self.changed = 0
        self._fenced = False
        """The release goes without an offset: a call still runs past its limit."""
        self._told: tuple[int, int] = (0, 0)
        """(offset, attempts) that left last on this connection."""
        self._settled: tuple[int, int] = (0, 0)
        """(offset, attempts) that the broker has answered OK last."""

    def __repr__(self) -> str:
        return f"<{self.group} {self.queue} {self.state.value} token {self.token} offset {self.offset}{' running' if self.running else ''}>"

    # -------------------------------------------------------------------------------------------------------------- grant

    @property
    def exclusive(self) -> bool:
        """The broker grants the queue to one member at a time: results count only while life is proven."""
        return self.policy is GrantPolicy.LOCKED

    @property
    def epoch(self) -> int | None:
        """The token of a grant that no other member shares; None in a concurrent group."""
        return None if self.policy is GrantPolicy.SHARED else self.token

    @property
    def names(self) -> dict[str, int | None]:
        """The `epoch` and the `generation` of the grant, as events and logs name it."""
        return {"epoch": self.epoch, "generation": self.generation}

    # -------------------------------------------------------------------------------------------------------------- state

    def _on(self, event: OwnershipEvent) -> bool:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self._become(after)
        return True

    def _become(self, state: OwnershipState) -> None:
        state = BENDS.get((state, self.wanted), state)
        if state is OwnershipState.DRAINING and not self.running:
            state = OwnershipState.RELEASING
        if state is OwnershipState.HELD:
            self.drain_at_ms = self.cancel_at_ms = None
            self._fenced = False
        if state is not self.state:
            self.state = state
            self.changed += 1

    @property
    def holds(self) -> bool:
        """A grant is held as far as this side knows: under a lock, proof of life is due every grace/3."""
        return self.state in _WITH_TOKEN

    @property
    def done(self) -> bool:
        """Nothing is left to say, hear or wait for: the queue can be forgotten."""
        return self.state is OwnershipState.GONE and not self.running and not self.in_lock

    # --------------------------------------------------------------------------------------------------------------- plan

    def want(self) -> None:
        """List and layout give the queue to this client."""
        self.wanted = True
        self._become(self.state)

    def unwant(self, now_ms: int, drain_ms: int) -> None:
        """List or layout took it away, or the consumer stops. A running call gets `drain_ms`, never more than an earlier limit left it."""
        self.wanted = False
        limit = now_ms + drain_ms
        if self.drain_at_ms is None or limit < self.drain_at_ms:
            self.drain_at_ms = limit
            self.cancel_at_ms = limit - min(drain_ms // 4, 5_000)
        self._become(self.state)
        if self.state is not OwnershipState.DRAINING:
            self.drain_at_ms = self.cancel_at_ms = None

    def tick(self, now_ms: int) -> bool:
        """True: the drain limit has passed and the running call was given up."""
        if self.state is OwnershipState.DRAINING and self.drain_at_ms is not None and now_ms >= self.drain_at_ms:
            self._fenced = True
            self.drain_at_ms = self.cancel_at_ms = None
            return self._on(OwnershipEvent.LIMIT)
        return False

    # -------------------------------------------------------------------------------------------------------------- calls

    def call_started(self) -> None:
        assert self.state is OwnershipState.HELD, self
        assert not self.running, self
        self.running = True

    def call_ended(self, token: int, offset: int, attempts: int) -> bool:
        """The running call has ended, under the grant `token`: results are in up to `offset`. Returns False if they are void, because that
        grant is gone."""
        self.running = False
        self._fenced = False
        counts = token == self.token and self.state in _HOLDING
        if counts:
            self.offset = offset
            self.attempts = attempts
        if self.state is OwnershipState.DRAINING:
            self._on(OwnershipEvent.ENDED)
        return counts

    def progressed(self, token: int, offset: int) -> None:
        """Move progress without a call: everything below `offset` was filtered, removed or finished."""
        if token == self.token and self.state in _HOLDING and offset > self.offset:
            self.offset = offset
            self.attempts = 0

    # --------------------------------------------------------------------------------------------------------------- LOCK

    def pull_fence(self, token: int) -> tuple[int | None, int | None]:
        """Returns the (epoch, generation) that a pull under this grant carries."""
        if self.policy is GrantPolicy.LOCKED:
            return token, None
        return None, token if self.policy is GrantPolicy.SHARED else None

    @property
    def may_acquire(self) -> bool:
        """The queue is wanted and not held, and no call of this process works on it."""
        return self.state is OwnershipState.WANTED and not self.running and not self.outlived

    def lock_item(self) -> LockItem | None:
        """How LOCK names the queue now; None: it does not."""
        if self.policy is not GrantPolicy.LOCKED:
            return None
        if self.may_acquire:
            return LockItem(self.group, self.queue.topic, self.queue.queue_id)
        if self.state in _HOLDING:
            return LockItem(self.group, self.queue.topic, self.queue.queue_id, self.token, self.offset, self.attempts)
        return None

    def lock_sent(self, item: LockItem) -> SentItem:
        if item.epoch is None:
            self.in_lock = True
        elif item.offset is not None:
            self._told = (item.offset, item.attempts)
        return SentItem(self, item.epoch, item.offset, item.attempts)

    def lock_answered(self, sent: SentItem, answer: LockResult) -> OwnershipEvent | None:
        """Returns what the response means: GRANTED, RENEWED, STALE, or None (refused for now, or about a grant that is gone)."""
        if sent.token is None:
            self.in_lock = False
            if answer.verdict is not LockVerdict.OK or self.state not in (OwnershipState.WANTED, OwnershipState.GONE):
                return None
            self._grant(answer)
            self._on(OwnershipEvent.GRANTED)
            return OwnershipEvent.GRANTED
        if sent.token != self.token or self.state not in _WITH_TOKEN:
            return None
        if answer.verdict is LockVerdict.OK and answer.epoch == sent.token:
            self._settle(sent)
            self._on(OwnershipEvent.RENEWED)
            return OwnershipEvent.RENEWED
        return OwnershipEvent.STALE if self._on(OwnershipEvent.STALE) else None

    def lock_failed(self) -> None:
        """The LOCK was refused as a whole."""
        self.in_lock = False
        self._told = self._settled

    def _settle(self, sent: SentItem) -> None:
        """LOCK and SYNC are answered in whatever order the log confirms them: the higher one stands."""
        if sent.offset is not None:
            self._settled = max(self._settled, (sent.offset, sent.attempts))

    def _grant(self, answer: LockResult) -> None:
        shared = self.policy is GrantPolicy.SHARED
        self.token = answer.generation if shared else answer.epoch
        self.generation = None if self.policy is GrantPolicy.LOCAL else answer.generation
        self.offset = answer.offset
        self.attempts = answer.attempts
        self.error = None
        self._told = self._settled = (answer.offset, answer.attempts)
        self._fenced = False

    # --------------------------------------------------------------------------------------------------------------- SYNC

    @property
    def dirty(self) -> bool:
        """SYNC has something to say of it."""
        if self.state is OwnershipState.RELEASING:
            return True
        return self.state in (OwnershipState.HELD, OwnershipState.DRAINING) and self._told != (self.offset, self.attempts)

    @property
    def settled_offset(self) -> int:
        """Every result below it is answered OK."""
        return self._settled[0]

    def sync_item(self) -> SyncItem | None:
        """How SYNC names the queue now; None: nothing to say."""
        if not self.dirty:
            return None
        place = (self.group, self.queue.topic, self.queue.queue_id)
        if self.policy is GrantPolicy.SHARED:  # a release is a commit as well: what is finished counts, whatever still runs
            return SyncItem(*place, None, self.token, self.offset)
        release = self.state is OwnershipState.RELEASING
        offset = None if release and self._fenced else self.offset
        attempts = 0 if offset is None else self.attempts
        error = self.error if attempts else None
        return SyncItem(*place, self.token, None, offset, attempts, release, error)

    def sync_sent(self, item: SyncItem) -> SentItem:
        assert self.token in (item.epoch, item.generation), (self, item)
        if item.offset is not None:
            self._told = (item.offset, item.attempts)
        release = self._on(OwnershipEvent.SENT)
        return SentItem(self, self.token, item.offset, item.attempts, release)

    def sync_answered(self, sent: SentItem, answer: SyncResult) -> OwnershipEvent | None:
        """Returns ANSWERED, STALE, or None if the response is about a grant that is gone."""
        if sent.token != self.token or self.state not in _WITH_TOKEN or (answer.epoch is not None and answer.epoch != sent.token):
            return None
        if answer.verdict is not LockVerdict.OK and not sent.release:
            return OwnershipEvent.STALE if self._on(OwnershipEvent.STALE) else None
        if answer.verdict is LockVerdict.OK:
            self._settle(sent)
        if sent.release:
            self._on(OwnershipEvent.ANSWERED if answer.verdict is not LockVerdict.STALE else OwnershipEvent.STALE)
        return OwnershipEvent.STALE if answer.verdict is LockVerdict.STALE else OwnershipEvent.ANSWERED

    # --------------------------------------------------------------------------------------------------------- connection

    def stale(self, token: int) -> bool:
        """End the grant: a request under `token` was refused as stale. False: that grant is gone already."""
        return token == self.token and self.state in _WITH_TOKEN and self._on(OwnershipEvent.STALE)

    def cut(self) -> None:
        """Note that the connection is gone. What left on it unanswered is offered again: by the next LOCK, which names the queue with its
        epoch, or by the next SYNC, if nothing is locked."""
        self.in_lock = False
        self._on(OwnershipEvent.CUT)
        if self.policy is GrantPolicy.SHARED:
            self._told = self._settled
            self._on(OwnershipEvent.RENEWED)

    # ------------------------------------------------------------------------------------------------------ shared, and local

    @property
    def may_query(self) -> bool:
        """QUERY_CONSUMER_OFFSET has to ask for the queue."""
        return self.policy is GrantPolicy.SHARED and self.may_acquire and not self.in_lock

    def grant_requested(self) -> SentItem:
        """A grant is on its way, by QUERY_CONSUMER_OFFSET or from the member's file. Returns what its answer is about."""
        self.in_lock = True
        return SentItem(self, None, None, 0)

    def released_locally(self) -> None:
        """RELEASING → GONE: the offset is in the member's table."""
        self._on(OwnershipEvent.SENT)
        self._on(OwnershipEvent.ANSWERED)

    def stored_locally(self, token: int, offset: int, attempts: int) -> None:
        """The member's file has this progress. One of an earlier grant is ignored: the current grant may have begun before it."""
        if token == self.token:
            self._settled = max(self._settled, (offset, attempts))
