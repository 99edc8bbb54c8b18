"""Who may consume what: sessions, member lists, locks and progress of one broker, under one set of rules (ordering.md 1-7, 9, 10).

Pure: a connection is an int, time is `now_ms` of one monotonic clock that counts suspension, what must happen in the world comes out of
`drain()` as values (effects.py), what must survive goes into the Journal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.broker.effects import Effect
from lockstep.broker.journal import Change, Journal
from lockstep.protocol.bodies import (
    GroupStatus,
    HeartbeatBody,
    HeartbeatReply,
    Limits,
    LockBatchBody,
    LockBatchReply,
    MemberList,
    ReconcileBody,
    ReconcileReply,
    StartPolicy,
    Subscription,
    SyncBody,
    SyncReply,
)
from lockstep.protocol.layouts import LayoutTable


@dataclass(frozen=True, slots=True)
class CoordinationConfig:
    broker_name: str
    limits: Limits
    features: tuple[str, ...] = ()
    disconnect_grace_ms: int = 3_000
    session_timeout_ms: int = 20_000
    classic_lock_ms: int = 60_000
    classic_member_ms: int = 120_000
    classic_restart_ms: int = 30_000


class QueueBounds(Protocol):
    """What the store knows of a queue (Store has these)."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    def end_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(frozen=True, slots=True)
class PullCheck:
    """Whether a pull may be served. `stale`: answer STALE_EPOCH. `may_commit`: its commit bit counts (classic). `gap`: tell it in PullReply."""

    stale: bool = False
    may_commit: bool = False
    gap: tuple[int, int] | None = None


def next_term(last_term: int, wall_ms: int) -> int:
    """max(last + 1, seconds since 2020-01-01)."""
    return max(last_term + 1, wall_ms // 1000 - 1_577_836_800)


class Coordination:
    """`wake` is called when `drain()` has something where it had nothing. Answers that are None: the connection is being closed, say nothing."""

    KINDS: frozenset[str] = frozenset()
    """First words of this class's journal changes: `apply` takes exactly these."""

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        self.wake: Callable[[], None] | None = None
        raise NotImplementedError

    # start: replay with restore() and apply(), then started(next_term(c.term, wall_ms), …), sync the log, open the port, opened(now)
    @property
    def term(self) -> int: ...
    def snapshot(self) -> dict[str, Any]: ...
    def restore(self, plain: Mapping[str, Any]) -> None: ...
    def apply(self, change: Change) -> None: ...
    def started(self, term: int, *, assumed_loss: bool, now_ms: int) -> None: ...
    def opened(self, now_ms: int) -> None: ...

    # running
    def tick(self, now_ms: int) -> int:
        """What time alone changes. Returns when to call next, at most 1 s from now."""
        ...
    def drain(self) -> list[Effect]: ...
    def heard(self, connection: int, now_ms: int) -> None:
        """A frame came in: call it for every one. Cheap."""
    def connection_closed(self, connection: int, now_ms: int) -> None: ...
    def layout_changed(self, topic: str) -> None: ...
    def retention_moved(self, topic: str, queue_id: int, new_min: int) -> None: ...

    # membership
    def heartbeat(self, connection: int, body: HeartbeatBody, now_ms: int) -> HeartbeatReply | None:
        """Raises SubscriptionConflict, DuplicateClientId, LocalProtocolError."""
        ...
    def unregister(self, connection: int, client_id: str, group: str, now_ms: int) -> None: ...
    def member_list(self, group: str) -> MemberList | None: ...
    def online(self, group: str) -> bool: ...
    def subscription(self, group: str, topic: str) -> Subscription | None: ...
    def has_session(self, connection: int) -> bool: ...

    # locks and progress
    def times_needed(self, connection: int, body: ReconcileBody) -> tuple[StartPolicy, ...]:
        """Start policies by time that this LOCK will resolve: look up every own queue of the topic and pass the offsets to reconcile."""
        ...
    def reconcile(
        self, connection: int, body: ReconcileBody, now_ms: int, by_time: Mapping[tuple[str, int], int] | None = None
    ) -> ReconcileReply | None: ...
    def sync(self, connection: int, body: SyncBody, now_ms: int) -> SyncReply | None: ...
    def check_pull(self, connection: int, group: str, topic: str, queue_id: int, epoch: int | None) -> PullCheck | None: ...
    def classic_lock(self, body: LockBatchBody, now_ms: int) -> LockBatchReply: ...
    def classic_unlock(self, body: LockBatchBody) -> None: ...
    def query_offset(self, group: str, topic: str, queue_id: int, *, young: bool) -> int | None: ...
    def update_offset(self, connection: int, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Raises NoPermission naming the holder."""
    def groups(self) -> tuple[str, ...]: ...
    def status(self, group: str, now_ms: int, address: Callable[[int], str]) -> GroupStatus | None: ...
