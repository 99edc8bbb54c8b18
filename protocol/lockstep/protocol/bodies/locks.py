"""Ownership of queues: LOCK, UNLOCK, SYNC and QUEUE_FREE."""

from dataclasses import dataclass, field
from enum import IntEnum

from lockstep.protocol.bodies.heartbeat import ConsumeFromWhere, ListVersion
from lockstep.protocol.bodies.parks import ReplayKey
from lockstep.protocol.done_ranges import Ranges
from lockstep.protocol.topics.queue import MessageQueue


class LockVerdict(IntEnum):
    """The result of one item of LOCK or SYNC."""

    OK = 0
    STALE = 1
    """The epoch is not the current one: drop the queue and its prefetched messages."""
    NOT_YOURS = 2
    """The broker's member list assigns the queue to another member."""
    HELD = 3
    """The member list assigns the queue to this member, but another session still holds it. Wait for QUEUE_FREE."""
    REFUSED = 4
    """The value is invalid: an offset beyond the end, an unknown queue or topic, no contract. `remark` has the reason."""
    WAIT = 5
    """The broker grants the queue to no member now. Wait for QUEUE_FREE. The reasons: the broker waits after a possible loss of locks, a
    recorded holder has the grace period, groups start in too many queues at once, or this LOCK asks for more starts by time than the
    broker looks up at once."""


@dataclass(frozen=True, slots=True)
class LockItem:
    """One queue that the client holds (with its epoch) or requests (without)."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    offset: int | None = None
    """Progress to commit with a renewal: the next offset to consume."""
    attempts: int = 0
    """Failed calls of the batch that begins at `offset`."""
    done: Ranges | None = None
    """Finished offsets above `offset` (done_ranges.py)."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """The position at which a group without progress starts in a topic; the group's first LOCK for a topic carries it."""

    group: str
    topic: str
    where: ConsumeFromWhere
    timestamp_ms: int | None = None
    since: int | None = None
    """The lowest `since` that the client has received from any broker."""


@dataclass(frozen=True, slots=True)
class SessionLockBody:
    """LOCK_BATCH_MQ (41) of a client with a session: all queues that it holds or requests at this broker, over all its groups.

    Queues that the session holds, but that are missing here or have another epoch, are released, and acquired again if requested.
    """

    items: tuple[LockItem, ...]
    starts: tuple[StartPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class LockResult:
    """The result of one queue, in the order of the request's items."""

    group: str
    topic: str
    queue_id: int
    verdict: LockVerdict
    epoch: int = 0
    offset: int = 0
    """The committed offset, at which the first pull begins."""
    attempts: int = 0
    generation: int = 0
    since: int = 0
    gap_first: int | None = None
    gap_end: int | None = None
    remark: str | None = None
    done: Ranges | None = None
    """Finished offsets above `offset`, which the new owner passes over (done_ranges.py)."""
    replays: tuple[ReplayKey, ...] | None = None
    """Parked keys that the owner has to replay or to drop, at most REPLAYS_MAX at a time."""


@dataclass(frozen=True, slots=True)
class SessionLockReply:
    items: tuple[LockResult, ...]
    versions: dict[str, ListVersion]
    """Group → version of this broker's member list."""
    disconnect_grace_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class QueueRef:
    """A queue as in the bodies of classic clients. RocketMQ: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class LockBatchBody:
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) of a client without a session. RocketMQ: LockBatchRequestBody."""

    client_id: str
    consumer_group: str
    mq_set: tuple[QueueRef, ...]


@dataclass(frozen=True, slots=True)
class LockBatchReply:
    """The queues that the requesting client holds now."""

    lock_ok_mq_set: tuple[QueueRef, ...] = field(metadata={"wire": "lockOKMQSet"})


@dataclass(frozen=True, slots=True)
class SyncItem:
    """Commits or releases one queue, or both. Without `offset` it is a release that only fences the listener."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    generation: int | None = None
    offset: int | None = None
    attempts: int = 0
    release: bool = False
    error: str | None = None
    """Why the last of the `attempts` calls failed, for operators. At most REASON_LENGTH_MAX characters are kept."""
    done: Ranges | None = None
    """Finished offsets above `offset` (done_ranges.py)."""


@dataclass(frozen=True, slots=True)
class SyncBody:
    """SYNC (30001). Without items it only proves that the client is alive, and the broker responds at once."""

    items: tuple[SyncItem, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of one item, in the order of the request's items, with the epoch to which it applies."""

    verdict: LockVerdict
    epoch: int | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    items: tuple[SyncResult, ...]
    versions: dict[str, ListVersion]
    """Every group of this session → version of its member list. It makes up for a lost notification."""


@dataclass(frozen=True, slots=True)
class FreeQueue:
    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueFreeBody:
    """QUEUE_FREE (30002), broker → client, one-way: the client should send LOCK, because these queues are assigned to it and free."""

    queues: tuple[FreeQueue, ...]
