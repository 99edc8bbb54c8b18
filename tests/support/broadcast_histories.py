"""Histories of the broadcasting group news on machines C1 and C2, whose members get every message of broker-a's queue 0."""

from typing import Self

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, HistoryBuilder, Where
from sweep.events.members import (
    MemberAssigned,
    MemberCallBegan,
    MemberCallEnded,
    MemberRevoked,
    MemberStarted,
    MemberStopBegan,
    MemberStopped,
)
from sweep.events.progress import PullReceived
from sweep.events.universe import Fault
from sweep.history import CallResult, QueueKey

N = QueueKey("news", "broker-a", "orders", 0)
AGAIN = ("C1", 13)
"""The next process on C1's machine."""


class BroadcastHistoryBuilder(HistoryBuilder):
    """A history with grants numbered from 1. A call succeeds unless the test gives another result."""

    def joined(
        self, t: float, offset: int | None = 0, where: Where = C1, *, ordered: bool = False, each: bool = False, first: bool = True
    ) -> Self:
        """Start a member at t and assign the queue 10 ms later as grant number `process` (not if `offset` is None)."""
        policy = "FIRST_OFFSET" if first else "LAST_OFFSET"
        facts = {"group": "news", "ordered": ordered, "each": each, "stop_ms": 2_000, "timeout_ms": 4_000, "where": policy}
        started = self.add(MemberStarted, t, where, **facts)
        return started if offset is None else started.assigned(t + 0.01, offset, where)

    def assigned(self, t: float, offset: int, where: Where = C1, grant: int = 1) -> Self:
        return self.add(MemberAssigned, t, where, queue=N, epoch=grant, offset=offset)

    def revoked(self, t: float, where: Where = C1, grant: int = 1) -> Self:
        return self.add(MemberRevoked, t, where, queue=N, epoch=grant)

    def called(
        self, begin: float, end: float | None, *offsets: int, where: Where = C1, grant: int = 1, result: CallResult = CallResult.SUCCESS
    ) -> Self:
        """Add a call. Without an `end` it is still running."""
        call = 1 + sum(isinstance(event, MemberCallBegan) for event in self._events)
        messages = tuple((offset, b"m%d" % offset) for offset in offsets)
        began = self.add(MemberCallBegan, begin, where, queue=N, epoch=grant, messages=messages, call=call)
        return began if end is None else began.add(MemberCallEnded, end, where, queue=N, call=call, result=result)

    def stopped(self, t: float, where: Where = C1, *, took_s: float = 0.1) -> Self:
        return self.add(MemberStopBegan, t - took_s, where, group="news").add(MemberStopped, t, where, group="news")

    def disk_failed(self, t: float, until: float, machine: str = "C1") -> Self:
        failed = self.add(Fault, t, (machine, 0), kind="disk full", target=machine)
        return failed.add(Fault, until, (machine, 0), kind="heal", target=machine)

    def pulled(self, t: float, offset: int, next_offset: int, where: Where = C1, *, moved: bool = False) -> Self:
        """Add a pull response to a request 2 ms earlier."""
        code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.SUCCESS
        return self.add(PullReceived, t, where, queue=N, epoch=None, code=code, offset=offset, next_offset=next_offset)

    def ended(self, *bodies: bytes) -> Self:
        """Add the end of the faults and the final reading. Each body was sent and acknowledged at its offset / 10 s."""
        after = self
        for offset, body in enumerate(bodies):
            after = after.sent(offset / 10, body, offset)
        return after.calm(50).read(500, *bodies)
