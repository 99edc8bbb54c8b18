"""Rules of grants and reads that a single check enforces: freed epochs, stale releases, cold reads, pages."""

from typing import Any

from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.session_table import Session
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.processors.pull_request import Pull
from lockstep.broker.store.queues import reader
from lockstep.protocol.bodies import SyncItem, SyncResult
from sweep.mutants.registry import Patches, mutant


@mutant(
    "churn",
    aimed="tests/unit/broker/test_locks.py::test_freed_epoch_of_a_moved_queue_is_not_renewed_but_its_offset_is_committed",
)
def a_freed_epoch_is_renewed_against_the_list(patch: Patches) -> None:
    """A freed epoch is held again only by the session to which the list assigns the queue."""
    renew, lists = LockSync._renew, LockSync._may_hold
    renewing: set[int] = set()

    def renewed(self: LockSync, *facts: Any) -> Any:
        renewing.add(id(self))
        try:
            return renew(self, *facts)
        finally:
            renewing.discard(id(self))

    def listed(self: LockSync, group: Any, session: Session, key: QueueKey) -> bool:
        return id(self) in renewing or lists(self, group, session, key)

    patch.set(LockSync, "_renew", renewed)
    patch.set(LockSync, "_may_hold", listed)


@mutant(
    "reset", aimed="tests/unit/broker/test_sync_requests.py::test_superseded_epoch_is_stale_for_every_request_and_named_in_the_response"
)
def a_stale_release_frees_any_grant(patch: Patches) -> None:
    """A release under a superseded epoch frees the queue only if the same session holds it."""
    sync_item = LockSync._sync_item

    def freeing(self: LockSync, session: Session, item: SyncItem, now_ms: int) -> SyncResult:
        key = (item.group, item.topic, item.queue_id)
        lock = self._state.locks.get(key)
        if item.release and item.epoch is not None and lock is not None and lock.held and not lock.accepts_epoch(session.id, item.epoch):
            self._state.free_queue(key, "released")
        return sync_item(self, session, item, now_ms)

    patch.set(LockSync, "_sync_item", freeing)


@mutant("cold_reads")
def a_cold_pull_is_not_checked_again(patch: Patches) -> None:
    """A pull that waited for the disk is checked again before its response is sent: its epoch may be over by then."""
    read, check = PullProcessor._read_one_cold, PullProcessor._admit
    reading: set[int] = set()

    async def unchecked(self: PullProcessor, pull: Pull) -> None:
        reading.add(id(pull))
        try:
            await read(self, pull)
        finally:
            reading.discard(id(pull))

    patch.set(PullProcessor, "_read_one_cold", unchecked)
    patch.set(PullProcessor, "_admit", lambda self, pull: id(pull) in reading or check(self, pull))


@mutant("cold_reads")
def a_read_that_is_limited_by_bytes_skips_a_message(patch: Patches) -> None:
    """The next offset of a read that its byte limit ended is that of the first message that did not fit."""
    choose = reader.choose

    def skipping(entries: bytes, max_count: int, max_bytes: int, hashes: Any) -> Any:
        runs, taken, scanned = choose(entries, max_count, max_bytes, hashes)
        unlimited = choose(entries, max_count, 1 << 40, hashes)
        return (runs, taken, scanned + 1) if taken < unlimited[1] else (runs, taken, scanned)

    patch.set(reader, "choose", skipping)
