"""Plan the reset of a group: compute each queue's new offset from the target. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote

from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.targets import Target, time_hint
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.errors import StateError
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Move:
    """The planned change of one queue."""

    queue: MessageQueue
    before: int | None
    """None if the group has no progress in the queue."""
    after: int
    first: int
    end: int
    parked: int = 0
    """The number of parked keys of the queue, which the reset forgets."""
    asked: int | None = None
    """The offset that another group or a file has, if the queue does not hold it: `after` is the nearest one that it holds."""

    @property
    def change(self) -> int:
        """Return how many messages are skipped; if negative, how many are consumed again."""
        return self.after - (self.first if self.before is None else max(self.before, self.first))


def totals(plan: Iterable[Move]) -> tuple[int, int]:
    """Return how many messages are consumed again, and how many are skipped."""
    changes = [move.change for move in plan]
    return -sum(min(0, each) for each in changes), sum(max(0, each) for each in changes)


def undo_commands(group: str, plan: Iterable[Move]) -> list[str]:
    """Return the shell commands that set the queues back to where they were: one for the queues of a topic with the same offset.

    They bring back offsets only: neither parked keys, nor what was finished above the committed offset. Queues that had no progress are
    left out.
    """
    queues: dict[tuple[str, int], list[str]] = {}
    for move in plan:
        if move.before is not None and move.before != move.after:
            place = move.queue.topic, max(move.before, move.first)
            queues.setdefault(place, []).append(f"--queue {quote(f'{move.queue.broker_name}:{move.queue.queue_id}')}")
    return [
        f"lockstep group reset-offset {quote(group)} --topic {quote(topic)} {' '.join(options)} --to {offset}"
        for (topic, offset), options in queues.items()
    ]


def offset_range(queue: MessageQueue, ranges: Mapping[MessageQueue, OffsetRange]) -> OffsetRange:
    """Return the queue's range. Raise StateError if the queue is new and its broker does not have it yet."""
    found = ranges.get(queue)
    if found is None:
        raise StateError(
            f"nothing was changed: broker {queue.broker_name} does not know {queue} yet, because the topic was altered just now. "
            "Run the command again"
        )
    return found


def plan_moves(
    queues: Iterable[MessageQueue],
    lines: Iterable[QueueLine],
    ranges: Mapping[MessageQueue, OffsetRange],
    target: Target,
    by_time: Mapping[MessageQueue, int],
) -> tuple[Move, ...]:
    """Return the planned change of each queue.

    Args:
        queues: The queues to reset.
        lines: The group's present progress and parked keys.
        ranges: The offsets that each queue holds.
        target: Where to reset to.
        by_time: For a target of kind "time", each queue's first message that was stored at that time or later.

    Raises:
        StateError: A queue does not contain the target offset, or is not known to its broker yet.
    """
    known = _known(lines)
    planned = []
    for queue in queues:
        held = offset_range(queue, ranges)
        after = {"beginning": held.min_offset, "end": held.max_offset, "offset": target.value, "time": by_time.get(queue, 0)}[target.kind]
        if target.kind == "offset" and not held.min_offset <= after <= held.max_offset:
            raise StateError(
                f"nothing was changed: {queue} has offsets {held.min_offset} to {held.max_offset}, not {after}"
                + (time_hint(after) or ". To name one queue only, add --queue BROKER:NUMBER")
            )
        after = max(held.min_offset, min(after, held.max_offset))
        before, parked = known.get(queue, (None, 0))
        planned.append(Move(queue, before, after, held.min_offset, held.max_offset, parked))
    return tuple(planned)


def plan_offsets(
    offsets: Mapping[MessageQueue, int], lines: Iterable[QueueLine], ranges: Mapping[MessageQueue, OffsetRange]
) -> tuple[Move, ...]:
    """Return the planned change of each queue to the given offset, or to the nearest one that the queue holds.

    Raises:
        StateError: A queue is not known to its broker yet.
    """
    known = _known(lines)
    planned = []
    for queue, offset in offsets.items():
        held = offset_range(queue, ranges)
        after = max(held.min_offset, min(offset, held.max_offset))
        before, parked = known.get(queue, (None, 0))
        planned.append(Move(queue, before, after, held.min_offset, held.max_offset, parked, None if after == offset else offset))
    return tuple(planned)


def _known(lines: Iterable[QueueLine]) -> dict[MessageQueue, tuple[int | None, int]]:
    """Return the committed offset and the number of parked keys by queue."""
    return {line.queue: (line.committed_offset, line.parked or 0) for line in lines}
