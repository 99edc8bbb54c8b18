"""How a consumer consumes the queues that it holds: in order, concurrently, or by polls."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from lockstep.client.consumer.calls.grant import Grant, Runner
from lockstep.client.consumer.calls.listener import ConcurrentlyContext, Fence, OrderlyContext
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.interfaces import QueueHandler, QueueSession
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue

SLICE_MS = 5
"""After this time without returning to the loop, consumption returns to it: pulls, heartbeats and the user's other tasks go on."""


class HeldQueue(QueueHandler, Protocol):
    """A queue that is being consumed, as its pull loop and its runners see it."""

    ctx: ConsumerContext
    queue: MessageQueue
    session: QueueSession
    calls: dict[OrderlyContext | ConcurrentlyContext, int]
    """The contexts of the calls of the listener that work on the queue → the boot times at which they began."""
    polled_ms: int | None
    """The boot time at which a poll returned the messages that are at hand; None before the first poll, and in push consumers."""
    reached: int
    """The offset that this member had reached under an earlier grant; 0 once a response has shown whether the queue still goes so far."""

    def handle_stale(self, grant: Grant, *, by: str) -> None:
        """End the grant, because the broker refused the request `by` as stale."""

    def fetch(self, grant: Grant, runner: Runner) -> None:
        """Pull from the grant's next offset on, and drop messages that were pulled for it before."""

    def forget_if_done(self) -> None:
        """Forget the queue if nothing is left to send, to receive or to wait for."""

    def subscription_lapsed(self) -> None:
        """Send a heartbeat, because the broker does not know the group's subscription."""


class ListenerCall(NamedTuple):
    """A running call of the listener, for reports."""

    queue: HeldQueue
    context: OrderlyContext | ConcurrentlyContext
    started_ms: int
    """The boot time."""
    batch: Sequence[MessageExt]
    """Its messages; empty if they were dropped with their grant."""
    task: "asyncio.Task[None] | None"
    """The task that awaits it."""
    thread: int | None
    """The identifier of the daemon thread in which it runs; None if it is awaited on the loop."""


class ConsumeModel(Protocol):
    """How the messages of held queues are consumed. RocketMQ: ConsumeMessageService."""

    concurrency: int | None
    """The number of calls that may run over all queues; None if each queue has its own."""

    def start(self) -> None:
        """Start. The group is joined, and queues will be held."""

    def stop(self) -> None:
        """Stop. The consumer's queues are drained, or the time for that is over."""

    def runner(self, queue: HeldQueue, grant: Grant) -> Runner:
        """Return a runner for a new grant."""

    def tasks(self, queue: HeldQueue | None = None) -> list["asyncio.Task[None]"]:
        """Return the tasks in which the listener runs, for any queue or for this one, except those of runners."""

    def running_calls(self) -> Iterable[ListenerCall]:
        """Return the calls of the listener that run, under any grant."""

    def loop_blocked_ms(self, now_ms: int) -> int | None:
        """Return how long the listener blocked the event loop at most in the last minute; 0 if not for a second, None if there is none."""

    def unassigned(self, queue: MessageQueue) -> None:
        """Handle that the queue is no longer this member's, whether it was ever held or not."""


def fence_of(queue: HeldQueue, grant: Grant) -> Fence:
    """Return the fence of the calls under a grant of an ordered group."""
    config, place = queue.ctx.config, queue.queue
    return Fence(
        queue.ctx.group,
        place.topic,
        place.broker_name,
        place.queue_id,
        grant.token,
        grant.generation or 0,
        "sharding_key" if config.in_lanes else "queue",
        config.unkeyed,
    )
