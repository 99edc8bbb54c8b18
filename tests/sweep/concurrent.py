"""A concurrent group, whose listeners handle batches in part, fail, take too long, request another delay, or dead-letter a message."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.client import ConcurrentlyContext, ConsumeConcurrentlyStatus, MessageExt, PushConsumer
from sweep.consumers import GroupRunner, ListenerError, call_takes_s
from sweep.events.consumers import ConcurrentCallBegan, ConcurrentCallEnded, ReceivedMessage
from sweep.history import CallResult
from sweep.settings import TOPIC

S = ConsumeConcurrentlyStatus
DELAY_LEVELS = (0, 0, 0, 0, 1, 2, -1)
"""The delay levels of failing listeners: mostly by the number of retries, sometimes 1 s or 5 s, sometimes the dead-letter topic at once."""
LEVELS_IN_THE_CALM = (0, 1)


@dataclass(frozen=True, slots=True)
class ConcurrentPlan:
    """The plan of one call: `done` messages from the first one on are handled."""

    takes_s: float
    done: int
    result: CallResult
    level: int


class ConcurrentRunner(GroupRunner):
    """The concurrent group in one process."""

    def _consumer(self) -> PushConsumer:
        setting = self._universe.setting
        consumer = PushConsumer(
            self._group,
            nameserver=self._universe.nameserver,
            host=self._host,
            **self._login(),
            batch_count=setting.shared_batch,
            allocate=setting.allocate,
            drain_timeout_ms=setting.drain_ms,
            stop_timeout_ms=setting.stop_ms,
            concurrency=setting.concurrency,
            max_reconsume_times=setting.retries_max,
            consume_timeout_ms=setting.call_timeout_ms,
        )
        self._expression = "*"
        for topic in self._topics():
            consumer.subscribe(topic)
        consumer.on_event(self._event)
        consumer.concurrently(self._listen_concurrently_plain if setting.shared_threaded else self._listen_concurrently)
        return consumer

    def _topics(self) -> tuple[str, ...]:
        return (TOPIC,)

    def _facts(self) -> dict[str, Any]:
        return {"ordered": False, "threaded": self._universe.setting.shared_threaded}

    # --------------------------------------------------------------------------------------------------------------- calls

    def _plan_call(self, messages: Sequence[MessageExt]) -> ConcurrentPlan:
        setting, random, calm = self._universe.setting, self._random, self._universe.calm
        count = len(messages)
        takes_s = call_takes_s(setting, random, calm=calm)
        first_bad = next((number for number, message in enumerate(messages) if message.body in self._universe.poison), None)
        fails = first_bad is not None or (not calm and random.random() < setting.shared_fail_share)
        if not fails:
            return ConcurrentPlan(takes_s, count, CallResult.SUCCESS, 0)
        level = random.choice(LEVELS_IN_THE_CALM if calm else DELAY_LEVELS)
        how = random.random()
        if how < 0.4:
            return ConcurrentPlan(takes_s, random.randrange(count) if first_bad is None else first_bad, CallResult.SUCCESS, level)
        return ConcurrentPlan(takes_s, 0, CallResult.SUSPEND if how < 0.7 else CallResult.ERROR, level)

    def _record_concurrent_call(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConcurrentCallBegan:
        universe = self._universe
        queue = self._key(context.queue)
        given = tuple(ReceivedMessage(each.queue_offset, each.body, each.physical_offset, each.reconsume_times) for each in messages)
        began = ConcurrentCallBegan(*universe.origin(self._process), queue, given, universe.next_call())
        universe.history.append(began)
        return began

    def _record_concurrent_end(self, began: ConcurrentCallBegan, done: int, result: CallResult) -> None:
        universe, process = self._universe, self._process
        if not universe.is_over:
            universe.history.append(ConcurrentCallEnded(*universe.origin(process), began.queue, began.call, done, result))

    def _status(self, plan: ConcurrentPlan, context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = plan.level
        if plan.result is CallResult.SUCCESS:
            context.ack_index = plan.done - 1
            return S.CONSUME_SUCCESS
        return S.RECONSUME_LATER

    async def _listen_concurrently(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        plan, began = self._plan_call(messages), self._record_concurrent_call(messages, context)
        done, result = 0, CallResult.CANCELLED
        try:
            await asyncio.sleep(plan.takes_s)
            done, result = plan.done, plan.result
            if result is CallResult.ERROR:
                raise ListenerError("as planned \udcff")
            return self._status(plan, context)
        finally:
            self._record_concurrent_end(began, done, result)

    def _listen_concurrently_plain(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        """Handle a call in a thread, whose time the machine determines."""
        plan, began = self._plan_call(messages), self._record_concurrent_call(messages, context)
        self._record_concurrent_end(began, plan.done, plan.result)
        if plan.result is CallResult.ERROR:
            raise ListenerError("as planned \udcff")
        return self._status(plan, context)
