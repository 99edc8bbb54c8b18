"""What the universe and its workload write into the history."""

from dataclasses import dataclass

from sweep.history import CallResult, Event, Outcome, QueueKey

# ------------------------------------------------------------------------------------------------------- written by the universe


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


# ------------------------------------------------------------------------------------------------------- written by the workload


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
