"""What follows a failed call of an ordered listener, whatever the unit of order: a pause, reports, and the dead-letter topic."""

import asyncio
from collections import OrderedDict
from typing import cast

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.listener import OrderlyContext, reason_of
from lockstep.client.consumer.calls.listener_calls import ends_the_consumer
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome, ParkRequest
from lockstep.client.consumer.calls.retry import clamp_suspend_ms
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, OrderedCall
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import KeyParked, MessageDeadLettered, QueueBlocked
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.headers.park import ParkHeader
from lockstep.protocol.headers.send import DeadLetterHeader
from lockstep.protocol.messages.properties import REASON_LENGTH_MAX
from lockstep.protocol.object_text import text_of
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

AGAIN_MS = 500
"""Pause before a PARK without a response is sent again."""
LOGGED_MAX = 100
"""The number of batches whose logged tracebacks are remembered."""


class FailedCalls:
    """The failed calls of one grant."""

    __slots__ = ("_ctx", "_grant", "_logged", "_refusal", "_worker", "why")

    def __init__(self, ctx: ConsumerContext, worker: AbstractQueueWorker, grant: Grant) -> None:
        self._ctx = ctx
        self._worker = worker
        self._grant = grant
        self.why = ""
        """Why the last call failed."""
        self._refusal: str | None = None
        """Why the broker has just refused to park a key."""
        self._logged: OrderedDict[int, type[BaseException]] = OrderedDict()
        """The types of the errors whose tracebacks were logged last, by the offset of their batch."""

    async def dead_letter(
        self, call: OrderedCall, attempts: int, wrong: BaseException | str | None, *, advance: bool = False, finish: bool = False
    ) -> bool:
        """Copy a batch that has failed for the last time to the group's dead-letter topic, each message by one request.

        Return False if the batch has attempts left, or could not be copied: then it is called again, and copied after the next failure.
        `wrong` is why it has failed (None: the listener returned SUSPEND). `advance` and `finish` are those of DeadLetterHeader.
        """
        ctx, grant, queue = self._ctx, self._grant, self._worker.queue
        if not ctx.config.retry.gives_up(attempts) or _ends_the_consumer(wrong):
            return False
        why, error = _reason(wrong), None if isinstance(wrong, str) else wrong
        for message in call.batch:
            place = (ctx.group, queue.topic, queue.queue_id, grant.token, message.queue_offset)
            header = DeadLetterHeader(*place, attempts, why[:REASON_LENGTH_MAX], advance, finish)
            try:
                await self._worker.session.link.call(RequestCode.DEAD_LETTER, header)
            except (TransportError, BrokerError) as failed:
                log.warning("dead_letter.failed", queue=str(queue), offset=message.queue_offset, error=str(failed))
                return False
            facts = {"queue": str(queue), "offset": message.queue_offset, "attempts": attempts, "error": why}
            log.error("message.dead_lettered", group=ctx.group, **facts, exc_info=error)
            ctx.report(MessageDeadLettered(queue, message.queue_offset, attempts, why))
        return grant.alive

    async def park(self, call: OrderedCall, attempts: int, wrong: BaseException | str | None) -> ParkOutcome:
        """Set the key of a message aside that has failed for the last time. The message is the batch."""
        ctx, grant, queue = self._ctx, self._grant, self._worker.queue
        if not grant.alive or not ctx.config.retry.parks(attempts) or _ends_the_consumer(wrong):
            return ParkOutcome.NOT_NOW
        (message,), why = call.batch, _reason(wrong)
        header = ParkHeader(ctx.group, queue.topic, queue.queue_id, grant.token, message.queue_offset, attempts, why[:REASON_LENGTH_MAX])
        outcome = await self._send_park(header)
        if outcome is not ParkOutcome.PARKED:
            return outcome
        key = message.sharding_key or ""
        log.error("key.parked", group=ctx.group, key=key, attempts=attempts, error=why, queue=str(queue), offset=message.queue_offset)
        ctx.report(KeyParked(queue, key, message.queue_offset, attempts, why))
        return ParkOutcome.PARKED

    async def _send_park(self, header: ParkHeader) -> ParkOutcome:
        """Repeat the request until there is a response, or the grant has ended."""
        request = ParkRequest()
        place: dict[str, object] = {"queue": str(self._worker.queue), "offset": header.offset}
        while self._grant.alive:
            try:
                await self._worker.session.link.call(RequestCode.PARK, header)
            except (TransportError, BrokerError) as error:
                outcome = request.outcome(error)
                if outcome is ParkOutcome.REFUSED:
                    self._refusal = cast(BrokerError, error).remark
                    log.error(
                        "park.refused", group=self._ctx.group, **place, error=self._refusal, then="the message blocks what follows it"
                    )
                elif outcome is not None:
                    log.warning("park.failed", **place, error=str(error))
                else:
                    log.debug("park.interrupted", **place, error=str(error))
            else:
                outcome = request.outcome(None)
            if outcome is not None:
                return outcome
            await asyncio.sleep(AGAIN_MS / 1000)
        return ParkOutcome.NOT_NOW

    def report_failure(self, call: OrderedCall, attempts: int, wrong: BaseException | str | None) -> int:
        """Report that the batch has failed `attempts` times, `wrong` is why (None: the listener returned SUSPEND). Return the pause before
        its next call in milliseconds."""
        ctx, retry, queue, first = self._ctx, self._ctx.config.retry, self._worker.queue, call.batch[0]
        offset, key = first.queue_offset, first.sharding_key
        place: dict[str, object] = {"queue": str(queue), "offset": offset}
        why = _reason(wrong)
        if wrong is not None:
            facts = {"attempts": attempts, "error": why}
            log.warning("call.failed", listener=ctx.listener_name, **place, **facts, exc_info=self._traceback(offset, wrong))
        if self._refusal is not None:
            why, self._refusal = f"{why}; its key is not parked: {self._refusal}", None
        self.why = why[:REASON_LENGTH_MAX]
        if retry.reports_blocked(attempts):
            log.warning("queue.blocked", group=ctx.group, **place, key=key, attempts=attempts, error=why)
            ctx.report(QueueBlocked(queue, offset, attempts, why, key))
        if wrong is None or call.context.suspend_current_queue_time_ms is not None:
            return self.suspend_ms(call.context)
        return retry.backoff.pause_ms(attempts)

    def suspend_ms(self, context: OrderlyContext) -> int:
        """Return the pause that the listener asked for, or the consumer's setting, in milliseconds."""
        asked_ms: object = context.suspend_current_queue_time_ms
        if type(asked_ms) in (int, float) and asked_ms == asked_ms:  # not NaN
            return clamp_suspend_ms(cast(float, asked_ms))
        if asked_ms is not None:
            log.warning("result.bad_pause", listener=self._ctx.listener_name, pause_ms=text_of(asked_ms)[:40], taken_as="the setting")
        return clamp_suspend_ms(self._ctx.config.suspend_current_queue_time_ms)

    def _traceback(self, offset: int, wrong: BaseException | str) -> BaseException | None:
        """Return the error if its traceback is to be logged: for the first of its type at this offset under this grant."""
        if isinstance(wrong, str) or self._logged.get(offset) is type(wrong):
            return None
        self._logged[offset] = type(wrong)
        if len(self._logged) > LOGGED_MAX:
            self._logged.popitem(last=False)
        return wrong


def _reason(wrong: BaseException | str | None) -> str:
    """Return why a call failed, in words."""
    if wrong is None:
        return "the listener returned SUSPEND_CURRENT_QUEUE_A_MOMENT"
    return reason_of(wrong)


def _ends_the_consumer(wrong: BaseException | str | None) -> bool:
    return isinstance(wrong, BaseException) and ends_the_consumer(wrong)
