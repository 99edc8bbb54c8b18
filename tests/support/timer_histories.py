"""Histories of messages that wait for any delay or until a time of day, and of their recalls."""

from dataclasses import replace
from typing import Any, Self

from lockstep.testing.simulation.process import EPOCH_S
from support.concurrent_histories import ConcurrentHistoryBuilder
from support.histories import LOG, B, P, Where
from sweep.events.producers import DelayedSendAcked, RecallBegan, RecallEnded, SendBegan
from sweep.events.sends import TimersResponded, TimersWritten
from sweep.events.universe import BrokerOpened, MessageStored
from sweep.history import QueueKey, RecallOutcome


def time_of_day_ms(t: float) -> int:
    """Return a time of the universe's clock as ms since 1970."""
    return round((EPOCH_S + t) * 1_000)


class TimerHistoryBuilder(ConcurrentHistoryBuilder):
    """`removes_nothing`: retention removes nothing."""

    def __init__(self, *, flush: str = "async", removes_nothing: bool = True) -> None:
        super().__init__(flush=flush)
        self._events = tuple(replace(event, removes_nothing=removes_nothing) for event in self._events if isinstance(event, BrokerOpened))

    def timer(
        self,
        t: float,
        body: bytes = b"m0",
        *,
        delay_ms: int = 0,
        until: float | None = None,
        key: str | None = None,
        acked: bool = True,
        **facts: Any,
    ) -> Self:
        """Add a send at t of a message with a delay, or until a time of the universe's clock. If `acked`, it returns 2 ms later."""
        deliver_ms = 0 if until is None else time_of_day_ms(until)
        sent = self.add(SendBegan, t, P, body=body, key=key, delay_ms=delay_ms, deliver_ms=deliver_ms)
        return sent.frame(t, body, acked=acked, **facts)

    def frame(
        self,
        t: float,
        body: bytes = b"m0",
        *,
        acked: bool = True,
        written: bool = False,
        queue: QueueKey = LOG,
        sequence: tuple[int, int, int] = (0, 1, 0),
        position: int = -1,
        answerer: Where = B,
    ) -> Self:
        """Write the message to a broker at t, for the first time or again."""
        request = 5_000 + sum(isinstance(event, TimersWritten) for event in self._events)
        facts: dict[str, Any] = {"queue": queue, "request": request}
        sent = self.add(TimersWritten, t, P, bodies=(body,), producer="p", sequence=sequence, began=1, layout=None, **facts)
        if not acked:
            return sent
        stamp = {"offset": 0, "position": position, "stamp_ms": time_of_day_ms(t)}
        responded = sent.add(TimersResponded, t + 0.001, answerer, code=0, request_t=t, **stamp, **facts)
        return responded.add(DelayedSendAcked, t + 0.002, P, body=body, queue=queue, written=written)

    def recall(
        self, t: float, outcome: RecallOutcome | None, body: bytes = b"m0", *, form: str = "", broker: str = "broker-a", took_s: float = 0.1
    ) -> Self:
        """Add a recall at t. Without an `outcome` it has no end."""
        number = 1 + sum(isinstance(event, RecallBegan) for event in self._events)
        facts: dict[str, Any] = {"body": body, "broker": broker, "recall": number, "form": form}
        began = self.add(RecallBegan, t, P, **facts)
        return began if outcome is None else began.add(RecallEnded, t + took_s, P, outcome=outcome, **facts)

    def placed(self, t: float, position: int, body: bytes = b"m0", *, offset: int = 0, stored_t: float = 0.0) -> Self:
        """Add a message of the final reading, with its position in the log."""
        facts: dict[str, Any] = {"queue": LOG, "offset": offset, "body": body, "stored_t": stored_t, "position": position}
        return self.add(MessageStored, t, ("", 0), **facts)
