"""Rules of the store (store.md), and of the time at which a response may be sent."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lockstep.broker.store.log import commit_log, scan, stored_record
from lockstep.broker.store.log.checkpoint import Checkpointer
from lockstep.broker.store.log.commit_log import CommitLog, SyncPlan
from lockstep.broker.store.log.commit_waiters import CommitWaiters
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.start import snapshot_choice
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.recovery import Recoverer
from lockstep.broker.store.start.snapshot_choice import SnapshotEvidence
from lockstep.broker.store.store import Store
from lockstep.testing.simulation.disk import SimFiles
from sweep.mutants.registry import Patches, mutant


@mutant("fsync", "power")
def responses_are_sent_before_the_log_is_confirmed(patch: Patches) -> None:
    """A response waits until the log is confirmed up to its end."""
    patch.set(LogWriter, "when_confirmed", lambda self, callback: callback())


@mutant("fsync", "power")
def responses_to_repeats_are_sent_at_once(patch: Patches) -> None:
    """The response to a repeat waits for the log too: the first frame may not be durable yet."""
    wait = CommitWaiters.call_when_confirmed

    def impatient(self: CommitWaiters, callback: Any, turn_is_open: bool) -> None:
        if turn_is_open:
            wait(self, callback, turn_is_open)
        else:
            callback()

    patch.set(CommitWaiters, "call_when_confirmed", impatient)


@mutant("blackout")
def shown_before_confirmed(patch: Patches) -> None:
    """Readers see confirmed messages only."""
    add = ConsumeQueue.add_entries

    def shown(self: ConsumeQueue, entries: bytes, count: int) -> None:
        add(self, entries, count)
        self.visible = self.next

    patch.set(ConsumeQueue, "add_entries", shown)


@mutant("fsync", "power", aimed="tests/unit/broker/store/test_crashes.py::test_confirmed_records_survive_crashes_and_no_others_appear")
def recovered_is_served_unsynced(patch: Patches) -> None:
    """The results of a start are durable before the port opens."""

    async def unsynced(self: Store) -> None:
        self.writer.end_turn()
        self.writer._unconfirmed_end = None
        self.writer._waiters.confirm(self._log.written)

    patch.set(Store, "sync", unsynced)


@mutant("power")
def sync_that_does_nothing(patch: Patches) -> None:
    """A sync covers the files that were written."""
    patch.set(SyncPlan, "run", lambda self: None)


@mutant("power")
def directories_are_not_synced(patch: Patches) -> None:
    """A new file's name is synced before any response for its messages."""
    patch.set(SimFiles, "sync_directory", lambda self, path: None)


@mutant("power", "disk", aimed="tests/sim/test_aimed.py::test_snapshot_is_written_only_once_the_log_is_durable_up_to_its_position")
def snapshot_before_sync(patch: Patches) -> None:
    """A snapshot is written when the log is durable up to its position."""
    write = Checkpointer.write

    async def early(self: Checkpointer, position: int, needs_from: int, store_ms: int, chunks: Sequence[bytes]) -> None:
        await self._host.threads.run(self._snapshots.write, position, chunks)
        await write(self, position, needs_from, store_ms, chunks)

    patch.set(Checkpointer, "write", early)


@mutant("power", "disk", aimed="tests/unit/broker/store/test_snapshots.py::test_snapshot_ahead_of_the_log_is_ignored_and_removed")
def a_snapshot_ahead_of_the_log_is_used(patch: Patches) -> None:
    """A snapshot that does not agree with the log is removed."""
    patch.set(snapshot_choice, "snapshot_evidence", lambda log, damage, snapshot: SnapshotEvidence.FITS)


@mutant("power", "disk", aimed="tests/unit/broker/store/test_recovery.py::test_torn_tail_is_cut_and_zeroed")
def the_cut_tail_is_not_zeroed(patch: Patches) -> None:
    """The bytes after the end of the recovered log are zero again, durably."""

    def begin(self: CommitLog, end: int, *, clean: bool, aside: str | None = None) -> None:
        for path in self._stray:
            self._files.unlink(path)
        self._stray = []
        self.tail = bytearray()
        self.tail_start = self.written = end
        self._unsynced = list(self.segments)

    patch.set(CommitLog, "begin", begin)


@mutant("disk", aimed="tests/unit/broker/store/test_recovery.py::test_crash_between_a_failed_sync_and_its_mark_loses_no_visible_message")
def the_page_cache_is_trusted(patch: Patches) -> None:
    """After a failed sync, readable bytes may not be on the disk: they are copied into new files."""
    patch.set(CommitLog, "replace_segments", lambda self, position, end: None)
    patch.set(CommitLog, "rewrite", lambda self, position, end: None)


@mutant(
    "disk",
    aimed="tests/unit/broker/store/test_recovery.py::test_tail_is_rewritten_to_a_new_file_after_a_failed_sync",
)
def a_failed_sync_is_forgotten(patch: Patches) -> None:
    """A failed sync is marked, for the next start."""
    patch.set(StoreDirectory, "mark_sync_failed", lambda self, failed: None)
    patch.set(CommitLog, "rewrite", lambda self, position, end: None)


@mutant("disk")
def a_failed_sync_is_tried_again(patch: Patches) -> None:
    """A sync that failed is final: the kernel has marked pages as written that it could not write."""
    run = SyncPlan.run

    def again(self: Any) -> None:
        try:
            run(self)
        except OSError:
            run(self)

    patch.set(SyncPlan, "run", again)


@mutant("disk", aimed="tests/unit/broker/store/test_append.py::test_failed_write_or_sync_is_fatal_and_confirms_nothing")
def served_after_a_failed_write(patch: Patches) -> None:
    """After a failed write or sync no response is sent any more."""

    def go_on(self: LogWriter, error: BaseException) -> None:
        self._waiters.confirm(self._log.end)

    patch.set(LogWriter, "fail", go_on)


class _Whatever(int):
    """Equal to everything."""

    def __and__(self, other: int) -> "_Whatever":
        return self

    def __ne__(self, other: object) -> bool:
        return False


def _no_crc(*_: object) -> _Whatever:
    return _Whatever()


@mutant("rot")
def checksums_are_not_compared(patch: Patches) -> None:
    """A record whose CRC is wrong is not used."""
    patch.set(stored_record, "crc32", _no_crc)
    patch.set(scan, "frame_crc", _no_crc)


@mutant("disk")
def partial_writes_count_as_complete(patch: Patches) -> None:
    """A partial write is continued."""

    def once(file: Any, data: Any, offset: int) -> None:
        file.pwritev([data], offset)

    patch.set(commit_log, "write_all", once)


@mutant("rot")
def a_corrupt_log_is_cut(patch: Patches) -> None:
    """A bad record below the synced length stops the start: only an unsynced tail is cut."""
    init = Recoverer.__init__

    def lenient(self: Recoverer, config: Any, *facts: Any, **named: Any) -> None:
        init(self, replace(config, cut_corrupt=True), *facts, **named)

    patch.set(Recoverer, "__init__", lenient)
