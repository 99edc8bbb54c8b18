"""The events of a history, by who writes them: the universe, the tap on the connections, and the workload's consumers and producers.

A *copy* is what a broker itself stores of a message: for a further try in `%RETRY%group`, permanently in `%DLQ%group`.
A *reader* is one PullConsumer from its start to its end. What a poll returned is *at hand* until the reader marks it as done: with the next
poll (auto-commit), or with commit().
A *member* of a broadcasting group is a consumer machine: its progress is on its disk.
"""

from dataclasses import dataclass

from sweep.history import Answer, CallResult, Event, Outcome, QueueKey

# --------------------------------------------------------------------------------------------- written by the universe


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """`process` is new in the whole run."""

    role: str = ""
    """"broker", "nameserver", "consumer", "producer", "admin"."""
    flush: str = ""
    """Of a broker: "sync" or "async"."""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    how: str = "exit"
    """"exit": its main ended; "kill": kill −9, its sockets are closed by the machine; "power": the machine is gone, nobody is told."""


@dataclass(frozen=True, slots=True)
class PowerCut(Event):
    """The machine lost its power and what was not synced, whether or not a process ran on it. ProcessEnded of each one beside it."""


@dataclass(frozen=True, slots=True)
class PauseBegan(Event):
    """The process stands still: SIGSTOP. Its clocks go on."""


@dataclass(frozen=True, slots=True)
class PauseEnded(Event):
    pass


@dataclass(frozen=True, slots=True)
class ClockSet(Event):
    """From now on the machine's boot clock, now at `boot_ms`, goes at `rate`: written at its boot and whenever the rate changes."""

    boot_ms: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerOpened(Event):
    """The port is open."""

    broker: str = ""
    term: int = 0
    flush: str = "async"
    """"sync" or "async"."""
    flush_interval_ms: int = 500
    grace_ms: int = 3_000
    session_timeout_ms: int = 20_000
    removes_nothing: bool = False
    """Retention has no reason to remove anything while this lasts."""


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """Something was done to the cluster, or undone. `machine` is the one it was done to, empty where it is a link.

    `kind` begins with "disk" where a disk became slow ("disk slow"), began to fail, or rotted. "wipe": the store was emptied. "heal":
    something was undone.
    """

    kind: str = ""
    target: str = ""
    facts: str = ""


@dataclass(frozen=True, slots=True)
class Calm(Event):
    """From now on nothing is done to the cluster and everything runs."""


@dataclass(frozen=True, slots=True)
class Stored(Event):
    """Final reading: one message as its broker's log has it, after the last restart. `queue.group` is empty."""

    queue: QueueKey
    offset: int
    body: bytes
    key: str | None = None
    stored_t: float | None = None
    """When, by its broker's stamp."""


@dataclass(frozen=True, slots=True)
class ReadingEnded(Event):
    """The final reading of one queue is whole: offsets `first` … `end` − 1 are what its broker says that it has."""

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
    """Its reconsume times: of the message that was sent back, + 1."""
    origin: str
    """ORIGIN_MESSAGE_ID: broker and log place of the message that was sent."""


@dataclass(frozen=True, slots=True)
class LayoutsRead(Event):
    """Final reading: each topic that the nameserver lists has its LayoutInForce before this."""

    topics_max: int = 16_384
    """The setting of every broker."""


@dataclass(frozen=True, slots=True)
class LayoutInForce(Event):
    """Final reading: how many readable queues of a live topic each broker has, by the nameserver."""

    topic: str
    counts: tuple[tuple[str, int], ...]


# ---------------------------------------------------------- written by the tap: sessions, locks, commits, pulls, sends


@dataclass(frozen=True, slots=True)
class SessionBound(Event):
    """A client received the answer to a HEART_BEAT with a session: this connection carries its locks."""

    broker: str
    session: str
    client_id: str
    connection: int
    """The tap's number of the connection, unique in the run."""
    number: int
    """The session's own number of it."""


@dataclass(frozen=True, slots=True)
class ConnectionCut(Event):
    """A connection to a broker is gone. `machine`, `process`: the client's."""

    broker: str
    connection: int
    session: str | None


@dataclass(frozen=True, slots=True)
class LeaveSent(Event):
    """UNREGISTER_CLIENT of a consumer group was written, or a HEART_BEAT that does not name it any more."""

    group: str
    broker: str
    session: str | None


@dataclass(frozen=True, slots=True)
class LockSent(Event):
    """A client wrote LOCK: everything that it holds (with its epoch) or wants (None) at this broker."""

    broker: str
    session: str | None
    items: tuple[tuple[QueueKey, int | None], ...]


@dataclass(frozen=True, slots=True)
class ProofReceived(Event):
    """An answer (SUCCESS) to SYNC or LOCK reached the client."""

    broker: str
    session: str | None
    connection: int
    asked_boot_ms: int
    """The client's boot clock when the request was written."""
    asked_t: float
    lock: bool
    grace_ms: int | None = None
    """A LOCK's answer names it."""


@dataclass(frozen=True, slots=True)
class _Grant(Event):
    """OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int
    offset: int
    generation: int
    attempts: int
    session: str | None


@dataclass(frozen=True, slots=True)
class GrantAnswered(_Grant):
    """The broker wrote OK for one queue of a LOCK."""

    client: int
    """Process of the client."""
    renewal: bool
    grace_ms: int
    asked_t: float
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
    """As asked; None: the queue was wanted, not held."""
    answer: Answer
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


@dataclass(frozen=True, slots=True)
class CommitSent(_Commit):
    """The item was written by a client."""

    boot_ms: int


@dataclass(frozen=True, slots=True)
class CommitAnswered(_Commit):
    """The broker wrote the item's response."""

    client: int
    answer: Answer
    asked_t: float
    """When the request was written."""


@dataclass(frozen=True, slots=True)
class CommitReceived(_Commit):
    """The item's response reached the client."""

    answer: Answer
    asked_t: float


@dataclass(frozen=True, slots=True)
class StaleReceived(Event):
    """A client was told that an epoch is over: STALE or NOT_YOURS to LOCK, STALE to SYNC, STALE_EPOCH to PULL."""

    queue: QueueKey
    epoch: int
    by: str
    session: str | None


@dataclass(frozen=True, slots=True)
class PullReceived(Event):
    """An answer to PULL reached a client. Records are not decoded."""

    queue: QueueKey
    epoch: int | None
    code: int
    offset: int
    """Asked for."""
    next_offset: int | None
    asked_t: float
    gap: tuple[int, int] | None = None
    answered_t: float = 0.0
    """When the broker wrote it."""


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
    """(counter, writer) that a keyed send hashed over."""
    producer: str | None
    sequence: tuple[int, int, int]
    """(partition, epoch, first sequence)."""
    request: int
    """Unique in the run; FrameAnswered names it."""
    durable: bool | None = None
    """What it asked the broker to wait for; False: only until it is written."""


@dataclass(frozen=True, slots=True)
class FrameAnswered(Event):
    """The broker answered SEND_RECORDS."""

    queue: QueueKey
    code: int
    offset: int
    """Of the first record; −1 where it was not stored now or the place is not known."""
    position: int
    """Of the first record in the broker's log; −1 likewise."""
    count: int
    request: int
    asked_t: float


# --------------------------------------------------------- written by the tap: delayed sends, send backs, dead letters


@dataclass(frozen=True, slots=True)
class DelayedWritten(Event):
    """A producer wrote SEND_MESSAGE with a delay level."""

    queue: QueueKey
    body: bytes
    level: int
    request: int
    """Unique in the run; DelayedAnswered names it."""


@dataclass(frozen=True, slots=True)
class DelayedAnswered(Event):
    queue: QueueKey
    code: int
    request: int


@dataclass(frozen=True, slots=True)
class ProgressAnswered(Event):
    """The broker told a member of a concurrent group where to go on: QUERY_CONSUMER_OFFSET."""

    queue: QueueKey
    generation: int
    offset: int
    session: str | None
    client: int
    """Process of the client."""
    asked_t: float


@dataclass(frozen=True, slots=True)
class SentBack(Event):
    """A consumer wrote CONSUMER_SEND_MSG_BACK."""

    group: str
    broker: str
    position: int
    level: int
    """0: by the number of its retries; < 0: dead-letter it now."""
    retries_max: int | None
    request: int


@dataclass(frozen=True, slots=True)
class SendBackAnswered(Event):
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
class DeadLetterAnswered(Event):
    queue: QueueKey
    epoch: int
    offset: int
    advance: bool
    code: int
    request: int
    client: int


# ------------------------------------------------------ written by the tap: resets, layouts, clients without a session


@dataclass(frozen=True, slots=True)
class ResetSent(Event):
    """RESET_OFFSETS was written: from now on it may come true, whether or not it is ever answered. ProgressReset is its answer."""

    queue: QueueKey
    offset: int
    request: int
    """Of the whole frame: all its queues, or none."""


@dataclass(frozen=True, slots=True)
class LayoutSent(Event):
    """Somebody asked a broker for a layout."""

    broker: str
    topic: str
    counter: int
    deleted: bool
    """Without queues: the topic, its messages, progress and locks go."""


@dataclass(frozen=True, slots=True)
class ClassicLocked(Event):
    """The broker answered one queue of a classic client's LOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    client: int
    """Process of the client."""
    granted: bool
    asked_t: float


@dataclass(frozen=True, slots=True)
class ClassicUnlockSent(Event):
    queue: QueueKey
    client_id: str


@dataclass(frozen=True, slots=True)
class ClassicUnlocked(Event):
    """The broker answered UNLOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    asked_t: float


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
    """> 0: it waits at its broker. Answered as DelayedAcked, and in no order with others."""


@dataclass(frozen=True, slots=True)
class SendAcked(Event):
    body: bytes
    queue: QueueKey
    """Group empty."""
    offset: int
    """−1: the broker answered DUPLICATE and does not know the place any more."""
    status: str = "SEND_OK"
    written: bool = False
    """`require="written"`: a power cut may take it, whatever the broker's flush."""


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    body: bytes
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class ServerFailed(Event):
    """A nameserver or broker ends by itself: a service manager will start it again."""

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
    """Limit of a call that runs when its queue is taken away."""
    stop_ms: int = 8_000
    """The same when the consumer stops."""
    threaded: bool = False
    """A plain listener: it starts in a thread, some time after the decision."""
    attempts_max: int | None = None
    """Failed calls of an ordered batch until it is dead-lettered; None: it never is."""
    where: str = "FIRST_OFFSET"
    """Start policy: "FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"."""
    since_t: float = 0.0
    """What TIMESTAMP's time means on the universe's clock."""


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
    """The listener's first statement."""

    queue: QueueKey
    epoch: int
    """`context.fence.epoch`; 0 in a concurrent group."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    call: int
    """Unique in the run."""
    boot_ms: int
    attempt: int = 0

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
    """A consumer was told that [first, end) was removed before its group consumed it."""

    queue: QueueKey
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ProgressReset(Event):
    """A broker answered that it had moved the group's progress by hand: its generation has risen."""

    queue: QueueKey
    offset: int
    before: int = -1
    """Where the group was; −1: it had no progress."""
    request: int = 0
    """As ResetSent names it."""


@dataclass(frozen=True, slots=True)
class FirstSendAcked(Event):
    """A SEND_MESSAGE of a topic that did not exist was acknowledged: the broker had created the topic."""

    queue: QueueKey
    body: bytes


@dataclass(frozen=True, slots=True)
class Given:
    """One message as a concurrent listener gets it."""

    offset: int
    body: bytes
    position: int
    """Its place in its broker's log."""
    retries: int
    """How often it was sent back before."""


@dataclass(frozen=True, slots=True)
class SharedCallBegan(Event):
    """A concurrent listener's first statement. `queue`'s topic may be `%RETRY%group`."""

    queue: QueueKey
    given: tuple[Given, ...]
    call: int
    """Unique in the run, also among the calls of ordered groups."""


@dataclass(frozen=True, slots=True)
class SharedCallEnded(Event):
    """`done`: so many of the given messages, from the first one on, the listener has handled. Its consumer may know better."""

    queue: QueueKey
    call: int
    done: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class DelayedAcked(Event):
    """A delayed send returned: the message waits at this broker for its time."""

    body: bytes
    queue: QueueKey
    """Where it will go. Group empty."""
    status: str = "SEND_OK"


@dataclass(frozen=True, slots=True)
class WallJumped(Event):
    """A machine's wall clock was set by `jump_s`."""

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
class QueueGiven(Event):
    """The reader was told that it has the queue, and where it begins."""

    reader: int
    queue: QueueKey
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class QueueTaken(Event):
    """The reader was told that it has the queue no more."""

    reader: int
    queue: QueueKey
    generation: int


@dataclass(frozen=True, slots=True)
class QueueUnassigned(Event):
    """The queue is not in assignment() any more: what was asked of it is forgotten."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class Polled(Event):
    """A poll returned messages, or an `async for` one."""

    reader: int
    queue: QueueKey
    """Of the first message."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    assigned: bool
    """assignment() names the queue at this moment."""


@dataclass(frozen=True, slots=True)
class DoneSaid(Event):
    """A reader with auto-commit is about to poll, or to go on in an `async for`, or commit() to be called: everything at hand is done."""

    reader: int
    by: str
    """"poll" or "commit"."""


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """commit() returned."""

    reader: int


@dataclass(frozen=True, slots=True)
class CommitFailed(Event):
    """commit() raised. `stale`: it was StaleEpochError."""

    reader: int
    stale: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sought(Event):
    """A seek returned: the next poll of the queue gives what stands at `offset`, or, where the queue is not held, when it is."""

    reader: int
    queue: QueueKey
    offset: int


@dataclass(frozen=True, slots=True)
class ReadingPaused(Event):
    """pause() of the queue returned."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class ReadingResumed(Event):
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
    """`commit="each"` of an ordered listener: the next call of a queue waits until the file has the one before."""
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
    """The consumer told its user that it goes on in the queue at `offset`."""

    queue: QueueKey
    epoch: int
    """Names the grant."""
    offset: int


@dataclass(frozen=True, slots=True)
class MemberCalled(Event):
    """The listener's first statement."""

    queue: QueueKey
    epoch: int
    """The grant; 0: it is over, as the call's context says."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    call: int
    """Unique in the run, also among the calls of other groups."""


@dataclass(frozen=True, slots=True)
class MemberReturned(Event):
    """How the listener ended. Of a concurrent one any end but CANCELLED means that its messages don't come again."""

    queue: QueueKey
    call: int
    result: CallResult
