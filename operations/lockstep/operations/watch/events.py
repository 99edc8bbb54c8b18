"""The last hour of the events of all groups, as several brokers report them (GROUP_EVENTS). Pure.

Times are by this machine's clock: those of a broker are moved by the difference between the two, as far as it is known.
"""

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.ownership import Period
from lockstep.operations.watch.clock_offset import ClockOffset
from lockstep.protocol.bodies import GroupEvent, GroupEvents

EVENTS_MAX = 50_000
"""About 12 MB."""
KEPT_MS = 3_600_000


class _Broker:
    """The events of one broker, as far as they are known."""

    def __init__(self) -> None:
        self.term: int | None = None
        self.last = 0
        """The number of the last event that was read."""
        self.known_until_ms: int | None = None
        """The time up to which its events are known."""
        self.asked_ms: int | None = None
        """When the last request was sent that it has responded to."""
        self.clock = ClockOffset()
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

    def add(self, broker: str, reply: GroupEvents, asked: Period | None = None) -> bool:
        """Add a response to a request with `after`. Return whether the next request would return more.

        `asked`: when the request was sent and when its response came, by this machine's wall clock, in ms since 1970; None for a response
        whose times are this machine's already.
        """
        known = self._brokers.setdefault(broker, _Broker())
        if asked is not None:
            known.clock.measure(*asked, reply.wall_ms)
            known.asked_ms = asked[0]
        reply = _moved(reply, -known.clock.ms)
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

    def unknown(self, now_ms: int, brokers: Iterable[str] = ()) -> dict[str, list[Period]]:
        """Return for each broker the periods of which events are not known, up to now: those of a broker that is not reached are unknown.

        Of `brokers` that were never read nothing is known.
        """
        found: dict[str, list[Period]] = {broker: [(0, now_ms)] for broker in brokers}
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

    def known_until(self, now_ms: int, age_ms: int) -> int:
        """Return the time up to which the events of all brokers are known that were read within `age_ms`; `now_ms` if none was.

        They are read one after the other: up to a later time the events of some of them would not be known.
        """
        ends = (known.known_until_ms for known in self._brokers.values() if known.known_until_ms is not None)
        return min((end for end in ends if now_ms - age_ms < end), default=now_ms)

    def read_since(self, at_ms: int) -> set[str]:
        """Return the brokers whose events are known up to a time after `at_ms`, by this machine's clock."""
        return {broker for broker, known in self._brokers.items() if known.asked_ms is not None and known.asked_ms >= at_ms}

    def clock_differences(self, least_ms: int) -> dict[str, int]:
        """Return the brokers whose clocks certainly differ by `least_ms` or more from this machine's, and by how much they are ahead."""
        return {broker: known.clock.ms for broker, known in sorted(self._brokers.items()) if known.clock.least_ms >= least_ms}

    def _forget(self, before_ms: int) -> None:
        while self._events and self._events[0].event.wall_ms < before_ms:
            self._events.popleft()
        for known in self._brokers.values():
            while len(known.unknown) > 1 and known.unknown[0][1] < before_ms:
                known.unknown.popleft()
            while known.starts and known.starts[0] < before_ms:
                known.starts.popleft()


def _moved(reply: GroupEvents, by_ms: int) -> GroupEvents:
    """Return the response with all times moved."""
    if not by_ms:
        return reply
    events = [
        replace(event, wall_ms=event.wall_ms + by_ms, since_ms=None if event.since_ms is None else event.since_ms + by_ms)
        for event in reply.events
    ]
    return replace(reply, wall_ms=reply.wall_ms + by_ms, began_ms=reply.began_ms + by_ms, events=tuple(events))


def _compact(event: GroupEvent) -> GroupEvent:
    """Return the event with texts that equal events share: few groups, topics and clients have many events."""
    group, client_id, why, topic = sys.intern(event.group), _shared(event.client_id), _shared(event.why), _shared(event.topic)
    return replace(event, group=group, client_id=client_id, why=why, topic=topic)


def _shared(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)
