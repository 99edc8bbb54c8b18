"""Replays of dead letters, which take a while: they run as tasks of the dashboard, one for each group, with progress and a stop."""

import asyncio
from collections import deque
from dataclasses import dataclass

from lockstep.dashboard.access.sessions import BrowserSession
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.operation import ChangeOutcome, Plan
from lockstep.operations.changes.replay import DeadLetterReplay, Replayable, ReplayRun, ReplayTarget, replaying, unfinished
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks

ENDED_KEPT = 20


@dataclass(slots=True)
class Running:
    """One replay, running or ended."""

    session: BrowserSession
    """In which it was begun, and with which it ends."""
    group: str
    target: ReplayTarget
    count: int
    """The dead letters that it found."""
    begun_ms: int
    """By the wall clock."""
    replay: ReplayRun | None = None
    task: "asyncio.Task[None] | None" = None
    outcome: str | None = None
    """Why it ended; None while it runs."""

    @property
    def sent(self) -> int:
        """Return how many were sent so far."""
        return 0 if self.replay is None else self.replay.result.sent

    def stop(self, outcome: str) -> None:
        if self.task is not None:
            self.outcome = outcome
            self.task.cancel()


class Replays:
    """Runs replays. One that is stopped has recorded what it sent, as one that ends."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._running: dict[str, Running] = {}
        self._ended: deque[Running] = deque(maxlen=ENDED_KEPT)

    @property
    def all(self) -> list[Running]:
        """Return the replays that run, then those that have ended, the latest first."""
        return [*self._running.values(), *reversed(self._ended)]

    def stop(self, group: str, user: str | None) -> bool:
        """End a group's replay. Return whether there was one. Raise OperationError if another user has begun it."""
        found = self._running.get(group)
        if found is None or found.task is None:
            return False
        if found.session.user != user:
            raise OperationError(f"user {found.session.user} has begun the replay of {group}, and may stop it")
        found.stop("stopped")
        return True

    def stop_of(self, session: BrowserSession) -> None:
        """End the replays of a session that has ended."""
        for each in list(self._running.values()):
            if each.session is session:
                each.stop(f"stopped: the session of {session.user} has ended")

    def _has(self, group: str) -> bool:
        return group in self._running

    async def plan(self, session: BrowserSession, operation: DeadLetterReplay) -> Plan:
        """Return the plan that begins a replay, which goes on after the response. It replays dead letters that are added meanwhile too."""
        admin = session.admin
        found = await operation.read(admin)
        group = operation.group

        async def carry_out() -> ChangeOutcome:
            if self._has(group):
                raise OperationError(f"a replay of {group} is running: stop it first")
            running = Running(session, group, found.target, found.count, admin.host.clock.wall_ms())
            self._running[group] = running
            running.task = self._tasks.spawn(self._run(admin, running, found, operation), f"replay of {group}")
            return ChangeOutcome([f"the replay of {group} has begun"], {})

        fixed = {"to": found.target}
        return Plan(operation.effect(found), carry_out, fixed=fixed, nothing=operation.nothing(found))

    async def _run(self, admin: AdminClient, running: Running, found: Replayable, operation: DeadLetterReplay) -> None:
        try:
            async with (
                admin.keep_connections(redial=True),
                replaying(admin, running.group, running.target, operation.rate, include_replayed=operation.every) as running.replay,
            ):
                result = await running.replay.run(found.queues)
            running.outcome = ". ".join(unfinished(running.group, result, found.found.failed)) or "done"
        except (LockstepError, OSError) as error:
            running.outcome = str(error)
        finally:
            running.outcome = running.outcome or "stopped"
            del self._running[running.group]
            self._ended.append(running)
