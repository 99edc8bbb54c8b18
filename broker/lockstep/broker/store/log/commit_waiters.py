"""Callbacks that wait for the log: responses, readers' bounds, arrivals."""

from collections import deque
from collections.abc import Callable

from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.runtime.daemon import call_isolated

Callback = Callable[[], None]
CALLBACK_FAILED = "callback.failed"
"""Logged if a callback raises. The callbacks after it are still called."""


class _Turn:
    """The appends of one loop turn. It is confirmed when the log is confirmed up to `position`, and all copies have heard `frame`."""

    __slots__ = ("frame", "opened_us", "position", "queues", "waiters")

    def __init__(self, position: int, frame: int, queues: list[tuple[ConsumeQueue, int]], waiters: list[Callback], opened_us: int) -> None:
        self.position = position
        self.frame = frame
        self.opened_us = opened_us
        self.queues = queues
        self.waiters = waiters


class CommitWaiters:
    """Loop turns in log order. A turn is open while it appends, and pending until the log is confirmed up to its end."""

    def __init__(self) -> None:
        self.touched: dict[ConsumeQueue, None] = {}
        """Queues to which the open turn appended, in order."""
        self._waiters: list[Callback] = []
        self._written: list[Callback] = []
        self._pending: deque[_Turn] = deque()
        self.waiting_count = 0
        """Number of callbacks that have not been called yet."""
        self._closed = 0
        """Where the last closed turn ended."""
        self.on_arrival: Callable[[str, int], None] | None = None
        self.after_arrivals: Callback | None = None
        """Called after `on_arrival` was called for all queues of a confirmation."""
        self.on_confirmed: Callable[[int], None] | None = None
        """Called with `opened_us` of each turn that appended messages, after its responses were sent."""

    def call_when_confirmed(self, callback: Callback, turn_is_open: bool) -> None:
        """Call back when everything appended so far is confirmed, at once if nothing is pending."""
        if turn_is_open:
            self._waiters.append(callback)
        elif self._pending:
            self._pending[-1].waiters.append(callback)
        else:
            callback()
            return
        self.waiting_count += 1

    def call_when_written(self, callback: Callback) -> None:
        """Call back when the open turn is written."""
        self._written.append(callback)
        self.waiting_count += 1

    def close_turn(self, position: int, opened_us: int = 0, frame: int = 0) -> None:
        """Close the open turn, which is written up to `position`. It is pending even without waiters: later responses depend on it."""
        if self._written:
            written, self._written = self._written, []
            self.waiting_count -= len(written)
            for callback in written:
                call_isolated(CALLBACK_FAILED, callback)
        if self.touched or self._waiters or position > self._closed:
            self._closed = position
            self._pending.append(_Turn(position, frame, [(queue, queue.next) for queue in self.touched], self._waiters, opened_us))
            self.touched = {}
            self._waiters = []

    def confirm(self, position: int, heard: int | None = None) -> None:
        """Confirm the log up to `position`: move readers' bounds, then send responses, then wake held pulls, once per queue.

        `heard`: up to which frame all copies have heard; None if no turn waits for that.
        """
        pending = self._pending
        confirmed: list[_Turn] = []
        while pending and pending[0].position <= position and (heard is None or pending[0].frame <= heard):
            confirmed.append(pending.popleft())
        if not confirmed:
            return
        arrived: dict[ConsumeQueue, None] = {}
        for turn in confirmed:
            for queue, following in turn.queues:
                queue.visible = max(queue.visible, following)
                arrived[queue] = None
        for turn in confirmed:
            self.waiting_count -= len(turn.waiters)
            for waiter in turn.waiters:
                call_isolated(CALLBACK_FAILED, waiter)
            if turn.queues and self.on_confirmed is not None:
                call_isolated(CALLBACK_FAILED, self.on_confirmed, turn.opened_us)
        if self.on_arrival is not None:
            for queue in arrived:
                call_isolated("arrival.failed", self.on_arrival, queue.topic, queue.queue_id)
        if arrived and self.after_arrivals is not None:
            call_isolated("arrival.failed", self.after_arrivals)

    def drop_all(self) -> None:
        """Drop all callbacks, because the log failed: no response that waits is sent any more."""
        self._waiters = []
        self._written = []
        self._pending.clear()
        self.touched = {}
