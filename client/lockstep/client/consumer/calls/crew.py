"""The tasks that call the listener of a consumer: up to `concurrency` calls at a time over all its queues. RocketMQ: consumeExecutor.

Each task makes one call after another while messages wait. There is no task or timer per message. Concurrent groups and the lanes of
ordered groups are consumed by crews.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic

from lockstep.client.consumer.calls.call_loop import make_calls
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.runner import CallRunner, CallT
from lockstep.client.consumer.context import ConsumerContext


class Crew(Generic[CallT]):
    """The tasks of one consumer."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls, concurrency: int) -> None:
        self._ctx = ctx
        self._concurrency = concurrency
        self._listener = listener
        self._ready: OrderedDict[CallRunner[CallT], None] = OrderedDict()
        """Queues with waiting messages, in the order in which they are served."""
        self.note_waiting: Callable[[CallRunner[CallT]], object] = self._ready.setdefault
        """Make a further call of the queue soon: called while a call of it begins or ends, by the task that makes the next one."""
        self.tasks: dict[asyncio.Task[None], None] = {}

    def schedule(self, runner: CallRunner[CallT]) -> None:
        """Call the listener for this queue, which has waiting messages, as soon as another call is allowed."""
        self._ready.setdefault(runner)
        self._add_task()

    def _add_task(self) -> None:
        if self._ready and len(self.tasks) < self._concurrency:
            task = self._ctx.runs.spawn(make_calls(self._ctx, self._listener, self._next_call), f"{self._ctx.group} call")
            self.tasks[task] = None
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        """Forget the task. Work that has arrived since its last look gets another one."""
        self.tasks.pop(task, None)
        if not task.cancelled():
            self._add_task()

    def _next_call(self, now_ms: int) -> CallT | None:
        ready = self._ready
        while ready:
            runner, _ = ready.popitem(last=False)
            call = runner.begin_call(now_ms)
            if call is not None:
                if ready and len(self.tasks) < self._concurrency:
                    self._add_task()
                return call
            # the runner schedules itself again when calls are allowed
        return None
