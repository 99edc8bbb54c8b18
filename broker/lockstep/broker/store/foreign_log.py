"""Reads a log without an identity whole, before a store takes it over: another program made it (RocketMQ: the same format)."""

import asyncio

from lockstep.broker.store.commit_log import CommitLog
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.scan import DamagedRange, LogScan
from lockstep.broker.store.stored_record import StoredRecord
from lockstep.broker.store.survey import LogSurvey
from lockstep.protocol.sequence import FrameSequence

CHUNK_BYTES = 1 << 20


async def read_whole(log: CommitLog, survey: LogSurvey) -> None:
    """Read the log to its end and close it. Raise StoreCorruptError, with the position, unless all of it is records and then zeros."""
    log.load(survey)
    try:
        sink = _ForeignSink()
        scan = LogScan(log, log.start, sink)
        await scan.run(_yield_to_others)
        if sink.state_position is not None:
            raise StoreCorruptError(
                f"log position {sink.state_position}: the state of a lockstep broker. The log is such a broker's, and the directory "
                "lockstep with its identity and snapshots is missing: restore it. Nothing was changed",
                position=sink.state_position,
            )
        for segment in log.segments:
            at = max(scan.end, segment.start)
            while at < segment.end:
                data = segment.file.pread(min(CHUNK_BYTES, segment.end - at), at - segment.start)
                if data.count(0) != len(data):
                    why = scan.reason or f"zeros, and other bytes before {at + len(data)}"
                    raise StoreCorruptError(
                        f"log position {scan.end} in {segment.path}: {why}. The directory has no lockstep/identity, so another program "
                        "made it, and its log can't be read to the end. If that program was killed, let it start and stop once. "
                        "Nothing was changed",
                        position=scan.end,
                    )
                at += len(data)
    finally:
        log.close()


class _ForeignSink:
    """Takes every record; only the queue offsets have to be dense."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}
        self.state_position: int | None = None
        """Log position of the first state record; None if there is none."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return self._next.get((topic, queue_id))

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        if record.queued:
            self._next[record.topic, record.queue_id] = record.queue_offset + 1
        if record.body is not None and self.state_position is None:
            self.state_position = record.position

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, damaged_range: DamagedRange) -> bool:
        return False


async def _yield_to_others(_position: int) -> None:
    await asyncio.sleep(0)
