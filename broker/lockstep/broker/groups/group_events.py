"""The last events of groups: who joined and left, and who had which queue when (GROUP_EVENTS). In memory only.

Pure. GroupState adds events as they happen, in the time of its clock, which has no date. `stamp` gives them that of the wall clock, in the
same turn of the loop or the next one.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import GroupEvent, GroupEventKind
from lockstep.runtime.metrics import DurationHistogram

EVENTS_MAX = 16_384
"""Events of all groups that are kept: about 5 MB."""
EVENTS_PER_GROUP_MAX = 4_096
"""Events of one group, so that the moves of a group with many queues do not displace those of all others."""
HANDOVER_BUCKETS_US = tuple(int(s * 1e6) for s in (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 3, 5, 10, 20, 30, 60))
"""Upper bounds in µs: from an orderly hand-over to one after the session timeout."""


@dataclass(frozen=True, slots=True)
class _Free:
    """A queue that nobody holds. Times are of the wall clock."""

    heard_ms: int
    freed_ms: int


class GroupEventLog:
    """The last events of all groups, and how long hand-overs took."""

    def __init__(self, events_max: int = EVENTS_MAX, per_group_max: int = EVENTS_PER_GROUP_MAX) -> None:
        self.handovers = DurationHistogram(HANDOVER_BUCKETS_US)
        """From the last sign of the previous owner, or from when the new one joined if that is later, to the grant."""
        self._events_max = events_max
        self._per_group_max = per_group_max
        self.began_ms: int | None = None
        """When `stamp` was first called, by the wall clock."""
        self._count = 0
        """The number of events since the start, which is the number of the newest one."""
        self._unstamped: deque[GroupEvent] = deque(maxlen=events_max)
        """Events whose times are those of GroupState's clock."""
        self._events: OrderedDict[int, GroupEvent] = OrderedDict()
        self._numbers: dict[str, deque[int]] = {}
        """Group → the numbers of its events."""
        self._dropped: dict[str, int] = {}
        """Group → the number of the last event that `per_group_max` has dropped."""
        self._free: OrderedDict[QueueKey, _Free] = OrderedDict()
        self._joined: OrderedDict[tuple[str, str], int] = OrderedDict()
        """(group, client id) → when it joined."""

    def add_member_event(
        self, kind: GroupEventKind, group: str, client_id: str, why: str | None = None, since_ms: int | None = None
    ) -> None:
        """Add an event of a member. `since_ms` is of GroupState's clock."""
        self._count += 1
        self._unstamped.append(GroupEvent(self._count, 0, kind, group, client_id, why, since_ms=since_ms))

    def add_queue_event(
        self,
        kind: GroupEventKind,
        key: QueueKey,
        client_id: str | None,
        epoch: int,
        why: str | None = None,
        since_ms: int | None = None,
    ) -> None:
        """Add an event of a queue. `since_ms` is of GroupState's clock."""
        self._count += 1
        group, topic, queue_id = key
        self._unstamped.append(GroupEvent(self._count, 0, kind, group, client_id, why, topic, queue_id, epoch, since_ms))

    def stamp(self, now_ms: int, wall_ms: int) -> None:
        """Give the new events the time of the wall clock. `now_ms` is the present time of GroupState's clock."""
        if self.began_ms is None:
            self.began_ms = wall_ms
        while self._unstamped:
            event = self._unstamped.popleft()
            since_ms = None if event.since_ms is None else wall_ms - max(0, now_ms - event.since_ms)
            self._keep(self._with_hand_over(replace(event, wall_ms=wall_ms, since_ms=since_ms)))

    def read(self, after: int, group: str | None, count_max: int) -> tuple[list[GroupEvent], int]:
        """Return at most `count_max` events with numbers above `after`, and the number of the last event that was looked at."""
        numbers: Iterable[int] = reversed(self._events) if group is None else reversed(self._numbers.get(group, ()))
        newer = []
        for number in numbers:
            if number <= after:
                break
            newer.append(number)
        newer.reverse()
        newest = self._count - len(self._unstamped)
        last = newer[count_max - 1] if len(newer) > count_max else newest
        return [self._events[number] for number in newer[:count_max]], last

    @property
    def first(self) -> int:
        """Return the number of the oldest event that is kept, or of the next one."""
        return next(iter(self._events), self._count - len(self._unstamped) + 1)

    def dropped(self, after: int, group: str | None) -> dict[str, int]:
        """Return the groups with dropped events above `after`, and the number of the last one, as far as `first` does not show it."""
        least = max(after, self.first - 1)
        names = self._dropped if group is None else [group]
        return {name: number for name in names if (number := self._dropped.get(name, 0)) > least}

    def _keep(self, event: GroupEvent) -> None:
        numbers = self._numbers.setdefault(event.group, deque())
        numbers.append(event.number)
        self._events[event.number] = event
        if len(numbers) > self._per_group_max:
            self._dropped[event.group] = numbers.popleft()
            del self._events[self._dropped[event.group]]
        if len(self._events) > self._events_max:
            _, oldest = self._events.popitem(last=False)
            left = self._numbers[oldest.group]
            left.popleft()
            if not left:
                del self._numbers[oldest.group]
                self._dropped.pop(oldest.group, None)

    def _with_hand_over(self, event: GroupEvent) -> GroupEvent:
        """Return the event; if it is a grant, with the time at which the queue became free. Observe how long the hand-over took."""
        kind, group, client_id, wall_ms = event.kind, event.group, event.client_id, event.wall_ms
        if event.topic is None or event.queue_id is None:
            if kind is GroupEventKind.JOINED and client_id is not None:
                self._joined[group, client_id] = wall_ms
                _limit(self._joined, self._events_max)
            elif kind is GroupEventKind.LEFT and client_id is not None:
                self._joined.pop((group, client_id), None)
            return event
        key = group, event.topic, event.queue_id
        if kind in (GroupEventKind.FREED, GroupEventKind.LOST, GroupEventKind.ENDED):
            self._free.pop(key, None)
            self._free[key] = _Free(wall_ms if event.since_ms is None else event.since_ms, wall_ms)
            _limit(self._free, self._events_max)
        elif kind in (GroupEventKind.GRANTED, GroupEventKind.RENEWED) and (free := self._free.pop(key, None)) is not None:
            if kind is GroupEventKind.GRANTED:
                began_ms = max(free.heard_ms, self._joined.get((group, client_id or ""), free.heard_ms))
                self.handovers.observe(max(0, wall_ms - began_ms) * 1000)
            return replace(event, since_ms=free.freed_ms)
        return event


def _limit(entries: OrderedDict[Any, int] | OrderedDict[Any, _Free], count_max: int) -> None:
    """Forget the oldest entries above the limit: no grant can be compared with them any more."""
    while len(entries) > count_max:
        entries.popitem(last=False)
