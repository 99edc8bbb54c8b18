"""One queue of a consumer: its ownership, and for each grant the fetched messages, a pull loop and a runner.

A grant is consumed as long as it is held: from DRAINING back to HELD it keeps its fetched messages. When it is lost, they are dropped at
once; a call that still runs finishes, and until then the queue is not locked again.
"""

import asyncio
from collections.abc import Sequence

from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.client.consumer.calls.pull_loop import pull
from lockstep.client.consumer.calls.runner import Call, Runner, RunnerStatus
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import QueueAssigned, QueueGap, QueueRevoked
from lockstep.client.consumer.grants.ownership import OwnershipState, QueueOwnership
from lockstep.client.consumer.health import QueueHealth
from lockstep.client.consumer.interfaces import AbstractMembership, QueueSession
from lockstep.protocol.bodies import LockResult, ReplayKey, StartPolicy
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")


class QueueWorker:
    """Handles the reports of a session about one queue of one consumer."""

    __slots__ = (
        "_gap_reported",
        "_group",
        "_loop",
        "_model",
        "_runner",
        "_runs",
        "calls",
        "ctx",
        "grant",
        "ownership",
        "polled_ms",
        "queue",
        "reached",
        "session",
    )

    def __init__(
        self, queue: MessageQueue, session: QueueSession, ctx: ConsumerContext, model: ConsumeModel, group: AbstractMembership
    ) -> None:
        self.queue = queue
        self.ownership = QueueOwnership(ctx.group, queue, ctx.policy)
        self.session = session
        self.ctx = ctx
        self.grant: Grant | None = None
        self.calls: dict[Call, None] = {}
        """The calls of the listener that work on the queue, under any grant, the oldest first."""
        self.polled_ms: int | None = None
        self.reached = 0
        self._model = model
        self._group = group
        self._runner: Runner | None = None
        """The runner of the current grant."""
        self._gap_reported: tuple[int, int] | None = None
        """A broker reports a gap again on each connection until a commit has passed it."""
        self._runs: dict[asyncio.Task[None], None] = {}
        """The tasks of the runners, under any grant."""
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<QueueWorker {self.ownership!r}>"

    # ---------------------------------------------------------------------------------------------------------------- plan

    def want(self) -> None:
        """Acquire the queue: list and layout, or the user, assign it to this member."""
        if self.ownership.exclusive:
            self.ownership.outlived = self.ctx.host.calls.notify_when_ended(self.ctx.call_key(self.queue), self._outlived_call_ended)
        self.ownership.want()
        self.session.add(self)
        self.session.trigger()
        if self.grant is not None:
            self.grant.wake()

    def _outlived_call_ended(self) -> None:
        """Handle, in the thread in which it ended, the end of a call that has outlived another consumer of this process."""
        try:
            self._loop.call_soon_threadsafe(self._allow_lock)
        except RuntimeError:
            return  # this loop is closed, and its consumers with it

    def _allow_lock(self) -> None:
        self.ownership.outlived = False
        self.session.trigger()

    def register_outliving_call(self, task: "asyncio.Task[None]") -> None:
        """Make other consumers of this process wait for this call before they lock the queue: it may outlive its own consumer."""
        calls, key = self.ctx.host.calls, self.ctx.call_key(self.queue)
        calls.begin(key)
        task.add_done_callback(lambda _: calls.end(key))

    def unwant(self, drain_ms: int) -> None:
        """Drain the queue, then release it: list or layout took it away, or the consumer stops."""
        if self._runner is not None:
            self._runner.before_release()
        self.ownership.unwant(self.ctx.host.clock.boot_ms(), drain_ms)
        self.session.changed(self.ownership, urgent=True)
        if self.ownership.state is OwnershipState.DRAINING:
            log.info("queue.draining", group=self.ctx.group, queue=str(self.queue), **self.ownership.names, limit_ms=drain_ms)
        self.forget_if_done()

    def resume(self) -> None:
        """Continue after a pause. A blocked queue gets one more call."""
        if self.grant is not None and self._runner is not None:
            self._runner.resume()
            self.grant.wake()

    def forget_if_done(self) -> None:
        """Forget the queue if nothing is left to send, to receive or to wait for."""
        if self.ownership.done:
            self.session.remove(self)
            self._group.forget(self)

    def abandon(self) -> None:
        """End without waiting for the running call."""
        if self.grant is not None:
            self.grant.alive = False
            self.grant.wake()
        self.cancel_calls()

    @property
    def runner_status(self) -> RunnerStatus:
        """Return what the runner of the current grant is doing."""
        return RunnerStatus() if self._runner is None else self._runner.status()

    def health(self, now_ms: int, status: RunnerStatus | None = None) -> QueueHealth:
        """Return the state of the queue. `status`: that of the runner, if it was asked for already."""
        ownership, grant = self.ownership, self.grant
        lanes = (self.runner_status if status is None else status).lanes
        attempts = ownership.attempts if lanes is None else max(ownership.attempts, lanes.attempts)
        return QueueHealth(
            self.queue,
            ownership.state.value,
            ownership.offset,
            ownership.committed_offset,
            ownership.attempts,
            0 if grant is None else grant.messages.count,
            self.ran_ms(now_ms) if ownership.running else None,
            self.ctx.config.retry.is_blocked(attempts),
            **self.ownership.names,
            lanes=lanes,
        )

    def ran_ms(self, now_ms: int) -> int | None:
        """Return for how long the oldest call has run, or the messages at hand have been polled. None if the listener does not run: the
        result of the last call is being stored, or its task has failed."""
        began_ms = next((call.started_ms for call in self.calls if not call.ended), self.polled_ms)
        return None if began_ms is None else now_ms - began_ms

    def running_tasks(self) -> "list[asyncio.Task[None]]":
        """Return the tasks in which the listener works on this queue, or may."""
        return [*self._runs, *(call.task for call in self.calls if call.task is not None)]

    # ---------------------------------------------------------------------------------------------------- from the session

    def granted(self, result: LockResult) -> None:
        ctx, ownership = self.ctx, self.ownership
        limits = FlowLimits(ctx.config.queue_count_max, ctx.config.queue_bytes_max, ctx.config.queue_span_max)
        messages = ProcessQueue(result.offset, result.attempts, limits, result.done or ())
        self.grant = grant = Grant(ownership.token, ownership.generation, messages)
        log.info(
            "queue.assigned", group=ctx.group, queue=str(self.queue), **self.ownership.names, offset=result.offset, attempts=result.attempts
        )
        ctx.report(QueueAssigned(self.queue, result.offset, **self.ownership.names))
        self._group.start_resolved(self.queue.topic, result.since)
        self.report_gap(result.gap_first, result.gap_end)
        name = f"{ctx.group} {self.queue}"
        self._runner = runner = self._model.runner(self, grant)
        self.fetch(grant, runner)
        run = ctx.runs.spawn(runner.run(), f"{name} run")
        self._runs[run] = None
        run.add_done_callback(self._run_ended)
        self.replay(result.replays or ())

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        if self._runner is not None and keys:
            self._runner.replay(keys)

    def fetch(self, grant: Grant, runner: Runner) -> None:
        """Pull from the grant's next offset on, and drop messages that were pulled for it before."""
        if grant.pull_task is not None:
            grant.pull_task.cancel()
            grant.pulling = False
        grant.pull_task = self.ctx.tasks.spawn(pull(self, grant, runner), f"{self.ctx.group} {self.queue} pull")

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        self._runs.pop(task, None)

    def grant_ended(self, fenced: bool) -> None:
        grant, self.grant, self._runner = self.grant, None, None
        self.reached = max(self.reached, self.ownership.offset)
        if grant is not None:
            grant.alive = False
            grant.messages.drop()
            grant.run_wake.set()
            if grant.pull_task is not None:
                grant.pull_task.cancel()
            if fenced:
                self.cancel_calls()
            log.info("queue.revoked", group=self.ctx.group, queue=str(self.queue), **self.ownership.names, fenced=fenced)
            self.ctx.report(QueueRevoked(self.queue, fenced, **self.ownership.names))
        self.forget_if_done()

    def drain_limit_passed(self) -> None:
        self.cancel_calls()
        ran_ms = self.ran_ms(self.ctx.host.clock.boot_ms())
        facts = {"listener": self.ctx.listener_name} | ({} if ran_ms is None else {"started_ms_ago": ran_ms})
        log.warning("call.given_up", group=self.ctx.group, queue=str(self.queue), **self.ownership.names, **facts)
        if self._runner is not None:
            self._runner.give_up()

    def cancel_calls(self) -> None:
        for call in self.calls:
            call.context.cancel()

    def wake_waiters(self) -> None:
        if self.grant is not None:
            self.grant.wake()
        self.forget_if_done()

    def start_policy(self, topic: str) -> StartPolicy:
        return self._group.start_policy(topic)

    # -------------------------------------------------------------------------------------- from the pull loop and the runner

    def report_gap(self, first: int | None, end: int | None) -> None:
        if first is not None and end is not None and first < end and (first, end) != self._gap_reported:
            self._gap_reported = (first, end)
            log.warning("queue.gap", group=self.ctx.group, queue=str(self.queue), first=first, end=end)
            self.ctx.report(QueueGap(self.queue, first, end))

    def handle_stale(self, grant: Grant, *, by: str) -> None:
        """End the grant, because the broker refused the request `by` as stale. After a release only the response to the release ends it."""
        if self.ownership.state in (OwnershipState.RELEASED, OwnershipState.UNSURE):
            return
        if self.ownership.stale(grant.token):
            log.warning("queue.fenced", group=self.ctx.group, queue=str(self.queue), **self.ownership.names, by=by)
            self.grant_ended(fenced=True)
            self.session.trigger()

    def subscription_lapsed(self) -> None:
        self._group.heartbeat_soon()
