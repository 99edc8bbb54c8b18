"""Rules of broadcasting members and of the file in which each keeps its progress (docs/invariants.md B1–B4)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.client.consumer.calls.concurrent_model import ConcurrentCall, ConcurrentRunner
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.grants import broadcast
from lockstep.client.consumer.grants.broadcast import LocalProgress, LocalSession
from lockstep.client.consumer.grants.local_offsets import LocalOffsets, SavedProgress
from lockstep.client.consumer.grants.offset_file import OffsetFile
from lockstep.client.consumer.grants.ownership import GrantPolicy, QueueOwnership
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.files import Files
from sweep.mutants.registry import Patches, mutant

WORLD = "broadcast"


@mutant(WORLD)
def the_last_write_is_skipped(patch: Patches) -> None:
    """A member's file is written when it stops."""

    async def close(self: LocalProgress) -> None:
        await self.tasks.cancel_all()
        if self._job is not None:
            await asyncio.wait([self._job])
        self._file.release()

    patch.set(LocalProgress, "close", close)


@mutant(WORLD)
def the_file_has_the_fetched_offset(patch: Patches) -> None:
    """The file has the handled offset, not the fetched one."""
    note = LocalProgress.record_progress

    def ahead(self: LocalProgress, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        note(self, ownership, urgent=urgent)
        worker = self.workers.get(ownership)
        grant = worker.grant if isinstance(worker, QueueWorker) else None
        if ownership.holds and grant is not None:
            self._set(ownership.queue, SavedProgress(grant.messages.next_offset, 0))
            self._wake.set()

    patch.set(LocalProgress, "record_progress", ahead)


@mutant(WORLD, aimed="tests/unit/client/test_broadcast_progress.py::test_queue_is_not_consumed_before_its_start_offset_is_saved")
def a_start_is_not_awaited(patch: Patches) -> None:
    """A member's first offset in a queue is in its file before the first message is handled."""

    async def early(self: LocalProgress, queue: MessageQueue, link: Any, subscribed: int | None) -> SavedProgress:
        return self._offsets.place(queue) or SavedProgress(await self._new(queue, link, subscribed), 0)

    patch.set(LocalProgress, "start_of", early)


class _Without:
    """Wraps an object so that one method does nothing."""

    def __init__(self, whole: Any, method: str) -> None:
        self._whole = whole
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name == self._method else getattr(self._whole, name)


class _NothingSynced(_Without):
    """Files whose syncs do nothing."""

    def open(self, path: str, *, create: bool = False) -> Any:
        return _Without(self._whole.open(path, create=create), "sync")


def _write_to(patch: Patches, instead: Callable[[Files], Any]) -> None:
    write = OffsetFile.write

    def elsewhere(self: OffsetFile, text: bytes) -> None:
        files, self._files = self._files, instead(self._files)
        try:
            write(self, text)
        finally:
            self._files = files

    patch.set(OffsetFile, "write", elsewhere)


@mutant(WORLD)
def renamed_before_it_is_synced(patch: Patches) -> None:
    """The new file is on the disk before it takes the old one's name."""
    _write_to(patch, lambda files: _NothingSynced(files, "nothing"))


@mutant(WORLD)
def a_rename_is_not_synced(patch: Patches) -> None:
    """The new name is on the disk before the file counts as written."""
    _write_to(patch, lambda files: _Without(files, "sync_directory"))


@mutant(WORLD)
def written_in_place(patch: Patches) -> None:
    """The new file is written next to the old one, so that a crash leaves one of them complete."""

    def write(self: OffsetFile, text: bytes) -> None:
        file = self._files.open(self.path, create=True)
        file.truncate(0)
        file.pwritev([memoryview(text)], 0)
        file.sync()
        file.close()
        self._files.sync_directory(self.folder)

    patch.set(OffsetFile, "write", write)


@mutant(WORLD)
def written_every_five_seconds(patch: Patches) -> None:
    """The file lags by at most one second."""
    patch.set(broadcast, "WRITE_MS", 5_000)


@mutant(WORLD)
def commit_each_does_not_wait_for_the_file(patch: Patches) -> None:
    """With commit="each" the next call waits until the file has the progress of the call before."""

    def settled(self: QueueOwnership) -> int:
        return self.offset if self.policy is GrantPolicy.LOCAL else self._committed[0]

    patch.set(QueueOwnership, "committed_offset", property(settled))


@mutant(WORLD)
def messages_failed_by_a_member_stay_unfinished(patch: Patches) -> None:
    """A message that a broadcasting member's concurrent listener fails is dropped: progress moves past it."""

    async def stays(self: ConcurrentRunner, call: ConcurrentCall, failed: Sequence[MessageExt], *how: Any) -> bool:
        return True

    patch.set(ConcurrentRunner, "_send_all_back", stays)


@mutant(WORLD)
def messages_failed_by_a_member_are_called_again(patch: Patches) -> None:
    """A message that a broadcasting member's concurrent listener fails is dropped: it is not tried again."""

    async def again(self: ConcurrentRunner, call: ConcurrentCall, failed: Sequence[MessageExt], *how: Any) -> bool:
        self._call_again(list(failed))
        return True

    patch.set(ConcurrentRunner, "_send_all_back", again)


@mutant(WORLD)
def messages_failed_by_a_member_are_sent_back(patch: Patches) -> None:
    """Messages that a broadcasting member's concurrent listener fails are not sent back."""

    async def back(self: ConcurrentRunner, call: ConcurrentCall, failed: Sequence[MessageExt], *how: Any) -> bool:
        for message in failed:
            await self._send_back(message, how[0], how[1], None)
        self.finish(failed)
        return True

    patch.set(ConcurrentRunner, "_send_all_back", back)


@mutant(WORLD)
def a_shortened_queue_is_not_detected(patch: Patches) -> None:
    """A member past the end of a queue, whose broker has lost messages, begins it again."""
    patch.set(LocalSession, "queue_truncated", lambda self, party, first, end: None)


@mutant(
    WORLD, aimed="tests/unit/client/test_broadcast_progress.py::test_restart_of_a_queue_from_its_beginning_survives_a_crash_of_the_member"
)
def going_back_is_not_awaited(patch: Patches) -> None:
    """The offset at which a member begins a queue again is in its file before the first message is handled."""
    patch.set(LocalProgress, "restart_at", lambda self, own, offset: self._set(own.queue, SavedProgress(offset, 0)))


@mutant(WORLD)
def a_member_forgets_where_it_was(patch: Patches) -> None:
    """A member continues at the offset in its file."""
    patch.set(LocalOffsets, "place", lambda self, queue: None)


@mutant(WORLD, aimed="tests/unit/client/test_offset_file.py::test_offset_file_in_use_is_rejected_with_advice_to_set_instance_name")
def two_members_share_a_file(patch: Patches) -> None:
    """Two consumers never share a file."""
    opened = OffsetFile.open

    def shared(self: OffsetFile) -> LocalOffsets:
        try:
            return opened(self)
        except ConfigError as error:
            if not isinstance(error.__context__, BlockingIOError):
                raise
            return self._read()

    patch.set(OffsetFile, "open", shared)
