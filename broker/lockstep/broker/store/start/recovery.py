"""The steps of a start, from the files of a store to its state.

1. The snapshot: the newest that fits the log (snapshot_choice.py).
2. The log is read from there to the first bytes that are not a good record (replay.py). Below the synced length that is corruption and
   stops the start; beyond it, it is the unfinished tail (pages reach the disk in any order).
3. Consume queues are compared with the log and built on from it (queue_recovery.py).
4. The tail is cut, with all that follows, and zero again. Bytes that no sync is known to have covered are written again: after a failed
   sync into new files, after any other unclean stop in their place. Such bytes may be in memory alone, in pages that the kernel calls clean
   (log_tail.py).

Nothing is confirmed by this: that takes the sync that follows.
"""

import asyncio

from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.health.damage import DamageTable, KnownDamage
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import NO_RECORD, LogScan
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.results import Recovery
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.log_tail import LogTail
from lockstep.broker.store.start.losses import LostRow, message_count
from lockstep.broker.store.start.queue_recovery import QueueRecovery
from lockstep.broker.store.start.replay import LogState, ReplaySink, StateReplay
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.broker.store.start.snapshot_choice import SnapshotChoice, SnapshotEvidence, choose_snapshot
from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.log import get_logger

logger = get_logger("broker")

LOG_PROGRESS_MS = 5_000
"""How often a long recovery logs how far it is."""


class RecoveryProgress:
    """How far a start has read the log, for logs and probes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms = clock.monotonic_ms()
        self.position = 0

    async def at(self, position: int) -> None:
        """Record the position and let other tasks run, the admin port among them."""
        self.position = position
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms >= LOG_PROGRESS_MS:
            self._logged_ms = now_ms
            logger.info("store.recovering", read_to=position)
        await asyncio.sleep(0)


class Recoverer:
    """One start's reading. `run` may wait for the disk, and lets other tasks run now and then: nothing is served yet.

    Until `_judge` and `_judge_below` have returned nothing is changed but memory.
    """

    def __init__(
        self,
        config: StoreConfig,
        directory: StoreDirectory,
        log: CommitLog,
        queues: QueueTable,
        snapshots: Snapshots,
        damage: DamageTable,
        *,
        reading: RecoveryProgress,
        log_start: int,
        clean: bool,
        adopted_end: int | None = None,
    ) -> None:
        """`log_start` is where the log began when the store got its identity: from there on it holds all state.

        `adopted_end` is None unless another program has written the log. Then this start has read records up to there already: what is not
        a record below it is damage and no unfinished tail. And the state comes from that program's files if no snapshot fits, because that
        program has removed the log up to there.
        """
        self._config = config
        self._directory = directory
        self._log = log
        self._queues = queues
        self._snapshots = snapshots
        self._damage = damage
        self._known = KnownDamage.of(damage)
        self._reading = reading
        self._log_start = log_start
        self._clean = clean
        self._known_end = adopted_end or 0
        self._adopts = adopted_end is not None
        self.state = LogState()
        self.changed = False
        """Whether files have been changed, or are about to be: not if the store was stopped in order and has all its snapshot names."""

    async def run(self, replay: StateReplay) -> Recovery:
        log, damage = self._log, self._damage
        self._queues.files.postpone_changes()
        synced, state_from = log.synced, damage.state_from
        choice = self._choose_snapshot()
        snapshot = choice.chosen
        start = log.start if snapshot is None else snapshot.position
        if snapshot is not None:
            self.state = LogState(snapshot.stamps(), snapshot.state_next, snapshot.last_record)
            log.synced = max(log.synced, snapshot.position)
        queues = QueueRecovery(log, self._queues, self._directory, damage, self._known, snapshot, clean=self._clean)
        wrong = queues.restore()
        if snapshot is not None:
            replay.replay_snapshot(snapshot.plain)
        dense = snapshot is not None or log.start == 0
        sink = ReplaySink(self._queues, replay, self.state, damage, dense=dense, skips=self._config.cut_corrupt)
        scan = LogScan(log, start, sink, complete_until=max(log.synced, self._known_end), known=damage.ranges, runs=sink)
        await scan.run(self._reading.at)
        if scan.last_record >= 0:
            self.state.last_record = scan.last_record
        self._judge(scan, sink, choice)
        # A topic that was deleted or purged since has less below the snapshot, or nothing, whatever its files hold.
        needed = [(queue, following) for queue, following in wrong if queue.min < following]
        lost = sink.lost
        if snapshot is not None and (needed or log.lacking or choice.suspect is not None):
            needed, rows = await queues.compare_below(snapshot, needed, self._reading.at)
            self._judge_below(rows)
            lost = rows + lost
        for damaged_range in sink.ranges:
            if damaged_range.followed:
                damage.add_range(damaged_range.begin, damaged_range.end, damaged_range.reason)
        lost = self._not_deleted([*lost, *queues.add_lost_ends(sink.ranges, scan.end)])
        lost_state = damage.state_from != state_from
        lost_synced = bool(scan.end < log.synced or sink.ranges or lost or self._known != KnownDamage.of(damage))
        self.changed = bool(wrong or scan.reason or lost_synced or scan.end != start or choice.unwanted or log.lacking or lost_state)
        tail = LogTail(log, self._directory, self._snapshots, damage, self._known, clean=self._clean)
        cut_bytes = tail.cut(scan, lost if lost_synced else None, choice.unwanted)
        self._queues.files.apply_postponed()
        if snapshot is not None:
            await queues.rebuild(needed, snapshot.position, self._reading.at)
        self._save(synced)
        return Recovery(start, scan.end, cut_bytes, self._clean, lost_synced or lost_state, message_count(lost))

    def _save(self, synced: int) -> None:
        """Store the findings of this start; `synced` is the synced length that is stored."""
        log = self._log
        self._queues.flush_all()
        for queue in self._queues:
            queue.find_min(self._queues.files, log.start)
        self._damage.trim(log.start, self._minimum)
        if self._damage.changed:
            self._directory.save_damage(self._damage.encode())
        if self._directory.read_start() != log.start:
            self._directory.save_start(log.start)
        if log.synced < synced:
            self._directory.save_synced(log.synced)

    def _minimum(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min

    def _not_deleted(self, lost: list[LostRow]) -> list[LostRow]:
        """Return the parts of these ranges that no deletion or purge of their topic has hidden."""
        rows = [(topic, queue_id, max(first, self._minimum(topic, queue_id)), end) for topic, queue_id, first, end in lost]
        return [row for row in rows if row[2] < row[3]]

    def _choose_snapshot(self) -> SnapshotChoice:
        """Choose the snapshot. Raise StoreCorruptError if state is lost without one, unless damage may be passed over or it is adopted."""
        log, damage, cut_corrupt = self._log, self._damage, self._config.cut_corrupt
        choice = choose_snapshot(self._directory.snapshot_positions(), self._snapshots, log, damage, cut_corrupt=cut_corrupt)
        if choice.chosen is None and log.start > max(self._log_start, damage.state_from):
            if not cut_corrupt and not self._adopts:
                raise StoreCorruptError(
                    f"no snapshot in {self._directory.own} fits the log, which begins at {log.start}: the state of groups and topics is "
                    "lost. Restore lockstep/snapshot-*, or start with --cut-corrupt to continue without it",
                    position=log.start,
                )
            damage.give_up_state(log.start)
            if self._adopts:  # that is no damage
                self._known = KnownDamage.of(damage)
        return choice

    def _judge(self, scan: LogScan, sink: ReplaySink, choice: SnapshotChoice) -> None:
        """Raise StoreCorruptError if the log is damaged or another one, unless damage may be passed over. Nothing has been changed then."""
        if scan.end < max(self._log.synced, self._known_end) and not self._config.cut_corrupt:
            raise self._corrupt(scan.end, scan.reason or NO_RECORD)
        if choice.suspect is None or sink.ranges:
            return
        snapshot, evidence = choice.suspect
        if self._adopts and evidence is SnapshotEvidence.PASSED:
            return
        if evidence is SnapshotEvidence.OTHER or not self._config.cut_corrupt:
            path = f"{self._directory.own}/snapshot-{snapshot.position:020d}"
            raise StoreCorruptError(
                f"log position {snapshot.last_record}: {evidence.value}, and {path} was taken when a record began there and ended at "
                f"{snapshot.position}: the log is another broker's, or an older copy. Put the right files into commitlog; nothing was "
                "changed",
                position=snapshot.last_record,
            )

    def _judge_below(self, lost: list[LostRow]) -> None:
        """Raise StoreCorruptError if the log below the snapshot is damaged, unless damage may be passed over."""
        if self._config.cut_corrupt:
            return
        if new := self._known.new_in(self._damage):
            raise self._corrupt(new[0], self._damage.reasons[new[0]])
        if lost:
            topic, queue_id, first, _ = lost[0]
            raise self._corrupt(self._log.start, f"no record from there on has offset {first} of queue {queue_id} of {topic}")

    def _corrupt(self, position: int, reason: str) -> StoreCorruptError:
        synced, known_end = self._log.synced, self._known_end
        before = f"{synced} bytes had been synced" if position < synced or not known_end else f"the log has {known_end} bytes"
        return StoreCorruptError(
            f"log position {position}: {reason}, and {before}. Restore the store, or start "
            "with --cut-corrupt to continue without the damaged part; nothing was changed",
            position=position,
        )
