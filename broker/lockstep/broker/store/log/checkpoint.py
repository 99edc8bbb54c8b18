"""When a snapshot is due, and the order in which it becomes durable: log, consume queues, snapshot, Apache's checkpoint."""

from collections.abc import Sequence

from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.runtime.host import Host


class Checkpointer:
    """Writes one snapshot at a time."""

    def __init__(
        self, config: StoreConfig, host: Host, directory: StoreDirectory, writer: LogWriter, queues: QueueTable, snapshots: Snapshots
    ) -> None:
        self._config = config
        self._host = host
        self._directory = directory
        self._writer = writer
        self._queues = queues
        self._snapshots = snapshots
        self._last_ms = host.clock.monotonic_ms()
        self.last_position = 0
        """Log offset of the newest snapshot."""
        self.running = False
        """From the turn in which a snapshot copies the tables until it is written."""

    def due(self, log_end: int, now_ms: int) -> bool:
        """Return whether enough was logged since the last snapshot, or anything was and enough time has passed."""
        grown = log_end - self.last_position
        by_time = grown > 0 and now_ms - self._last_ms >= self._config.snapshot_interval_ms
        return not self.running and (grown >= self._config.snapshot_bytes or by_time)

    async def write(self, position: int, needs_from: int, store_ms: int, chunks: Sequence[bytes]) -> None:
        """Make the file of these chunks, the tables at `position`, the newest snapshot. The log must be written up to there.

        Every copy of the log has to have it up to there too: what only this one has may be cut.
        """
        await self._queues.flush_gradually()
        await self._writer.flusher.sync(record=True)
        if self._writer.confirmed < position:
            await self._writer.wait_confirmed()
        await self.sync_queues(store_ms)
        self._snapshots.note_writing(position, needs_from)
        await self._host.threads.run(self._snapshots.write, position, chunks)
        dropped = self._snapshots.note_durable(position, needs_from)
        await self._host.threads.run(self._snapshots.remove, dropped)
        self._snapshots.note_removed(dropped)
        self.last_position = position
        self._last_ms = self._host.clock.monotonic_ms()

    async def sync_queues(self, store_ms: int) -> None:
        """Make the written part of the consume queues durable, and record that in Apache's checkpoint."""
        paths, directories = self._queues.files.take_unsynced()
        try:
            await self._host.threads.run(self._queues.files.sync, paths, directories)
        except BaseException:  # re-raised
            self._queues.files.mark_unsynced(paths, directories)
            raise
        await self._host.threads.run(self._directory.checkpoint, store_ms)
