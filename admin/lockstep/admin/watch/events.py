"""The last hour of the events of all groups, as several brokers report them (GROUP_EVENTS). Pure."""

from collections import deque

from lockstep.admin.group_history import PlacedEvent
from lockstep.admin.ownership import Period
from lockstep.protocol.bodies import GroupEvents

EVENTS_MAX = 100_000
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


class EventHistory:
    """Collects events. A reader continues each broker where it was, by `after`."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._events: deque[PlacedEvent] = deque(maxlen=events_max)
        self._brokers: dict[str, _Broker] = {}

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
        known.term, known.last, known.known_until_ms = reply.term, reply.last, reply.wall_ms
        self._events += [PlacedEvent(broker, event) for event in reply.events]
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
            if known.known_until_ms is not None and known.known_until_ms < now_ms:
                periods.append((known.known_until_ms, now_ms))
            found[broker] = periods
        return found

    def _forget(self, before_ms: int) -> None:
        while self._events and self._events[0].event.wall_ms < before_ms:
            self._events.popleft()
        for known in self._brokers.values():
            while len(known.unknown) > 1 and known.unknown[0][1] < before_ms:
                known.unknown.popleft()
