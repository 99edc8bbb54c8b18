"""The figures of the broker, read from its tables: for OVERVIEW and for its metrics.

No turn of the loop reads more than a slice of the tables, so the figures are from different turns.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.lock_table import QueueKey
from lockstep.protocol.bodies import FlowFigures, GroupFigures, ParkState, TopicFigures
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.names import is_system_topic
from lockstep.protocol.record import RecordView
from lockstep.runtime.metrics import Slices, in_slices

LATENCY_QUEUES_MAX = 1_000
"""The maximum number of queues with lag for which one reading looks up the oldest message: one read each, from disk if it is old."""
QUEUES_PER_STEP = 50
"""The number of queues that count as one step of a slice: to ask for each whether the slice is full costs as much as its figures."""
READS_PER_SLICE = 50
"""The number of messages read in one turn of the loop."""
READ_BYTES = 1
"""The first message is always returned, and no other is needed."""


class Figures:
    """Reads the figures of one broker."""

    def __init__(self, store: Store, state: BrokerState, pulls: PullProcessor) -> None:
        self._store = store
        self._state = state
        self._pulls = pulls

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
        lag, behind = await self._lag(groups, looked_up_max)
        oldest = await self._oldest(behind)
        delivered = dict(self._pulls.delivered)
        found = []
        async for part in in_slices({**lag, **delivered}):
            for key in part:
                given = delivered.get(key)
                counts = (0, 0, 0) if given is None else (given.messages, given.size, given.filtered)
                found.append(FlowFigures(*key, lag.get(key), oldest.get(key), *counts))
        return found

    async def _lag(self, groups: Sequence[str], behind_max: int) -> tuple[dict[tuple[str, str], int], list[QueueKey]]:
        """Return the lag by (topic, group), and queues with lag, `behind_max` at most."""
        progress, bounds = self._state.coordination.state.progress, self._store.bounds
        lag: dict[tuple[str, str], int] = {}
        behind: list[QueueKey] = []
        slices = Slices()
        for group in groups:
            await slices.step()
            for topic in progress.topics_of_group(group):
                queues = progress.progress_in_topic(group, topic)
                total = 0
                for first in range(0, len(queues), QUEUES_PER_STEP):
                    part = queues[first : first + QUEUES_PER_STEP]
                    await slices.step(len(part))
                    for queue_id, each in part:
                        missing = each.lag(bounds(topic, queue_id)[1])
                        total += missing
                        if missing and len(behind) < behind_max:
                            behind.append((group, topic, queue_id))
                if queues:  # unless its topic has been deleted
                    lag[topic, group] = total
        return lag, behind

    async def _oldest(self, behind: Iterable[QueueKey]) -> dict[tuple[str, str], int]:
        """Return the age of the oldest uncommitted message, in milliseconds, by (topic, group)."""
        now_ms = self._store.now_ms()
        oldest: dict[tuple[str, str], int] = {}
        slices = Slices(READS_PER_SLICE)
        for group, topic, queue_id in behind:
            await slices.step()
            progress = self._state.coordination.state.progress.get((group, topic, queue_id))
            if progress is None:
                continue  # its topic has been deleted
            offset = max(progress.offset, self._store.bounds(topic, queue_id)[0])
            try:
                read = await self._store.read_or_wait(topic, queue_id, offset, 1, READ_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError):
                continue  # a pull of it fails with the reason; the other figures are still reported
            if read.parts:
                record = RecordView(b"".join(read.parts))
                age_ms = now_ms - self._store.stored_ms(record.physical_offset, record.store_ms)
                oldest[topic, group] = max(oldest.get((topic, group), 0), age_ms)
        return oldest

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
