"""Histories of pull consumers of the group readers: reader 1 in process C1, reader 2 in C2."""

from typing import Any, Self

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, B, HistoryBuilder, Where
from sweep.events.progress import ProgressReset, ProgressResponded, PullReceived, ResetSent
from sweep.events.readers import (
    PolledMessagesDone,
    PollReturned,
    ReaderCommitFailed,
    ReaderCommitted,
    ReaderQueueAssigned,
    ReaderQueuePaused,
    ReaderQueueResumed,
    ReaderQueueRevoked,
    ReaderQueueUnassigned,
    ReaderStarted,
    SeekReturned,
)
from sweep.history import QueueKey

R = QueueKey("readers", "broker-a", "orders", 0)
NUMBERS = {C1: 1, C2: 2}


class PullHistoryBuilder(HistoryBuilder):
    """A history of pull consumers."""

    def reader(self, t: float = 0.5, where: Where = C1, *, auto: bool = False, expression: str = "*") -> Self:
        facts: dict[str, Any] = {"reader": NUMBERS[where], "group": "readers", "topic": "orders", "expression": expression}
        return self.add(ReaderStarted, t, where, by_hand=False, auto=auto, **facts)

    def given(self, t: float, offset: int = 0, generation: int = 1, where: Where = C1, *, responded: int | None = None) -> Self:
        """Add a grant. The broker responded 1 ms before, with the offset `responded` if given."""
        response = {"queue": R, "generation": generation, "offset": offset if responded is None else responded, "session": "s1"}
        after = self.add(ProgressResponded, t - 0.001, B, client=where[1], **response)
        return after.add(ReaderQueueAssigned, t, where, reader=NUMBERS[where], queue=R, generation=generation, offset=offset)

    def taken(self, t: float, generation: int = 1, where: Where = C1) -> Self:
        return self.add(ReaderQueueRevoked, t, where, reader=NUMBERS[where], queue=R, generation=generation)

    def polled(self, t: float, *offsets: int, where: Where = C1, assigned: bool = True) -> Self:
        messages = tuple((offset, b"m%d" % offset) for offset in offsets)
        return self.add(PollReturned, t, where, reader=NUMBERS[where], queue=R, messages=messages, assigned=assigned)

    def done(self, t: float, by: str = "commit", where: Where = C1) -> Self:
        return self.add(PolledMessagesDone, t, where, reader=NUMBERS[where], by=by)

    def moved(self, t: float, offset: int, generation: int = 1, where: Where = C1, **facts: Any) -> Self:
        """Add a commit by SYNC, sent 2 ms before, with a response 1 ms before."""
        return self.committed(t, 0, offset, where, epoch=None, generation=generation, queue=R, **facts)

    def returned(self, t: float, where: Where = C1) -> Self:
        """Add the return of commit()."""
        return self.add(ReaderCommitted, t, where, reader=NUMBERS[where])

    def failed(self, t: float, where: Where = C1, *, stale: bool = True) -> Self:
        return self.add(ReaderCommitFailed, t, where, reader=NUMBERS[where], stale=stale)

    def sought(self, t: float, offset: int, where: Where = C1) -> Self:
        return self.add(SeekReturned, t, where, reader=NUMBERS[where], queue=R, offset=offset)

    def unassigned(self, t: float, where: Where = C1) -> Self:
        return self.add(ReaderQueueUnassigned, t, where, reader=NUMBERS[where], queue=R)

    def pulled(self, t: float, offset: int, next_offset: int, gap: tuple[int, int] | None, where: Where = C1) -> Self:
        """Add a pull response of a queue that now begins after `offset`."""
        code = ResponseCode.PULL_OFFSET_MOVED
        return self.add(PullReceived, t, where, queue=R, epoch=None, code=code, offset=offset, next_offset=next_offset, gap=gap)

    def paused(self, t: float, until: float, where: Where = C1) -> Self:
        paused = self.add(ReaderQueuePaused, t, where, reader=NUMBERS[where], queue=R)
        return paused.add(ReaderQueueResumed, until, where, reader=NUMBERS[where], queue=R)

    def reset(self, t: float, offset: int, where: Where = ("O", 99), *, before: int = -1, responded: bool = True) -> Self:
        """Add a reset, requested 2 ms before, with a response at t."""
        request = 4_000 + sum(isinstance(event, ResetSent) for event in self._events)
        sent = self.add(ResetSent, t - 0.002, where, queue=R, offset=offset, request=request)
        return sent.add(ProgressReset, t, B, queue=R, offset=offset, before=before, request=request) if responded else sent
