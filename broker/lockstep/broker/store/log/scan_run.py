"""Let the kernel `scan_run` read runs of the log for a scan (ADR 27).

A run is good ordinary records and whole idempotent frames of them, one after the other. It ends before whatever else comes: a state record,
a message that waits, the copy that ends its wait, a message of a transaction that has no place in its queue, a blank, a queue offset that
is not the next one, a store time that falls, anything damaged. There the Python form of the scan goes on, which is the law: after each run
everything is as if it had read the records one by one.
"""

from typing import NamedTuple, Protocol

from lockstep.broker.store.log.stored_record import BadRecordError, FrameEnd, FrameRow, ScopeKey, topic_of
from lockstep.broker.store.log.waiting_records import SEALED
from lockstep.protocol.frame import FRAME_BYTES_MAX
from lockstep.protocol.messages.record import RECORD_BYTES_MIN
from lockstep.protocol.names import STATE_TOPIC
from lockstep.protocol.native import kernels

RUN_BYTES_MAX = FRAME_BYTES_MAX
"""Number of bytes that are read for a frame that is longer than a window. No request has a longer one."""
OTHER_TOPICS = frozenset({STATE_TOPIC, *SEALED})
"""Topics whose records the Python form reads."""

QueueRow = tuple[str, int, int, int, bytes]
"""(topic, queue id, queue offset of the first message, number of messages, their entries of the consume queue) in a run."""


class ScannedRun(NamedTuple):
    """What a run gives."""

    size: int
    """Its bytes. 0 if the window has less than a whole record or frame."""
    cut: int
    """How many more bytes the next record has at least, if the run ends because the window does. Else 0."""
    position: int
    """Log position of its first record."""
    first_ms: int
    """Store time of its first record. They do not fall."""
    last_record: int
    """Log position of its last record."""
    last_ms: int
    queues: list[QueueRow]
    """In the order of their first messages."""
    frames: list[FrameRow]
    """The last frame of each scope, in the order of these; if `RunSink.scopes_fit` says no, every frame."""


class RunSink(Protocol):
    """Receives runs instead of single records."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        """Return what the same method of the ScanSink does."""
        ...

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        """Return what the same method of the ScanSink does."""
        ...

    def scopes_fit(self, count: int) -> bool:
        """Return whether only the last frame matters of each scope in a run with at most `count` of them."""
        ...

    def take_run(self, run: ScannedRun) -> None: ...


class RunScan:
    """The runs of one scan."""

    def __init__(self, sink: RunSink, topics: dict[bytes, str], scopes: dict[ScopeKey, FrameEnd]) -> None:
        """`topics` and `scopes` are the scan's own: the topics that it has read, and the last frame of each scope."""
        self._sink = sink
        self._topics = topics
        self._scopes = scopes

    def take(self, window: bytes, at: int, end: int, position: int) -> ScannedRun | None:
        """Give the sink the run that begins at `position` of the log, which is byte `at` of the window, and ends before byte `end`.

        Return it, or None if there is none.
        """
        if kernels is None:
            return None
        condense = self._sink.scopes_fit((end - at) // RECORD_BYTES_MIN)
        found = kernels.scan_run(window, at, end, position, self._queue, self._scopes, self._sink.crc_before, condense)
        if found is None:
            return None
        size, cut, first_ms, last_ms, last_record, queues, frames = found
        run = ScannedRun(size, cut, position, first_ms, last_record, last_ms, queues, frames)
        if size:
            for scope, last, _ in frames:
                self._scopes[scope] = last
            self._sink.take_run(run)
        return run

    def _queue(self, name: bytes, queue_id: int) -> tuple[str, int] | None:
        """Return the topic and the expected queue offset (−1: any), or None if the Python form reads the record."""
        try:
            topic = topic_of(name, self._topics)
        except BadRecordError:
            return None
        if topic in OTHER_TOPICS:
            return None
        expected = self._sink.expected_offset(topic, queue_id)
        return topic, -1 if expected is None else expected
