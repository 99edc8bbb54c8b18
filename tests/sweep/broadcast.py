"""A broadcasting group: every consumer machine is a member, with its progress on its own disk. Its listeners are quick, slow or failing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ConsumerEvent,
    ConsumerState,
    MessageExt,
    MessageModel,
    OrderedRetry,
    OrderlyContext,
    PushConsumer,
    QueueAssigned,
    QueueRevoked,
)
from lockstep.protocol.bodies import ConsumeFromWhere
from sweep.consumers import GroupRunner, ListenerError, call_takes_s
from sweep.events.members import (
    MemberAssigned,
    MemberCallBegan,
    MemberCallEnded,
    MemberRevoked,
    MemberStarted,
    MemberStopBegan,
    MemberStopped,
)
from sweep.history import CallResult, QueueKey
from sweep.settings import TOPIC

Context = ConcurrentlyContext | OrderlyContext


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The plan of one call. `done`: how many messages, from the first one on, a concurrent listener reports as handled."""

    takes_s: float
    done: int
    result: CallResult


class BroadcastRunner(GroupRunner):
    """The broadcasting group in one process."""

    def _consumer(self) -> PushConsumer:
        setting = self._universe.setting
        consumer = PushConsumer(
            self._group,
            nameserver=self._universe.nameserver,
            host=self._host,
            **self._login(),
            message_model=MessageModel.BROADCASTING,
            consume_from_where=ConsumeFromWhere[setting.news_where],
            batch_count=setting.batch_count,
            commit="each" if setting.commit == "each" else "interval",
            drain_timeout_ms=setting.drain_ms,
            stop_timeout_ms=setting.stop_ms,
            retry=OrderedRetry(backoff=Backoff(50, 1.0)),
            suspend_current_queue_time_ms=50,
            concurrency=setting.concurrency,
            consume_timeout_ms=setting.news_timeout_ms,
        )
        consumer.subscribe(TOPIC)
        consumer.on_event(self._event)
        if setting.news_ordered:
            consumer.orderly(self._handle_ordered_plain if setting.news_threaded else self._handle_ordered)
        else:
            consumer.concurrently(self._handle_concurrently_plain if setting.news_threaded else self._handle_concurrently)
        self._grants: dict[QueueKey, int] = {}
        stop_soon = consumer._stop_soon

        def stop_began() -> None:
            """Record that the consumer begins to stop, by its program or refused by a broker."""
            if consumer.state is ConsumerState.RUNNING:
                self._universe.history.append(MemberStopBegan(*self._universe.origin(self._process), self._group))
            stop_soon()

        consumer._stop_soon = stop_began  # type: ignore[method-assign]
        return consumer

    def written(self) -> dict[tuple[str, int], int]:
        """Return (broker, queue id) → the offset in this process' file, as far as it knows."""
        if self._current is None:
            return {}
        return {(one.queue.broker_name, one.queue.queue_id): one.committed_offset for one in self._current.health().queues}

    def _record_start(self) -> None:
        setting = self._universe.setting
        each = setting.news_ordered and setting.commit == "each"
        limits = (setting.stop_ms, setting.news_timeout_ms)
        place = self._universe.origin()
        self._universe.history.append(MemberStarted(*place, self._group, setting.news_ordered, each, *limits, where=setting.news_where))

    def _record_stop_began(self) -> None:
        """Record nothing: `stop_began` has recorded it."""

    def _record_stopped(self) -> None:
        self._universe.history.append(MemberStopped(*self._universe.origin(), self._group))

    def _event(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueueAssigned):
            queue = self._key(event.queue)
            epoch = self._grants[queue] = event.epoch or 0
            self._universe.history.append(MemberAssigned(*self._universe.origin(), queue, epoch, event.offset))
        elif isinstance(event, QueueRevoked):
            self._universe.history.append(MemberRevoked(*self._universe.origin(), self._key(event.queue), event.epoch or 0))
        else:
            super()._event(event)

    # --------------------------------------------------------------------------------------------------------------- calls

    def _plan_of(self, messages: Sequence[MessageExt]) -> MemberPlan:
        setting, random, calm, count = self._universe.setting, self._random, self._universe.calm, len(messages)
        takes_s = call_takes_s(setting, random, calm=calm)
        if calm or random.random() >= setting.shared_fail_share:
            return MemberPlan(takes_s, count, CallResult.SUCCESS)
        how = random.random()
        if how < 0.3 and not setting.news_ordered:
            return MemberPlan(takes_s, random.randrange(count), CallResult.SUCCESS)
        return MemberPlan(takes_s, 0, CallResult.SUSPEND if how < 0.6 else CallResult.ERROR)

    def _record_member_call(self, messages: Sequence[MessageExt], context: Context) -> MemberCallBegan:
        universe = self._universe
        queue = self._key(context.queue)
        given = tuple((message.queue_offset, message.body) for message in messages)
        epoch = 0 if context.cancelled.is_set() else self._grants[queue]
        if isinstance(context, OrderlyContext):
            epoch = context.fence.epoch
        called = MemberCallBegan(*universe.origin(self._process), queue, epoch, given, universe.next_call())
        universe.history.append(called)
        return called

    def _record_member_return(self, called: MemberCallBegan, result: CallResult) -> None:
        if not self._universe.is_over:
            self._universe.history.append(MemberCallEnded(*self._universe.origin(self._process), called.queue, called.call, result))

    async def _handle_call(self, messages: Sequence[MessageExt], context: Context) -> MemberPlan:
        """Handle a call of either kind of listener. Raise ListenerError if that is planned."""
        plan, called = self._plan_of(messages), self._record_member_call(messages, context)
        result = CallResult.CANCELLED
        try:
            await asyncio.sleep(max(plan.takes_s, self._universe.apply_call_fault(self._process)))
            result = plan.result
            if result is CallResult.ERROR:
                raise ListenerError("as planned \udcff")
            return plan
        finally:
            self._record_member_return(called, result)

    def _handle_call_plain(self, messages: Sequence[MessageExt], context: Context) -> MemberPlan:
        """Handle a call in a thread, whose time the machine determines."""
        plan, called = self._plan_of(messages), self._record_member_call(messages, context)
        self._universe.apply_call_fault(self._process)
        self._record_member_return(called, plan.result)
        if plan.result is CallResult.ERROR:
            raise ListenerError("as planned \udcff")
        return plan

    async def _handle_concurrently(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        return _concurrent_status(await self._handle_call(messages, context), context)

    def _handle_concurrently_plain(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        return _concurrent_status(self._handle_call_plain(messages, context), context)

    async def _handle_ordered(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        return _ordered_status(await self._handle_call(messages, context))

    def _handle_ordered_plain(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        return _ordered_status(self._handle_call_plain(messages, context))


def _concurrent_status(plan: MemberPlan, context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    if plan.result is not CallResult.SUCCESS:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    context.ack_index = plan.done - 1
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def _ordered_status(plan: MemberPlan) -> ConsumeOrderlyStatus:
    done = plan.result is CallResult.SUCCESS
    return ConsumeOrderlyStatus.SUCCESS if done else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
