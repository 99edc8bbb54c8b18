"""The marks over the lanes of a group: members that join and leave, brokers that start, resets of offsets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.ownership import Period
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import GroupEventKind

MEMBER_WORDS = {GroupEventKind.JOINED: "joined", GroupEventKind.LEFT: "left"}
SAME_MEMBER_MS = 60_000
"""A member joins and leaves at each broker, whose clocks may differ."""
SAME_RESET_MS = 5_000
"""Each queue that has an owner reports a reset."""
BROKER_LENGTH = 24


@dataclass(slots=True)
class Mark:
    """One mark."""

    at_ms: int
    label: str
    what: str
    queues: set[tuple[str, str | None, int | None]] = field(default_factory=set)
    """Those that were reset."""

    @property
    def title(self) -> str:
        count = len(self.queues)
        of = f" of {count} {'queue' if count == 1 else 'queues'}" if count else ""
        return f"{self.what}{of} at {format_time(self.at_ms)}"


def marks(events: Iterable[PlacedEvent], starts: Mapping[str, Sequence[int]], letters: Mapping[str, str], period: Period) -> list[Mark]:
    """Return the marks of a period by time. `starts`: broker → when it started, in ms since 1970. `letters`: those of the members."""
    found = list(_marks(events, letters, period))
    for broker, times in starts.items():
        name = broker if len(broker) <= BROKER_LENGTH else f"{broker[: BROKER_LENGTH - 1]}…"
        found += [Mark(at_ms, f"{name} started", f"{broker} started") for at_ms in times if period[0] <= at_ms <= period[1]]
    return sorted(found, key=lambda each: each.at_ms)


def _marks(events: Iterable[PlacedEvent], letters: Mapping[str, str], period: Period) -> Iterator[Mark]:
    """Yield a mark for what several brokers or queues report at about the same time."""
    seen: dict[tuple[str, str], int] = {}
    reset: Mark | None = None
    reset_ms = 0
    for placed in events:
        event = placed.event
        if not period[0] <= event.wall_ms <= period[1]:
            continue
        if event.kind is GroupEventKind.SUPERSEDED:
            if reset is None or event.wall_ms - reset_ms > SAME_RESET_MS:
                reset = Mark(event.wall_ms, "reset", "reset")
                yield reset
            reset_ms = event.wall_ms
            reset.queues.add((placed.broker, event.topic, event.queue_id))
        elif event.kind in MEMBER_WORDS and event.client_id is not None:
            word, client_id = MEMBER_WORDS[event.kind], event.client_id
            if (word, client_id) not in seen or event.wall_ms - seen[word, client_id] >= SAME_MEMBER_MS:
                seen[word, client_id] = event.wall_ms
                yield Mark(event.wall_ms, f"{letters.get(client_id, '?')} {word}", f"{client_id} {word}")
