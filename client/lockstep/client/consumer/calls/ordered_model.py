"""Calls the listener for held queues, in order: in each queue one batch after another.

RocketMQ: ConsumeMessageOrderlyService.ConsumeRequest.

A batch starts only while the queue is HELD, life is proven (boot time < proven + grace − 500 ms), the consumer is not paused and the queue
is not blocked. The result is processed before the next batch, and counts only if the grant is still held. There is no task, timer or lock
per message: an async listener is awaited in the queue's own task, which returns to the loop every 5 ms.
"""

import asyncio
from collections.abc import Iterator, Sequence
from weakref import WeakSet

from lockstep.client.consumer.calls.consume_model import SLICE_MS, HeldQueue, ListenerCall, fence_of
from lockstep.client.consumer.calls.failed_calls import FailedCalls
from lockstep.client.consumer.calls.grant import Grant, RunnerStatus
from lockstep.client.consumer.calls.listener import STEPS, ConsumeOrderlyStatus, OrderlyContext, QueueAction, read_call
from lockstep.client.consumer.calls.listener_calls import ListenerCalls, ends_the_consumer, ends_the_task
from lockstep.client.consumer.calls.loop_watch import BLOCKED_MS
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_HELD = OwnershipState.HELD


class OrderedModel:
    """The consume model of `@consumer.orderly`."""

    concurrency: int | None = None

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls) -> None:
        self._ctx = ctx
        self._listener = listener
        self._runners: WeakSet[OrderedRunner] = WeakSet()
        """The runners whose tasks run, and some that have ended."""

    def start(self) -> None:
        self._listener.watch.start()

    def stop(self) -> None:
        self._listener.watch.stop()

    def runner(self, queue: HeldQueue, grant: Grant) -> "OrderedRunner":
        runner = OrderedRunner(self._ctx, self._listener, queue, grant)
        self._runners.add(runner)
        return runner

    def tasks(self, queue: HeldQueue | None = None) -> "list[asyncio.Task[None]]":
        return []

    def loop_blocked_ms(self, now_ms: int) -> int:
        return self._listener.watch.longest_ms(now_ms)

    def running_calls(self) -> Iterator[ListenerCall]:
        for runner in self._runners:
            yield from runner.running_calls()

    def unassigned(self, queue: MessageQueue) -> None:
        pass


class OrderedRunner:
    """One grant of one queue."""

    __slots__ = (
        "__weakref__",
        "_again_ms",
        "_blocked",
        "_ctx",
        "_failures",
        "_given_up",
        "_grant",
        "_listener",
        "_messages",
        "_ownership",
        "_queue",
        "_session",
        "_task",
        "_warned",
    )

    def __init__(self, ctx: ConsumerContext, listener: ListenerCalls, queue: HeldQueue, grant: Grant) -> None:
        self._ctx = ctx
        self._listener = listener
        self._queue = queue
        self._grant = grant
        self._messages = grant.messages
        self._ownership = queue.ownership
        self._session = queue.session
        self._again_ms: int | None = None
        """When a failed batch is called again."""
        self._blocked = False
        """Attempts are exhausted: the listener is not called until `resume()` or the next grant."""
        self._given_up = False
        """The running call has exceeded its drain limit, and this task was cancelled to end it."""
        self._warned = False
        """Uncommitted messages fill the queue's limit, and a warning was logged."""
        self._failures = FailedCalls(ctx, queue, grant)
        self._task: asyncio.Task[None] | None = None
        """The task in which the listener is awaited."""

    async def run(self) -> None:
        grant, ctx, queue, ownership, session, messages = (
            self._grant,
            self._ctx,
            self._queue,
            self._ownership,
            self._session,
            self._messages,
        )
        boot_ms, proof, listener, calls = ctx.host.clock.boot_ms, session.proof, self._listener, queue.calls
        batch_count, each = ctx.config.batch_count, ctx.config.commit == "each"
        call, in_loop = listener.listener, listener.in_loop
        fence = fence_of(queue, grant)
        slice_end_ms = boot_ms() + SLICE_MS
        self._task = asyncio.current_task()

        def lapsed() -> bool:
            return boot_ms() >= proof.deadline_ms

        while grant.alive:
            now_ms = boot_ms()
            if ownership.state is not _HELD or ctx.paused or self._blocked:
                await grant.rest()
                continue
            if now_ms >= proof.deadline_ms:
                session.proof_awaited = True
                await grant.rest()
                continue
            batch = messages.take(batch_count)
            if not batch:
                self._warn_uncommitted()
                await grant.rest()
                slice_end_ms = boot_ms() + SLICE_MS
                continue
            context = OrderlyContext(queue.queue, fence, messages.batch_attempts, lapsed)
            ownership.call_started()
            calls[context] = now_ms
            result: object
            error: BaseException | None
            listener.running += 1
            try:  # without a coroutine of its own, which would be created for each message
                if in_loop:
                    result, error = await call(batch[:], context), None
                else:
                    result, error = await listener.in_thread(queue.queue, batch[:], context)
            except BaseException as raised:  # listener: any error means that the call failed
                if not self._given_up and ends_the_task(raised):  # the consumer ends and does not wait for the result
                    ownership.running = False
                    raise
                result, error = None, raised
            finally:
                listener.running -= 1
                del calls[context]
                if self._given_up:
                    self._cancel_handled()
            if (result is _SUCCESS or (result is None and error is None)) and context.auto_commit is True and grant.alive:
                ownership.call_ended(grant.token, messages.commit(), messages.committed_attempts)
                session.changed(ownership)
                pause_ms = 0
            else:
                attempts = messages.batch_attempts + 1 if grant.alive else 0
                advance = messages.taken == len(batch)
                if await self._failures.dead_letter(batch, attempts, context, result, error, advance=advance):
                    pause_ms = self._pass_over(batch)
                else:
                    pause_ms = self._process(batch, context, result, error)
                if error is not None and ends_the_consumer(error):
                    ctx.fail(error)
                error = None  # its traceback holds this frame
            ended_ms = boot_ms()
            if ended_ms - now_ms >= BLOCKED_MS and listener.in_loop:
                listener.watch.call_ended(now_ms, ended_ms)
            if not grant.alive:
                break
            if pause_ms:
                await self._pause(pause_ms)
            elif each:
                await self._wait_committed()
            if grant.pull_waits and messages.room():
                grant.pull_wake.set()
                slice_end_ms = 0
            if ended_ms >= slice_end_ms:
                await asyncio.sleep(0)
                slice_end_ms = boot_ms() + SLICE_MS

    def position_moved(self) -> None:
        self._ownership.progressed(self._grant.token, self._messages.commit_offset)
        self._session.changed(self._ownership)

    def resume(self) -> None:
        self._blocked = False

    def give_up(self) -> None:
        """Cancel a listener that is awaited on the loop. Dead letters of a call that has ended are written, or refused."""
        if self._listener.in_loop and self._queue.calls and self._task is not None:
            self._given_up = True
            self._task.cancel()

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        pass

    def before_release(self) -> None:
        pass

    def status(self) -> RunnerStatus:
        uncommitted = self._messages.taken - (len(self._messages.batch) if self._queue.calls else 0)
        return RunnerStatus(None, self._blocked, self._again_ms, uncommitted)

    def running_calls(self) -> Iterator[ListenerCall]:
        """Yield the call that runs."""
        for context, started_ms in self._queue.calls.items():
            if isinstance(context, OrderlyContext) and context.fence.epoch == self._grant.token:
                yield ListenerCall(self._queue, context, started_ms, self._messages.batch, self._task, self._listener.threads.get(context))

    def _cancel_handled(self) -> None:
        """Record that a call that was given up has ended, as a failed one: the task goes on."""
        assert self._task is not None
        self._given_up = False
        self._task.uncancel()

    def _process(self, batch: list[MessageExt], context: OrderlyContext, result: object, error: BaseException | None) -> int:
        """Handle a result that is not a plain SUCCESS. Return the pause before the next call in milliseconds."""
        grant, ownership, messages = self._grant, self._ownership, self._messages
        if not grant.alive:
            ownership.call_ended(grant.token, 0, 0)
            log.warning("result.was_stale", listener=self._ctx.listener_name, epoch=grant.token, **self._place(batch))
            self._session.trigger()
            self._queue.forget_if_done()
            return 0
        status, wrong = read_call(context, result, error)
        step = STEPS[context.auto_commit is not False, status]
        pause_ms = 0
        if step is QueueAction.COMMIT:
            if context.auto_commit is True and status is not _SUCCESS:
                log.warning("result.needs_manual_commit", listener=self._ctx.listener_name, status=status.value, taken_as="SUCCESS")
            messages.commit()
        elif step is QueueAction.ROLL_BACK:
            messages.roll_back()
            pause_ms = self._failures.suspend_ms(context)
        elif step is QueueAction.PUT_BACK:
            pause_ms = self._put_back(batch, context, wrong)
        ownership.call_ended(grant.token, messages.commit_offset, messages.committed_attempts)
        self._session.changed(ownership)
        return pause_ms

    def _place(self, batch: list[MessageExt]) -> dict[str, object]:
        return {"queue": str(self._queue.queue), "offset": batch[0].queue_offset}

    def _pass_over(self, batch: list[MessageExt]) -> int:
        """Count a dead-lettered batch as handled. If the listener has uncommitted messages before it, it remains uncommitted with them."""
        if self._messages.taken == len(batch):
            self._messages.commit()
        self._ownership.call_ended(self._grant.token, self._messages.commit_offset, self._messages.committed_attempts)
        self._session.changed(self._ownership)
        return 0

    def _put_back(self, batch: list[MessageExt], context: OrderlyContext, wrong: BaseException | str | None) -> int:
        """Queue a failed batch for its next attempt. Return the pause before it in milliseconds."""
        attempts = self._messages.put_back()
        self._blocked = self._ctx.config.retry.blocks(attempts)
        pause_ms = self._failures.pause_ms(batch, attempts, context, wrong)
        self._ownership.error = self._failures.why
        return pause_ms

    async def _pause(self, pause_ms: int) -> None:
        """Wait between two calls of one batch, at most until the grant ends."""
        grant, boot_ms = self._grant, self._ctx.host.clock.boot_ms
        until_ms = self._again_ms = boot_ms() + pause_ms
        while grant.alive and (left_ms := until_ms - boot_ms()) > 0:
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await grant.rest()
            except TimeoutError:
                pass
        self._again_ms = None

    async def _wait_committed(self) -> None:
        """With commit="each": wait until the broker has confirmed the commit."""
        offset = self._ownership.offset
        self._session.changed(self._ownership, urgent=True)
        while self._grant.alive and self._ownership.committed_offset < offset:
            await self._grant.rest()

    def _warn_uncommitted(self) -> None:
        """Log a warning, once, if the listener commits manually and has so many uncommitted messages that no more are pulled."""
        taken = self._messages.taken
        if taken and not self._warned and not self._messages.room():
            self._warned = True
            log.warning("queue.full_of_uncommitted", listener=self._ctx.listener_name, queue=str(self._queue.queue), taken=taken)
