"""The events of a history, by who writes them: the universe, the recorder of the connections, and the workload's consumers and producers.

A *copy* of a message is stored by a broker itself: in `%RETRY%group` for another try, or in `%DLQ%group` permanently.
A *reader* is one PullConsumer from its start to its end. Polled messages are *at hand* until the reader marks them as done: with the next
poll (auto-commit), or with commit().
A *member* of a broadcasting group is a consumer machine: its progress is on its disk.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from sweep.history import CallResult, Event, ItemVerdict, QueueKey, SendOutcome

# --------------------------------------------------------------------------------------------- written by the universe


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """A process was started. Its number is unique in the run."""

    role: str = ""
    """"broker", "nameserver", "consumer", "producer", "admin"."""
    flush: str = ""
    """"sync" or "async" for a broker."""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    how: str = "exit"
    """"exit": its main ended; "kill": kill −9, its sockets are closed by the machine; "power": the machine is off, peers are unaware."""


@dataclass(frozen=True, slots=True)
class PowerCut(Event):
    """The machine lost its power and its unsynced bytes, whether or not a process ran on it. Each process has its ProcessEnded too."""


@dataclass(frozen=True, slots=True)
class PauseBegan(Event):
    """The process was stopped by SIGSTOP. Its clocks run."""


@dataclass(frozen=True, slots=True)
class PauseEnded(Event):
    pass


@dataclass(frozen=True, slots=True)
class ClockSet(Event):
    """The machine's boot clock, at `boot_ms`, runs at `rate` from now on. Written at its boot and at each change of the rate."""

    boot_ms: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerOpened(Event):
    """A broker opened its port."""

    broker: str = ""
    term: int = 0
    flush: str = "async"
    """"sync" or "async"."""
    flush_interval_ms: int = 500
    grace_ms: int = 3_000
    session_timeout_ms: int = 20_000
    removes_nothing: bool = False
    """Retention has no reason to remove anything in this run."""


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """A fault of the cluster, or its end. `machine` is the affected one, empty if it is a link.

    `kind` begins with "disk" if a disk became slow ("disk slow"), began to fail, or rotted. "wipe": the store was emptied. "heal":
    a fault has ended.
    """

    kind: str = ""
    target: str = ""
    facts: str = ""


@dataclass(frozen=True, slots=True)
class CalmBegan(Event):
    """The faults have ended, and all programs run."""


@dataclass(frozen=True, slots=True)
class QueuesConsumed(Event):
    """In the calm: the progress of every group has reached the end of every queue. Keys may be parked, and no operator brings them back."""


@dataclass(frozen=True, slots=True)
class MessageStored(Event):
    """Final reading: one message of a broker's log, after the last restart. `queue.group` is empty."""

    queue: QueueKey
    offset: int
    body: bytes
    key: str | None = None
    stored_t: float | None = None
    """When it was stored, by its broker's stamp."""


@dataclass(frozen=True, slots=True)
class ReadingEnded(Event):
    """The final reading of one queue is complete: its broker has the offsets `first` … `end` − 1."""

    queue: QueueKey
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class CopyStored(Event):
    """Final reading: one record of `%RETRY%group` or `%DLQ%group`. `queue.group` is empty."""

    queue: QueueKey
    offset: int
    body: bytes
    retries: int
    """Its reconsume times: one more than those of the message that was sent back."""
    origin: str
    """ORIGIN_MESSAGE_ID: broker and log place of the message that was sent."""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class LayoutsRead(Event):
    """Final reading: each topic that the nameserver lists has its LayoutInForce before this."""

    topics_max: int = 16_384
    """The setting of every broker."""


@dataclass(frozen=True, slots=True)
class LayoutInForce(Event):
    """Final reading: the number of readable queues of a live topic at each broker, from the nameserver."""

    topic: str
    counts: tuple[tuple[str, int], ...]


# ---------------------------------------------------------- written by the recorder: sessions, locks, commits, pulls, sends


@dataclass(frozen=True, slots=True)
class SessionBound(Event):
    """A client received the response to a HEART_BEAT with a session: this connection carries its locks."""

    broker: str
    session: str
    client_id: str
    connection: int
    """The number of the connection, unique in the run."""
    number: int
    """The session's own number of the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionCut(Event):
    """A connection to a broker is gone. `machine`, `process`: the client's."""

    broker: str
    connection: int
    session: str | None


@dataclass(frozen=True, slots=True)
class LeaveSent(Event):
    """A client wrote UNREGISTER_CLIENT of a consumer group, or a HEART_BEAT that does not name the group any more."""

    group: str
    broker: str
    session: str | None


@dataclass(frozen=True, slots=True)
class LockSent(Event):
    """A client wrote LOCK with all queues that it holds (with the epoch) or requests (None) at this broker."""

    broker: str
    session: str | None
    items: tuple[tuple[QueueKey, int | None], ...]


@dataclass(frozen=True, slots=True)
class ProofReceived(Event):
    """A response (SUCCESS) to SYNC or LOCK reached the client."""

    broker: str
    session: str | None
    connection: int
    request_boot_ms: int
    """The client's boot clock when the request was written."""
    request_t: float
    lock: bool
    grace_ms: int | None = None
    """Only in the response to a LOCK."""


@dataclass(frozen=True, slots=True)
class _Grant(Event):
    """OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int
    offset: int
    generation: int
    attempts: int
    session: str | None
    done: tuple[int, ...] = field(default=(), kw_only=True)
    """Finished offsets above `offset`, as bounds of ranges."""
    replays: tuple[tuple[str, int, bool], ...] = field(default=(), kw_only=True)
    """(key, offset, drop) of the parked keys that the owner has to replay from there on, or to drop."""


@dataclass(frozen=True, slots=True)
class LockGranted(_Grant):
    """The broker wrote OK for one queue of a LOCK."""

    client: int
    """Process of the client."""
    renewal: bool
    grace_ms: int
    request_t: float
    """When the LOCK was written."""


@dataclass(frozen=True, slots=True)
class GrantReceived(_Grant):
    """The same response reached the client."""

    renewal: bool
    grace_ms: int


@dataclass(frozen=True, slots=True)
class LockRefused(Event):
    """The broker wrote anything but OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int | None
    """The epoch of the request; None if the queue was wanted, not held."""
    verdict: ItemVerdict
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class _Commit(Event):
    """One item of SYNC, or of LOCK with an offset, or UPDATE_CONSUMER_OFFSET."""

    queue: QueueKey
    epoch: int | None
    generation: int | None
    """Concurrent groups commit under it."""
    offset: int | None
    """None: a release that only fences."""
    attempts: int
    released: bool
    by: str
    """"SYNC", "LOCK" or "UPDATE"."""
    session: str | None
    done: tuple[int, ...] = field(default=(), kw_only=True)
    """Finished offsets above `offset`, as bounds of ranges."""


@dataclass(frozen=True, slots=True)
class CommitSent(_Commit):
    """The item was written by a client."""

    boot_ms: int


@dataclass(frozen=True, slots=True)
class CommitResponded(_Commit):
    """The broker wrote the item's response."""

    client: int
    verdict: ItemVerdict
    request_t: float
    """When the request was written."""


@dataclass(frozen=True, slots=True)
class CommitReceived(_Commit):
    """The item's response reached the client."""

    verdict: ItemVerdict
    request_t: float


@dataclass(frozen=True, slots=True)
class StaleReceived(Event):
    """A client received that an epoch is over: STALE or NOT_YOURS to LOCK, STALE to SYNC, STALE_EPOCH to PULL."""

    queue: QueueKey
    epoch: int
    by: str
    session: str | None


@dataclass(frozen=True, slots=True)
class PullReceived(Event):
    """A response to PULL reached a client. Records are not decoded."""

    queue: QueueKey
    epoch: int | None
    code: int
    offset: int
    """The offset of the request."""
    next_offset: int | None
    request_t: float
    gap: tuple[int, int] | None = None
    response_t: float = 0.0
    """When the broker wrote it."""
    key: str | None = None
    """The pull was for the messages of this key only."""


@dataclass(frozen=True, slots=True)
class QueueFreeSent(Event):
    """The broker pushed QUEUE_FREE."""

    queue: QueueKey
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class FrameWritten(Event):
    """A producer wrote SEND_RECORDS."""

    queue: QueueKey
    bodies: tuple[bytes, ...]
    layout: tuple[int, int] | None
    """(counter, writer) of the layout that chose the queue of a keyed send."""
    producer: str | None
    sequence: tuple[int, int, int]
    """(partition, epoch, first sequence)."""
    request: int
    """Unique in the run; FrameResponded names it."""
    durable: bool | None = None
    """Whether the broker was asked to wait for the disk; False: only until the frame is written; None: as the broker is configured."""


@dataclass(frozen=True, slots=True)
class FrameResponded(Event):
    """The broker responded to SEND_RECORDS."""

    queue: QueueKey
    code: int
    offset: int
    """The offset of the first record; −1 if it was not stored now or its place is not known."""
    position: int
    """The log offset of the first record; −1 in the same cases."""
    count: int
    request: int
    request_t: float


# --------------------------------------------------------- written by the recorder: delayed sends, send backs, dead letters


@dataclass(frozen=True, slots=True)
class DelayedSendWritten(Event):
    """A producer wrote SEND_MESSAGE with a delay level."""

    queue: QueueKey
    body: bytes
    level: int
    request: int
    """Unique in the run; DelayedSendResponded names it."""


@dataclass(frozen=True, slots=True)
class DelayedSendResponded(Event):
    queue: QueueKey
    code: int
    request: int


@dataclass(frozen=True, slots=True)
class ProgressResponded(Event):
    """The broker responded to QUERY_CONSUMER_OFFSET of a member of a concurrent group."""

    queue: QueueKey
    generation: int
    offset: int
    session: str | None
    client: int
    """Process of the client."""
    request_t: float


@dataclass(frozen=True, slots=True)
class SendBackSent(Event):
    """A consumer wrote CONSUMER_SEND_MSG_BACK."""

    group: str
    broker: str
    position: int
    level: int
    """0: the delay depends on the number of retries; below 0: dead-letter it now."""
    retries_max: int | None
    request: int


@dataclass(frozen=True, slots=True)
class SendBackResponded(Event):
    group: str
    broker: str
    code: int
    request: int
    client: int


@dataclass(frozen=True, slots=True)
class DeadLetterSent(Event):
    """An ordered consumer wrote DEAD_LETTER."""

    queue: QueueKey
    epoch: int
    offset: int
    attempts: int
    advance: bool
    request: int


@dataclass(frozen=True, slots=True)
class DeadLetterResponded(Event):
    queue: QueueKey
    epoch: int
    offset: int
    advance: bool
    code: int
    request: int
    client: int


# ------------------------------------------------------------------------------- written by the recorder: parked keys


class ParkedRow(NamedTuple):
    """One parked key, as the response to PARK_CONTROL has it."""

    queue: QueueKey
    key: str
    next: int
    state: str


@dataclass(frozen=True, slots=True)
class _Park(Event):
    """PARK: the message at `offset` has failed for the last time, and its key is set aside."""

    queue: QueueKey
    epoch: int
    offset: int
    request: int


@dataclass(frozen=True, slots=True)
class ParkSent(_Park):
    attempts: int


@dataclass(frozen=True, slots=True)
class ParkResponded(_Park):
    code: int
    client: int


@dataclass(frozen=True, slots=True)
class ParkReceived(_Park):
    code: int
    request_t: float


@dataclass(frozen=True, slots=True)
class _ParkEnd(Event):
    """PARK_END: a replay has accepted all messages of the key below `next`."""

    queue: QueueKey
    epoch: int
    key: str
    next: int
    ends: bool
    """The replay is to end there."""


@dataclass(frozen=True, slots=True)
class ParkEndSent(_ParkEnd):
    pass


@dataclass(frozen=True, slots=True)
class _ParkEnded(_ParkEnd):
    code: int
    until: int | None
    """The replay has not ended, and has to reach this offset."""
    upto: int | None
    """The replay has ended: the key is in the main flow again from there. 0 if the broker has forgotten that."""


@dataclass(frozen=True, slots=True)
class ParkEndResponded(_ParkEnded):
    client: int


@dataclass(frozen=True, slots=True)
class ParkEndReceived(_ParkEnded):
    request_t: float


@dataclass(frozen=True, slots=True)
class ParkControlSent(Event):
    """An operator wrote PARK_CONTROL: "list", "replay" or "drop". It may be executed whether or not its response arrives."""

    broker: str
    action: str
    group: str
    key: str | None
    """None: every key."""


@dataclass(frozen=True, slots=True)
class ParkedListed(Event):
    """A broker responded to "list": these are its parked keys."""

    broker: str
    rows: tuple[ParkedRow, ...]


# ------------------------------------------------------ written by the recorder: resets, layouts, clients without a session


@dataclass(frozen=True, slots=True)
class ResetSent(Event):
    """RESET_OFFSETS was written: from now on it may be executed, whether or not its response arrives. ProgressReset is its response."""

    queue: QueueKey
    offset: int
    request: int
    """The request of the whole frame, which resets all its queues, or none."""


@dataclass(frozen=True, slots=True)
class LayoutSent(Event):
    """A client sent a layout to a broker."""

    broker: str
    topic: str
    counter: int
    deleted: bool
    """The layout has no queues: the topic, its messages, progress and locks are deleted."""


@dataclass(frozen=True, slots=True)
class ClassicLocked(Event):
    """The broker responded to one queue of a classic client's LOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    client: int
    """Process of the client."""
    granted: bool
    request_t: float


@dataclass(frozen=True, slots=True)
class ClassicUnlockSent(Event):
    queue: QueueKey
    client_id: str


@dataclass(frozen=True, slots=True)
class ClassicUnlocked(Event):
    """The broker responded to UNLOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    request_t: float


# -------------------------------------------------------------- written by the workload: sends and listeners of groups


@dataclass(frozen=True, slots=True)
class SendBegan(Event):
    """`send` was called. `body` is unique in the run, whatever the number of tries."""

    body: bytes
    key: str | None
    """Sharding key; None: an unkeyed send."""
    topic: str = ""
    tags: str = ""
    delay_level: int = 0
    """Above 0: it is stored for delayed delivery. Its result is DelayedSendAcked, and it has no order."""


@dataclass(frozen=True, slots=True)
class SendAcked(Event):
    body: bytes
    queue: QueueKey
    """Group empty."""
    offset: int
    """−1: the broker responded DUPLICATE and does not know the place any more."""
    status: str = "SEND_OK"
    written: bool = False
    """`require="written"`: a power cut may take it, whatever the broker's flush."""


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    body: bytes
    outcome: SendOutcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class ServerFailed(Event):
    """A nameserver or broker exited with an error; a service manager will start it again."""

    exit_code: int
    error: str


@dataclass(frozen=True, slots=True)
class ConsumerStarted(Event):
    """`start()` of a group's consumer is about to be called."""

    group: str
    expressions: tuple[tuple[str, str], ...]
    """(topic, tag expression: "*" or tags with ||)."""
    ordered: bool = True
    drain_ms: int = 30_000
    """The limit of a call that runs when its queue is revoked."""
    stop_ms: int = 8_000
    """The same when the consumer stops."""
    threaded: bool = False
    """A plain listener: it starts in a thread, some time after it was scheduled."""
    attempts_max: int | None = None
    """The number of failed calls after which an ordered batch is dead-lettered; None if it never is."""
    where: str = "FIRST_OFFSET"
    """Start policy: "FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"."""
    since_t: float = 0.0
    """The time of TIMESTAMP on the universe's clock."""
    lanes: int | None = None
    """order_by="sharding_key": the number of calls at a time. None: each queue has one."""
    parks: int | None = None
    """on_exhausted="park": the number of failed calls after which a key is parked. None: keys are not parked."""


@dataclass(frozen=True, slots=True)
class ConsumerStopBegan(Event):
    """`stop()` was called."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerStopped(Event):
    """`stop()` returned, or the consumer died."""

    group: str


@dataclass(frozen=True, slots=True)
class CallBegan(Event):
    """The listener was called; written by its first statement."""

    queue: QueueKey
    epoch: int
    """`context.fence.epoch`; 0 in a concurrent group."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    call: int
    """Unique in the run."""
    boot_ms: int
    attempt: int = 0
    keys: tuple[str | None, ...] = ()
    """The sharding key of each message."""

    @property
    def first(self) -> int:
        return self.messages[0][0]

    @property
    def last(self) -> int:
        return self.messages[-1][0]


@dataclass(frozen=True, slots=True)
class CallEnded(Event):
    queue: QueueKey
    epoch: int
    call: int
    result: CallResult
    boot_ms: int


@dataclass(frozen=True, slots=True)
class QueueGapSeen(Event):
    """A consumer was notified that [first, end) was removed before its group consumed it."""

    queue: QueueKey
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ProgressReset(Event):
    """A broker confirmed a reset of the group's progress: its generation has risen."""

    queue: QueueKey
    offset: int
    before: int = -1
    """The group's progress before; −1 if it had none."""
    request: int = 0
    """The request of ResetSent."""


@dataclass(frozen=True, slots=True)
class FirstSendAcked(Event):
    """A SEND_MESSAGE of a topic that did not exist was acknowledged: the broker had created the topic."""

    queue: QueueKey
    body: bytes


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message as a concurrent listener received it."""

    offset: int
    body: bytes
    position: int
    """Its place in its broker's log."""
    retries: int
    """How often it was sent back before."""


@dataclass(frozen=True, slots=True)
class ConcurrentCallBegan(Event):
    """A concurrent listener was called; written by its first statement. `queue`'s topic may be `%RETRY%group`."""

    queue: QueueKey
    given: tuple[ReceivedMessage, ...]
    call: int
    """Unique in the run, also among the calls of ordered groups."""


@dataclass(frozen=True, slots=True)
class ConcurrentCallEnded(Event):
    """`done`: the number of the given messages, from the first one on, that the listener has handled."""

    queue: QueueKey
    call: int
    done: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class DelayedSendAcked(Event):
    """A delayed send returned: the message is stored at this broker until its time."""

    body: bytes
    queue: QueueKey
    """The queue to which it will be delivered. Group empty."""
    status: str = "SEND_OK"


@dataclass(frozen=True, slots=True)
class WallClockJumped(Event):
    """A machine's wall clock was moved by `jump_s`."""

    jump_s: float


# ----------------------------------------------------------------------------- written by the workload: pull consumers


@dataclass(frozen=True, slots=True)
class ReaderStarted(Event):
    """`start()` is about to be called."""

    reader: int
    """Unique in the run."""
    group: str
    topic: str
    by_hand: bool
    """assign(), not subscribe()."""
    auto: bool
    """auto_commit."""
    expression: str = "*"
    """Tags that it subscribes to."""
    each: bool = False
    """It reads by `async for`."""
    where: str = "FIRST_OFFSET"
    """Start policy: as ConsumerStarted has it."""
    since_t: float = 0.0


@dataclass(frozen=True, slots=True)
class ReaderStopped(Event):
    """`stop()` returned, or the start was refused."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReaderQueueAssigned(Event):
    """The reader was notified of a queue that was assigned to it, and of its first offset there."""

    reader: int
    queue: QueueKey
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueueRevoked(Event):
    """The reader was notified that it has lost the queue."""

    reader: int
    queue: QueueKey
    generation: int


@dataclass(frozen=True, slots=True)
class ReaderQueueUnassigned(Event):
    """The queue is not in assignment() any more, so its seeks and pauses are dropped."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class PollReturned(Event):
    """A poll returned messages, or an `async for` returned one."""

    reader: int
    queue: QueueKey
    """The queue of the first message."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    assigned: bool
    """Whether assignment() names the queue at this moment."""


@dataclass(frozen=True, slots=True)
class PolledMessagesDone(Event):
    """The reader is about to poll or to continue an `async for` with auto-commit, or to call commit(): all messages at hand are done."""

    reader: int
    by: str
    """"poll" or "commit"."""


@dataclass(frozen=True, slots=True)
class ReaderCommitted(Event):
    """commit() returned."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReaderCommitFailed(Event):
    """commit() raised. `stale`: it was StaleEpochError."""

    reader: int
    stale: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class SeekReturned(Event):
    """A seek returned: the next poll of the queue begins at `offset`; if the queue is not held, the first poll after it is."""

    reader: int
    queue: QueueKey
    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueuePaused(Event):
    """pause() of the queue returned."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class ReaderQueueResumed(Event):
    """resume() of the queue is about to be called."""

    reader: int
    queue: QueueKey


# ----------------------------------------------------------------------- written by the workload: a broadcasting group


@dataclass(frozen=True, slots=True)
class MemberStarted(Event):
    """`start()` of a broadcasting consumer is about to be called."""

    group: str
    ordered: bool
    each: bool
    """`commit="each"` of an ordered listener: the next call of a queue waits until the file has the progress of the one before."""
    stop_ms: int
    timeout_ms: int
    """A concurrent call that runs longer is dropped."""
    where: str = "FIRST_OFFSET"
    """Start policy."""


@dataclass(frozen=True, slots=True)
class MemberStopBegan(Event):
    """`stop()` was called."""

    group: str


@dataclass(frozen=True, slots=True)
class MemberStopped(Event):
    """`stop()` returned, the consumer died, or its start was refused."""

    group: str


@dataclass(frozen=True, slots=True)
class MemberAssigned(Event):
    """The consumer notified its user that it continues in the queue at `offset`."""

    queue: QueueKey
    epoch: int
    """Names the grant."""
    offset: int


@dataclass(frozen=True, slots=True)
class MemberCallBegan(Event):
    """The listener was called; written by its first statement."""

    queue: QueueKey
    epoch: int
    """The epoch of the grant; 0 if the grant is over by the call's context."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    call: int
    """Unique in the run, also among the calls of other groups."""


@dataclass(frozen=True, slots=True)
class MemberCallEnded(Event):
    """The result of the listener. The messages of a concurrent one are not repeated unless it is CANCELLED."""

    queue: QueueKey
    call: int
    result: CallResult
