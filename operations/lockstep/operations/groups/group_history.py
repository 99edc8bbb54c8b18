"""What happened to a group at all brokers, from their events (GROUP_EVENTS), and how its queues moved between members. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lockstep.operations.text import format_short_duration
from lockstep.protocol.bodies import GroupEvent, GroupEventKind, GroupEvents

LET_GO = (GroupEventKind.FREED, GroupEventKind.LOST, GroupEventKind.ENDED)
GRANTED = (GroupEventKind.GRANTED, GroupEventKind.RENEWED)


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """An event, and the broker that reports it."""

    broker: str
    event: GroupEvent


@dataclass(frozen=True, slots=True)
class HandOver:
    """A queue that was granted to another member than before."""

    broker: str
    topic: str
    queue_id: int
    before: str
    after: str
    at_ms: int
    """When it was granted, by the broker's clock, in ms since 1970."""
    took_ms: int
    """From the last sign of the owner before, or from when the next one joined if that is later."""
    lost: bool
    """Whether the owner before was gone, or silent for too long."""


def in_order(events: Mapping[str, Iterable[GroupEvent]]) -> list[PlacedEvent]:
    """Return the events of all brokers (broker name → its events) by time; those of one broker keep their order."""
    placed = [PlacedEvent(broker, event) for broker, each in events.items() for event in each]
    return sorted(placed, key=lambda each: (each.event.wall_ms, each.broker, each.event.number))


def hand_overs(events: Iterable[PlacedEvent]) -> list[HandOver]:
    """Return the hand-overs among these events of one group, in their order.

    A hand-over counts if the end of the grant before is among the events as well.
    """
    ended: dict[tuple[str, str, int], GroupEvent] = {}
    joined: dict[tuple[str, str], int] = {}
    found = []
    for placed in events:
        broker, event = placed.broker, placed.event
        if event.topic is None or event.queue_id is None:
            if event.kind is GroupEventKind.JOINED and event.client_id is not None:
                joined[broker, event.client_id] = event.wall_ms
            continue
        queue = broker, event.topic, event.queue_id
        if event.kind in LET_GO:
            ended[queue] = event
        elif event.kind in GRANTED and (before := ended.pop(queue, None)) is not None and before.client_id != event.client_id:
            client_id = event.client_id or ""
            last_ms = before.wall_ms if before.since_ms is None else before.since_ms
            took_ms = max(0, event.wall_ms - max(last_ms, joined.get((broker, client_id), last_ms)))
            lost = before.kind is GroupEventKind.LOST
            found.append(HandOver(*queue, before.client_id or "", client_id, event.wall_ms, took_ms, lost))
    return found


def summary(found: Sequence[HandOver]) -> str:
    """Return one sentence about the hand-overs."""
    if not found:
        return "no queue moved to another member"
    parts = []
    for lost, what in ((False, "released by the owner"), (True, "lost with the owner")):
        took = [each.took_ms for each in found if each.lost is lost]
        if took:
            parts.append(
                f"{len(took)} {what} (median {format_short_duration(int(median(took)))}, longest {format_short_duration(max(took))})"
            )
    return f"{len(found)} {'queue' if len(found) == 1 else 'queues'} moved to another member: {', '.join(parts)}"


def incomplete(group: str, replies: Mapping[str, GroupEvents], begin_ms: int | None) -> list[str]:
    """Return a sentence for each broker (name → its response) that does not know everything since `begin_ms`; None: since its start."""
    lines = []
    for broker, reply in replies.items():
        if begin_ms is not None and reply.began_ms > begin_ms:
            lines.append(f"{broker} started {format_short_duration(reply.wall_ms - reply.began_ms)} ago, and has no earlier events")
        elif _dropped(group, reply) and known_since(group, reply) > (begin_ms or 0):
            lines.append(f"{broker} has dropped earlier events of {group}: it keeps a limited number")
    return lines


def known_since(group: str, reply: GroupEvents) -> int:
    """Return from when on the broker knows all events of the group, in ms since 1970."""
    if not _dropped(group, reply):
        return reply.began_ms
    return min((event.wall_ms for event in reply.events), default=reply.wall_ms)


def _dropped(group: str, reply: GroupEvents) -> bool:
    return reply.first > 1 or group in reply.dropped
