"""How a consumer consumes the queues that it holds: in order, concurrently, or by polls."""

import asyncio
from typing import Protocol

from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grant import Grant, Runner
from lockstep.client.consumer.interfaces import QueueHandler, QueueSession
from lockstep.client.consumer.listener import ConcurrentlyContext, OrderlyContext
from lockstep.protocol.queue import MessageQueue


class HeldQueue(QueueHandler, Protocol):
    """A queue at work, as its pull loop and its runners see it."""

    ctx: ConsumerContext
    queue: MessageQueue
    session: QueueSession
    calls: dict[OrderlyContext | ConcurrentlyContext, None]
    """The contexts of the calls of the listener that work on the queue."""
    call_started_ms: int
    """Boot time at which the oldest of them began."""

    def fenced(self, grant: Grant, *, by: str) -> None:
        """The broker refused the request `by` as stale: the grant has ended."""

    def fetch(self, grant: Grant, runner: Runner) -> None:
        """Pull from the grant's next offset on, instead of what was pulled for it before."""

    def look(self) -> None:
        """Forget the queue if nothing is left to send, to receive or to wait for."""

    def subscription_lapsed(self) -> None:
        """The broker does not know the group's subscription: send a heartbeat."""


class ConsumeModel(Protocol):
    """What becomes of the messages of held queues. RocketMQ: ConsumeMessageService."""

    def start(self) -> None:
        """The group is joined: queues will be held."""

    def stop(self) -> None:
        """The consumer's queues are drained, or it has given up doing so."""

    def runner(self, queue: HeldQueue, grant: Grant) -> Runner:
        """Returns a runner for a new grant."""

    def tasks(self) -> list["asyncio.Task[None]"]:
        """Returns the tasks, other than the runners', in which the listener runs."""

    def unassigned(self, queue: MessageQueue) -> None:
        """The queue is no longer this member's, whether it was ever held or not."""
