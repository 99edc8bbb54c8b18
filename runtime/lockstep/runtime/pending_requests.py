"""The requests of one connection that wait for their response. RocketMQ: NettyRemotingAbstract.responseTable.

All time-outs share one heap and one timer, so that a request needs no timer of its own.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RequestTimeoutError, TransportError
from lockstep.runtime.timer import Timer

CLOCK_STEP_S = 0.001
"""uvloop's clock and timers count whole milliseconds: an event that is due within this time is due now."""
HEAP_SLACK = 64
"""Entries of completed requests that may remain, in addition to one per pending request."""


def code_name(code: int) -> str:
    """Return the name of a request code, for people."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request code {code}"


class ResponseReceiver(Protocol):
    """Receives the response of a request: an asyncio.Future, or an object that saves the turn of the loop that a future's callbacks take.

    A result is set in the protocol's callback: `set_result` must not raise. An error may be set while the connection is being closed.
    """

    def done(self) -> bool:
        """Return whether the response is not awaited any more."""
        ...

    def set_result(self, result: Command, /) -> None: ...

    def set_exception(self, exception: TransportError | RequestTimeoutError, /) -> None: ...


class PendingRequests:
    """Opaque → receiver. Callers may pop from `receivers` directly: a completed request leaves only its entry in the heap."""

    __slots__ = ("_heap", "_loop", "_peer", "_timer", "receivers")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Callable[[], str], late_ms: int) -> None:
        self._loop = loop
        self._peer = peer
        self._timer = Timer(loop, self._expire, late_ms)
        self._heap: list[tuple[float, int, int, int]] = []
        """(deadline, opaque, timeout_ms, code). Entries of completed requests are removed when they are due or outnumber the others."""
        self.receivers: dict[int, ResponseReceiver] = {}

    def __len__(self) -> int:
        return len(self.receivers)

    def add(self, opaque: int, code: int, timeout_ms: int, receiver: ResponseReceiver) -> None:
        """Add a request. Its response, its time-out or the end of the connection completes `receiver`."""
        self.receivers[opaque] = receiver
        heap = self._heap
        if len(heap) > HEAP_SLACK and len(heap) > 2 * len(self.receivers):
            # A pass over the heap whenever half of it is obsolete: a constant cost per request.
            heap[:] = [entry for entry in heap if entry[1] in self.receivers]
            heapq.heapify(heap)
        deadline = self._loop.time() + timeout_ms / 1000
        heapq.heappush(heap, (deadline, opaque, timeout_ms, code))
        if not self._timer.armed or deadline < self._timer.due:
            self._timer.set(deadline)

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        """Fail all requests after the end of the connection, each with its own error."""
        self._timer.cancel()
        self._heap.clear()
        receivers, self.receivers = self.receivers, {}
        for receiver in receivers.values():
            if not receiver.done():
                receiver.set_exception(error())

    def _expire(self) -> None:
        now = self._loop.time() + CLOCK_STEP_S
        heap, receivers = self._heap, self.receivers
        while heap and (heap[0][0] <= now or heap[0][1] not in receivers):
            _, opaque, timeout_ms, code = heapq.heappop(heap)
            receiver = receivers.pop(opaque, None)
            if receiver is not None and not receiver.done():
                receiver.set_exception(RequestTimeoutError(f"{self._peer()}: no response to {code_name(code)} within {timeout_ms} ms"))
        if heap:
            self._timer.set(heap[0][0])
