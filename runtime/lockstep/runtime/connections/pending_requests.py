"""The requests of one connection that wait for their response. RocketMQ: NettyRemotingAbstract.responseTable.

All time-outs share one heap and one timer, so that a request needs no timer of its own.
"""

import asyncio
import heapq
from collections.abc import Callable

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


OnResult = Callable[[Command | TransportError | RequestTimeoutError], None]
"""Called once with the response of a request, or with the error for which there will be none. Must not raise: a response is passed in the
protocol's callback, an error also while the connection is being closed."""


def complete(future: "asyncio.Future[Command]", result: Command | TransportError | RequestTimeoutError) -> None:
    """Complete a future with the result of its request, unless it was cancelled."""
    if future.done():
        return
    if isinstance(result, Command):
        future.set_result(result)
    else:
        future.set_exception(result)


class PendingRequests:
    """Opaque → callback. Callers may pop from `callbacks` directly: a completed request leaves only its entry in the heap."""

    __slots__ = ("_heap", "_late_ms", "_loop", "_timer", "callbacks", "peer")

    def __init__(self, loop: asyncio.AbstractEventLoop, late_ms: int) -> None:
        self._loop = loop
        self._late_ms = late_ms
        self.peer = "unknown"
        """The other end, for errors."""
        self._timer: Timer | None = None
        """The timer, from the first request to `fail_all`."""
        self._heap: list[tuple[float, int, int, int]] = []
        """(deadline, opaque, timeout_ms, code). Entries of completed requests are removed when they are due or outnumber the others."""
        self.callbacks: dict[int, OnResult] = {}

    def __len__(self) -> int:
        return len(self.callbacks)

    def add(self, opaque: int, code: int, timeout_ms: int, on_result: OnResult) -> None:
        """Add a request. Its response, its time-out or the end of the connection is passed to `on_result`."""
        self.callbacks[opaque] = on_result
        heap = self._heap
        if len(heap) > HEAP_SLACK and len(heap) > 2 * len(self.callbacks):
            # A pass over the heap whenever half of it is obsolete: a constant cost per request.
            heap[:] = [entry for entry in heap if entry[1] in self.callbacks]
            heapq.heapify(heap)
        deadline = self._loop.time() + timeout_ms / 1000
        heapq.heappush(heap, (deadline, opaque, timeout_ms, code))
        timer = self._timer
        if timer is None:
            timer = self._timer = Timer(self._loop, self._expire, self._late_ms)
        if not timer.armed or deadline < timer.due:
            timer.set(deadline)

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        """Fail all requests after the end of the connection, each with its own error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
        callbacks, self.callbacks = self.callbacks, {}
        for on_result in callbacks.values():
            on_result(error())

    def _expire(self) -> None:
        now = self._loop.time() + CLOCK_STEP_S
        heap, callbacks = self._heap, self.callbacks
        while heap and (heap[0][0] <= now or heap[0][1] not in callbacks):
            _, opaque, timeout_ms, code = heapq.heappop(heap)
            on_result = callbacks.pop(opaque, None)
            if on_result is not None:
                on_result(RequestTimeoutError(f"{self.peer}: no response to {code_name(code)} within {timeout_ms} ms"))
        if heap and self._timer is not None:
            self._timer.set(heap[0][0])
