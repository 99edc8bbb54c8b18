"""The figures of the broker, read from its tables: for OVERVIEW and for its metrics.

No turn of the loop reads more than a slice of the tables, so the figures are from different turns.
"""

from collections import Counter
from collections.abc import Sequence

from lockstep.broker.figures.delay_figures import delay_figures, timer_figures
from lockstep.broker.figures.oldest import Flow, OldestMessages
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import DelayFigures, FlowFigures, GroupFigures, ParkState, TopicFigures
from lockstep.protocol.names import is_system_topic
from lockstep.runtime.clock import Clock
from lockstep.runtime.metrics import Slices, in_slices

LATENCY_QUEUES_MAX = 1_000
"""The maximum number of queues with lag of which one reading looks up the oldest message: one read each, from disk if it is old."""
QUEUES_PER_STEP = 50
"""The number of queues that count as one step of a slice: to ask for each whether the slice is full costs as much as its figures."""


class Figures:
    """Reads the figures of one broker."""

    def __init__(self, clock: Clock, store: Store, state: BrokerState, pulls: PullProcessor) -> None:
        self._clock = clock
        self._store = store
        self._state = state
        self._pulls = pulls
        self._oldest = OldestMessages(store, state)

    async def topics(self) -> list[TopicFigures]:
        """Return the figures of the topics, those of groups too, but not those of the broker."""
        found: dict[str, list[int]] = {}
        slices = Slices()
        for topic, count, stored, size in self._store.queue_totals():
            await slices.step()
            if not is_system_topic(topic):
                before = found.setdefault(topic, [0, 0, 0, 0])
                before[0] += 1
                before[1] += count
                before[2] += size
                before[3] += stored
        return [TopicFigures(topic, *values) for topic, values in found.items()]

    async def flows(self, groups: Sequence[str], *, looked_up_max: int = LATENCY_QUEUES_MAX) -> list[FlowFigures]:
        """Return the figures of groups in topics. Look up the oldest message of at most `looked_up_max` queues."""
        lag, behind = await self._lag(groups)
        oldest = await self._oldest.ages(behind, looked_up_max)
        delivered = dict(self._pulls.delivered)
        found = []
        async for part in in_slices({**lag, **delivered}):
            for key in part:
                given = delivered.get(key)
                counts = (0, 0, 0) if given is None else (given.messages, given.size, given.filtered)
                found.append(FlowFigures(*key, lag.get(key), oldest.get(key), *counts))
        return found

    async def _lag(self, groups: Sequence[str]) -> tuple[dict[Flow, int], dict[Flow, int]]:
        """Return the lag of each flow, and of those with lag how many queues have it. A group has no lag in a topic that it has left."""
        progress, bounds = self._state.coordination.state.progress, self._store.bounds
        lag: dict[Flow, int] = {}
        behind: dict[Flow, int] = {}
        slices = Slices()
        for group in groups:
            await slices.step()
            left = dict.fromkeys(self._state.coordination.state.left_topics(group))
            for topic in [topic for topic in progress.topics_of_group(group) if topic not in left]:
                queues = progress.progress_in_topic(group, topic)
                total = count = 0
                for first in range(0, len(queues), QUEUES_PER_STEP):
                    part = queues[first : first + QUEUES_PER_STEP]
                    await slices.step(len(part))
                    for queue_id, each in part:
                        missing = each.lag(bounds(topic, queue_id)[1])
                        total += missing
                        count += missing > 0
                if queues:  # unless its topic has been deleted
                    lag[topic, group] = total
                if count:
                    behind[topic, group] = count
        return lag, behind

    async def groups(self, groups: Sequence[str]) -> list[GroupFigures]:
        """Return the figures of groups."""
        coordination, state = self._state.coordination, self._state.coordination.state
        parked, since_ms = await self._parked()
        failing = Counter(key[0] for key in state.progress.failing_keys())
        found = []
        async for part in in_slices(groups):
            for name in part:
                contract, settings = coordination.status.contract(name), state.settings.get(name)
                found.append(
                    GroupFigures(
                        group=name,
                        ordered=None if contract is None else contract.ordered,
                        broadcasting=None if contract is None else contract.broadcasting,
                        members=coordination.membership.member_count(name),
                        held=coordination.status.held_count(name),
                        grants=state.locks.grant_counts.get(name, 0),
                        failing=failing.get(name, 0),
                        parked=parked.get(name, 0),
                        parked_since_ms=since_ms.get(name),
                        consume_enable=settings is None or settings.consume_enable,
                    )
                )
        return found

    async def delays(self) -> list[DelayFigures]:
        """Return the figures of the delay queues in which messages wait, and of the messages with a delay of any length."""
        found, timers = await delay_figures(self._store, self._state.delays), self._state.timers
        return [timer_figures(timers, self._store.now_ms(), self._clock.wall_ms()), *found] if len(timers) else found

    async def _parked(self) -> tuple[Counter[str], dict[str, int]]:
        """Return the number of parked keys by group, and when the first of them was set aside, in ms since 1970."""
        parked: Counter[str] = Counter()
        since_ms: dict[str, int] = {}
        slices = Slices()
        for row in list(self._state.coordination.state.parks):
            await slices.step()
            if row.state is not ParkState.ENDED:
                parked[row.group] += 1
                since_ms[row.group] = min(row.since_ms, since_ms.get(row.group, row.since_ms))
        return parked, since_ms
