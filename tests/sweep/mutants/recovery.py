"""Rules of a store's retention, snapshots, rebuilds and recovery (store.md)."""

import asyncio
from collections.abc import Sequence
from typing import Any

from lockstep.broker.groups.tables.lock_table import LockTable
from lockstep.broker.maintenance import StoreMaintenance
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.log import scan
from lockstep.broker.store.log.append import ENTRY_BYTES
from lockstep.broker.store.log.checkpoint import Checkpointer
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.queues.rebuild import EntryRebuild
from lockstep.broker.store.start.snapshot import Snapshots, decode, encode
from lockstep.broker.store.store import Store
from lockstep.broker.tables.sequence_table import SequenceTable
from lockstep.testing.simulation.disk import SimFile
from sweep.mutants.log import _no_crc
from sweep.mutants.registry import Patches, mutant

LAWS = "tests/unit/broker/test_coordination_laws.py::test_every_interleaving_keeps_the_laws_and_replays_to_the_same_state"
MADE_AGAIN = "tests/unit/broker/test_state.py::test_topic_recreated_during_a_snapshot_is_empty_after_a_start"


@mutant("rot")
def the_frames_crc_is_not_checked(patch: Patches) -> None:
    """The CRC of an idempotent frame is compared when the log is read back: it covers bytes that no body CRC covers."""
    patch.set(scan, "frame_crc", _no_crc)


@mutant("rebuilt")
def a_rebuilt_queue_leaves_its_last_record_out(patch: Patches) -> None:
    """A consume queue that is built again has every record up to the snapshot."""
    fill = EntryRebuild._fill

    def all_but_the_last(self: EntryRebuild, topic: str, queue_id: int, first: int, entries: bytes) -> None:
        wanted = self._ranges.get((topic, queue_id))
        if wanted is not None and first + len(entries) // ENTRY_BYTES >= wanted.end:
            entries = entries[: max(0, wanted.end - 1 - first) * ENTRY_BYTES]
        fill(self, topic, queue_id, first, entries)

    patch.set(EntryRebuild, "_fill", all_but_the_last)


@mutant("repeats")
def sequences_from_before_the_snapshot_are_forgotten(patch: Patches) -> None:
    """The snapshot holds the last frame of each scope: frames repeated after a start are not stored twice."""
    patch.set(SequenceTable, "snapshot", lambda self: [])


@mutant("files")
def retention_removes_the_log_that_a_snapshot_needs(patch: Patches) -> None:
    """Retention keeps the log after the older of the two snapshots."""
    patch.set(Snapshots, "needs_from", property(lambda self: 1 << 62 if self.kept else None))


@mutant("files")
def removals_are_synced_once_at_the_end(patch: Patches) -> None:
    """Each file of the log is removed durably before the next one: a power cut leaves no gap."""

    def remove(self: CommitLog, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.file.close()
            self._files.unlink(segment.path)
        self._files.sync_directory(self._directory)

    patch.set(CommitLog, "remove", remove)


@mutant("files", aimed="tests/unit/broker/store/test_recovery.py::test_stale_next_file_is_zeroed_at_a_roll")
def a_file_that_comes_back_is_not_emptied(patch: Patches) -> None:
    """An existing file with the name of the log's next file is emptied before it is used."""
    patch.set(CommitLog, "_take_next", lambda self, path: self._files.open(path, create=True))


@mutant("files", aimed="tests/unit/broker/store/test_recovery.py::test_cut_is_durable_before_the_next_append")
def the_cut_tail_is_not_synced(patch: Patches) -> None:
    """The cut of a start is durable before anything is appended."""
    begin, sync = CommitLog.begin, SimFile.sync
    beginning: list[int] = []

    def unsynced(self: CommitLog, end: int, *, clean: bool, aside: str | None = None) -> None:
        beginning.append(1)
        try:
            begin(self, end, clean=clean, aside=aside)
        finally:
            beginning.pop()

    patch.set(CommitLog, "begin", unsynced)
    patch.set(SimFile, "sync", lambda self: None if beginning else sync(self))


@mutant("loss")
def this_runs_flush_mode_decides(patch: Patches) -> None:
    """Whether a suffix may be lost follows from the flush mode in which the last run served, not from this run's."""
    may_have = Store.may_have_forgotten

    def by_this_run(self: Store, boot_id: str) -> bool:
        last = self._last_boot
        self._last_boot = None if last is None else (last[0], self._config.flush.value)
        try:
            return may_have(self, boot_id)
        finally:
            self._last_boot = last

    patch.set(Store, "may_have_forgotten", by_this_run)


def _later_tables(patch: Patches, delay_s: float) -> None:
    """Write the tables as they are `delay_s` later into the snapshot of a position."""
    snapshot, write = StoreMaintenance.snapshot, Checkpointer.write
    states: dict[int, Any] = {}

    async def remembered(self: StoreMaintenance) -> None:
        states[id(self._store._checkpointer)] = self._state
        await snapshot(self)

    async def late(self: Checkpointer, position: int, needs_from: int, store_ms: int, chunks: Sequence[bytes]) -> None:
        taken, state = decode(b"".join(chunks)), states.get(id(self))
        if taken is not None and state is not None:
            await asyncio.sleep(delay_s)
            queues: list[list[object]] = [list(row) for row in taken.queues]
            plain = state.take_snapshot()
            head, start = taken.last_head, taken.log_start
            data = encode(position, taken.last_record, taken.store_ms, taken.state_next, queues, plain, taken.clock, head, start)
            chunks = [data]
        await write(self, position, needs_from, store_ms, chunks)

    patch.set(StoreMaintenance, "snapshot", remembered)
    patch.set(Checkpointer, "write", late)


@mutant("delete", aimed=MADE_AGAIN)
def a_snapshot_is_of_tables_a_turn_later(patch: Patches) -> None:
    """The tables of a snapshot are those at its position, taken in the same turn."""
    _later_tables(patch, 0)


@mutant("power", aimed=LAWS)
def rows_of_a_snapshot_follow_their_table(patch: Patches) -> None:
    """The rows of a snapshot are made in later turns, from a copy of the table."""

    def live(self: LockTable) -> SnapshotRows:
        return SnapshotRows(
            len(self), lambda: ([*key, lock.epoch, lock.session, lock.client_id, lock.held, lock.superseded] for key, lock in self)
        )

    patch.set(LockTable, "snapshot", live)


@mutant("delete", aimed=MADE_AGAIN)
def a_snapshot_is_of_tables_10_ms_later(patch: Patches) -> None:
    """The tables of a snapshot are those at its position, whatever has changed by the time it is written."""
    _later_tables(patch, 0.01)
