"""`lockstep store check`: everything that a start, a scrub and a read would find wrong in a store that is not open. Changes nothing."""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lockstep.broker.store.errors import IdentityError, StoreCorruptError, misplaced
from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.health.scrub import Scrub
from lockstep.broker.store.health.stopped import stopped
from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.scan import NO_RECORD, WINDOW_BYTES, DamagedRange, LogScan
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.broker.store.log.stored_record import ScopeKey, StoredRecord
from lockstep.broker.store.queues.consume_queue import READ_COUNT, QueueFiles, names_place
from lockstep.broker.store.queues.queue_table import StoreQueueKey
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity, parse_identity
from lockstep.broker.store.start.replay import StateReplay
from lockstep.broker.store.start.snapshot import Snapshot, Snapshots, recorded_start
from lockstep.broker.store.start.snapshot_choice import SnapshotEvidence, snapshot_evidence
from lockstep.broker.store.start.survey import LogSurvey, log_files
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.runtime.files import Files

OnCheckProgress = Callable[[int, int], None]
"""Called with (log position, position at which the log ends or may end) after each MiB."""
CHECK_ADVICE = "stop it first. While it runs it scrubs its log itself (--scrub-kib-per-s)"


@dataclass(frozen=True, slots=True)
class Problem:
    """One place with other content than was written."""

    kind: str
    """"log", "messages", "entries", "snapshot" or "file"."""
    where: str
    what: str


@dataclass(slots=True)
class CheckReport:
    """The findings of `check_store`."""

    path: str
    broker: str = ""
    log_start: int = 0
    log_end: int = 0
    """Where the good log ends."""
    synced: int = 0
    """Position up to which a sync is known to have covered the log."""
    record_count: int = 0
    damaged_bytes: int = 0
    lost_messages: int = 0
    wrong_entries: int = 0
    unsynced_tail_bytes: int = 0
    """Bytes after the synced length. The next start cuts those that are not records. That is not damage."""
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, kind: str, where: str, what: str) -> None:
        self.problems.append(Problem(kind, where, what))


class Removals:
    """The messages that operators have removed, as state records say it to the store."""

    def __init__(self) -> None:
        self._topics: dict[str, None] = {}
        self._minimums: dict[StoreQueueKey, int] = {}

    def drop_topic(self, topic: str) -> None:
        """A topic was deleted with what it had."""
        self._topics[topic] = None

    def hide_below(self, topic: str, queue_id: int, minimum: int) -> None:
        """A queue was purged below an offset."""
        self._minimums[topic, queue_id] = max(minimum, self._minimums.get((topic, queue_id), 0))

    def within(self, key: StoreQueueKey, low: int, end: int) -> int:
        """Return the first offset from `low` to `end`, the bounds of a queue before the removals, that was not removed."""
        return end if key[0] in self._topics else max(low, min(self._minimums.get(key, 0), end))


OpenState = Callable[[StoreIdentity, Removals], StateReplay]
"""Returns empty tables that replay a snapshot and the state records after it, and report removals."""


async def check_store(files: Files, path: str, progress: OnCheckProgress, open_state: OpenState) -> CheckReport:
    """Read the whole store. Raise ConfigError if there is no store, StoreInUseError while a broker has it open."""
    directory = StoreDirectory(files, path)
    if not files.exists(directory.log):
        raise ConfigError(f"{path} is not a store: it has no commitlog directory; specify the directory that the broker has as --store")
    with stopped(files, path, CHECK_ADVICE):
        report = CheckReport(path)
        text = directory.read(f"{directory.own}/identity")
        if text is None:
            report.add_problem(
                "file", f"{directory.own}/identity", "is missing: this is not the store of a lockstep broker, or its identity was lost"
            )
            return report
        try:
            identity = parse_identity(text, f"{directory.own}/identity")
        except (StoreCorruptError, IdentityError) as error:
            report.add_problem("file", f"{directory.own}/identity", str(error))
            return report
        report.broker = f"{identity.broker_name} of {identity.cluster}"
        try:
            await _Check(files, directory, identity, report, progress, open_state).run()
        except OSError as error:
            wrong = misplaced(error, path)
            if wrong is None:
                raise
            report.add_problem("file", str(error.filename), str(wrong))
    return report


class _Check:
    """One check, and the ScrubReport of its scrub."""

    def __init__(
        self,
        files: Files,
        directory: StoreDirectory,
        identity: StoreIdentity,
        report: CheckReport,
        progress: OnCheckProgress,
        open_state: OpenState,
    ) -> None:
        self._files = files
        self._directory = directory
        self._identity = identity
        self._report = report
        self._progress = progress
        self._open_state = open_state
        self._queue_files = QueueFiles(files, directory.queues, identity.queue_file_entries, 1)
        self._damage = DamageTable()
        self._bounds: dict[StoreQueueKey, tuple[int, int]] = {}
        """The entries of the queues according to the newest snapshot."""
        self._new_from_zero = False
        """Whether a queue that is not in `_bounds` began with offset 0."""
        self._damaged: list[DamagedRange] = []
        """The damaged ranges, in order."""
        self._clean = not files.exists(f"{directory.root}/abort")

    async def run(self) -> None:
        report, directory = self._report, self._directory
        if (known := directory.read(directory.damage_path)) is not None:
            try:
                self._damage.restore(known, directory.damage_path)
            except StoreCorruptError as error:
                report.add_problem("file", directory.damage_path, str(error))
        survey = self._survey()
        if survey is None:
            return
        log = CommitLog(self._files, directory.log, self._identity.segment_bytes, 0, PathWatch(self._files))
        log.load(survey)
        try:
            await self._read(log, survey)
        finally:
            log.close()

    def _survey(self) -> LogSurvey | None:
        report = self._report
        start: int | None = None
        try:
            found = log_files(self._files, self._directory.log)
        except StoreCorruptError as error:
            report.add_problem("file", f"log position {error.position}", str(error))
            return None
        try:
            start = recorded_start(self._files, self._directory)
        except StoreCorruptError as error:
            report.add_problem("file", f"{self._directory.own}/start", str(error))
        refused = False
        for cut_corrupt in (False, True):
            try:
                survey = self._directory.survey_log(self._identity, found, start, cut_corrupt=cut_corrupt)
            except StoreCorruptError as error:
                refused = True
                report.add_problem("file", f"log position {error.position}", str(error))
                if cut_corrupt:
                    return None
        for position in sorted(survey.absent if not refused else ()):
            path = f"{self._directory.log}/{position:020d}"
            report.add_problem("file", f"log position {position}", f"log file {path} is missing: the log was synced up to {survey.synced}")
        return survey

    async def _read(self, log: CommitLog, survey: LogSurvey) -> None:
        report = self._report
        newest = self._snapshots(log)
        if newest is not None:
            self._bounds = {(topic, queue_id): (low, following) for topic, queue_id, low, following in newest.queues}
            if log.start > newest.log_start:
                self._pass_removed(log.start)
            await self._pass_purged(log, newest, survey)
        self._new_from_zero = newest is not None or log.start == 0
        self._damage.trim(log.start, lambda topic, queue_id: self._bounds.get((topic, queue_id), (0, 0))[0])
        report.log_start, report.synced = log.start, survey.synced
        for topic, queue_id, first, end in self._damage.lost():
            self._lost((topic, queue_id), first, end, "on record in lockstep/damage")
        scrub = Scrub(log, self, self._entries, self._damage.ranges)

        async def on_progress(position: int) -> None:
            self._progress(position, max(survey.synced, log.files_end))
            await asyncio.sleep(0)

        keep_until = 0 if newest is None else newest.position
        await scrub.run(on_progress, limit=None, complete_until=survey.synced, read=_read, window_bytes=WINDOW_BYTES, keep_until=keep_until)
        report.log_end, report.record_count = scrub.end, scrub.record_count
        if scrub.end < survey.synced:
            what = f"{scrub.reason or NO_RECORD}, and the log was synced up to {survey.synced}"
            if not any(problem.kind == "log" and problem.where.startswith(f"{scrub.end} ") for problem in report.problems):
                report.add_problem("log", f"{scrub.end} to {survey.synced}", what)
        elif scrub.reason:
            report.unsynced_tail_bytes = log.files_end - scrub.end

    def _snapshots(self, log: CommitLog) -> Snapshot | None:
        """Check every snapshot. Return the newest one that agrees with the log."""
        newest: Snapshot | None = None
        snapshots = Snapshots(self._files, self._directory)
        for position in reversed(self._directory.snapshot_positions()):
            where = f"{self._directory.own}/snapshot-{position:020d}"
            snapshot = snapshots.load(position)
            if snapshot is None:
                self._report.add_problem("snapshot", where, "is damaged: a start reads an older one and the log after it")
                continue
            evidence = snapshot_evidence(log, self._damage, snapshot)
            if evidence is SnapshotEvidence.FITS:
                newest = newest or snapshot
            elif position <= log.synced and evidence in (SnapshotEvidence.DAMAGED, SnapshotEvidence.CHANGED):
                self._report.add_problem("snapshot", where, f"does not fit the log: at {snapshot.last_record} {evidence.value}")
                self._damage.add_range(snapshot.last_record, position, "the record before a snapshot can't be read")
                newest = newest or snapshot  # as a start with --cut-corrupt uses it
            elif position <= log.synced and not (evidence is SnapshotEvidence.PASSED and newest is not None):  # a start removes that
                self._report.add_problem("snapshot", where, f"does not fit the log: at {snapshot.last_record} {evidence.value}")
        return newest

    def _pass_removed(self, log_start: int) -> None:
        """Move the lower bounds past the messages that retention has removed since the snapshot."""
        for (topic, queue_id), (low, following) in self._bounds.items():
            low, _ = self._queue_files.search(f"{self._directory.queues}/{topic}/{queue_id}", low, following, log_start)
            self._bounds[topic, queue_id] = low, following

    async def _pass_purged(self, log: CommitLog, newest: Snapshot, survey: LogSurvey) -> None:
        """Move the lower bounds past the messages that operators have removed since the snapshot: entries below may be gone."""
        removals = Removals()
        state = self._open_state(self._identity, removals)
        state.replay_snapshot(newest.plain)
        reader = _StateReader(state)
        scan = LogScan(log, newest.position, reader, complete_until=survey.synced, known=self._damage.ranges, read=_read, frames=False)
        await scan.run(_pause)
        for key, (low, following) in self._bounds.items():
            self._bounds[key] = removals.within(key, low, following), following

    async def _entries(self, key: StoreQueueKey, first: int, count: int) -> bytes:
        topic, queue_id = key
        return self._queue_files.entries(f"{self._directory.queues}/{topic}/{queue_id}", first, count)

    # -- the report of the scrub -----------------------------------------------------------------

    def _is_damaged(self, position: int) -> bool:
        number = bisect_right(self._damaged, position, key=lambda damaged_range: damaged_range.begin)
        return number > 0 and position < self._damaged[number - 1].end

    def damaged(self, damaged_range: DamagedRange) -> None:
        insort(self._damaged, damaged_range, key=lambda each: each.begin)
        self._report.damaged_bytes += damaged_range.end - damaged_range.begin
        after = "a good record follows" if damaged_range.followed else "no good record was found after it"
        self._report.add_problem("log", f"{damaged_range.begin} to {damaged_range.end}", f"{damaged_range.reason}; {after}")

    def lost(self, key: StoreQueueKey, first: int, end: int, position: int) -> None:
        minimum, _ = self._bounds.get(key, (0, 0))  # messages of a deleted topic are below it
        for low, high in self._damage.not_lost_ranges(*key, max(first, minimum), end):
            self._lost(key, low, high, f"their records are damaged, at or after {position}")

    def _lost(self, key: StoreQueueKey, first: int, end: int, why: str) -> None:
        self._report.lost_messages += end - first
        self._report.add_problem("messages", f"{key[0]} queue {key[1]} offsets {first} to {end - 1}", why)

    def wrong_entries(self, key: StoreQueueKey, first: int, count: int) -> None:
        self._report.wrong_entries += count
        where = f"{key[0]} queue {key[1]} offset {first}"
        self._report.add_problem(
            "entries", where, f"{count} entries from there on do not name their records: a start or a read writes them again"
        )

    def expected(self, key: StoreQueueKey) -> tuple[int, int]:
        """A snapshot made the entries durable up to its own. Later ones are all written only by an ordered stop."""
        low, high = self._bounds.get(key, (0, 0))
        return low, 1 << 62 if self._clean else high

    def queues(self) -> Iterable[StoreQueueKey]:
        found = self._directory.queue_directories() if self._files.exists(self._directory.queues) else []
        return dict.fromkeys([*self._bounds, *found])

    def knows(self, key: StoreQueueKey) -> bool:
        return key in self._bounds

    def first(self, key: StoreQueueKey) -> int | None:
        if key in self._bounds:
            return self._bounds[key][0]
        return 0 if self._new_from_zero else None

    async def end(self, key: StoreQueueKey, seen: int) -> int:
        """Return the end by the snapshot, and after it that of the entries with a damaged position."""
        end = max(seen, self._bounds.get(key, (0, 0))[1])
        while data := await self._entries(key, end, READ_COUNT):
            for position, size, _ in ENTRY.iter_unpack(data):
                if not names_place(position, size) or not self._is_damaged(position):
                    return end
                end += 1
        return end


class _StateReader:
    """Passes the state records of a scan on, and whatever else the log has over. Damage is the concern of the scrub."""

    def __init__(self, state: StateReplay) -> None:
        self._state = state
        self._clock = StoreClock()

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return None

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        if record.body is not None and not self._clock.read_clock_record(record.position, record.body):
            self._state.replay_state(record.body)

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        return

    def damaged(self, damaged_range: DamagedRange) -> bool:
        return True


async def _pause(position: int) -> None:
    await asyncio.sleep(0)


async def _read(segment: Segment, count: int, at: int) -> bytes:
    return segment.file.pread(count, at)
