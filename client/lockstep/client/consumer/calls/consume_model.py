"""How a consumer consumes the queues that it holds: in order, concurrently, or by polls."""

from abc import abstractmethod
from collections.abc import Iterable

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, Call, Runner
from lockstep.client.consumer.context import ConsumerContext
from lockstep.protocol.topics.queue import MessageQueue


class ConsumeModel:
    """How the messages of held queues are consumed. RocketMQ: ConsumeMessageService. What a subclass does not override has no effect."""

    concurrency: int | None = None
    """The number of calls that may run over all queues; None if each queue has its own."""

    def start(self) -> None:
        """Start. The group is joined, and queues will be held."""

    def stop(self) -> None:
        """Stop. The consumer's queues are drained, or the time for that is over."""

    @abstractmethod
    def runner(self, worker: AbstractQueueWorker, grant: Grant) -> Runner:
        """Return a runner for a new grant."""

    def running_calls(self) -> Iterable[Call]:
        """Return the calls of the listener that run, under any grant."""
        return ()

    def loop_blocked_ms(self, now_ms: int) -> int | None:
        """Return how long the listener blocked the event loop at most in the last minute; 0 if not for a second, None if there is none."""
        return None

    def unassigned(self, queue: MessageQueue) -> None:
        """Handle that the queue is no longer this member's, whether it was ever held or not."""


class ListenerModel(ConsumeModel):
    """The common part of the consume models that call a listener."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        self.ctx = ctx
        self.listener = listener

    def start(self) -> None:
        self.listener.watch.start()

    def stop(self) -> None:
        self.listener.watch.stop()

    def running_calls(self) -> Iterable[Call]:
        return self.listener.running

    def loop_blocked_ms(self, now_ms: int) -> int:
        return self.listener.watch.longest_ms(now_ms)
