"""What each idempotent producer sent last to each queue: a repeat gets its first answer and is never stored twice.

RocketMQ has nothing like it (the broker never de-duplicates). One entry a scope = (producer id, partition, topic, queue id):
epoch, next sequence, running CRC, and the last frame with its place in the log. `end` = first + count of the frame that is asked about.

| scope           | epoch  | frame                                         | verdict                                           |
|-----------------|--------|-----------------------------------------------|---------------------------------------------------|
| unknown         | any    | flagged first, or first = 0                   | take                                              |
| unknown         | any    | else                                          | OUT_OF_SEQUENCE {next: 0}                         |
| known           | lower  | any                                           | STALE_EPOCH                                       |
| known           | higher | first = 0                                     | take                                              |
| known           | higher | else                                          | OUT_OF_SEQUENCE {next: 0}                         |
| known           | equal  | first = next                                  | take                                              |
| known           | equal  | end = next, the stored CRC, the last's first  | repeat: the first answer                          |
| known           | equal  | end = next, the stored CRC, another first     | DUPLICATE                                         |
| known           | equal  | end = next, another CRC                       | NON_DETERMINISTIC_RETRY                           |
| known           | equal  | end < next                                    | DUPLICATE                                         |
| known           | equal  | else (it straddles next, or leaves a gap)     | OUT_OF_SEQUENCE {next}                            |

A function of the log alone: what `record` is told live, recovery tells it again from the property `__LS_SEQ` of the frames. Time decides
only what is forgotten, and it is the store time of the scope's last frame, which is in the log too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.sequence import FrameSequence

SCOPE_COUNT_MAX = 100_000
"""Scopes remembered; about 40 MB. Beyond it the one that has been silent longest goes."""
IDLE_MS = 24 * 3_600_000
"""A scope without a frame for this long is forgotten: ten thousand times the longest send deadline."""
IDLE_GIVEN_MS = 7 * IDLE_MS
"""The same where the producer id was given (a query, a job): it comes back after a weekend."""


class Scope(NamedTuple):
    producer_id: str
    """32 hex digits."""
    partition: int
    topic: str
    queue_id: int


class StoredFrame(NamedTuple):
    """Where a frame was stored: its first answer."""

    queue_offset: int
    physical_offset: int
    store_timestamp: int


class LastFrame(NamedTuple):
    """What is known of one scope."""

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
    """`code` SUCCESS without a place: take it. With one: the frame is stored there already."""

    code: ResponseCode
    stored: StoredFrame | None = None
    next: int | None = None
    remark: str | None = None


ACCEPT = SequenceVerdict(ResponseCode.SUCCESS)
DUPLICATE = SequenceVerdict(ResponseCode.DUPLICATE, remark="the frame is stored already, its offset is no longer known")


class SequenceTable:
    """Scope → last frame, in the order of the log (the longest silent first)."""

    def __init__(self, *, scope_count_max: int = SCOPE_COUNT_MAX) -> None:
        self._scope_count_max = scope_count_max
        self._last: dict[Scope, LastFrame] = {}
        self._topics: Counter[str] = Counter()
        """Topic → how many scopes it has; none at 0."""

    def __len__(self) -> int:
        return len(self._last)

    def check_frame(self, scope: Scope, frame: FrameSequence, *, now_ms: int) -> SequenceVerdict:
        """What is to be done with a frame that came just now. `now_ms`: wall time. Changes nothing."""
        last = self.find_last(scope, now_ms=now_ms)
        if last is None:
            return ACCEPT if frame.first_known or frame.first == 0 else _gap(0, "the broker knows no earlier frame of this scope")
        if frame.epoch != last.epoch:
            return _other_epoch(last, frame)
        if frame.first == last.next:
            return ACCEPT
        return _same_epoch(last, frame)

    def record_frame(self, scope: Scope, frame: FrameSequence, place: StoredFrame) -> None:
        """The frame stands in the log at `place`."""
        if self._last.pop(scope, None) is None:
            self._topics[scope.topic] += 1
        self._last[scope] = LastFrame(frame.epoch, frame.first, frame.next, frame.crc, place, frame.given)
        if len(self._last) > self._scope_count_max:
            self._remove(next(iter(self._last)))

    def find_last(self, scope: Scope, *, now_ms: int) -> LastFrame | None:
        """What is known of the scope; None where nothing is, or was and is forgotten by now."""
        last = self._last.get(scope)
        return last if last is not None and now_ms - last.stored.store_timestamp <= last.idle_ms_max else None

    def crc_before(self, scope: Scope, frame: FrameSequence, *, now_ms: int) -> int | None:
        """The running CRC that a frame to be taken goes on from; None where nobody can know it (flagged first with a sequence above 0)."""
        if frame.first == 0:
            return 0
        if frame.first_known:
            return None
        last = self.find_last(scope, now_ms=now_ms)
        return last.crc if last is not None and last.epoch == frame.epoch and last.next == frame.first else None

    def drop_topic(self, topic: str) -> None:
        """Its messages are gone: who sends them again, under an id that was given, means to have them stored."""
        if topic in self._topics:
            for scope in [scope for scope in self._last if scope.topic == topic]:
                self._remove(scope)

    def forget_idle(self, *, now_ms: int) -> Iterator[bool]:
        """Frees what has been idle for too long. Answers do not depend on when it is called.

        Yields for each scope that it looks at whether it was freed: the caller may let other work in between.
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
        remark = f"producer epoch {frame.epoch} is over: the scope is at {last.epoch}; {why}"
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
