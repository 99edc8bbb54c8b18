"""The last frame of each idempotent producer in each queue: a repeat gets the first response and is not stored twice (ordering.md 10).

RocketMQ has no such table: its broker never de-duplicates. One entry per scope = (producer id, partition, topic, queue id) holds the epoch,
the next sequence, the running CRC, and the last frame with its position in the log. `end` is first + count of the frame to be checked.

| scope           | epoch  | frame                                         | verdict                                           |
|-----------------|--------|-----------------------------------------------|---------------------------------------------------|
| unknown         | any    | flagged first, or first = 0                   | accept                                            |
| unknown         | any    | else                                          | OUT_OF_SEQUENCE {next: 0}                         |
| known           | lower  | any                                           | STALE_EPOCH                                       |
| known           | higher | first = 0                                     | accept                                            |
| known           | higher | else                                          | OUT_OF_SEQUENCE {next: 0}                         |
| known           | equal  | first = next                                  | accept                                            |
| known           | equal  | end = next, the stored CRC, the last's first  | repeat: the first response                        |
| known           | equal  | end = next, the stored CRC, another first     | DUPLICATE                                         |
| known           | equal  | end = next, another CRC                       | NON_DETERMINISTIC_RETRY                           |
| known           | equal  | end < next                                    | DUPLICATE                                         |
| known           | equal  | else (it straddles next, or leaves a gap)     | OUT_OF_SEQUENCE {next}                            |

The table depends on the log alone: recovery passes `record_frame` the same values as the running broker, taken from the property `__LS_SEQ`
of the frames. Time decides only when a scope is forgotten, and it counts from the store time of the last frame, which is in the log too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.messages.sequence import FrameSequence

SCOPE_COUNT_MAX = 100_000
"""Number of scopes, about 40 MB. Above it the scope that has been silent for longest is removed."""
IDLE_MS = 24 * 3_600_000
"""A scope without a frame for this long is forgotten. It is ten thousand times the longest send deadline."""
IDLE_GIVEN_MS = 7 * IDLE_MS
"""The same for a producer id that was given (a query, a job), so that it may return after a weekend."""


class Scope(NamedTuple):
    producer_id: str
    """32 hex digits."""
    partition: int
    topic: str
    queue_id: int


class StoredFrame(NamedTuple):
    """Where and when a frame was stored, as the first response reported it."""

    queue_offset: int
    physical_offset: int
    store_timestamp: int


class LastFrame(NamedTuple):
    """The last frame of one scope."""

    epoch: int
    first: int
    next: int
    crc: int
    stored: StoredFrame
    given: bool

    @property
    def idle_ms_max(self) -> int:
        return IDLE_GIVEN_MS if self.given else IDLE_MS


class SequenceVerdict(NamedTuple):
    """The result of a check. SUCCESS without `stored`: store the frame. SUCCESS with `stored`: the frame is already stored there."""

    code: ResponseCode
    stored: StoredFrame | None = None
    next: int | None = None
    remark: str | None = None


ACCEPT = SequenceVerdict(ResponseCode.SUCCESS)
DUPLICATE = SequenceVerdict(ResponseCode.DUPLICATE, remark="the frame is already stored; its offset is no longer known")


class SequenceTable:
    """A table of scope → last frame, in the order of the log (longest silent first)."""

    def __init__(self, *, scope_count_max: int = SCOPE_COUNT_MAX) -> None:
        self._scope_count_max = scope_count_max
        self._last: dict[Scope, LastFrame] = {}
        self._topics: Counter[str] = Counter()
        """Topic → number of its scopes. A topic without scopes has no entry."""

    def __len__(self) -> int:
        return len(self._last)

    def check_frame(self, scope: Scope, frame: FrameSequence, *, now_ms: int) -> SequenceVerdict:
        """Return the verdict on a frame that arrived now. `now_ms` is wall time. Changes nothing."""
        last = self.find_last(scope, now_ms=now_ms)
        if last is None:
            return ACCEPT if frame.first_known or frame.first == 0 else _gap(0, "the broker knows no earlier frame of this scope")
        if frame.epoch != last.epoch:
            return _other_epoch(last, frame)
        if frame.first == last.next:
            return ACCEPT
        return _same_epoch(last, frame)

    def record_frame(self, scope: Scope, frame: FrameSequence, stored: StoredFrame) -> None:
        """Record that the frame is in the log, at `stored`."""
        if self._last.pop(scope, None) is None:
            self._topics[scope.topic] += 1
        self._last[scope] = LastFrame(frame.epoch, frame.first, frame.next, frame.crc, stored, frame.given)
        if len(self._last) > self._scope_count_max:
            self._remove(next(iter(self._last)))

    def find_last(self, scope: Scope, *, now_ms: int) -> LastFrame | None:
        """Return the last frame of the scope, or None if there is none or it is forgotten by now."""
        last = self._last.get(scope)
        return last if last is not None and now_ms - last.stored.store_timestamp <= last.idle_ms_max else None

    def crc_before(self, scope: Scope, frame: FrameSequence, *, now_ms: int) -> int | None:
        """Return the running CRC that a frame to be stored continues from.

        Return None if it can't be known: the frame is flagged first and its sequence is above 0.
        """
        if frame.first == 0:
            return 0
        if frame.first_known:
            return None
        last = self.find_last(scope, now_ms=now_ms)
        return last.crc if last is not None and last.epoch == frame.epoch and last.next == frame.first else None

    def drop_topic(self, topic: str) -> None:
        """Remove the scopes of a topic whose messages are deleted. A given producer id that sends them again wants them to be stored."""
        if topic in self._topics:
            for scope in [scope for scope in self._last if scope.topic == topic]:
                self._remove(scope)

    def forget_idle(self, *, now_ms: int) -> Iterator[bool]:
        """Remove scopes that have been idle for too long. Verdicts do not depend on when it is called.

        Yields after each scope whether it was removed, so that the caller may let other work run in between.
        """
        for scope in list(self._last):
            last = self._last.get(scope)
            if last is None:
                continue
            idle_ms = now_ms - last.stored.store_timestamp
            if idle_ms <= IDLE_MS:
                break
            gone = idle_ms > last.idle_ms_max
            if gone:
                self._remove(scope)
            yield gone

    def snapshot(self) -> SnapshotRows:
        copies = list(self._last.items())
        return SnapshotRows(
            len(copies),
            lambda: ([*scope, last.epoch, last.first, last.next, last.crc, *last.stored, last.given] for scope, last in copies),
        )

    def restore(self, plain: Iterable[list[object]]) -> None:
        self._last.clear()
        self._topics.clear()
        for row in plain:
            producer_id, partition, topic, queue_id, epoch, first, next_, crc, *place, given = row
            scope = Scope(producer_id, partition, topic, queue_id)  # type: ignore[arg-type]
            self._last[scope] = LastFrame(epoch, first, next_, crc, StoredFrame(*place), given)  # type: ignore[arg-type]
            self._topics[scope.topic] += 1

    def _remove(self, scope: Scope) -> None:
        del self._last[scope]
        self._topics[scope.topic] -= 1
        if not self._topics[scope.topic]:
            del self._topics[scope.topic]


def _gap(expected: int, why: str) -> SequenceVerdict:
    return SequenceVerdict(ResponseCode.OUT_OF_SEQUENCE, next=expected, remark=f"{why}: expected sequence {expected}")


def _other_epoch(last: LastFrame, frame: FrameSequence) -> SequenceVerdict:
    if frame.epoch < last.epoch:
        why = "another producer with this id has taken over, or the batch was given up"
        remark = f"producer epoch {frame.epoch} has ended: the scope is at {last.epoch}; {why}"
        return SequenceVerdict(ResponseCode.STALE_EPOCH, remark=remark)
    return ACCEPT if frame.first == 0 else _gap(0, f"producer epoch {frame.epoch} is new here and starts at 0")


def _same_epoch(last: LastFrame, frame: FrameSequence) -> SequenceVerdict:
    end = frame.next
    if end < last.next:
        return DUPLICATE
    if end > last.next:
        return _gap(last.next, f"frame [{frame.first}, {end}) does not begin where the last one ended")
    if frame.crc != last.crc:
        remark = f"frame [{frame.first}, {end}) has CRC {frame.crc:08x}, the stored one {last.crc:08x}: a retry must carry the same bytes"
        return SequenceVerdict(ResponseCode.NON_DETERMINISTIC_RETRY, remark=remark)
    return SequenceVerdict(ResponseCode.SUCCESS, last.stored) if frame.first == last.first else DUPLICATE
