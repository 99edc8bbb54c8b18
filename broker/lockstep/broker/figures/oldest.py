"""The age of the oldest message that a group has not finished in a topic.

A message has to be read for its age, so few are read at a time, those of the flows (a group in a topic) that were looked up longest ago.
What was read is remembered: for a queue in which the group has not moved since, it remains right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import chain, zip_longest
from typing import NamedTuple

from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.messages.record import RecordView
from lockstep.runtime.metrics import Slices, in_slices

Flow = tuple[str, str]
"""(topic, group)"""
REMEMBERED_MS = 15_000
"""The age of the oldest message of a queue in which the group has moved since is still told for this long."""
KNOWN_MAX = 64
"""Queues of one flow that are remembered: those with the oldest messages."""
READS_PER_SLICE = 50
"""The number of messages read in one turn of the loop."""
READ_BYTES = 1
"""The first message is always returned, and no other is needed."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The message at a group's progress in one queue, when it was looked up."""

    offset: int
    position: int
    """Its place in the log, and its stamp: when it was stored follows the setting of the clock."""
    stamp_ms: int
    read_ms: int


class _Waiting(NamedTuple):
    """A queue with lag."""

    queue_id: int
    offset: int
    lag: int
    committed_ms: int
    """When the group last committed there, by the broker's clock; 0 if it has not since the broker's start."""


@dataclass(slots=True)
class _Flow:
    """What is remembered of a flow."""

    looks: int = 0
    looked_ms: int = 0
    queues: dict[int, _Known] = field(default_factory=dict)


class OldestMessages:
    """Looks up the oldest messages of one broker's groups."""

    def __init__(self, store: Store, state: BrokerState) -> None:
        self._store = store
        self._state = state
        self._flows: dict[Flow, _Flow] = {}
        """Of flows with lag."""

    async def ages(self, behind: Mapping[Flow, int], looked_up_max: int) -> dict[Flow, int]:
        """Return the age of the oldest unfinished message, in milliseconds, of each flow of which it is known.

        Args:
            behind: How many queues with lag each flow has. Flows without lag are forgotten.
            looked_up_max: The number of messages that are read. If there are no more queues with lag, every age is exact.
        """
        for gone in self._flows.keys() - behind.keys():
            del self._flows[gone]
        flows = {flow: self._flows.setdefault(flow, _Flow()) for flow in behind}
        chosen = nsmallest(looked_up_max, flows, key=lambda flow: flows[flow].looked_ms)
        chosen.sort(key=lambda flow: behind[flow])  # what is left by flows with few queues is for those with many
        left = looked_up_max
        reads = Slices(READS_PER_SLICE)
        for index, flow in enumerate(chosen):
            left -= await self._look_up(flow, flows[flow], left // (len(chosen) - index), reads)
        found: dict[Flow, int] = {}
        slices, now_ms = Slices(), self._store.now_ms()
        for flow, known in flows.items():
            await slices.step(1 + len(known.queues))
            if (age_ms := self._age_ms(flow, known, now_ms)) is not None:
                found[flow] = age_ms
        return found

    async def _look_up(self, flow: Flow, known: _Flow, count: int, reads: Slices) -> int:
        """Read the oldest messages of `count` queues of a flow. Return how many were read."""
        topic, _ = flow
        known.looked_ms = self._store.now_ms()
        known.looks += 1
        unknown = await self._unknown(flow, known)
        by_lag = nlargest(count, unknown, key=lambda each: each.lag)
        by_age = nsmallest(count, unknown, key=lambda each: each.committed_ms)  # a queue without progress may have a small lag
        pairs = zip_longest(by_lag, by_age) if known.looks % 2 else zip_longest(by_age, by_lag)
        chosen = list(dict.fromkeys(each for each in chain.from_iterable(pairs) if each is not None))[:count]
        for each in chosen:
            await reads.step()
            try:
                found = await self._store.read_or_wait(topic, each.queue_id, each.offset, 1, READ_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError):
                known.queues.pop(each.queue_id, None)
                continue  # a pull of it fails with the reason; the other figures are still reported
            if found.parts:
                record = RecordView(b"".join(found.parts))
                known.queues[each.queue_id] = _Known(each.offset, record.physical_offset, record.store_ms, self._store.now_ms())
        return len(chosen)

    async def _unknown(self, flow: Flow, known: _Flow) -> list[_Waiting]:
        """Return the queues with lag whose oldest message is not known."""
        topic, group = flow
        progress, found = self._state.coordination.state.progress, []
        async for part in in_slices(progress.progress_in_topic(group, topic)):
            for queue_id, each in part:
                first, end = self._store.bounds(topic, queue_id)
                offset, message = max(each.offset, first), known.queues.get(queue_id)
                if (lag := each.lag(end)) and (message is None or message.offset != offset):
                    found.append(_Waiting(queue_id, offset, lag, progress.committed_ms((group, topic, queue_id)) or 0))
        return found

    def _age_ms(self, flow: Flow, known: _Flow, now_ms: int) -> int | None:
        """Return the age of the oldest known message of a flow, and forget what is not known any more."""
        topic, group = flow
        progress = self._state.coordination.state.progress
        ages: dict[int, int] = {}
        for queue_id, message in known.queues.items():
            each = progress.get((group, topic, queue_id))
            first, end = self._store.bounds(topic, queue_id)
            if each is None or not each.lag(end):
                continue
            stands = message.offset == max(each.offset, first)
            if stands or now_ms - message.read_ms <= REMEMBERED_MS:
                at_ms = now_ms if stands else message.read_ms
                ages[queue_id] = max(0, at_ms - self._store.stored_ms(message.position, message.stamp_ms))
        if len(ages) < len(known.queues) or len(ages) > KNOWN_MAX:
            kept = nlargest(KNOWN_MAX, ages, key=lambda queue_id: ages[queue_id])
            known.queues = {queue_id: known.queues[queue_id] for queue_id in kept}
        return max(ages.values(), default=None)
