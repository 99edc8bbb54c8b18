"""Histories of pull consumers of the group readers: reader 1 in process C1, reader 2 in C2."""

from typing import Any

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, B, HistoryBuilder
from sweep.events import readers
from sweep.events.progress import ProgressReset, ProgressResponded, PullReceived, ResetSent
from sweep.history import QueueKey

R = QueueKey("readers", "broker-a", "orders", 0)
Where = tuple[str, int]
NUMBERS = {C1: 1, C2: 2}


class PullHistoryBuilder(HistoryBuilder):
    """A history of pull consumers."""

    def reader(self, t: float = 0.5, where: Where = C1, *, auto: bool = False, expression: str = "*") -> "PullHistoryBuilder":
        facts: dict[str, Any] = {"reader": NUMBERS[where], "group": "readers", "topic": "orders", "expression": expression}
        self.add(readers.ReaderStarted, t, where, by_hand=False, auto=auto, **facts)
        return self

    def given(
        self, t: float, offset: int = 0, generation: int = 1, where: Where = C1, *, responded: int | None = None
    ) -> "PullHistoryBuilder":
        """Add a grant. The broker responded 1 ms before, with the offset `responded` if given."""
        at = offset if responded is None else responded
        self.add(ProgressResponded, t - 0.001, B, queue=R, generation=generation, offset=at, client=where[1], session="s1")
        self.add(readers.ReaderQueueAssigned, t, where, reader=NUMBERS[where], queue=R, generation=generation, offset=offset)
        return self

    def taken(self, t: float, generation: int = 1, where: Where = C1) -> "PullHistoryBuilder":
        self.add(readers.ReaderQueueRevoked, t, where, reader=NUMBERS[where], queue=R, generation=generation)
        return self

    def polled(self, t: float, *offsets: int, where: Where = C1, assigned: bool = True) -> "PullHistoryBuilder":
        messages = tuple((offset, b"m%d" % offset) for offset in offsets)
        self.add(readers.PollReturned, t, where, reader=NUMBERS[where], queue=R, messages=messages, assigned=assigned)
        return self

    def done(self, t: float, by: str = "commit", where: Where = C1) -> "PullHistoryBuilder":
        self.add(readers.PolledMessagesDone, t, where, reader=NUMBERS[where], by=by)
        return self

    def moved(self, t: float, offset: int, generation: int = 1, where: Where = C1, **facts: Any) -> "PullHistoryBuilder":
        """Add a commit by SYNC, sent 2 ms before, with a response 1 ms before."""
        self.committed(t, 0, offset, where, epoch=None, generation=generation, queue=R, **facts)
        return self

    def returned(self, t: float, where: Where = C1) -> "PullHistoryBuilder":
        """Add the return of commit()."""
        self.add(readers.ReaderCommitted, t, where, reader=NUMBERS[where])
        return self

    def failed(self, t: float, where: Where = C1, *, stale: bool = True) -> "PullHistoryBuilder":
        self.add(readers.ReaderCommitFailed, t, where, reader=NUMBERS[where], stale=stale)
        return self

    def sought(self, t: float, offset: int, where: Where = C1) -> "PullHistoryBuilder":
        self.add(readers.SeekReturned, t, where, reader=NUMBERS[where], queue=R, offset=offset)
        return self

    def unassigned(self, t: float, where: Where = C1) -> "PullHistoryBuilder":
        self.add(readers.ReaderQueueUnassigned, t, where, reader=NUMBERS[where], queue=R)
        return self

    def pulled(self, t: float, offset: int, next_offset: int, gap: tuple[int, int] | None, where: Where = C1) -> "PullHistoryBuilder":
        """Add a pull response of a queue that now begins after `offset`."""
        code = ResponseCode.PULL_OFFSET_MOVED
        self.add(PullReceived, t, where, queue=R, epoch=None, code=code, offset=offset, next_offset=next_offset, gap=gap)
        return self

    def paused(self, t: float, until: float, where: Where = C1) -> "PullHistoryBuilder":
        self.add(readers.ReaderQueuePaused, t, where, reader=NUMBERS[where], queue=R)
        self.add(readers.ReaderQueueResumed, until, where, reader=NUMBERS[where], queue=R)
        return self

    def reset(self, t: float, offset: int, where: Where = ("O", 99), *, before: int = -1, responded: bool = True) -> "PullHistoryBuilder":
        """Add a reset, requested 2 ms before, with a response at t."""
        request = 4_000 + sum(isinstance(event, ResetSent) for event in self._events)
        self.add(ResetSent, t - 0.002, where, queue=R, offset=offset, request=request)
        if responded:
            self.add(ProgressReset, t, B, queue=R, offset=offset, before=before, request=request)
        return self
