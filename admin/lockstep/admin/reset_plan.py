"""Where a reset of a group would put each queue. Pure: what is there and where to → what changes."""

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
    """`word` is "beginning", "end", "offset" or "time"; `value` the offset, or ms since 1970."""

    word: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One queue of the plan."""

    queue: MessageQueue
    before: int | None
    """None: the group has no progress there."""
    after: int
    first: int
    end: int

    @property
    def change(self) -> int:
        """Above 0: messages that are skipped; below: that are handled again."""
        return self.after - (self.first if self.before is None else max(self.before, self.first))


def parse_target(text: str, now_ms: int) -> Target:
    """beginning, end, an offset, an ISO time (without a zone: UTC), or a span of time ago: 90s, 30m, 2h, 7d. ConfigError.

    Digits alone are an offset, never a date; times are those since 1970."""
    word = text.strip()
    if word in ("beginning", "end"):
        return Target(word)
    if number := NUMBER.fullmatch(word):
        count, unit = int(number[1]), number[2]
        target = Target("time", now_ms - count * UNITS_S[unit] * 1000) if unit else Target("offset", count)
    else:
        target = Target("time", _moment_ms(text))
    if target.value < 0:
        raise ConfigError(f"--to {text!r}: before 1970-01-01, when nothing was stored yet: say --to beginning")
    return target


def _moment_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat("" if text.strip().isdecimal() else text.strip())
    except ValueError:
        raise ConfigError(
            f"--to {text[:80]!r}: expected beginning, end, an offset (1500; at most 19 digits), a time (2026-11-21T15:00:00Z) or how long "
            "ago (90s, 30m, 2h, 7d)"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_queue(text: str) -> tuple[str, int]:
    """ "broker-a:3" as (broker name, queue id). ConfigError."""
    found = QUEUE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--queue {text[:80]!r}: expected BROKER:NUMBER, as in broker-a:3; a number has at most 9 digits")
    return found[1], int(found[2])


def held_range(queue: MessageQueue, ranges: Mapping[MessageQueue, OffsetRange]) -> OffsetRange:
    """StateError where the broker has not heard of the queue yet, which the nameserver's layout has."""
    held = ranges.get(queue)
    if held is None:
        raise StateError(
            f"broker {queue.broker_name} does not know {queue} yet, the topic was altered just now: nothing was changed, run it again"
        )
    return held


def moves(
    queues: Iterable[MessageQueue],
    lines: Iterable[QueueLine],
    ranges: Mapping[MessageQueue, OffsetRange],
    target: Target,
    by_time: Mapping[MessageQueue, int],
) -> tuple[Move, ...]:
    """The plan. `ranges`: what each queue holds; `by_time`: for a time, the first message stored then or later. StateError."""
    before = {MessageQueue(line.topic, line.broker, line.queue_id): line.committed_offset for line in lines}
    planned = []
    for queue in queues:
        held = held_range(queue, ranges)
        after = {"beginning": held.min_offset, "end": held.max_offset, "offset": target.value, "time": by_time.get(queue, 0)}[target.word]
        if target.word == "offset" and not held.min_offset <= after <= held.max_offset:
            raise StateError(
                f"--to {after}: {queue} holds {held.min_offset} to {held.max_offset}; name one queue with --queue BROKER:NUMBER"
            )
        after = max(held.min_offset, min(after, held.max_offset))
        planned.append(Move(queue, before.get(queue), after, held.min_offset, held.max_offset))
    return tuple(planned)
