"""The requests of one connection that wait for their answer. RocketMQ: NettyRemotingAbstract.responseTable.

All time-outs share one heap and one timer: a request costs no timer of its own.
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
"""uvloop's clock and timers count whole milliseconds: what is due within this time is due."""
HEAP_SLACK = 64
"""Entries of answered requests that may stay, beside as many as there are outstanding ones."""


def code_name(code: int) -> str:
    """A request code for people."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request code {code}"


class ResponseReceiver(Protocol):
    """What a request ends with: an asyncio.Future, or what does without the loop turn after which a future tells.

    A result is set in the protocol's callback: `set_result` must not raise. An error may be set while the connection is being closed.
    """

    def done(self) -> bool:
        """Nobody waits for it any more."""
        ...

    def set_result(self, result: Command, /) -> None: ...

    def set_exception(self, exception: TransportError | RequestTimeoutError, /) -> None: ...


class PendingRequests:
    """Opaque → answer. `answers` may be popped from directly: an answered request leaves only its entry in the heap behind."""

    __slots__ = ("_alarm", "_heap", "_loop", "_peer", "answers")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Callable[[], str], late_ms: int) -> None:
        self._loop = loop
        self._peer = peer
        self._alarm = Timer(loop, self._expire, late_ms)
        self._heap: list[tuple[float, int, int, int]] = []
        """(deadline, opaque, timeout_ms, code); answered ones go when they are due or outnumber the others."""
        self.answers: dict[int, ResponseReceiver] = {}

    def __len__(self) -> int:
        return len(self.answers)

    def add(self, opaque: int, code: int, timeout_ms: int, answer: ResponseReceiver) -> None:
        """A new request: its answer, its time-out or the end of the connection settles `answer`."""
        self.answers[opaque] = answer
        heap = self._heap
        if len(heap) > HEAP_SLACK and len(heap) > 2 * len(self.answers):
            # A pass over the heap for each half of it that has gone: a constant cost per request.
            heap[:] = [entry for entry in heap if entry[1] in self.answers]
            heapq.heapify(heap)
        deadline = self._loop.time() + timeout_ms / 1000
        heapq.heappush(heap, (deadline, opaque, timeout_ms, code))
        if not self._alarm.armed or deadline < self._alarm.due:
            self._alarm.set(deadline)

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        """The connection ended: an error of its own for each."""
        self._alarm.cancel()
        self._heap.clear()
        answers, self.answers = self.answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error())

    def _expire(self) -> None:
        now = self._loop.time() + CLOCK_STEP_S
        heap, answers = self._heap, self.answers
        while heap and (heap[0][0] <= now or heap[0][1] not in answers):
            _, opaque, timeout_ms, code = heapq.heappop(heap)
            answer = answers.pop(opaque, None)
            if answer is not None and not answer.done():
                answer.set_exception(RequestTimeoutError(f"{self._peer()}: no answer to {code_name(code)} within {timeout_ms} ms"))
        if heap:
            self._alarm.set(heap[0][0])
