"""The requests of one connection that wait for their answer. RocketMQ: NettyRemotingAbstract.responseTable.

All time-outs share one heap and one timer: a request costs no timer of its own.
"""

import asyncio
import heapq
from collections.abc import Callable

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RequestTimeout, TransportError
from lockstep.runtime.alarm import Alarm

CLOCK_STEP_S = 0.001
"""uvloop's clock and timers count whole milliseconds: what is due within this time is due."""
HEAP_SLACK = 64
"""Entries of answered requests that may stay, beside as many as there are outstanding ones."""


def code_name(code: int) -> str:
    """A request code for people."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request code {code}"


class Outstanding:
    """Opaque → future. `futures` may be popped from directly: an answered request leaves only its entry in the heap behind."""

    __slots__ = ("_alarm", "_heap", "_loop", "_peer", "futures")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Callable[[], str], late_ms: int) -> None:
        self._loop = loop
        self._peer = peer
        self._alarm = Alarm(loop, self._expire, late_ms)
        self._heap: list[tuple[float, int, int, int]] = []
        """(deadline, opaque, timeout_ms, code); answered ones go when they are due or outnumber the others."""
        self.futures: dict[int, asyncio.Future[Command]] = {}

    def __len__(self) -> int:
        return len(self.futures)

    def add(self, opaque: int, code: int, timeout_ms: int) -> "asyncio.Future[Command]":
        """A new request, and the future that its answer, its time-out or the end of the connection settles."""
        future: asyncio.Future[Command] = self._loop.create_future()
        self.futures[opaque] = future
        heap = self._heap
        if len(heap) > HEAP_SLACK and len(heap) > 2 * len(self.futures):
            # A pass over the heap for each half of it that has gone: a constant cost per request.
            heap[:] = [entry for entry in heap if entry[1] in self.futures]
            heapq.heapify(heap)
        deadline = self._loop.time() + timeout_ms / 1000
        heapq.heappush(heap, (deadline, opaque, timeout_ms, code))
        if not self._alarm.armed or deadline < self._alarm.due:
            self._alarm.set(deadline)
        return future

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        """The connection ended: an error of its own for each."""
        self._alarm.cancel()
        self._heap.clear()
        futures, self.futures = self.futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(error())

    def _expire(self) -> None:
        now = self._loop.time() + CLOCK_STEP_S
        heap, futures = self._heap, self.futures
        while heap and (heap[0][0] <= now or heap[0][1] not in futures):
            _, opaque, timeout_ms, code = heapq.heappop(heap)
            future = futures.pop(opaque, None)
            if future is not None and not future.done():
                future.set_exception(RequestTimeout(f"{self._peer()}: no answer to {code_name(code)} within {timeout_ms} ms"))
        if heap:
            self._alarm.set(heap[0][0])
