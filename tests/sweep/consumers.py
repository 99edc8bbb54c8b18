"""Ordered groups whose members join, leave and return, and whose listeners are quick, slow, failing, stopped or killed in a call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from lockstep.client import (
    Backoff,
    ConsumeOrderlyStatus,
    ConsumerEvent,
    ConsumerState,
    DuplicateClientIdError,
    LockstepError,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    PushConsumer,
    QueueBlocked,
    QueueGap,
    SubscriptionConflictError,
)
from lockstep.runtime.host import Host
from lockstep.testing.simulation import Process
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted, ConsumerStopBegan, ConsumerStopped, QueueGapSeen
from sweep.history import CallResult
from sweep.parking import key_fails
from sweep.runner import Runner
from sweep.settings import Setting
from sweep.universe import Universe

S = ConsumeOrderlyStatus
RESULTS = {
    (True, S.SUCCESS): CallResult.SUCCESS,
    (True, S.SUSPEND_CURRENT_QUEUE_A_MOMENT): CallResult.SUSPEND,
    (False, S.SUCCESS): CallResult.COUNTED,
    (False, S.COMMIT): CallResult.SUCCESS,
    (False, S.ROLLBACK): CallResult.ROLLBACK,
    (False, S.SUSPEND_CURRENT_QUEUE_A_MOMENT): CallResult.SUSPEND,
}


class ListenerError(Exception):
    """Raised by a listener that fails as planned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one call."""

    takes_s: float
    fails: bool
    status: ConsumeOrderlyStatus
    stubborn: bool = False
    """It continues when it is cancelled."""


def call_takes_s(setting: Setting, random: Random, *, calm: bool) -> float:
    """Return the time of a call of a concurrent group or of a broadcasting member."""
    takes_s = random.uniform(0.001, 0.05)
    roll = 1.0 if calm else random.random()
    if roll < setting.long_share:
        takes_s = random.uniform(3, 12)
    elif roll < setting.long_share + setting.slow_share:
        takes_s = random.uniform(0.3, 2)
    return takes_s


class GroupRunner(Runner[PushConsumer]):
    """The consumers of an ordered group in one process."""

    def __init__(self, universe: Universe, process: Process, group: str, host: Host, stop: asyncio.Event, toggle: asyncio.Event) -> None:
        super().__init__(universe, process, group, host, stop, toggle)
        self._expression, self._contract_version = universe.expression, universe.contract_version
        self._uncommitted = 0
        self._current: PushConsumer | None = None

    def _consumer(self) -> PushConsumer:
        setting, begin = self._universe.setting, self._universe.start_policies[self._group]
        consumer = PushConsumer(
            self._group,
            nameserver=self._universe.nameserver,
            host=self._host,
            **self._login(),
            consume_from_where=begin.where,
            consume_timestamp_ms=begin.timestamp_ms,
            order_by=setting.order_by,
            concurrency=setting.concurrency,
            batch_count=setting.batch_count,
            pull_bytes=setting.pull_bytes,
            commit="each" if setting.commit == "each" else "interval",
            allocate=setting.allocate,
            drain_timeout_ms=setting.drain_ms,
            stop_timeout_ms=setting.stop_ms,
            retry=ordered_retry(setting),
            contract_version=self._contract_version,
            suspend_current_queue_time_ms=50,
        )
        for topic in self._topics():
            consumer.subscribe(topic, self._expression)
        consumer.on_event(self._event)
        consumer.orderly(self._listen_ordered_plain if setting.threaded else self._listen_ordered)
        return consumer

    async def _start(self, consumer: PushConsumer) -> bool:
        self._current = consumer
        self._record_start()
        try:
            await consumer.start()
        except LockstepError as error:
            self._universe.record_reached(f"start refused: {type(error).__name__}")
            if isinstance(error, SubscriptionConflictError):
                self._universe.consumer_died(error, starting=True)
            self._record_stopped()
            return False
        return True

    def _record_start(self) -> None:
        universe, setting, begin = self._universe, self._universe.setting, self._universe.start_policies[self._group]
        subscribed = tuple((topic, self._expression) for topic in self._topics())
        started = ConsumerStarted(*universe.origin(), self._group, subscribed, where=begin.where.name, since_t=begin.t)
        universe.history.append(replace(started, drain_ms=setting.drain_ms, stop_ms=setting.stop_ms, **self._facts()))

    def _record_stop_began(self) -> None:
        self._universe.history.append(ConsumerStopBegan(*self._universe.origin(), self._group))

    def _record_stopped(self) -> None:
        self._universe.history.append(ConsumerStopped(*self._universe.origin(), self._group))

    def _topics(self) -> tuple[str, ...]:
        return self._universe.setting.topics

    def _facts(self) -> dict[str, Any]:
        """Return the further facts of ConsumerStarted."""
        setting = self._universe.setting
        attempts_max = setting.attempts_max if setting.exhausted == "dlq" else None
        parks = setting.attempts_max if setting.exhausted == "park" else None
        lanes = setting.concurrency if setting.order_by == "sharding_key" else None
        return {"threaded": setting.threaded, "attempts_max": attempts_max, "lanes": lanes, "parks": parks}

    async def _consume(self, consumer: PushConsumer) -> None:
        async with asyncio.TaskGroup() as group:
            reasons = [
                group.create_task(self._stop.wait()),
                group.create_task(self._toggle.wait()),
                group.create_task(self._died(consumer)),
            ]
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            for reason in reasons:
                reason.cancel()
        self._record_stop_began()
        await consumer.stop()
        self._record_stopped()

    async def _died(self, consumer: PushConsumer) -> None:
        try:
            await consumer.wait_closed()
        except (SubscriptionConflictError, DuplicateClientIdError) as error:
            self._universe.consumer_died(error)
        except LockstepError as error:
            self._universe.record_violation("a consumer does not fail", f"{self._process}: {error!r}")

    def _event(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueueGap):
            queue = self._key(event.queue)
            self._universe.history.append(QueueGapSeen(*self._universe.origin(), queue, event.first, event.end))
        elif isinstance(event, QueueBlocked) and self._universe.setting.exhausted in ("block", "park"):
            asyncio.get_running_loop().call_later(self._random.uniform(0.2, 3), self._unblock)

    def _unblock(self) -> None:
        """Resume a blocked queue, as an operator would."""
        if self._current is not None and self._current.state is ConsumerState.RUNNING:
            self._current.resume()

    # --------------------------------------------------------------------------------------------------------------- calls

    def _plan(self, messages: Sequence[MessageExt], context: OrderlyContext) -> Plan:
        setting, random = self._universe.setting, self._random
        if self._poisoned(messages):
            return Plan(random.uniform(0.001, 0.02), random.random() < 0.7, S.SUSPEND_CURRENT_QUEUE_A_MOMENT)
        roll = 1.0 if self._universe.calm else random.random()
        takes_s = random.uniform(0.001, 0.02)
        if roll < setting.long_share:
            takes_s = random.uniform(3, 12)
        elif roll < setting.long_share + setting.slow_share:
            takes_s = random.uniform(0.3, 2)
        ends = 1.0 if self._universe.calm else random.random()
        suspends = ends < setting.fail_share / 2
        status = S.SUSPEND_CURRENT_QUEUE_A_MOMENT if suspends else S.SUCCESS
        if setting.manual and not suspends:
            context.auto_commit = False
            self._uncommitted += 1
            if self._universe.calm or self._uncommitted % 3 == 0:
                status = S.COMMIT
            elif self._uncommitted % 7 == 0:
                status = S.ROLLBACK
        stubborn = setting.stubborn_share > 0 and random.random() < setting.stubborn_share
        return Plan(takes_s, setting.fail_share / 2 <= ends < setting.fail_share, status, stubborn)

    def _poisoned(self, messages: Sequence[MessageExt]) -> bool:
        """Return whether a message makes every call fail: only until the calm, if attempts have no limit or block the queue."""
        setting, poison = self._universe.setting, self._universe.poison
        if not self._universe.calm and any(key_fails(setting, message.sharding_key, self._universe.loop.now) for message in messages):
            return True
        dead_lettered = setting.attempts_max is not None and setting.exhausted == "dlq"
        return bool(poison) and (dead_lettered or not self._universe.calm) and any(message.body in poison for message in messages)

    def _record_ordered_call(self, messages: Sequence[MessageExt], context: OrderlyContext) -> CallBegan:
        universe = self._universe
        queue = self._key(context.queue)
        given = tuple((message.queue_offset, message.body) for message in messages)
        began = CallBegan(
            *universe.origin(self._process),
            queue,
            context.fence.epoch,
            given,
            universe.next_call(),
            self._process.host.clock.boot_ms(),
            context.attempt,
            tuple(message.sharding_key for message in messages),
        )
        universe.history.append(began)
        return began

    def _record_ordered_end(self, began: CallBegan, result: CallResult) -> None:
        universe, process = self._universe, self._process
        if not universe.is_over:
            universe.history.append(CallEnded(*universe.origin(process), began.queue, began.epoch, began.call, result))

    async def _listen_ordered(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        plan, began = self._plan(messages, context), self._record_ordered_call(messages, context)
        result = CallResult.CANCELLED
        try:
            takes_s = max(plan.takes_s, self._universe.apply_call_fault(self._process))
            try:
                await asyncio.sleep(takes_s)
            except asyncio.CancelledError:
                await self._ignore_cancellation(plan, began, context)
                result = CallResult.CANCEL_IGNORED
                return S.SUCCESS
            if plan.fails:
                result = CallResult.ERROR
                raise ListenerError("as planned \udcff")
            result = RESULTS[context.auto_commit, plan.status]
            return plan.status
        finally:
            self._record_ordered_end(began, result)

    async def _ignore_cancellation(self, plan: Plan, began: CallBegan, context: OrderlyContext) -> None:
        """Continue in spite of cancellation, if the plan is stubborn."""
        if not plan.stubborn:
            raise asyncio.CancelledError
        if not context.cancelled.is_set():
            self._universe.record_violation(
                "a cancelled call is notified", f"call {began.call} of {began.queue}: context.cancelled is not set"
            )
        await asyncio.sleep(plan.takes_s)

    def _listen_ordered_plain(self, messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        """Handle a call in a thread, whose time the machine determines."""
        plan, began = self._plan(messages, context), self._record_ordered_call(messages, context)
        self._universe.apply_call_fault(self._process)
        if plan.fails:
            self._record_ordered_end(began, CallResult.ERROR)
            raise ListenerError("as planned \udcff")
        self._record_ordered_end(began, RESULTS[context.auto_commit, plan.status])
        return plan.status


def ordered_retry(setting: Setting) -> OrderedRetry:
    """Return the group's retry policy, which is the same in all its members."""
    backoff = Backoff(50, 1.0)
    if setting.attempts_max is None:
        return OrderedRetry(backoff=backoff)
    return OrderedRetry(setting.attempts_max, backoff, setting.exhausted)
