"""The consume model of `@consumer.orderly`. RocketMQ: ConsumeMessageOrderlyService."""

from lockstep.client.consumer.calls.consume_model import ListenerModel
from lockstep.client.consumer.calls.crew import Crew
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.lane_runner import LaneCall, LaneRunner
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.queue_runner import QueueRunner
from lockstep.client.consumer.calls.runner import AbstractQueueWorker
from lockstep.client.consumer.context import ConsumerContext


class OrderedModel(ListenerModel):
    """The calls of one consumer: of each queue in order, or of each key."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        ListenerModel.__init__(self, ctx, listener)
        self._crew: Crew[LaneCall] | None = None
        """The crew that all queues share; None if each has its own call."""
        if ctx.config.order_by == "sharding_key":
            self.concurrency = ctx.config.concurrency
            self._crew = Crew(ctx, listener, ctx.config.concurrency)

    def runner(self, worker: AbstractQueueWorker, grant: Grant) -> QueueRunner | LaneRunner:
        if self.ctx.config.in_lanes:
            return LaneRunner(self.ctx, self.listener, worker, grant, self._crew)
        return QueueRunner(self.ctx, self.listener, worker, grant)
