"""Decides which process runs next, and when: one heap of timers, one ready queue for each process, and a clock that jumps.

- Time does not advance while a callback is ready; then it jumps to the next timer, arrival or job.
- Within a process callbacks run first in, first out, as in asyncio; which process has the next turn is drawn.
- A callback belongs to the process in whose context it was scheduled.
"""

import asyncio
import heapq
from asyncio import base_events
from collections.abc import Callable, Iterator
from contextvars import Context
from hashlib import blake2b
from random import Random
from typing import Any

from lockstep.testing.simulation.process import CURRENT, Machine, Process

TURNS_MAX = 1_000_000
"""The limit of turns at one instant: beyond it time would never advance."""
CLOCK_STEP_S = 1e-9
"""How late a timer fires, so that the rounding of a drifting clock never makes it early."""
CANCELLED_SLACK = 500
"""The limit of cancelled timers in the heap before they are removed."""
TOLD_TASKS_MAX = 30

Scheduled = tuple[float, int, Process, asyncio.Handle, Callable[[], object] | None]
"""Global time, order, process, callback there, callback in the world if that process has ended."""


class SimulationStuckError(RuntimeError):
    """No event is left to happen, time does not advance, or it has reached its limit."""


class Scheduler(base_events.BaseEventLoop):
    """The part of SimLoop that keeps time and turns."""

    world: Process

    def __init__(self, seed: int, *, trace: bool) -> None:
        super().__init__()
        self._clock_resolution = CLOCK_STEP_S
        self.seed = seed
        self.now = 0.0
        """True seconds since the universe began."""
        self.random = Random(f"{seed}/universe")
        """The only source of randomness for scheduling and network."""
        self.time_limit_s = float("inf")
        """SimulationStuckError beyond it: a task waits forever while others run."""
        self.steps = 0
        """Callbacks run so far."""
        self.machines: dict[str, Machine] = {}
        self._digest = blake2b(digest_size=16)
        self._tracing = trace
        self._heap: list[Scheduled] = []
        self._order = 0
        self._runnable: list[Process] = []
        self.running: Process | None = None
        """The process whose turn it is. A callback's failure is reported outside its context."""
        self._turns = 0
        self._until: float | None = None
        self._cancelled_count = 0

    @property
    def current(self) -> Process:
        """Return the process that is executing; the world outside any."""
        return CURRENT.get(self.world)

    def time(self) -> float:
        """Return the monotonic clock of the machine that is executing."""
        return CURRENT.get(self.world).machine.local_s()

    # ------------------------------------------------------------------------------------------------------------ scheduling

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        process = CURRENT.get(self.world) if context is None else context.get(CURRENT, self.world)
        self.push(process, handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        self._check_thread()  # type: ignore[attr-defined]  # a real thread would make runs differ
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        process = CURRENT.get(self.world) if context is None else context.get(CURRENT, self.world)
        self._order += 1
        heapq.heappush(self._heap, (process.machine.global_s(when) + CLOCK_STEP_S, self._order, process, handle, None))
        handle._scheduled = True  # type: ignore[attr-defined]  # asyncio tells us then when it is cancelled
        return handle

    def at(self, when: float, callback: Callable[..., object], *args: Any, process: Process | None = None) -> None:
        """Call back at global time `when`, in `process` if it is alive then; None: in the world."""
        self.deliver_at(when, process or self.world, callback, None, *args)

    def deliver_at(
        self, when: float, process: Process, callback: Callable[..., object], orphaned: Callable[[], object] | None, *args: Any
    ) -> None:
        """Call back as `at` does; if the process has ended, call `orphaned` instead."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, process, asyncio.Handle(callback, args, self, process.context), orphaned))

    def push(self, process: Process, handle: asyncio.Handle) -> None:
        """Schedule a callback in `process`. A dead process drops it."""
        if process.alive:
            process.ready.append(handle)
            if not process.queued and not process.paused and not process.stalled:
                process.queued = True
                self._runnable.append(process)

    def release(self, process: Process) -> None:
        """Let a process that was held run its pending callbacks. Late timers come before or after them, at random."""
        if process.held or not process.alive:
            return
        if process.late:
            if self.random.random() < 0.5:
                process.ready.extendleft(reversed(process.late))
            else:
                process.ready.extend(process.late)
            process.late.clear()
        if process.ready and not process.queued:
            process.queued = True
            self._runnable.append(process)

    def drop(self, process: Process) -> list[asyncio.Handle]:
        """Return the pending callbacks of a dead process, which will never run."""
        left = [*process.ready, *process.late]
        process.ready.clear()
        process.late.clear()
        if process.queued:
            process.queued = False
            self._runnable.remove(process)
        return left

    def stall(self, process: Process, seconds: float) -> None:
        """Hold a process that waits for its disk. The world does not wait for disks."""
        if process is not self.world and seconds > 0:
            process.stalled += 1
            self.at(self.now + seconds, self._unstall, process)

    def _unstall(self, process: Process) -> None:
        process.stalled -= 1
        self.release(process)

    def retime(self, machine: Machine) -> None:
        """Recompute the timers of a machine whose clock has another rate now."""

        def due(entry: Scheduled) -> float:
            when, _, process, handle, _ = entry
            if process.machine is machine and isinstance(handle, asyncio.TimerHandle):
                return max(self.now, machine.global_s(handle.when()) + CLOCK_STEP_S)
            return when

        self._heap = [(due(entry), *entry[1:]) for entry in self._heap]
        heapq.heapify(self._heap)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_count += 1
        if self._cancelled_count > CANCELLED_SLACK and 2 * self._cancelled_count > len(self._heap):
            self._cancelled_count = 0
            self._heap = [entry for entry in self._heap if not entry[3].cancelled()]
            heapq.heapify(self._heap)

    # --------------------------------------------------------------------------------------------------------------- running

    def run_until(self, when: float) -> None:
        """Run everything up to global time `when`. Not to be called while the loop runs."""
        if when < self.now:
            raise ValueError(f"{when} s is in the past: it is {self.now} s")
        self._until = when
        try:
            self.run_forever()
        finally:
            self._until = None

    def _run_once(self) -> None:
        """Run one turn of one process, or one step of time. asyncio calls this until the loop is stopped."""
        heap, now = self._heap, self.now
        while heap and heap[0][0] <= now:
            _, _, process, handle, orphaned = heapq.heappop(heap)
            if not process.alive:
                if orphaned is not None:
                    orphaned()
            elif process.held and type(handle) is asyncio.TimerHandle:
                process.late.append(handle)
            else:
                self.push(process, handle)
        runnable = self._runnable
        if not runnable:
            self._step_time()
            return
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise SimulationStuckError(self._report(f"{TURNS_MAX} turns at one time: something runs without ever waiting"))
        at = self.random.randrange(len(runnable)) if len(runnable) > 1 else 0
        runnable[at], runnable[-1] = runnable[-1], runnable[at]
        process = runnable.pop()
        process.queued = False
        self._turn(process)

    def _turn(self, process: Process) -> None:
        """Run the callbacks that are ready now; those that they schedule have another turn."""
        ready, self.running = process.ready, process
        handle: asyncio.Handle | None = None
        for _ in range(len(ready)):
            if not ready or process.paused or process.stalled:
                break
            handle = ready.popleft()
            if not handle.cancelled():
                self.steps += 1
                handle._run()
        handle = None  # as asyncio's loop does: from 3.13 on, the traceback of an error in the handle keeps this frame
        self.running = None
        if ready and not process.queued and not process.held:
            process.queued = True
            self._runnable.append(process)

    def _step_time(self) -> None:
        heap, until = self._heap, self._until
        while heap and heap[0][3].cancelled():
            heapq.heappop(heap)
        if until is not None and (not heap or heap[0][0] > until):
            self.now = until
            self.stop()
        elif not heap:
            raise SimulationStuckError(self._report("no event is left to happen"))
        elif heap[0][0] > self.time_limit_s:
            raise SimulationStuckError(self._report(f"the limit of {self.time_limit_s} s is reached"))
        else:
            self.now = heap[0][0]
        self._turns = 0

    def _report(self, what: str) -> str:
        lines = [line for machine in self.machines.values() for line in _pending(machine)]
        more = [f"… and {len(lines) - TOLD_TASKS_MAX} more"] if len(lines) > TOLD_TASKS_MAX else []
        return "\n  ".join([f"{what} (seed {self.seed}, {self.now:.6f} s). Pending:", *lines[:TOLD_TASKS_MAX], *more])

    # ---------------------------------------------------------------------------------------------------------------- digest

    def trace(self, connection: int, upstream: bool, segment: bytes | None) -> None:
        """Add a delivered segment to the digest."""
        if self._tracing:
            self._digest.update(b"%r %d %d %d " % (self.now, connection, upstream, -1 if segment is None else len(segment)))
            if segment is not None:
                self._digest.update(segment)

    def digest(self) -> str:
        """Return a digest of every delivered segment and its time, in hex: equal for equal seeds and programs."""
        return self._digest.hexdigest()

    # ------------------------------------------------------------------------------------------------ what asyncio asks for

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _pending(machine: Machine) -> Iterator[str]:
    for process in machine.processes.values():
        for task in process.tasks.values():
            if not task.done():
                yield f"{process}: {task.get_name()} at {_place(task)}"


def _place(task: "asyncio.Task[Any]") -> str:
    """Return where its innermost coroutine waits: "file:line in function"."""
    inner: Any = task.get_coro()
    while getattr(inner, "cr_await", None) is not None and hasattr(inner.cr_await, "cr_frame"):
        inner = inner.cr_await
    frame = getattr(inner, "cr_frame", None)
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
