"""PULL_MESSAGE."""

from dataclasses import dataclass, field

COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4


@dataclass(frozen=True, slots=True)
class PullHeader:
    """PULL_MESSAGE (11). RocketMQ: PullMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = 32
    sys_flag: int = 0
    """The bits COMMIT_OFFSET (1), SUSPEND (2) and SUBSCRIPTION (4)."""
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    """The maximum number of record bytes in the response. Native clients and those of RocketMQ 5 name it."""
    epoch: int | None = None
    """Native ordered consumers: the fencing token (epoch) of their lock. A pull with another epoch fails with STALE_EPOCH."""
    generation: int | None = None
    """Native concurrent consumers: the generation of the progress from which they continue. A pull with another one fails with
    STALE_EPOCH."""
    key: str | None = None
    """Return only messages with this sharding key, whether it is parked or not; with an empty text those of every parked key. None:
    leave out what is parked."""


@dataclass(frozen=True, slots=True)
class PullReply:
    """The response with codes 0, 19, 20 and 21. The frame's body has the records as stored. RocketMQ: PullMessageResponseHeader."""

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    gap_first: int | None = field(default=None, metadata={"native": True})
    gap_end: int | None = field(default=None, metadata={"native": True})
    """[gap_first, gap_end) was removed before the group consumed it. Reported with each new grant, and once on each connection."""
