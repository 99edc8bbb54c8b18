"""The calls of producers, which the workload writes."""

from dataclasses import dataclass

from sweep.history import Event, QueueKey, RecallOutcome, SendOutcome


@dataclass(frozen=True, slots=True)
class SendBegan(Event):
    """`send` was called. `body` is unique in the run, whatever the number of tries."""

    body: bytes
    key: str | None
    """Sharding key; None: an unkeyed send."""
    topic: str = ""
    tags: str = ""
    delay_level: int = 0
    """Above 0: its delay was given as this level."""
    delay_ms: int = 0
    """Above 0: it is stored for delivery after this time. Its result is DelayedSendAcked, and it has no order."""
    deliver_ms: int = 0
    """Above 0: the same, until this time of day, in ms since 1970."""
    transaction: str = ""
    """Its transaction: it is stored as a half message. Its result is DelayedSendAcked too."""

    @property
    def waits(self) -> bool:
        """Return whether the message is stored for later delivery."""
        return bool(self.delay_ms or self.deliver_ms or self.transaction)


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
class DelayedSendAcked(Event):
    """A delayed send returned: the message is stored at this broker until its time."""

    body: bytes
    queue: QueueKey
    """The queue to which it will be delivered. Group empty."""
    status: str = "SEND_OK"
    written: bool = False
    """As in SendAcked."""


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    body: bytes
    outcome: SendOutcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class FirstSendAcked(Event):
    """A SEND_MESSAGE of a topic that did not exist was acknowledged: the broker had created the topic."""

    queue: QueueKey
    body: bytes


@dataclass(frozen=True, slots=True)
class _Recall(Event):
    body: bytes
    broker: str
    """The broker that the handle names."""
    recall: int
    """Unique in the run."""
    form: str
    """How the handle differs from that of the acknowledgement: empty if not, "classic" without the offset, or what was forged."""

    @property
    def forged(self) -> bool:
        return self.form not in ("", "classic")


@dataclass(frozen=True, slots=True)
class RecallBegan(_Recall):
    """`recall` was called for an acknowledged message that waits."""


@dataclass(frozen=True, slots=True)
class RecallEnded(_Recall):
    outcome: RecallOutcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class LocalEnded(Event):
    """The database says for good how a local transaction has ended."""

    transaction: str
    committed: bool


@dataclass(frozen=True, slots=True)
class TransactionEnded(Event):
    """A block has ended."""

    transaction: str
    status: str
