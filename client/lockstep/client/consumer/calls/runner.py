"""What consumes one grant of one queue, its calls of the listener, and the queue as both see it."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener import ConcurrentlyContext, OrderlyContext
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.health import LaneHealth
from lockstep.client.consumer.interfaces import QueueSession, ReportedQueueWorker
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")


class AbstractQueueWorker(ReportedQueueWorker, Protocol):
    """A queue that is being consumed, as its pull loop and its runners see it: a QueueWorker, which imports both."""

    ctx: ConsumerContext
    queue: MessageQueue
    session: QueueSession
    calls: "dict[Call, None]"
    """The calls of the listener that work on the queue, under any grant, the oldest first."""
    polled_ms: int | None
    """The boot time at which a poll returned the messages that are at hand; None before the first poll, and in push consumers."""
    reached: int
    """The offset that this member had reached under an earlier grant; 0 once a response has shown whether the queue still goes so far."""

    def handle_stale(self, grant: Grant, *, by: str) -> None:
        """End the grant, because the broker refused the request `by` as stale."""

    def fetch(self, grant: Grant, runner: "Runner") -> None:
        """Pull from the grant's next offset on, and drop messages that were pulled for it before."""

    def forget_if_done(self) -> None:
        """Forget the queue if nothing is left to send, to receive or to wait for."""

    def subscription_lapsed(self) -> None:
        """Send a heartbeat, because the broker does not know the group's subscription."""


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """What a runner is doing, for reports."""

    lanes: LaneHealth | None = None
    """The queue's keys, if they are consumed in parallel."""
    blocked: bool = False
    """The listener is not called any more, because attempts are exhausted; with `lanes`, with messages of some keys."""
    again_ms: int | None = None
    """The boot time at which a failed batch is called again; None if none waits for its backoff."""
    uncommitted: int = 0
    """Messages that wait for a commit by the application."""


class Runner:
    """Consumes the messages of one grant, in one task. What a subclass does not override has no effect."""

    __slots__ = ("grant", "worker")

    def __init__(self, worker: AbstractQueueWorker, grant: Grant) -> None:
        self.worker = worker
        self.grant = grant

    @abstractmethod
    async def run(self) -> None:
        """Consume until the grant ends."""

    @abstractmethod
    def position_moved(self) -> None:
        """Handle that the fetched part of the queue grew by messages that the subscription does not match: progress may move past them."""

    def resume(self) -> None:
        """Call the listener once more even if its attempts are exhausted."""

    def give_up(self) -> None:
        """Cancel the running calls of an ordered listener: their results no longer count. Others continue."""

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        """Replay these parked keys, if the runner does that."""

    def before_release(self) -> None:
        """Commit what has a request of its own: the queue may be released by the next request."""

    def status(self) -> RunnerStatus:
        """Return what it is doing."""
        return RunnerStatus()


@dataclass(slots=True, eq=False)
class Call:
    """A call of the listener."""

    runner: "CallRunner[Any]"
    batch: list[MessageExt]
    context: ConcurrentlyContext | OrderlyContext
    started_ms: int
    """The boot time."""
    task: "asyncio.Task[None] | None" = field(default=None, init=False)
    """The task that awaits it; None before it begins."""
    thread: int | None = field(default=None, init=False)
    """The identifier of the daemon thread in which the listener runs; None if it is awaited on the loop."""
    ended: bool = field(default=False, init=False)
    """The listener has returned; the consequences may still be on their way."""
    given_up: bool = field(default=False, init=False)
    """Its task was cancelled to end the listener. The task itself goes on."""


@dataclass(slots=True, eq=False)
class OrderedCall(Call):
    """A call of an ordered listener."""

    context: OrderlyContext


CallT = TypeVar("CallT", bound=Call)
OrderedCallT = TypeVar("OrderedCallT", bound=OrderedCall)


class Attempts(Protocol):
    """Counts the failed calls of batches: a ProcessQueue, or Lanes."""

    def attempts_at(self, offset: int) -> int:
        """Return the number of failed calls of the batch that begins at `offset`."""


class CallRunner(Runner, Generic[CallT]):
    """Consumes the messages of one grant by calls of the listener, which call_loop.py makes."""

    __slots__ = ("attempts", "ctx", "messages", "ownership", "session")

    def __init__(self, ctx: ConsumerContext, worker: AbstractQueueWorker, grant: Grant, attempts: Attempts | None) -> None:
        Runner.__init__(self, worker, grant)
        self.attempts = attempts
        """Those of the batch at the commit offset are stored with the progress. None: the broker counts the retries of messages."""
        self.ctx = ctx
        self.messages = grant.messages
        self.ownership = worker.ownership
        self.session = worker.session

    @abstractmethod
    def begin_call(self, now_ms: int) -> CallT | None:
        """Take the next batch, and return its call. Return None if no call may start now."""

    @abstractmethod
    def succeeded(self, call: CallT, result: object) -> bool:
        """Handle a plain success, and return True. Return False for any other result."""

    @abstractmethod
    async def process(self, call: CallT, result: object, error: BaseException | None) -> None:
        """Handle a result that is not a plain success."""

    def note_progress(self) -> None:
        """Commit by the next SYNC what is finished, while other calls of the queue run or none does."""
        if self.grant.alive:
            offset = self.messages.commit_offset
            attempts = 0 if self.attempts is None else self.attempts.attempts_at(offset)
            self.ownership.progressed(self.grant.token, offset, attempts)
            self.session.changed(self.ownership)

    def position_moved(self) -> None:
        self.note_progress()

    def last_call_ended(self) -> None:
        """Release the queue if it drains, as no call works on it, and acquire it again if this grant has ended."""
        ownership, grant = self.ownership, self.grant
        if grant.alive:
            offset = self.messages.commit_offset
            attempts = 0 if self.attempts is None else self.attempts.attempts_at(offset)
            ownership.call_ended(grant.token, offset, attempts)
            self.session.changed(ownership)
        else:
            ownership.running = False
            self.session.trigger()
            self.worker.forget_if_done()

    def log_stale(self, call: CallT, **facts: object) -> None:
        """Report that the result of a call does not count."""
        place = {"queue": str(self.worker.queue), "offset": call.batch[0].queue_offset}
        log.warning("result.was_stale", listener=self.ctx.listener_name, **place, **facts)
