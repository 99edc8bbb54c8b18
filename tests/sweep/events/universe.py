"""Machines, processes and faults, which the universe and its faults write, and the final reading of the logs."""

from dataclasses import dataclass

from sweep.history import Event, QueueKey


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
class ServerFailed(Event):
    """A nameserver or broker exited with an error; a service manager will start it again."""

    exit_code: int
    error: str


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
class WallClockJumped(Event):
    """A machine's wall clock was moved by `jump_s`."""

    jump_s: float


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
    position: int = -1
    """Its log offset; −1 if that is not known."""


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
    stored_t: float | None = None
    """When it was stored, by its broker's stamp."""


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
