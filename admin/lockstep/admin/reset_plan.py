"""Plan the reset of a group: compute each queue's new offset from the target. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lockstep.admin.group_report import QueueLine
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.errors import ConfigError, StateError
from lockstep.protocol.queue import MessageQueue

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
NUMBER = re.compile(r"(\d{1,19})([smhd]?)", re.ASCII)
"""Offsets are int64, which has 19 digits."""
QUEUE = re.compile(r"(.+):(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to reset to. `kind` is "beginning", "end", "offset" or "time"; `value` is the offset, or milliseconds since 1970."""

    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """The planned change of one queue."""

    queue: MessageQueue
    before: int | None
    """None if the group has no progress in the queue."""
    after: int
    first: int
    end: int

    @property
    def change(self) -> int:
        """Return how many messages are skipped; if negative, how many are consumed again."""
        return self.after - (self.first if self.before is None else max(self.before, self.first))


def parse_target(text: str, now_ms: int) -> Target:
    """Parse beginning, end, an offset, an ISO 8601 time (UTC if it has no zone), or a duration ago: 90s, 30m, 2h, 7d.

    Digits alone are an offset, never a date. Raise ConfigError for other text and for times before 1970.
    """
    stripped = text.strip()
    if stripped in ("beginning", "end"):
        return Target(stripped)
    if number := NUMBER.fullmatch(stripped):
        count, unit = int(number[1]), number[2]
        target = Target("time", now_ms - count * UNITS_S[unit] * 1000) if unit else Target("offset", count)
    else:
        target = Target("time", _parse_time_ms(text))
    if target.value < 0:
        raise ConfigError(f"--to {text!r} is before 1970-01-01: use --to beginning")
    return target


def _parse_time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat("" if text.strip().isdecimal() else text.strip())
    except ValueError:
        raise ConfigError(
            f"--to {text[:80]!r}: expected beginning, end, an offset (1500; at most 19 digits), a time (2026-11-21T15:00:00Z) or a "
            "duration ago (90s, 30m, 2h, 7d)"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_queue(text: str) -> tuple[str, int]:
    """Return "broker-a:3" as (broker name, queue id). Raise ConfigError."""
    found = QUEUE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--queue {text[:80]!r}: expected BROKER:NUMBER, as in broker-a:3; NUMBER has at most 9 digits")
    return found[1], int(found[2])


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
        lines: The group's present progress.
        ranges: The offsets that each queue holds.
        target: Where to reset to.
        by_time: For a target of kind "time", each queue's first message that was stored at that time or later.

    Raises:
        StateError: A queue does not contain the target offset, or is not known to its broker yet.
    """
    before = {MessageQueue(line.topic, line.broker, line.queue_id): line.committed_offset for line in lines}
    planned = []
    for queue in queues:
        held = offset_range(queue, ranges)
        after = {"beginning": held.min_offset, "end": held.max_offset, "offset": target.value, "time": by_time.get(queue, 0)}[target.kind]
        if target.kind == "offset" and not held.min_offset <= after <= held.max_offset:
            raise StateError(
                f"nothing was changed: {queue} has offsets {held.min_offset} to {held.max_offset}, not {after}. "
                "To reset one queue only, add --queue BROKER:NUMBER"
            )
        after = max(held.min_offset, min(after, held.max_offset))
        planned.append(Move(queue, before.get(queue), after, held.min_offset, held.max_offset))
    return tuple(planned)
