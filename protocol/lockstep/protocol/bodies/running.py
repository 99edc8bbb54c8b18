"""What a member reports of one of its queues: GET_CONSUMER_RUNNING_INFO. RocketMQ: ConsumerRunningInfo, ProcessQueueInfo."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running call of the listener."""

    ran_ms: int
    """How long it has run."""
    offset: int
    """The offset of its first message."""
    count: int
    attempts: int
    """The number of calls of this batch that have failed before."""
    key: str | None = None
    """The sharding key of its first message."""
    stack: tuple[str, ...] = ()
    """Where it is, the innermost place last: "billing.py:41 in bill". Never a value: values may be secrets."""
    own_frame: str | None = None
    """The innermost place of `stack` in the application's own code, which is neither the standard library nor an installed package; None
    if there is none."""


@dataclass(frozen=True, slots=True)
class RunningQueue:
    """One queue of a member."""

    topic: str
    queue_id: int
    state: str
    """A state of the client's ownership machine: wanted, held, draining, releasing, released, unsure, gone."""
    offset: int
    """The next offset to consume, according to the results so far."""
    committed_offset: int
    """The next offset to consume that the broker has confirmed."""
    fetched: int
    """Fetched messages that are not finished, with those of running calls."""
    full: bool
    """No more messages are fetched until some are finished."""
    uncommitted: int = 0
    """Messages that were passed to the listener or returned by a poll, and wait for a commit by the application."""
    polled_ms: int | None = None
    """How long ago a poll returned the messages that wait for a commit; None for push consumers."""
    attempts: int = 0
    """The number of failed calls of the batch at the committed offset, or of any key."""
    blocked: bool = False
    """The listener is not called any more: the attempts are exhausted."""
    blocked_keys: tuple[str | None, ...] = ()
    """The first keys with exhausted attempts, with order_by="sharding_key"; None stands for messages without a key."""
    again_ms: int | None = None
    """How long until a failed batch is called again; None if no call waits for its backoff."""
    drain_ms: int | None = None
    """How long the member may go on before it has to release the queue; None if it does not drain."""
    keys: int | None = None
    """The number of keys that are fetched or called, with order_by="sharding_key"."""
    oldest_key: str | None = None
    """The key of the first unfinished message, with order_by="sharding_key"."""
    pulling: bool | None = None
    """Whether the last pull has no response yet; None without a grant."""
    pulled_ms: int | None = None
    """How long ago the last pull was sent; None if none was under this grant."""
    pull_offset: int | None = None
    """The next offset to fetch; None without a grant."""


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """GET_CONSUMER_RUNNING_INFO (307), the response of a member to its broker, which passes it on."""

    client_id: str
    group: str
    state: str
    """A state of the consumer: starting, running, stopping."""
    paused: bool
    listener: str
    """The name of the listener; "poll" for a pull consumer."""
    calls: int
    """The number of running calls over all queues."""
    concurrency: int | None
    """The number of calls that may run over all queues; None if each queue has its own."""
    proof_left_ms: int | None
    """How long calls may still start without another proof of life to the queue's broker; None in groups that do not lock."""
    queue: RunningQueue | None = None
    """The queue that the request names; None if it names none, or the member does not know it."""
    oldest: RunningCall | None = None
    """The call that has run longest in this queue, or in any queue if all `concurrency` calls run elsewhere, or if `queue` is None."""
    oldest_queue: str | None = None
    """The queue of `oldest`, as topic@broker:id."""
    loop_blocked_ms: int | None = None
    """How long the listener blocked the event loop at most in the last minute; 0 if not for a second. None from a pull consumer, which has
    no listener."""
