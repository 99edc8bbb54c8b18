"""Replays of dead letters, which take a while: they run as tasks of the dashboard, one for each group, with progress and a stop."""

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import chain

from lockstep.dashboard.changes.change import Change, Field, Plan, Values, chosen, command, option, required, whole_number
from lockstep.operations.admin_client import AdminClient, BrokerResults
from lockstep.operations.changes.replay import Replay, ReplayTarget, choose_target, count_to_replay, replaying, unfinished
from lockstep.operations.errors import OperationError
from lockstep.operations.messages.dead_letters import DeadLetterQueue, find_dead_letter_queues
from lockstep.protocol.errors import LockstepError, TopicNotExistError
from lockstep.protocol.names import check_group, retry_topic
from lockstep.runtime.daemon import Tasks

RATE_MAX = 100_000
ENDED_KEPT = 20
TO = ("", *(each.value for each in ReplayTarget))
TO_HINT = "retry: only this group gets them; topic: all groups of their topics; empty: topic if the group is ordered, else retry"
INCLUDED = ("not replayed yet", "all")


@dataclass(slots=True)
class Running:
    """One replay, running or ended."""

    group: str
    target: ReplayTarget
    count: int
    """The dead letters that it found."""
    begun_ms: int
    """By the wall clock."""
    replay: Replay | None = None
    task: "asyncio.Task[None] | None" = None
    outcome: str | None = None
    """Why it ended; None while it runs."""

    @property
    def sent(self) -> int:
        """Return how many were sent so far."""
        return 0 if self.replay is None else self.replay.result.sent


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

    def stop(self, group: str) -> bool:
        """End a group's replay. Return whether there was one."""
        found = self._running.get(group)
        if found is None or found.task is None:
            return False
        found.outcome = "stopped"
        found.task.cancel()
        return True

    def _has(self, group: str) -> bool:
        return group in self._running

    @property
    def change(self) -> Change:
        """Return the change that begins a replay."""
        fields = (
            Field("group", "Group"),
            Field(
                "to",
                "To",
                hint=TO_HINT,
                choices=TO,
            ),
            Field("rate", "Messages per second", "100"),
            Field("which", "Which", INCLUDED[0], choices=INCLUDED),
        )
        return Change("dlq-replay", "Replay dead letters", fields, self._plan, confirmed="group")

    async def _plan(self, admin: AdminClient, values: Values) -> Plan:
        group = required(values, "group")
        check_group(group)
        rate = whole_number(values, "rate", 1, RATE_MAX)
        everything = chosen(values, "which", INCLUDED) == "all"
        to = chosen(values, "to", TO)
        try:
            found = await find_dead_letter_queues(admin, group)
        except TopicNotExistError:
            raise OperationError(f"group {group} has no dead letters") from None
        target = await choose_target(admin, group, ReplayTarget(to) if to else None)
        queues = list(chain.from_iterable(found.values.values()))
        count = count_to_replay(queues, include_replayed=everything)
        if not count:
            raise OperationError(f"group {group} has no dead letter {'' if everything else 'that was not replayed'}".rstrip())
        where = retry_topic(group) if target is ReplayTarget.RETRY else "their original topics"
        effect = [f"{count:,} dead letters of {group} are sent to {where}, {rate} a second: some {max(1, count // rate):,} s."]
        effect += [f"{name} is left out: {why}." for name, why in found.failed.items()]
        options = (*option("--to", target.value), *option("--rate", str(rate)), *(["--all"] if everything else []))

        async def carry_out() -> tuple[str, ...]:
            if self._has(group):
                raise OperationError(f"a replay of {group} is running: stop it first")
            running = Running(group, target, count, admin.host.clock.wall_ms())
            self._running[group] = running
            running.task = self._tasks.spawn(self._run(admin, running, found, rate, everything), f"replay of {group}")
            return (f"The replay of {group} has begun.",)

        # Dead letters that are added meanwhile are replayed too.
        return Plan(tuple(effect), command(("dlq", "replay"), (group,), options), carry_out)

    async def _run(
        self, admin: AdminClient, running: Running, found: BrokerResults[list[DeadLetterQueue]], rate: int, everything: bool
    ) -> None:
        queues = chain.from_iterable(found.values.values())
        try:
            async with replaying(admin, running.group, running.target, rate, include_replayed=everything) as running.replay:
                result = await running.replay.run(queues)
            running.outcome = ". ".join(unfinished(running.group, result, found.failed)) or "done"
        except (LockstepError, OSError) as error:
            running.outcome = str(error)
        finally:
            running.outcome = running.outcome or "stopped"
            del self._running[running.group]
            self._ended.append(running)
