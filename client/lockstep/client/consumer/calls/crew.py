"""The tasks that call the listener of a consumer: up to `concurrency` calls at a time over all its queues. RocketMQ: consumeExecutor.

Each task makes one call after another while messages wait. There is no task or timer per message. What a call is given, and what follows
from its result, is up to the runner of its queue (CrewRunner): concurrent groups and the lanes of ordered groups differ in that alone.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lockstep.client.consumer.calls.consume_model import SLICE_MS, HeldQueue, ListenerCall
from lockstep.client.consumer.calls.listener import ConcurrentlyContext, OrderlyContext
from lockstep.client.consumer.calls.listener_calls import ListenerCalls, ends_the_consumer, ends_the_task
from lockstep.client.consumer.calls.loop_watch import BLOCKED_MS
from lockstep.client.consumer.context import ConsumerContext
from lockstep.protocol.message import MessageExt


@dataclass(slots=True, eq=False)
class Call:
    """A call of the listener."""

    runner: "CrewRunner[Any]"
    batch: list[MessageExt]
    context: ConcurrentlyContext | OrderlyContext
    started_ms: int
    more: bool
    """Whether the runner has further batches."""
    ended: bool = field(default=False, init=False)
    """The listener has returned; the consequences may still be on their way."""


CallT = TypeVar("CallT", bound=Call)


class CrewRunner(Protocol[CallT]):
    """One grant of one queue, as the crew sees it."""

    @property
    def queue(self) -> HeldQueue: ...

    def begin_call(self, now_ms: int) -> CallT | None:
        """Take the next batch, and return its call. Return None if no call may start now."""

    def succeeded(self, call: CallT, result: object, *, last: bool) -> bool:
        """Handle a plain success, and return True. Return False for any other result. `last`: `last_call_ended` follows at once."""

    async def process(self, call: CallT, result: object, error: BaseException | None) -> None:
        """Handle a result that is not a plain success."""

    def last_call_ended(self) -> None:
        """Handle that no call works on the queue any more."""


@dataclass(slots=True, eq=False)
class _Caller(Generic[CallT]):
    """A task of the crew."""

    call: CallT | None = None


class Crew(Generic[CallT]):
    """The calls of one consumer."""

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls, concurrency: int) -> None:
        self._ctx = ctx
        self._concurrency = concurrency
        self._listener = listener
        self._boot_ms = ctx.host.clock.boot_ms
        self._ready: OrderedDict[CrewRunner[CallT], None] = OrderedDict()
        """Queues with waiting messages, in the order in which they are served."""
        self._slice_end_ms = 0
        self._callers: dict[asyncio.Task[None], _Caller[CallT]] = {}
        self._given_up: dict[CallT, None] = {}
        """Calls whose tasks were cancelled to end the listener; the tasks themselves go on."""

    def schedule(self, runner: CrewRunner[CallT]) -> None:
        """Call the listener for this queue, which has waiting messages, as soon as another call is allowed."""
        self._ready.setdefault(runner)
        self._add_caller()

    def note_waiting(self, runner: CrewRunner[CallT]) -> None:
        """Make the next call of the queue soon: called while a call of it ends, by the task that makes the next one."""
        self._ready.setdefault(runner)

    def calls(self) -> list[CallT]:
        """Return the calls that run."""
        return [caller.call for caller in self._callers.values() if caller.call is not None]

    def running_calls(self) -> Iterator[ListenerCall]:
        """Yield the calls that run, for reports."""
        for task, caller in self._callers.items():
            if (call := caller.call) is not None and not call.ended:
                thread = self._listener.threads.get(call.context)
                yield ListenerCall(call.runner.queue, call.context, call.started_ms, call.batch, task, thread)

    def tasks(self, queue: HeldQueue | None = None) -> "list[asyncio.Task[None]]":
        """Return the tasks, or those that call the listener for this queue."""
        if queue is None:
            return list(self._callers)
        return [task for task, caller in self._callers.items() if caller.call is not None and caller.call.runner.queue is queue]

    def give_up(self, runner: CrewRunner[CallT]) -> None:
        """Cancel the listener where it is awaited on the loop for this queue. Calls whose results are being handled go on."""
        for task, caller in self._callers.items():
            call = caller.call
            if call is not None and call.runner is runner and not call.ended and self._listener.in_loop:
                self._given_up[call] = None
                task.cancel()

    def _add_caller(self) -> None:
        if self._ready and len(self._callers) < self._concurrency:
            caller: _Caller[CallT] = _Caller()
            task = self._ctx.runs.spawn(self._work(caller), f"{self._ctx.group} call")
            self._callers[task] = caller
            task.add_done_callback(self._caller_ended)

    def _caller_ended(self, task: "asyncio.Task[None]") -> None:
        """Forget the task. Work that has arrived since its last look gets another one."""
        self._callers.pop(task, None)
        if not task.cancelled():
            self._add_caller()

    async def _work(self, caller: _Caller[CallT]) -> None:
        """Make one call after another while messages wait. It awaits the listener itself, without a coroutine of its own for each call."""
        ctx, listener, boot_ms, ready = self._ctx, self._listener, self._boot_ms, self._ready
        function, in_loop, given_up = listener.listener, listener.in_loop, self._given_up
        now_ms = boot_ms()
        while ready:
            runner, _ = ready.popitem(last=False)
            call = runner.begin_call(now_ms)
            if call is None:
                continue  # the runner schedules itself again when calls are allowed
            if call.more:
                ready[runner] = None
            if ready:
                self._add_caller()
            queue, batch, context = runner.queue, call.batch, call.context
            calls = queue.calls
            caller.call = call
            calls[context] = now_ms
            if not queue.ownership.running:
                queue.ownership.call_started()
            try:
                result: object
                error: BaseException | None
                listener.running += 1
                try:
                    if in_loop:
                        result, error = await function(batch[:], context), None
                    else:
                        result, error = await listener.in_thread(queue.queue, batch[:], context)
                except BaseException as raised:  # listener: any error means that the call failed
                    if call not in given_up and ends_the_task(raised):
                        raise
                    result, error = None, raised
                finally:
                    listener.running -= 1
                    call.ended = True
                    if given_up and call in given_up:
                        del given_up[call]
                        _uncancel()
                ended_ms = boot_ms()
                if in_loop and ended_ms - now_ms >= BLOCKED_MS:
                    listener.watch.call_ended(now_ms, ended_ms)
                if error is not None or not runner.succeeded(call, result, last=len(calls) == 1):
                    await runner.process(call, result, error)
                    ended_ms = boot_ms()
                if error is not None and ends_the_consumer(error):
                    ctx.fail(error)
            finally:
                error = caller.call = None  # the traceback of an error holds this frame
                del calls[context]
                if not calls:
                    runner.last_call_ended()
            if ended_ms >= self._slice_end_ms:
                await asyncio.sleep(0)
                ended_ms = boot_ms()
                self._slice_end_ms = max(self._slice_end_ms, ended_ms + SLICE_MS)
            now_ms = ended_ms


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
