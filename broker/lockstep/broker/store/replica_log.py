"""The log of a store that copies the log of another one, its master's.

received ─▶ written at the end of the log ─▶ stored (by this store's own flush: written, or synced) ─▶ applied

Applied is what is confirmed, and only that: its entries are in the consume queues and its state is in the tables. So a cut of what was
never confirmed touches neither. The start of such a store applies everything that it has: it is followed by a start of its own if some of
that has to be cut (log_parting.py). Nothing is appended to this log, and no table is changed, but by what the master has written.
"""

import asyncio
from collections.abc import Callable

from lockstep.broker.store.config import FlushMode
from lockstep.broker.store.errors import NoNextFileError, StoreCorruptError, StoreDiskError
from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.log.scan import NO_RECORD, WINDOW_BYTES, LogScan
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.start.replay import LogState, ReplaySink, StateReplay
from lockstep.protocol.frame import FRAME_BYTES_MAX
from lockstep.runtime.files import Buffer

RECORD_BYTES_MAX = FRAME_BYTES_MAX
"""The most that a record, or the records of one frame, can have."""


class ReplicaLog:
    """Receives and applies. `Store.follow` creates it after the store has recovered."""

    def __init__(
        self,
        log: CommitLog,
        writer: LogWriter,
        queues: QueueTable,
        damage: DamageTable,
        state: LogState,
        replay: StateReplay,
        flush: FlushMode,
    ) -> None:
        self._log = log
        self._writer = writer
        self._queues = queues
        self._damage = damage
        self._state = state
        self._sink = ReplaySink(queues, replay, state, damage, dense=True, skips=False)
        self._flush = flush
        self.applied = log.end
        """Up to where the queues and the tables have the log."""

    @property
    def end(self) -> int:
        """Return the position of the next byte to be received."""
        return self._log.end

    @property
    def stored(self) -> int:
        """Return up to where this store keeps the log by its own flush mode."""
        return self._log.written if self._flush is FlushMode.ASYNC else self._log.synced

    @property
    def synced(self) -> int:
        """Return up to where the log is on the disk."""
        return self._log.synced

    def receive(self, position: int, data: Buffer) -> None:
        """Write bytes of the master's log. Raises NoNextFileError if there is no room for a file, StateError if they do not fit.

        Raises StoreDiskError if the write failed, which is final.
        """
        log = self._log
        try:
            log.receive(position, data)
            log.write()
        except NoNextFileError:
            raise
        except (OSError, StoreDiskError) as error:
            self._writer.fail(error)
            raise StoreDiskError(f"the log can't be written: {error}") from error
        self._writer.flusher.note_written(now=self._flush is FlushMode.SYNC)
        log.trim()

    def when_stored(self, callback: Callable[[], None]) -> None:
        """Call back when everything received so far is stored."""
        if self._flush is FlushMode.ASYNC:
            callback()
        else:
            self._writer.when_synced(callback)

    async def apply(self, confirmed: int) -> None:
        """Apply what was received up to `confirmed`, which is the end of a record. Lets other tasks run every megabyte.

        A replica that is behind has received a part of the record at its end: that one is left for the next call. Raises StoreCorruptError
        for anything else that is not a run of good records, with the position of the first bad one.
        """
        until = min(confirmed, self._log.written)
        if until <= self.applied:
            return
        window = min(WINDOW_BYTES, until - self.applied)
        known = self._damage.ranges
        scan = LogScan(self._log, self.applied, self._sink, until, known=known, window_bytes=window, runs=self._sink)
        await scan.run(_let_others_run)
        if scan.last_record >= 0:
            self._state.last_record = scan.last_record
        self.applied = scan.end
        self._queues.flush_some()
        is_cut = until < confirmed and until - scan.end < RECORD_BYTES_MAX
        if scan.end < until and not is_cut:
            what = f"the log received from the master has no good record at {scan.end}"
            raise StoreCorruptError(f"{what}: {scan.reason or NO_RECORD}", position=scan.end)


async def _let_others_run(_: int) -> None:
    await asyncio.sleep(0)
