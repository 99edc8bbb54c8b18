"""The loop that calls a listener: each call of it is made here, whether it is ordered or concurrent."""

import asyncio
from collections.abc import Callable

from lockstep.client.consumer.calls.listener_calls import ListenerCalls, ends_the_consumer, ends_the_task
from lockstep.client.consumer.calls.loop_watch import BLOCKED_MS
from lockstep.client.consumer.calls.runner import CallT
from lockstep.client.consumer.context import ConsumerContext

SLICE_MS = 5
"""After this time without returning to the loop, consumption returns to it: pulls, heartbeats and the user's other tasks go on."""


async def make_calls(ctx: ConsumerContext, listener: ListenerCalls, next_call: Callable[[int], CallT | None]) -> None:
    """Make one call after another, until `next_call` (of the boot time) returns None.

    The listener is awaited here, without a coroutine of its own for each call. There is no task, timer or lock for a call either.
    """
    boot_ms, function, in_loop, running = ctx.host.clock.boot_ms, listener.listener, listener.in_loop, listener.running
    task = asyncio.current_task()
    assert task is not None
    now_ms = boot_ms()
    slice_end_ms = now_ms + SLICE_MS
    while (call := next_call(now_ms)) is not None:
        runner = call.runner
        worker, grant = runner.worker, runner.grant
        calls = worker.calls
        call.task = task
        calls[call] = running[call] = None
        worker.ownership.running = True  # begin_call has found it HELD
        try:
            result: object
            error: BaseException | None
            try:
                if in_loop:
                    result, error = await function(call.batch[:], call.context), None
                else:
                    result, error = await listener.in_thread(call)
            except BaseException as raised:  # listener: any error means that the call failed
                if not call.given_up and ends_the_task(raised):  # the consumer ends and does not wait for the result
                    raise
                result, error = None, raised
            finally:
                del running[call]
                call.ended = True
                if call.given_up:
                    task.uncancel()
            ended_ms = boot_ms()
            if ended_ms - now_ms >= BLOCKED_MS and in_loop:
                listener.watch.call_ended(now_ms, ended_ms)
            if error is not None or not runner.succeeded(call, result):
                await runner.process(call, result, error)
                ended_ms = boot_ms()
            if error is not None and ends_the_consumer(error):
                ctx.fail(error)
        finally:
            error = None  # its traceback holds this frame
            del calls[call]
            if calls:
                runner.note_progress()
            else:
                runner.last_call_ended()
        if (grant.pull_waits and grant.pull_if_room()) or ended_ms >= slice_end_ms:
            await asyncio.sleep(0)
            ended_ms = boot_ms()
            slice_end_ms = ended_ms + SLICE_MS
        now_ms = ended_ms
