"""The last hour of the events of all groups, as several brokers report them (GROUP_EVENTS). Pure."""

import sys
from collections import deque
from dataclasses import replace

from lockstep.admin.group_history import PlacedEvent
from lockstep.admin.ownership import Period
from lockstep.protocol.bodies import GroupEvent, GroupEvents

EVENTS_MAX = 50_000
"""About 12 MB."""
KEPT_MS = 3_600_000


class _Broker:
    """What is known of one broker's events."""

    def __init__(self) -> None:
        self.term: int | None = None
        self.last = 0
        """The number of the last event that was read."""
        self.known_until_ms: int | None = None
        """Its wall clock when it was last read."""
        self.unknown: deque[Period] = deque()
        """The periods of which some events are not known, in order."""
        self.starts: deque[int] = deque()
        """When it started, as far as it was in the last hour."""


class EventHistory:
    """Collects events. A reader continues each broker where it was, by `after`."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._events_max = events_max
        self._events: deque[PlacedEvent] = deque(maxlen=events_max)
        self._brokers: dict[str, _Broker] = {}
        self._removed_ms: int | None = None
        """The time up to which events were removed because there were too many."""

    def after(self, broker: str) -> tuple[int, int | None]:
        """Return the number and the term from which the broker's next events are requested."""
        known = self._brokers.get(broker)
        return (0, None) if known is None else (known.last, known.term)

    def add(self, broker: str, reply: GroupEvents) -> bool:
        """Add a response to a request with `after`. Return whether the next request would return more."""
        known = self._brokers.setdefault(broker, _Broker())
        missed = reply.first > 1 if known.term != reply.term else reply.first > known.last + 1
        if known.term != reply.term or missed or reply.dropped:
            oldest_ms = min((event.wall_ms for event in reply.events), default=reply.wall_ms)
            known.unknown.append((known.known_until_ms or 0, oldest_ms if missed or reply.dropped else reply.began_ms))
        if known.term != reply.term:
            known.starts.append(reply.began_ms)
        known.term, known.last, known.known_until_ms = reply.term, reply.last, reply.wall_ms
        removed = len(self._events) + len(reply.events) > self._events_max
        self._events += [PlacedEvent(broker, _compact(event)) for event in reply.events]
        if removed:
            self._removed_ms = self._events[0].event.wall_ms
        self._forget(reply.wall_ms - KEPT_MS)
        return bool(reply.events)

    def of(self, group: str) -> list[PlacedEvent]:
        """Return the events of a group, of each broker in its order."""
        return [placed for placed in self._events if placed.event.group == group]

    def unknown(self, now_ms: int) -> dict[str, list[Period]]:
        """Return for each broker the periods of which events are not known, up to now: a broker that is not reached tells nothing."""
        found = {}
        for broker, known in self._brokers.items():
            periods = list(known.unknown)
            if self._removed_ms is not None:
                later = [(max(first, self._removed_ms), last) for first, last in periods if last > self._removed_ms]
                periods = [(0, self._removed_ms), *later]
            if known.known_until_ms is not None and known.known_until_ms < now_ms:
                periods.append((known.known_until_ms, now_ms))
            found[broker] = periods
        return found

    def starts(self) -> dict[str, list[int]]:
        """Return for each broker when it started, in ms since 1970, as far as that was in the last hour."""
        return {broker: list(known.starts) for broker, known in self._brokers.items()}

    def _forget(self, before_ms: int) -> None:
        while self._events and self._events[0].event.wall_ms < before_ms:
            self._events.popleft()
        for known in self._brokers.values():
            while len(known.unknown) > 1 and known.unknown[0][1] < before_ms:
                known.unknown.popleft()
            while known.starts and known.starts[0] < before_ms:
                known.starts.popleft()


def _compact(event: GroupEvent) -> GroupEvent:
    """Return the event with texts that equal events share: few groups, topics and clients have many events."""
    group, client_id, why, topic = sys.intern(event.group), _shared(event.client_id), _shared(event.why), _shared(event.topic)
    return replace(event, group=group, client_id=client_id, why=why, topic=topic)


def _shared(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)
