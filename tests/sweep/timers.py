"""Messages that wait for a delay or until a time of day, and their recalls, some with a forged handle."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import log
from random import Random
from typing import Any

from lockstep.client import LockstepError, Message, Producer, SendResult
from lockstep.client.producer.config import Require
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.errors import QueryNotFoundError, TooLateToRecallError, TransportError
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from sweep.events.producers import DelayedSendAcked, RecallBegan, RecallEnded
from sweep.history import QueueKey, RecallOutcome
from sweep.universe import Universe

DELAY_S = (0.2, 40.0)
LEVELS = (1, 1, 2, 2, 3, 4)
"""Delay levels: 1 s to 30 s."""
COUNTS = (1, 1, 1, 2, 4)
"""The messages of one send; more than one are a batch."""
LATE_S = 2.0
"""A recall begins at most so long after the message is due."""
CLOSE_S = 0.05
AGAIN_SHARE, UNKNOWN_AGAIN_SHARE = 0.25, 0.7
FORGED_SHARE, CLASSIC_SHARE = 0.2, 0.2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Wait:
    """One send of messages that wait."""

    keyed: bool
    count: int
    delay_ms: int
    deliver_ms: int
    """The time of day until which they wait, by the clock of the producer's machine; 0: they wait for the delay."""
    posted: bool
    level: int = 0
    """Above 0: the delay is given as this level."""

    @property
    def terms(self) -> Mapping[str, Any]:
        """Return the arguments of the send."""
        if self.level:
            return {"delay_level": self.level}
        if self.deliver_ms:
            return {"deliver_at": EPOCH + timedelta(milliseconds=self.deliver_ms)}
        return {"delay": timedelta(milliseconds=self.delay_ms)}


class TimerWorkload:
    """Draws the timers of one producer process, sends them and recalls some."""

    def __init__(self, universe: Universe, producer: Producer) -> None:
        machine = universe.loop.current.machine
        self._universe = universe
        self._producer = producer
        self._random = Random(f"{universe.setting.seed}/{machine.name}/{machine.starts}/timers")
        self._clock = Host.current().clock

    def next(self) -> Wait | None:
        """Return how the messages of the next send wait; None if they do not."""
        setting, random = self._universe.setting, self._random
        if setting.delayed_share and random.random() < setting.delayed_share:
            level = random.choice(LEVELS)
            return Wait(random.random() < 0.5, 1, LEVELS_MS[level - 1], 0, False, level)
        return self._draw() if setting.timer_share and random.random() < setting.timer_share else None

    def _draw(self) -> Wait:
        random = self._random
        delay_ms = round(1_000 * 2 ** random.uniform(*(log(bound, 2) for bound in DELAY_S)))
        deliver_ms = self._clock.wall_ms() + delay_ms if random.random() < 0.5 else 0
        return Wait(random.random() < 0.5, random.choice(COUNTS), delay_ms, deliver_ms, random.random() < 0.5)

    async def send(self, messages: list[Message], wait: Wait, require: Require) -> list[SendResult]:
        producer, terms = self._producer, wait.terms
        if wait.count > 1:
            return await producer.send_batch(messages, require=require, **terms)
        if wait.posted and require == "stored":
            return [await (await producer.post(messages[0], **terms))]
        return [await producer.send(messages[0], require=require, **terms)]

    def acked(self, message: Message, result: SendResult, wait: Wait, require: Require, tasks: Tasks) -> None:
        queue = QueueKey("", result.queue.broker_name, result.queue.topic, result.queue.queue_id)
        body, status = bytes(message.body), result.status.value
        self._universe.history.append(DelayedSendAcked(*self._universe.origin(), body, queue, status, require == "written"))
        if result.recall_handle and self._random.random() < self._universe.setting.recall_share:
            tasks.spawn(self._recall(body, RecallHandle.decode(result.recall_handle), wait.delay_ms / 1_000), "recall")

    # ---------------------------------------------------------------------------------------------------------------- recalls

    async def _recall(self, body: bytes, handle: RecallHandle, due_s: float) -> None:
        random = self._random
        begin_s = random.choice((0.0, due_s + random.uniform(-CLOSE_S, CLOSE_S), random.uniform(0.0, due_s + LATE_S)))
        await asyncio.sleep(max(0.0, begin_s))
        if random.random() < FORGED_SHARE:
            await self._recall_once(body, *self._forged(handle))
            if random.random() < 0.5:
                return
        while True:
            classic = random.random() < CLASSIC_SHARE
            outcome = await self._recall_once(body, "classic" if classic else "", handle._replace(offset=None) if classic else handle)
            if random.random() >= (UNKNOWN_AGAIN_SHARE if outcome is RecallOutcome.UNKNOWN else AGAIN_SHARE):
                return
            await asyncio.sleep(random.uniform(0.0, LATE_S))

    def _forged(self, handle: RecallHandle) -> tuple[str, RecallHandle]:
        """Return what is wrong with the handle, and the handle."""
        others = [topic for topic in self._universe.setting.topics if topic != handle.topic]
        form = self._random.choice(("other id", "other due", *(["other topic"] if others else ())))
        if form == "other topic":
            return form, handle._replace(topic=self._random.choice(others))
        if form == "other due":
            return form, handle._replace(due_ms=handle.due_ms + self._random.choice((-1_000, -1, 1, 1_000)))
        return form, handle._replace(message_id=f"{self._random.getrandbits(128):032X}")

    async def _recall_once(self, body: bytes, form: str, handle: RecallHandle) -> RecallOutcome:
        history, origin = self._universe.history, self._universe.origin
        broker, number = handle.broker_name, 1 + len(history.of(RecallBegan))
        history.append(RecallBegan(*origin(), body, broker, number, form))
        try:
            await self._producer.recall(handle.encode())
            outcome, why = RecallOutcome.RECALLED, ""
        except LockstepError as error:
            outcome, why = _outcome_of(error), f"{type(error).__name__}: {error}"
        history.append(RecallEnded(*origin(), body, broker, number, form, outcome, why))
        return outcome


def _outcome_of(error: LockstepError) -> RecallOutcome:
    if isinstance(error, TooLateToRecallError):
        return RecallOutcome.TOO_LATE
    if isinstance(error, QueryNotFoundError):
        return RecallOutcome.NOT_FOUND
    return RecallOutcome.UNKNOWN if isinstance(error, TransportError) else RecallOutcome.REFUSED
