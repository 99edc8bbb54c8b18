"""How many queues each member of a group held when, from the events of brokers (GROUP_EVENTS). Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep.operations.groups.group_history import GRANTED, LET_GO, PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.ownership import Period, Queue
from lockstep.protocol.bodies import GroupEvent


@dataclass(frozen=True, slots=True)
class Holdings:
    """The queues held at equally distant times of a period, the last one of which is its end."""

    counts: Sequence[Mapping[str, int] | None]
    """Client id → queues; None where the events of some broker are not known."""
    queue_count: int


def holdings(
    lines: Iterable[QueueLine], events: Iterable[PlacedEvent], period: Period, unknown: Mapping[str, Sequence[Period]], count: int
) -> Holdings:
    """Return who held how many queues at `count` times of a period that ends now.

    It goes back from the owners of now, so only what is known up to now without a gap is returned. `unknown`: broker → periods of which its
    events are not known, in order. A queue whose events say who has it is taken from them: the report may be older.
    """
    known_ms = max((last for periods in unknown.values() for _, last in periods), default=period[0])
    first_ms, last_ms = max(known_ms, period[0]), period[1]
    changes: list[tuple[Queue, GroupEvent]] = []
    for placed in events:
        event = placed.event
        if event.topic is not None and event.queue_id is not None and first_ms <= event.wall_ms <= last_ms:
            changes.append(((event.topic, placed.broker, event.queue_id), event))
    changes.sort(key=lambda each: (each[1].wall_ms, each[1].number))
    owners = {queue: None if event.kind in LET_GO else event.client_id for queue, event in changes}
    held = Counter(owner for owner in owners.values() if owner is not None)
    queue_count = len(owners)
    for line in lines:
        if line.reached and (line.topic, line.broker, line.queue_id) not in owners:
            queue_count += 1
            if line.owner is not None:
                held[line.owner] += 1
    counts: list[Mapping[str, int] | None] = []
    for index in range(count - 1, -1, -1):
        at_ms = period[0] + (period[1] - period[0]) * (index + 1) // count
        while changes and changes[-1][1].wall_ms > at_ms:
            queue, event = changes.pop()
            before = event.client_id if event.kind not in GRANTED else None  # a queue that is granted was free
            _move(held, owners[queue], before)
            owners[queue] = before
        counts.append({client_id: number for client_id, number in held.items() if number > 0} if at_ms >= known_ms else None)
    return Holdings(counts[::-1], queue_count)


def _move(held: Counter[str], after: str | None, before: str | None) -> None:
    if after is not None:
        held[after] -= 1
    if before is not None:
        held[before] += 1
