"""Calls the listener concurrently: up to `concurrency` calls at a time over all queues. RocketMQ: ConsumeMessageConcurrentlyService.

    taken ─▶ called ─▶ done ──────────────────────────────▶ finished: progress moves to the smallest unfinished offset
                  └──▶ failed ─▶ sent back to the broker ─▶ finished: it comes again from %RETRY%group, or goes to %DLQ%group
                                 └─ sending back failed ──▶ called again here after 5 s

So progress moves on whether or not the listener succeeded, and never past a message that is neither done nor stored again. The messages of
a call that runs longer than `consume_timeout_ms` are sent back, and its result no longer counts. There is no task or timer per message.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.client.consumer.calls.consume_model import ListenerModel
from lockstep.client.consumer.calls.crew import Crew
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener import ConcurrentlyContext, ConsumeConcurrentlyStatus, read_concurrent_call, reason_of
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, Call, CallRunner
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import MessageDeadLettered
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.delays import FIRST_RETRY_LEVEL
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import REASON_LENGTH_MAX
from lockstep.protocol.object_text import text_of
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

CALL_AGAIN_MS = 5_000
"""The listener is called again with a message that can't be sent back after this time. RocketMQ: submitConsumeRequestLater."""
SEND_BACK_TIMEOUT_MS = 5_000
"""RocketMQ: consumerSendMessageBack's timeout."""
LEVEL_MAX = (1 << 31) - 1
"""The field of a send back is an int32. A broker takes its highest level for a higher one."""
OFFSETS_LOGGED = 10
"""The number of offsets that are logged when messages are dropped together."""
SWEEPS = 4
"""Checks for calls that run too long, per `consume_timeout_ms`."""


_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_HELD = OwnershipState.HELD


@dataclass(slots=True, eq=False)
class ConcurrentCall(Call):
    """A call of the listener."""

    runner: "ConcurrentRunner"
    context: ConcurrentlyContext
    expired: bool = field(default=False, init=False)
    """It ran too long: its messages are sent back, or are being sent."""


class ConcurrentModel(ListenerModel):
    """The consume model of `@consumer.concurrently`: the calls of one consumer."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        ListenerModel.__init__(self, ctx, listener)
        self.concurrency = ctx.config.concurrency
        self._crew: Crew[ConcurrentCall] = Crew(ctx, listener, ctx.config.concurrency)

    def start(self) -> None:
        ListenerModel.start(self)
        self.ctx.tasks.spawn(self._expire_calls(), f"{self.ctx.group} consume timeout")

    def runner(self, worker: AbstractQueueWorker, grant: Grant) -> "ConcurrentRunner":
        return ConcurrentRunner(self.ctx, worker, grant, self._crew)

    async def _expire_calls(self) -> None:
        """Send back the messages of calls that run too long, until the consumer ends."""
        timeout_ms = self.ctx.config.consume_timeout_ms
        while True:
            await asyncio.sleep(timeout_ms / SWEEPS / 1000)
            now_ms = self.ctx.host.clock.boot_ms()
            for call in list(self.running_calls()):
                assert isinstance(call, ConcurrentCall)
                if now_ms - call.started_ms >= timeout_ms and call.runner.grant.alive and not call.ended and not call.expired:
                    await call.runner.expire(call, now_ms)


class ConcurrentRunner(CallRunner[ConcurrentCall]):
    """One grant of one queue."""

    __slots__ = ("_again", "_batch_count", "_crew", "_logged", "not_sent_back", "refused")

    def __init__(self, ctx: ConsumerContext, worker: AbstractQueueWorker, grant: Grant, crew: Crew[ConcurrentCall]) -> None:
        CallRunner.__init__(self, ctx, worker, grant, None)
        self._crew = crew
        self._batch_count = ctx.config.batch_count
        self._again: deque[list[MessageExt]] = deque()
        """Taken messages with which the listener is to be called again."""
        self.not_sent_back = ""
        """Why the last message could not be sent back."""
        self.refused: set[int] = set()
        """Offsets of unfinished messages that the broker permanently refused to take back, which is logged once."""
        self._logged: type[BaseException] | None = None
        """The type of the error whose traceback was logged last."""

    async def run(self) -> None:
        while self.grant.alive:
            self._schedule()
            await self.grant.rest()

    def _schedule(self) -> None:
        if (self._again or self.messages.waiting) and self.grant.alive and self.ownership.state is _HELD and not self.ctx.paused:
            self._crew.schedule(self)

    def is_over(self) -> bool:
        return not self.grant.alive

    # ---------------------------------------------------------------------------------------------------------------- calls

    def begin_call(self, now_ms: int) -> ConcurrentCall | None:
        if not self.grant.alive or self.ownership.state is not _HELD or self.ctx.paused:
            return None  # the next grant, or resume(), schedules it again
        again, messages = self._again, self.messages
        batch = again.popleft() if again else messages.take(self._batch_count)
        if not batch:
            return None
        if again or messages.waiting:
            self._crew.note_waiting(self)
        return ConcurrentCall(self, batch, ConcurrentlyContext(self.worker.queue, len(batch), self.is_over), now_ms)

    def succeeded(self, call: ConcurrentCall, result: object) -> bool:
        batch, acked = call.batch, call.context.ack_index
        if (result is not _SUCCESS and result is not None) or type(acked) is not int or acked != len(batch) - 1:
            return False
        if not self.grant.alive or call.expired:
            return False
        if self.refused:
            self._forget_refused(batch)
        self.messages.finish(batch)
        return True

    async def process(self, call: ConcurrentCall, result: object, error: BaseException | None) -> None:
        batch, context = call.batch, call.context
        if not self.grant.alive or call.expired:
            self.log_stale(call, expired=call.expired)
            return
        status, wrong = read_concurrent_call(context, result, error)
        why = "the listener returned RECONSUME_LATER"
        if wrong is not None:
            why = reason_of(wrong)
            facts = {"queue": str(self.worker.queue), "offset": batch[0].queue_offset, "count": len(batch), "error": why}
            log.warning("call.failed", listener=self.ctx.listener_name, **facts, exc_info=self._traceback(error))
        done = len(batch)
        if status is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            done = 0
        elif context.ack_index != done - 1:
            done = min(max(context.ack_index + 1, 0), len(batch))
            why = f"the listener acknowledged {done} of {len(batch)} messages (ack_index)"
        self.finish(batch[:done])
        if done < len(batch):
            await self._send_all_back(call, batch[done:], context.delay_level_when_next_consume, why, error)

    async def _send_all_back(
        self, call: ConcurrentCall, failed: Sequence[MessageExt], level: int, why: str, error: BaseException | None = None
    ) -> bool:
        """Return whether the broker has stored all of them again. A broadcasting group drops them, as RocketMQ does. `why` they failed is
        what a dead letter shows."""
        queue = str(self.worker.queue)
        if self.ctx.local is not None:
            facts = {"queue": queue, "offsets": [message.queue_offset for message in failed[:OFFSETS_LOGGED]]}
            log.warning("message.dropped", group=self.ctx.group, **facts, count=len(failed), why="a broadcasting group has no retries")
            self.finish(failed)
            return True
        if type(level) is not int:
            log.warning("result.bad_delay_level", listener=self.ctx.listener_name, level=text_of(level)[:40], taken_as=0)
            level = 0
        level = max(-1, min(level, LEVEL_MAX))
        taken = await asyncio.gather(*(self._send_back(message, level, why, error) for message in failed))
        self.finish([message for message, ok in zip(failed, taken, strict=True) if ok])
        left = [message for message, ok in zip(failed, taken, strict=True) if not ok]
        if left and self.grant.alive and (call.ended or not call.expired):
            later = sum(message.queue_offset not in self.refused for message in left)
            if later:
                log.warning("send_back.deferred", queue=queue, count=later, again_ms=CALL_AGAIN_MS, error=self.not_sent_back)
            asyncio.get_running_loop().call_later(CALL_AGAIN_MS / 1000, self._call_again, left)
        return not left

    def _call_again(self, left: list[MessageExt]) -> None:
        self._again.append(left)
        self._schedule()

    async def _send_back(self, message: MessageExt, level: int, why: str, error: BaseException | None) -> bool:
        """Return False if the broker is not known to have stored the message again."""
        ctx, worker = self.ctx, self.worker
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
            await worker.session.link.call(RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except (TransportError, BrokerError) as failed:
            log.info("send_back.failed", queue=str(worker.queue), offset=message.queue_offset, error=str(failed))
            self._note_failed_send_back(message, failed)
            return False
        if level < 0 or message.reconsume_times >= ctx.config.max_reconsume_times:
            attempts = message.reconsume_times + 1
            facts = {"queue": str(worker.queue), "offset": message.queue_offset, "attempts": attempts, "error": why}
            log.error("message.dead_lettered", group=ctx.group, **facts, exc_info=error)
            ctx.report(MessageDeadLettered(worker.queue, message.queue_offset, attempts, why))
        return True

    async def expire(self, call: ConcurrentCall, now_ms: int) -> None:
        """Send back the messages of a call that runs too long."""
        call.expired = True
        call.context.cancel()
        facts = {"offset": call.batch[0].queue_offset, "started_ms_ago": now_ms - call.started_ms}
        log.warning(
            "call.expired", listener=self.ctx.listener_name, queue=str(self.worker.queue), **facts, then="its messages are sent back"
        )
        why = f"its call ran for more than {self.ctx.config.consume_timeout_ms:,} ms (consume_timeout_ms)"
        if not await self._send_all_back(call, call.batch, FIRST_RETRY_LEVEL, why):
            call.expired = False  # its own result counts, or the next check tries again; if it has ended, they are called again

    def finish(self, messages: Sequence[MessageExt]) -> None:
        """Count messages as done or stored again, and commit the progress while the other messages of their call are sent back."""
        if messages and self.grant.alive:
            self._forget_refused(messages)
            if self.messages.finish(messages):
                self.note_progress()
            self.grant.pull_if_room()

    def _forget_refused(self, finished: Sequence[MessageExt]) -> None:
        self.refused.difference_update(message.queue_offset for message in finished)

    def _traceback(self, error: BaseException | None) -> BaseException | None:
        """Return the error if its traceback is to be logged: for the first of its type under this grant."""
        if error is None or self._logged is type(error):
            return None
        self._logged = type(error)
        return error

    def _note_failed_send_back(self, message: MessageExt, error: Exception) -> None:
        """Keep the error. A permanent refusal is logged once for each message."""
        if not isinstance(error, BrokerError) or error.retriable:
            self.not_sent_back = str(error)
        elif message.queue_offset not in self.refused:
            self.refused.add(message.queue_offset)
            facts = {"queue": str(self.worker.queue), "offset": message.queue_offset, "message_id": message.message_id}
            then = f"it is called here until it succeeds, {CALL_AGAIN_MS // 1000} s after each call"
            log.warning("send_back.refused", **facts, error=str(error), then=then)
