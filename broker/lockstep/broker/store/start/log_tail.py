"""Ends the log where a start has read it to: cuts the unfinished tail, or sets damage aside and goes on without it."""

import json

from lockstep.broker.store.health.damage import DamageTable, KnownDamage
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import LogScan
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.losses import LostRow, message_count
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.runtime.logs.log import get_logger

logger = get_logger("broker")

CHUNK_BYTES = 1 << 20
LOGGED_RANGES_MAX = 20
"""Ranges of lost offsets in one log event; the manifest has all."""
NO_BOOT = "lost"
"""Stored in place of a boot id, which is never equal to it: until the start is complete, the store counts as having forgotten something."""


class LogTail:
    """The end of the log of one start. Nothing was changed on the disk before `cut`."""

    def __init__(
        self, log: CommitLog, directory: StoreDirectory, snapshots: Snapshots, damage: DamageTable, known: KnownDamage, *, clean: bool
    ) -> None:
        """`known` is the damage that was on record before this start."""
        self._log = log
        self._directory = directory
        self._snapshots = snapshots
        self._damage = damage
        self._known = known
        self._clean = clean

    def cut(self, scan: LogScan, lost: list[LostRow] | None, unwanted: list[int]) -> int:
        """End the log where the scan ended, and remove the unwanted snapshots. Return how many bytes that were not zero were cut.

        `lost` are messages that this start goes on without; None if nothing that was synced is lost.
        """
        log, end, aside = self._log, scan.end, None
        clean = self._clean and not scan.reason
        cut_bytes = 0 if clean else self._bytes_after(end)
        if lost is not None:
            aside = self._set_aside(end, lost, cut_bytes if end < log.synced else 0)
            # If this start ends before the consequences of the loss are durable, the next one must still know of it.
            self._directory.mark_boot(NO_BOOT, "async")
            self._directory.save_damage(self._damage.encode())
            if end < log.synced:
                log.synced = end
                self._directory.save_synced(end)
        self._snapshots.remove(unwanted, aside)
        self._snapshots.note_removed(unwanted)
        log.begin(end, clean=clean, aside=aside)
        if self._directory.sync_has_failed():
            log.replace_segments(log.synced, end)
            self._directory.mark_sync_failed(False)
        elif not self._clean:
            log.rewrite(log.synced, end)
        return cut_bytes

    def _set_aside(self, end: int, lost: list[LostRow], cut_bytes: int) -> str:
        """Copy the bytes that will be cut into a new directory, write a manifest of the losses, and log them. Return the directory."""
        aside = self._directory.set_aside()
        if cut_bytes:
            self._log.copy(end, end + cut_bytes, f"{aside}/{end:020d}")
        damage = self._damage
        new = self._known.new_in(damage)
        skipped = [[begin, damage.ranges[begin], damage.reasons.get(begin, "")] for begin in new]
        state_from = None if damage.state_from == self._known.state_from else damage.state_from
        facts: dict[str, object] = {"skipped": skipped, "cut_from": end if cut_bytes else None, "cut_bytes": cut_bytes}
        facts |= {"state_lost_before": state_from, "lost_messages": message_count(lost)}
        self._directory.replace(f"{aside}/manifest.json", json.dumps({**facts, "lost_offsets": lost}, indent=1).encode())
        logger.error(
            "store.set_aside",
            directory=aside,
            skipped_bytes=damage.byte_count_of(new),
            skipped_ranges=len(new),
            cut_bytes=cut_bytes,
            state_lost_before=state_from,
            lost_messages=message_count(lost),
            lost_queues=len({(topic, queue_id) for topic, queue_id, _, _ in lost}),
            lost_offsets=[f"{topic}:{queue_id} {first}..{next_ - 1}" for topic, queue_id, first, next_ in lost[:LOGGED_RANGES_MAX]],
        )
        return aside

    def _bytes_after(self, end: int) -> int:
        """Return the distance from `end` to the last byte that is not zero; 1 MiB of zeros ends the search in each file."""
        last = end
        for segment in self._log.segments:
            at = max(end, segment.start)
            while at < segment.end:
                data = segment.file.pread(min(CHUNK_BYTES, segment.end - at), at - segment.start)
                kept = data.rstrip(b"\0")
                if not kept:
                    break
                last = at + len(kept)
                at += len(data)
        return last - end
