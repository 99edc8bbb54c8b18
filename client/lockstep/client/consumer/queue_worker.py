"""One queue at work: its ownership, and for each grant a holding: messages, a pull loop, a runner.

A holding lives as long as its epoch is held: DRAINING and back to HELD keep its prefetched messages. When the epoch is gone the holding is
dropped at once; a call that still runs ends in its own time, and until then the queue is not locked again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.client.consumer.broadcast import LocalProgress
from lockstep.client.consumer.concurrent_model import ConcurrentModel
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.events import ConsumerEvent, QueueAssigned, QueueGap, QueueRevoked
from lockstep.client.consumer.health import QueueHealth
from lockstep.client.consumer.interfaces import QueueSession
from lockstep.client.consumer.listener import Fence, Listener, OrderlyContext
from lockstep.client.consumer.loop_watch import LoopWatch
from lockstep.client.consumer.ownership import QueueOwnership, State
from lockstep.client.consumer.process_queue import FlowLimits, ProcessQueue
from lockstep.client.consumer.pull_loop import pull
from lockstep.protocol.bodies import LockAnswer, StartPolicy
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")


@dataclass(slots=True)
class Consumption:
    """What all queues of one consumer share."""

    group: str
    config: ConsumerConfig
    listener: Listener
    listener_name: str
    in_loop: bool
    """The listener is awaited on the loop; else it runs in a daemon thread."""
    filters: Mapping[str, TagFilter]
    host: Host
    tasks: Tasks
    runs: Tasks
    """The runners: they end when their listener lets them."""
    watch: LoopWatch
    tell: Callable[[ConsumerEvent], None]
    start_policy: Callable[[str], StartPolicy]
    heard_since: Callable[[str, int], None]
    lapsed_subscription: Callable[[], None]
    """A broker does not know the group's subscription: heartbeat."""
    failed: Callable[[BaseException], None]
    """Going on is impossible: the consumer drains and ends."""
    finished: Callable[["QueueWorker"], None]
    moved: "Callable[[QueueWorker, Grant], None]"
    """What was seen of a queue holds nothing to consume: its position has moved without a call."""
    ownership: type[QueueOwnership]
    """How its queues are held."""
    run: "Callable[[QueueWorker, Grant], Coroutine[Any, Any, None]]"
    """What becomes of a held queue's messages."""
    features: tuple[str, ...]
    """What brokers must be able to do for it."""
    unassigned: Callable[[MessageQueue], None] = lambda _: None
    """The queue is not this member's any more, whether it was ever held or not."""
    by_hand: Mapping[MessageQueue, None] | None = None
    """The queues that its user has chosen; None: they are dealt."""
    local: LocalProgress | None = None
    """Broadcasting: every queue is this member's, and the progress its own."""
    paused: bool = False
    crew: ConcurrentModel | None = None
    """A concurrent listener's calls; None: the listener is an orderly one."""

    cluster: tuple[str, ...] = ()
    """Its nameservers' addresses."""

    def call_key(self, queue: MessageQueue) -> Hashable:
        """Of the calls that work on the group's queue, in Host.calls."""
        return self.cluster, self.group, queue

    @property
    def concurrent(self) -> bool:
        return self.crew is not None


@dataclass(slots=True, eq=False)
class Grant:
    """One grant at work. `alive` until its epoch (a concurrent group's generation) is gone."""

    epoch: int
    fence: Fence
    messages: ProcessQueue
    alive: bool = True
    blocked: bool = False
    """Attempts are exhausted: no call until `resume()` or the next grant."""
    pull_waits: bool = False
    warned: bool = False
    """Of uncommitted messages that fill the queue's share."""
    traced: tuple[int, type[BaseException]] | None = None
    """Offset and kind of the failure whose traceback was logged last."""
    again: deque[list[MessageExt]] = field(default_factory=deque)
    """Taken messages that a concurrent listener gets once more from here."""
    not_sent_back: str = ""
    """Why a send back failed last."""
    refused: set[int] = field(default_factory=set)
    """Offsets of unfinished messages whose send back was refused for good, which is told once."""
    run_wake: asyncio.Event = field(default_factory=asyncio.Event)
    pull_wake: asyncio.Event = field(default_factory=asyncio.Event)
    pull_task: "asyncio.Task[None] | None" = None
    run_task: "asyncio.Task[None] | None" = None

    def wake(self) -> None:
        self.run_wake.set()
        self.pull_wake.set()


class QueueWorker:
    """The session's QueueHandler for one queue of one consumer."""

    __slots__ = (
        "_gap_told",
        "_loop",
        "_run_tasks",
        "call",
        "call_started_ms",
        "given_up_call",
        "holding",
        "own",
        "queue",
        "session",
        "use",
    )

    def __init__(self, queue: MessageQueue, session: QueueSession, use: Consumption) -> None:
        self.queue = queue
        self.own = use.ownership(use.group, queue)
        self.session = session
        self.use = use
        self.holding: Grant | None = None
        self.call: OrderlyContext | None = None
        """The running call's context."""
        self.call_started_ms = 0
        self.given_up_call = False
        """The running call was told to end by cancelling its task."""
        self._gap_told: tuple[int, int] | None = None
        """Brokers tell a gap again on each connection until a commit has passed it."""
        self._run_tasks: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<QueueWorker {self.own!r}>"

    # ---------------------------------------------------------------------------------------------------------------- plan

    def want(self) -> None:
        if self.own.fenced:
            self.own.outlived = self.use.host.calls.wait(self.use.call_key(self.queue), self._outlived_call_ended)
        self.own.want()
        self.session.add(self)
        self.session.trigger()
        if self.holding is not None:
            self.holding.wake()

    def _outlived_call_ended(self) -> None:
        """In whichever thread."""
        try:
            self._loop.call_soon_threadsafe(self._may_lock)
        except RuntimeError:
            return  # this loop is closed: nobody wants the queue any more

    def _may_lock(self) -> None:
        self.own.outlived = False
        self.session.trigger()

    def outlive(self, task: "asyncio.Task[None]") -> None:
        """The consumer ends, this call may not: who wants the queue in this process waits for it."""
        calls, key = self.use.host.calls, self.use.call_key(self.queue)
        calls.begin(key)
        task.add_done_callback(lambda _: calls.end(key))

    def unwant(self, drain_ms: int) -> None:
        """Taken away by list or layout, or the consumer stops: drain, then release."""
        self.own.unwant(self.use.host.clock.boot_ms(), drain_ms)
        self.session.changed(self.own, urgent=True)
        if self.own.state is State.DRAINING:
            log.info("queue.draining", group=self.own.group, queue=str(self.queue), epoch=self.own.epoch, limit_ms=drain_ms)
        self.look()

    def resume(self) -> None:
        """Look again after a pause; a blocked queue gets one call more."""
        if self.holding is not None:
            self.holding.blocked = False
            self.holding.wake()

    def look(self) -> None:
        """Forget the queue where nothing is left to say or hear."""
        if self.own.done:
            self.session.remove(self)
            self.use.finished(self)

    def abandon(self) -> None:
        """The consumer ends without waiting for the running call."""
        if self.holding is not None:
            self.holding.alive = False
            self.holding.wake()
        self.cancel_soon()

    def health(self, now_ms: int) -> QueueHealth:
        own, holding = self.own, self.holding
        return QueueHealth(
            self.queue,
            own.state.value,
            own.epoch,
            own.offset,
            own.settled_offset,
            own.attempts,
            0 if holding is None else holding.messages.count,
            now_ms - self.call_started_ms if own.running else None,
            self.use.config.retry.is_blocked(own.attempts),
        )

    def running_tasks(self) -> "list[asyncio.Task[None]]":
        return list(self._run_tasks)

    # ------------------------------------------------------------------------------------------------- told by the session

    def granted(self, answer: LockAnswer) -> None:
        own, config = self.own, self.use.config
        limits = FlowLimits(config.queue_count_max, config.queue_bytes_max, config.queue_span_max)
        fence = Fence(own.group, self.queue.topic, self.queue.broker_name, self.queue.queue_id, answer.epoch)
        self.holding = holding = Grant(answer.epoch, fence, ProcessQueue(answer.offset, answer.attempts, limits))
        log.info(
            "queue.assigned", group=own.group, queue=str(self.queue), epoch=answer.epoch, offset=answer.offset, attempts=answer.attempts
        )
        self.use.tell(QueueAssigned(self.queue, answer.epoch, answer.offset))
        self.use.heard_since(self.queue.topic, answer.since)
        self.gap(answer.gap_first, answer.gap_end)
        name = f"{own.group} {self.queue}"
        holding.pull_task = self.use.tasks.spawn(pull(self, holding), f"{name} pull")
        holding.run_task = self.use.runs.spawn(self.use.run(self, holding), f"{name} run")
        self._run_tasks[holding.run_task] = None
        holding.run_task.add_done_callback(self._run_ended)

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        self._run_tasks.pop(task, None)

    def lost(self, fenced: bool) -> None:
        holding, self.holding = self.holding, None
        if holding is not None:
            holding.alive = False
            holding.messages.drop()
            holding.run_wake.set()
            if holding.pull_task is not None:
                holding.pull_task.cancel()
            if fenced:
                self.cancel_soon()
            log.info("queue.revoked", group=self.own.group, queue=str(self.queue), epoch=holding.epoch, fenced=fenced)
            self.use.tell(QueueRevoked(self.queue, holding.epoch, fenced))
        self.look()

    def given_up(self) -> None:
        self.cancel_soon()
        facts = {"listener": self.use.listener_name, "started_ms_ago": self.use.host.clock.boot_ms() - self.call_started_ms}
        log.warning("call.given_up", group=self.own.group, queue=str(self.queue), epoch=self.own.epoch, **facts)
        # Only the listener is cancelled: dead letters of a call that has ended are written, or refused.
        if self.use.in_loop and self.call is not None and self.holding is not None and self.holding.run_task is not None:
            self.given_up_call = True
            self.holding.run_task.cancel()

    def cancel_soon(self) -> None:
        if self.call is not None:
            self.call.cancel()
        if self.use.crew is not None:
            for running in self.use.crew.running(self):
                running.context.cancel()

    def answered(self) -> None:
        if self.holding is not None:
            self.holding.wake()
        self.look()

    def start_policy(self, topic: str) -> StartPolicy:
        return self.use.start_policy(topic)

    # ------------------------------------------------------------------------------------------- told by pull loop and runner

    def gap(self, first: int | None, end: int | None) -> None:
        if first is not None and end is not None and first < end and (first, end) != self._gap_told:
            self._gap_told = (first, end)
            log.warning("queue.gap", group=self.own.group, queue=str(self.queue), first=first, end=end)
            self.use.tell(QueueGap(self.queue, first, end))

    def fenced(self, holding: Grant, *, by: str) -> None:
        """Request `by` this holding met STALE_EPOCH. After a release its freeing does that, and the release's answer says more."""
        if self.own.state in (State.RELEASED, State.UNSURE):
            return
        if self.own.stale(holding.epoch):
            log.warning("queue.fenced", group=self.own.group, queue=str(self.queue), epoch=holding.epoch, by=by)
            self.lost(fenced=True)
            self.session.trigger()


def progress(worker: QueueWorker, holding: Grant) -> None:
    """What was seen and holds nothing to consume is done."""
    worker.own.progressed(holding.epoch, holding.messages.commit_offset)
    worker.session.changed(worker.own)
