"""Histories of the broadcasting group news on machines C1 and C2, whose members get every message of broker-a's queue 0."""

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, HistoryBuilder
from sweep.events.members import MemberAssigned, MemberCallBegan, MemberCallEnded, MemberStarted, MemberStopBegan, MemberStopped
from sweep.events.progress import PullReceived
from sweep.events.universe import CalmBegan, Fault, PauseBegan, PauseEnded, ProcessEnded
from sweep.history import CallResult, QueueKey

N = QueueKey("news", "broker-a", "orders", 0)
AGAIN = ("C1", 13)
"""The next process on C1's machine."""
Where = tuple[str, int]


class BroadcastHistoryBuilder(HistoryBuilder):
    """A history with grants numbered from 1. A call succeeds unless the test gives another result."""

    def joined(
        self, t: float, offset: int | None = 0, where: Where = C1, *, ordered: bool = False, each: bool = False, first: bool = True
    ) -> "BroadcastHistoryBuilder":
        """Start a member at t and assign the queue 10 ms later as grant number `process` (not if `offset` is None)."""
        policy = "FIRST_OFFSET" if first else "LAST_OFFSET"
        self.add(MemberStarted, t, where, group="news", ordered=ordered, each=each, stop_ms=2_000, timeout_ms=4_000, where=policy)
        if offset is not None:
            self.assigned(t + 0.01, offset, where)
        return self

    def assigned(self, t: float, offset: int, where: Where = C1, grant: int = 1) -> "BroadcastHistoryBuilder":
        self.add(MemberAssigned, t, where, queue=N, epoch=grant, offset=offset)
        return self

    def called(
        self,
        begin: float,
        end: float | None,
        *offsets: int,
        where: Where = C1,
        grant: int = 1,
        result: CallResult = CallResult.SUCCESS,
        bodies: tuple[bytes, ...] = (),
    ) -> "BroadcastHistoryBuilder":
        """Add a call. Without an `end` it is still running."""
        call = 1 + sum(isinstance(event, MemberCallBegan) for event in self._events)
        bodies = bodies or tuple(b"m%d" % offset for offset in offsets)
        self.add(MemberCallBegan, begin, where, queue=N, epoch=grant, messages=tuple(zip(offsets, bodies, strict=True)), call=call)
        if end is not None:
            self.add(MemberCallEnded, end, where, queue=N, call=call, result=result)
        return self

    def stopped(self, t: float, where: Where = C1, *, took_s: float = 0.1) -> "BroadcastHistoryBuilder":
        self.add(MemberStopBegan, t - took_s, where, group="news")
        self.add(MemberStopped, t, where, group="news")
        return self

    def killed(self, t: float, where: Where = C1, how: str = "kill") -> "BroadcastHistoryBuilder":
        self.add(ProcessEnded, t, where, how=how)
        return self

    def paused(self, t: float, until: float, where: Where = C1) -> "BroadcastHistoryBuilder":
        self.add(PauseBegan, t, where).add(PauseEnded, until, where)
        return self

    def disk_failed(self, t: float, until: float, machine: str = "C1") -> "BroadcastHistoryBuilder":
        self.add(Fault, t, (machine, 0), kind="disk full", target=machine)
        self.add(Fault, until, (machine, 0), kind="heal", target=machine)
        return self

    def pulled(self, t: float, offset: int, next_offset: int, where: Where = C1, *, moved: bool = False) -> "BroadcastHistoryBuilder":
        """Add a pull response to a request 2 ms earlier."""
        code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.SUCCESS
        self.add(PullReceived, t, where, queue=N, epoch=None, code=code, offset=offset, next_offset=next_offset)
        return self

    def ended(self, *bodies: bytes, calm_t: float = 50) -> "BroadcastHistoryBuilder":
        """Add the end of the faults and the final reading. Each body was sent and acknowledged at its offset / 10 s."""
        for offset, body in enumerate(bodies):
            self.sent(offset / 10, body, offset)
        self.add(CalmBegan, calm_t, ("", 0)).read(500, *bodies)
        return self
