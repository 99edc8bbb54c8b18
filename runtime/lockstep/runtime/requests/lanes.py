"""Lanes, which run requests that wait for the disk or take many turns of the loop: in tasks, a limited number at once."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.runtime.daemon import Tasks
from lockstep.runtime.limits import LANE_BYTES_MAX
from lockstep.runtime.requests.request import HandlerResult, Request, RetryLaterError, Work
from lockstep.runtime.turn import TurnBudget

LANE_ITEMS_PER_TURN = 100
"""Items of work that all lanes together do in one turn of the loop: about 10 µs an item."""
LANE_ITEMS = 10
"""Items that a request takes at least: a search, or a message that is sent back."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of a lane."""

    concurrency: int
    """Requests that run at once."""
    queue_max: int
    """Requests that wait in addition to those; one more is refused with SYSTEM_BUSY."""
    retry_after_ms: int = 200
    bytes_max: int = LANE_BYTES_MAX
    """Bytes of the frames of all requests that wait; a request that exceeds them is refused with SYSTEM_BUSY."""


class Lane:
    """A bounded queue of requests and the workers that run them. RocketMQ: one executor for each request code."""

    __slots__ = ("_budget", "_carry_out", "_tasks", "limits", "name", "waiting", "waiting_bytes", "workers")

    def __init__(
        self, name: str, limits: LaneLimits, tasks: Tasks, budget: TurnBudget, carry_out: Callable[[Request, HandlerResult], None]
    ) -> None:
        """`carry_out` carries out the HandlerResult of a request's work. `budget` is shared by all lanes."""
        self.name = name
        self.limits = limits
        self._tasks = tasks
        self._budget = budget
        self._carry_out = carry_out
        self.waiting: deque[tuple[Request, Work]] = deque()
        self.waiting_bytes = 0
        self.workers = 0

    def add(self, request: Request, work: Work) -> None:
        """Run `work` in a worker, as soon as one is free. Raise RetryLaterError if the queue is full."""
        limits = self.limits
        if self.workers < limits.concurrency:
            self.workers += 1
            self._tasks.spawn(self._run_all(request, work), f"lane {self.name}")
        elif len(self.waiting) >= limits.queue_max:
            raise RetryLaterError(f"lane {self.name!r} is full: {len(self.waiting)} requests wait", limits.retry_after_ms)
        elif self.waiting_bytes + request.size > limits.bytes_max:
            full = f"lane {self.name!r} is full: requests of {self.waiting_bytes} bytes wait, at most {limits.bytes_max} may"
            raise RetryLaterError(full, limits.retry_after_ms)
        else:
            self.waiting.append((request, work))
            self.waiting_bytes += request.size

    def clear(self) -> None:
        """Drop the requests that wait, without a response."""
        self.waiting.clear()
        self.waiting_bytes = 0

    async def _run_all(self, request: Request, work: Work) -> None:
        """Run one request, then those that wait, as the budget of each turn allows. Skip requests of closed connections."""
        try:
            while True:
                await self._budget.take(LANE_ITEMS)
                if not request.endpoint.closed:
                    try:
                        self._carry_out(request, await work())
                    except Exception as error:
                        request.fail(error)
                if not self.waiting:
                    return
                # Taken before the next wait for the budget, during which another worker may empty the queue.
                request, work = self.waiting.popleft()
                self.waiting_bytes -= request.size
        finally:
            self.workers -= 1
