"""Histories of concurrent groups and dead letters: the groups mailing and billing."""

from typing import Any, Self

from support.histories import C1, B, HistoryBuilder, Q, Where, epoch
from sweep.events.consumers import ConcurrentCallBegan, ConcurrentCallEnded, ConsumerStarted, ReceivedMessage
from sweep.events.progress import ProgressResponded
from sweep.events.sends import (
    DeadLetterResponded,
    DeadLetterSent,
    SendBackResponded,
    SendBackSent,
)
from sweep.events.universe import CopyStored
from sweep.history import CallResult, QueueKey

M = QueueKey("mailing", "broker-a", "orders", 0)
R = QueueKey("mailing", "broker-a", "%RETRY%mailing", 0)
DEAD = QueueKey("", "broker-a", "%DLQ%mailing", 0)
BILLING_DEAD = QueueKey("", "broker-a", "%DLQ%billing", 0)


def place_in_log(queue: QueueKey, offset: int) -> int:
    return offset * 100 + (10_000 if queue.topic.startswith("%") else 0)


class ConcurrentHistoryBuilder(HistoryBuilder):
    """A history in which mailing allows 2 retries and billing, if present, 2 attempts."""

    def joined(self, t: float = 0.5, where: Where = C1, *, attempts_max: int | None = None) -> Self:
        joined = self.add(ConsumerStarted, t, where, group="mailing", ordered=False)
        return joined if attempts_max is None else joined.add(ConsumerStarted, t, where, attempts_max=attempts_max)

    def begun(self, t: float, offset: int = 0, generation: int = 1, where: Where = C1, queue: QueueKey = M) -> Self:
        """Add a QUERY_CONSUMER_OFFSET, requested 2 ms before, with a response at t."""
        return self.add(ProgressResponded, t, B, queue=queue, generation=generation, offset=offset, client=where[1], session="s1")

    def shared(
        self,
        begin: float,
        end: float | None,
        *offsets: int,
        queue: QueueKey = M,
        retries: int = 0,
        bodies: tuple[bytes, ...] = (),
        done: int | None = None,
        where: Where = C1,
    ) -> Self:
        """Add a call that handles the first `done` messages (default: all). Without an `end` it is still running."""
        call = 1 + sum(isinstance(event, ConcurrentCallBegan) for event in self._events)
        bodies = bodies or tuple(b"m%d" % offset for offset in offsets)
        given = tuple(
            ReceivedMessage(offset, body, place_in_log(queue, offset), retries) for offset, body in zip(offsets, bodies, strict=True)
        )
        began = self.add(ConcurrentCallBegan, begin, where, queue=queue, given=given, call=call)
        ends = {"queue": queue, "call": call, "done": len(offsets) if done is None else done, "result": CallResult.SUCCESS}
        return began if end is None else began.add(ConcurrentCallEnded, end, where, **ends)

    def back(self, t: float, offset: int, *, queue: QueueKey = M, code: int | None = 0, level: int = 0, where: Where = C1) -> Self:
        """Add a send back at t, with the response `code` 1 ms later (None: no response)."""
        request = 1_000 + sum(isinstance(event, SendBackSent) for event in self._events)
        position = place_in_log(queue, offset)
        facts: dict[str, Any] = {"group": "mailing", "request": request}
        sent = self.add(SendBackSent, t, where, position=position, level=level, retries_max=2, **facts)
        return sent if code is None else sent.add(SendBackResponded, t + 0.001, B, code=code, client=where[1], **facts)

    def moved(self, t: float, offset: int, generation: int = 1, where: Where = C1, queue: QueueKey = M) -> Self:
        """Add a commit under the generation, sent 2 ms before, with a response 1 ms before."""
        return self.committed(t, 0, offset, where, epoch=None, generation=generation, queue=queue)

    def copy(self, body: bytes, retries: int, *, queue: QueueKey = DEAD, offset: int = 0, stored_t: float | None = None) -> Self:
        """Add a copy found by the final reading."""
        facts: dict[str, Any] = {"queue": queue, "offset": offset, "body": body, "retries": retries, "origin": "o", "stored_t": stored_t}
        return self.add(CopyStored, 500, ("", 0), **facts)

    def letter(self, t: float, number: int, offset: int, *, attempts: int = 2, advance: bool = True, code: int | None = 0) -> Self:
        """Add a DEAD_LETTER under epoch(number) at t, with the response `code` 1 ms later (None: no response)."""
        request = 3_000 + sum(isinstance(event, DeadLetterSent) for event in self._events)
        facts: dict[str, Any] = {"queue": Q, "epoch": epoch(number), "offset": offset, "advance": advance, "request": request}
        sent = self.add(DeadLetterSent, t, C1, attempts=attempts, **facts)
        return sent if code is None else sent.add(DeadLetterResponded, t + 0.001, B, code=code, client=C1[1], **facts)
