"""Calls the listener concurrently: up to `concurrency` calls at a time over all queues. RocketMQ: ConsumeMessageConcurrentlyService.

    taken ─▶ called ─▶ done ──────────────────────────────▶ finished: progress moves to the smallest unfinished offset
                  └──▶ failed ─▶ sent back to the broker ─▶ finished: it comes again from %RETRY%group, or goes to %DLQ%group
                                 └─ sending back failed ──▶ called again here after 5 s

So progress moves on whether or not the listener succeeded, and never past a message that is neither done nor stored again. The messages of
a call that runs longer than `consume_timeout_ms` are sent back, and its result no longer counts. There is no task or timer per message.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.client.consumer.consume_model import SLICE_MS, HeldQueue
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import MessageDeadLettered
from lockstep.client.consumer.grant import Grant
from lockstep.client.consumer.listener import ConcurrentlyContext, ConsumeConcurrentlyStatus, read_concurrent_result
from lockstep.client.consumer.listener_calls import ListenerCalls, ends_the_consumer, ends_the_task
from lockstep.client.consumer.loop_watch import BLOCKED_MS
from lockstep.client.consumer.ownership import OwnershipState
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.delays import FIRST_RETRY_LEVEL
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.message import MessageExt
from lockstep.protocol.properties import REASON_LENGTH_MAX
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

CALL_AGAIN_MS = 5_000
"""The listener is called again with a message that can't be sent back after this time. RocketMQ: submitConsumeRequestLater."""
SEND_BACK_TIMEOUT_MS = 5_000
"""RocketMQ: consumerSendMessageBack's timeout."""
OFFSETS_LOGGED = 10
"""The number of offsets that are logged when messages are dropped together."""
SWEEPS = 4
"""Checks for calls that run too long, per `consume_timeout_ms`."""


_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_HELD = OwnershipState.HELD


@dataclass(slots=True, eq=False)
class Running:
    """A call of the listener."""

    runner: "ConcurrentRunner"
    batch: list[MessageExt]
    context: ConcurrentlyContext
    started_ms: int
    expired: bool = False
    """It ran too long: its messages are sent back, or are being sent."""
    ended: bool = False
    """The listener has returned; failed messages may still be on their way back."""


@dataclass(slots=True, eq=False)
class Caller:
    """A task that makes one call of the listener after another."""

    running: Running | None = None


class ConcurrentModel:
    """The consume model of `@consumer.concurrently`: the calls of one consumer."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        self._ctx = ctx
        self._listener = listener
        self._boot_ms = ctx.host.clock.boot_ms
        self._ready: OrderedDict[ConcurrentRunner, None] = OrderedDict()
        """Queues with waiting messages, in the order in which they are served."""
        self._slice_end_ms = 0
        self._callers: dict[asyncio.Task[None], Caller] = {}

    def start(self) -> None:
        self._listener.watch.start()
        self._ctx.tasks.spawn(self._expire_calls(), f"{self._ctx.group} consume timeout")

    def stop(self) -> None:
        self._listener.watch.stop()

    def runner(self, queue: HeldQueue, grant: Grant) -> "ConcurrentRunner":
        return ConcurrentRunner(self, queue, grant)

    def tasks(self) -> "list[asyncio.Task[None]]":
        return list(self._callers)

    def unassigned(self, queue: MessageQueue) -> None:
        pass

    # ---------------------------------------------------------------------------------------------------------- which is next

    def schedule_calls(self, runner: "ConcurrentRunner") -> None:
        """Call the listener for this queue if messages wait and another call is allowed."""
        if self._callable(runner):
            self._ready.setdefault(runner)
            self._add_caller()

    def _callable(self, runner: "ConcurrentRunner") -> bool:
        grant = runner.grant
        waits = runner.again or grant.messages.waiting
        return bool(waits) and grant.alive and runner.queue.ownership.state is _HELD and not self._ctx.paused

    def _add_caller(self) -> None:
        if self._ready and len(self._callers) < self._ctx.config.concurrency:
            caller = Caller()
            task = self._ctx.runs.spawn(self._work(caller), f"{self._ctx.group} call")
            self._callers[task] = caller
            task.add_done_callback(lambda done: self._callers.pop(done, None))

    # ---------------------------------------------------------------------------------------------------------------- calls

    async def _work(self, caller: "Caller") -> None:
        """Make one call after another while messages wait. It awaits the listener itself, without a coroutine of its own for each call."""
        ctx, listener, boot_ms, ready = self._ctx, self._listener, self._boot_ms, self._ready
        call, in_loop, batch_count = listener.listener, listener.in_loop, ctx.config.batch_count
        now_ms = boot_ms()
        while ready:
            runner, _ = ready.popitem(last=False)
            queue, grant = runner.queue, runner.grant
            ownership, calls, messages = queue.ownership, queue.calls, grant.messages
            if not grant.alive or ownership.state is not _HELD or ctx.paused:
                continue  # the next grant, or resume(), adds it again
            batch = runner.again.popleft() if runner.again else messages.take(batch_count)
            if not batch:
                continue
            if runner.again or messages.waiting:
                ready[runner] = None
            if ready:
                self._add_caller()
            context = ConcurrentlyContext(queue.queue, len(batch), runner.is_over)
            caller.running = running = Running(runner, batch, context, now_ms)
            calls[context] = None
            if not ownership.running:
                ownership.call_started()
                queue.call_started_ms = now_ms
            try:
                result: object
                error: BaseException | None
                listener.running += 1
                try:
                    if in_loop:
                        result, error = await call(batch, context), None
                    else:
                        result, error = await listener.in_thread(queue.queue, batch, context)
                except BaseException as raised:  # listener: any error means that the call failed
                    if ends_the_task(raised):
                        raise
                    result, error = None, raised
                finally:
                    listener.running -= 1
                running.ended = True
                ended_ms = boot_ms()
                if in_loop and ended_ms - now_ms >= BLOCKED_MS:
                    listener.watch.call_ended(now_ms, ended_ms)
                if result is _SUCCESS and context.ack_index == len(batch) - 1 and grant.alive and not running.expired:
                    runner.finish(batch, last=len(calls) == 1)
                else:
                    await self._process(running, result, error)
                    ended_ms = boot_ms()
                if error is not None and ends_the_consumer(error):
                    ctx.fail(error)
            finally:
                caller.running = None
                del calls[context]
                if not calls:
                    runner.last_call_ended()
            if ended_ms >= self._slice_end_ms:
                await asyncio.sleep(0)
                ended_ms = boot_ms()
                self._slice_end_ms = max(self._slice_end_ms, ended_ms + SLICE_MS)
            now_ms = ended_ms

    async def _process(self, running: Running, result: object, error: BaseException | None) -> None:
        """Act on a result that is not a plain success of the whole batch."""
        runner, batch, context = running.runner, running.batch, running.context
        place: dict[str, object] = {"queue": str(runner.queue.queue), "offset": batch[0].queue_offset}
        if not runner.grant.alive or running.expired:
            log.warning("result.was_stale", listener=self._ctx.listener_name, **place, expired=running.expired)
            return
        status, wrong = (ConsumeConcurrentlyStatus.RECONSUME_LATER, None) if error is not None else read_concurrent_result(result)
        why = "the listener returned RECONSUME_LATER"
        if error is not None or wrong is not None:
            why = f"{type(error).__name__}: {error}" if error is not None else str(wrong)
            facts = {"count": len(batch), "error": why}
            log.warning("call.failed", listener=self._ctx.listener_name, **place, **facts, exc_info=runner.traceback(error))
        done = len(batch)
        if status is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            done = 0
        elif type(context.ack_index) is int:
            done = min(max(context.ack_index + 1, 0), len(batch))
            why = f"the listener acknowledged {done} of {len(batch)} messages (ack_index)"
        runner.finish(batch[:done])
        if done < len(batch):
            await self._send_all_back(running, batch[done:], context.delay_level_when_next_consume, why)

    async def _send_all_back(self, running: Running, failed: Sequence[MessageExt], level: int, why: str) -> bool:
        """Return whether the broker has stored all of them again. A broadcasting group drops them, as RocketMQ does. `why` they failed is
        what a dead letter shows."""
        runner = running.runner
        queue = str(runner.queue.queue)
        if self._ctx.local is not None:
            facts = {"queue": queue, "offsets": [message.queue_offset for message in failed[:OFFSETS_LOGGED]]}
            log.warning("message.dropped", group=self._ctx.group, **facts, count=len(failed), why="a broadcasting group has no retries")
            runner.finish(failed)
            return True
        if type(level) is not int:
            log.warning("result.bad_delay_level", listener=self._ctx.listener_name, level=repr(level)[:40], taken_as=0)
            level = 0
        taken = await asyncio.gather(*(self._send_back(runner, message, level, why) for message in failed))
        runner.finish([message for message, ok in zip(failed, taken, strict=True) if ok])
        left = [message for message, ok in zip(failed, taken, strict=True) if not ok]
        if left and runner.grant.alive and (running.ended or not running.expired):
            later = sum(message.queue_offset not in runner.refused for message in left)
            if later:
                log.warning("send_back.deferred", queue=queue, count=later, again_ms=CALL_AGAIN_MS, error=runner.not_sent_back)
            asyncio.get_running_loop().call_later(CALL_AGAIN_MS / 1000, self._call_again, runner, left)
        return not left

    def _call_again(self, runner: "ConcurrentRunner", left: list[MessageExt]) -> None:
        runner.again.append(left)
        self.schedule_calls(runner)

    async def _send_back(self, runner: "ConcurrentRunner", message: MessageExt, level: int, why: str) -> bool:
        """Return False if the broker is not known to have stored the message again."""
        ctx, queue = self._ctx, runner.queue
        header = SendBackHeader(
            message.physical_offset,
            ctx.group,
            level,
            message.message_id,
            message.topic,
            max_reconsume_times=ctx.config.max_reconsume_times,
            reason=why[:REASON_LENGTH_MAX],
        )
        try:
            await queue.session.link.call(RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except (TransportError, BrokerError) as error:
            log.info("send_back.failed", queue=str(queue.queue), offset=message.queue_offset, error=str(error))
            runner.note_failed_send_back(message, error)
            return False
        if level < 0 or message.reconsume_times >= ctx.config.max_reconsume_times:
            attempts = message.reconsume_times + 1
            facts = {"queue": str(queue.queue), "offset": message.queue_offset, "attempts": attempts, "error": why}
            log.error("message.dead_lettered", group=ctx.group, **facts)
            ctx.report(MessageDeadLettered(queue.queue, message.queue_offset, attempts, why))
        return True

    # ------------------------------------------------------------------------------------------------------------- too long

    async def _expire_calls(self) -> None:
        """Send back the messages of calls that run too long, until the consumer ends."""
        timeout_ms = self._ctx.config.consume_timeout_ms
        while True:
            await asyncio.sleep(timeout_ms / SWEEPS / 1000)
            now_ms = self._boot_ms()
            running_calls = [caller.running for caller in self._callers.values() if caller.running is not None]
            for running in running_calls:
                if now_ms - running.started_ms < timeout_ms:
                    continue
                if running.runner.grant.alive and not running.ended and not running.expired:
                    await self._expire(running, now_ms)

    async def _expire(self, running: Running, now_ms: int) -> None:
        running.expired = True
        running.context.cancel()
        facts = {"offset": running.batch[0].queue_offset, "started_ms_ago": now_ms - running.started_ms}
        queue = str(running.runner.queue.queue)
        log.warning("call.expired", listener=self._ctx.listener_name, queue=queue, **facts, then="its messages are sent back")
        why = f"its call ran for more than {self._ctx.config.consume_timeout_ms:,} ms (consume_timeout_ms)"
        if not await self._send_all_back(running, running.batch, FIRST_RETRY_LEVEL, why):
            running.expired = False  # its own result counts, or the next check tries again; if it has ended, they are called again


class ConcurrentRunner:
    """One grant of one queue."""

    __slots__ = ("_logged", "_model", "again", "grant", "not_sent_back", "queue", "refused")

    def __init__(self, model: ConcurrentModel, queue: HeldQueue, grant: Grant) -> None:
        self._model = model
        self.queue = queue
        self.grant = grant
        self.again: deque[list[MessageExt]] = deque()
        """Taken messages with which the listener is to be called again."""
        self.not_sent_back = ""
        """Why the last message could not be sent back."""
        self.refused: set[int] = set()
        """Offsets of unfinished messages that the broker permanently refused to take back, which is logged once."""
        self._logged: type[BaseException] | None = None
        """The type of the error whose traceback was logged last."""

    async def run(self) -> None:
        while self.grant.alive:
            self._model.schedule_calls(self)
            await self.grant.rest()

    def position_moved(self) -> None:
        self.queue.ownership.progressed(self.grant.token, self.grant.messages.commit_offset)
        self.queue.session.changed(self.queue.ownership)

    def resume(self) -> None:
        pass

    def give_up(self) -> None:
        """End the grant: finished messages have been committed. Running calls continue, and their contexts are cancelled."""

    def is_over(self) -> bool:
        return not self.grant.alive

    def finish(self, messages: Sequence[MessageExt], *, last: bool = False) -> None:
        """Mark messages as done or stored again: progress may move past them. `last`: `last_call_ended` follows at once, and reports it."""
        grant = self.grant
        if not messages or not grant.alive:
            return
        if self.refused:
            self.refused.difference_update(message.queue_offset for message in messages)
        if grant.messages.finish(messages) and not last:
            self.position_moved()
        if grant.pull_waits and grant.messages.room():
            grant.pull_wake.set()

    def last_call_ended(self) -> None:
        """Release the queue if it drains, as no call works on it, and acquire it again if this grant has ended."""
        ownership, session = self.queue.ownership, self.queue.session
        ownership.call_ended(self.grant.token, self.grant.messages.commit_offset, 0)
        session.changed(ownership)
        if not self.grant.alive:
            session.trigger()
            self.queue.forget_if_done()

    def traceback(self, error: BaseException | None) -> BaseException | None:
        """Return the error if its traceback is to be logged: for the first of its type under this grant."""
        if error is None or self._logged is type(error):
            return None
        self._logged = type(error)
        return error

    def note_failed_send_back(self, message: MessageExt, error: Exception) -> None:
        """Keep the error. A permanent refusal is logged once for each message."""
        if not isinstance(error, BrokerError) or error.retriable:
            self.not_sent_back = str(error)
        elif message.queue_offset not in self.refused:
            self.refused.add(message.queue_offset)
            facts = {"queue": str(self.queue.queue), "offset": message.queue_offset, "message_id": message.message_id}
            then = f"it is called here until it succeeds, {CALL_AGAIN_MS // 1000} s after each call"
            log.warning("send_back.refused", **facts, error=str(error), then=then)
