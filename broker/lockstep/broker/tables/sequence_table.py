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

The table depends on the log alone: recovery passes `record_last` the same values as the running broker, taken from the property `__LS_SEQ`
of the frames. Time decides only when a scope is forgotten, and it counts from the store time of the last frame, which is in the log too.

A full table forgets the longest silent scope of the topic that has the most, so that sends to one topic don't make it forget the scopes of
topics that have fewer. Topics stand for their users here, because the log does not say who has sent a frame.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.messages.sequence import FrameSequence

SCOPE_COUNT_MAX = 100_000
"""Number of scopes, about 45 MB."""
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
    """A table of scope → last frame."""

    def __init__(self, *, scope_count_max: int = SCOPE_COUNT_MAX) -> None:
        self._scope_count_max = scope_count_max
        self._count = 0
        self._topics: dict[str, OrderedDict[Scope, LastFrame]] = {}
        """Topic → its scopes, in the order of the log (longest silent first). A topic without scopes has no entry."""
        self._sizes: list[tuple[int, str]] = []
        """A heap of (−number of scopes, topic), among them one of each topic as it is now."""

    def __len__(self) -> int:
        return self._count

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
        self.record_last(scope, LastFrame(frame.epoch, frame.first, frame.next, frame.crc, stored, frame.given))

    def record_last(self, scope: Scope, last: LastFrame) -> None:
        """Record that this is the last frame of the scope in the log."""
        scopes = self._topics.get(scope.topic)
        if scopes is None or scope not in scopes:
            if self._count >= self._scope_count_max:
                self._evict(scope.topic)
            self._add(scope, last)
        else:
            scopes[scope] = last
            scopes.move_to_end(scope)

    def fits(self, count: int) -> bool:
        """Return whether `count` frames of scopes that may be new would make it forget none."""
        return self._count + count <= self._scope_count_max

    def find_last(self, scope: Scope, *, now_ms: int) -> LastFrame | None:
        """Return the last frame of the scope, or None if there is none or it is forgotten by now."""
        scopes = self._topics.get(scope.topic)
        last = None if scopes is None else scopes.get(scope)
        return last if last is not None and now_ms - last.stored.store_timestamp <= last.idle_ms_max else None

    def crc_before(self, scope: Scope, frame: FrameSequence, *, now_ms: int) -> int | None:
        """Return the running CRC that a frame to be stored continues from.

        Return None if it can't be known: the frame is flagged first and its sequence is above 0.
        """
        if frame.first == 0:
            return 0
        return None if frame.first_known else self.crc_at(scope, frame.epoch, frame.first, now_ms=now_ms)

    def crc_at(self, scope: Scope, epoch: int, sequence: int, *, now_ms: int) -> int | None:
        """Return the running CRC of the scope before this sequence of the epoch, or None if its last frame does not end there."""
        last = self.find_last(scope, now_ms=now_ms)
        return last.crc if last is not None and last.epoch == epoch and last.next == sequence else None

    def drop_topic(self, topic: str) -> None:
        """Remove the scopes of a topic whose messages are deleted. A given producer id that sends them again wants them to be stored."""
        self._count -= len(self._topics.pop(topic, ()))

    def forget_idle(self, *, now_ms: int) -> Iterator[bool]:
        """Remove scopes that have been idle for too long. Verdicts do not depend on when it is called.

        Yields after each scope whether it was removed, so that the caller may let other work run in between.
        """
        for topic, scopes in list(self._topics.items()):
            for scope in list(scopes):
                last = scopes.get(scope)
                if last is None or self._topics.get(topic) is not scopes:
                    continue
                idle_ms = now_ms - last.stored.store_timestamp
                gone = idle_ms > last.idle_ms_max
                if gone:
                    self._remove(scope)
                yield gone
                if idle_ms <= IDLE_MS:
                    break

    def snapshot(self) -> SnapshotRows:
        copies = [each for scopes in self._topics.values() for each in scopes.items()]
        return SnapshotRows(
            len(copies),
            lambda: ([*scope, last.epoch, last.first, last.next, last.crc, *last.stored, last.given] for scope, last in copies),
        )

    def restore(self, plain: Iterable[list[object]]) -> None:
        self._count = 0
        self._topics.clear()
        self._sizes.clear()
        for row in plain:
            producer_id, partition, topic, queue_id, epoch, first, next_, crc, *place, given = row
            scope = Scope(producer_id, partition, topic, queue_id)  # type: ignore[arg-type]
            self._add(scope, LastFrame(epoch, first, next_, crc, StoredFrame(*place), given))  # type: ignore[arg-type]

    def _add(self, scope: Scope, last: LastFrame) -> None:
        self._topics.setdefault(scope.topic, OrderedDict())[scope] = last
        self._count += 1
        self._resized(scope.topic)

    def _evict(self, topic: str) -> None:
        """Make room for a scope of a topic, which itself loses one if no topic has more."""
        while -self._sizes[0][0] != len(self._topics.get(self._sizes[0][1], ())):
            heappop(self._sizes)
        size, largest = self._sizes[0]
        self._remove(next(iter(self._topics[topic if len(self._topics.get(topic, ())) == -size else largest])))

    def _remove(self, scope: Scope) -> None:
        scopes = self._topics[scope.topic]
        del scopes[scope]
        self._count -= 1
        if scopes:
            self._resized(scope.topic)
        else:
            del self._topics[scope.topic]

    def _resized(self, topic: str) -> None:
        """Note how many scopes a topic has now."""
        heappush(self._sizes, (-len(self._topics[topic]), topic))
        if len(self._sizes) > 2 * len(self._topics) + 100:
            self._sizes = [(-len(scopes), each) for each, scopes in self._topics.items()]
            heapify(self._sizes)


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
