"""Chooses the snapshot with which a start begins: the newest whose position still ends a record of the log.

Newer ones are removed. They are ahead of the log, and would seem to fit once the log has grown past them.
"""

from dataclasses import dataclass, field
from enum import Enum
from operator import ne

from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.start.snapshot import Snapshot, Snapshots
from lockstep.protocol.messages.record import BLANK_MAGIC, BODY_AT, SIZE_AND_MAGIC
from lockstep.runtime.logs.log import get_logger

logger = get_logger("broker")

ROTTEN_BYTES_MAX = 4
"""Bytes of a record's head that may differ from the copy in a snapshot while it counts as the same record, damaged. Another log's record
differs at least in its store time and the CRC of its body.
"""


class SnapshotEvidence(Enum):
    """Whether the log has the record that ends at a snapshot's position."""

    FITS = "a record ends at its position"
    AHEAD = "the log ends before it"
    PASSED = "the log begins after the record before its position"
    DAMAGED = "the record before its position can't be read"
    CHANGED = "the record before its position has changed"
    OTHER = "no record ends at its position, or another one does"


@dataclass(slots=True)
class SnapshotChoice:
    """The snapshots of a store as a start has found them."""

    chosen: Snapshot | None = None
    unwanted: list[int] = field(default_factory=list)
    """Positions of snapshots to remove once the log has turned out to be whole."""
    suspect: tuple[Snapshot, SnapshotEvidence] | None = None
    """The newest snapshot from below the synced length that does not fit the log."""


def choose_snapshot(
    positions: list[int], snapshots: Snapshots, log: CommitLog, damage: DamageTable, *, cut_corrupt: bool
) -> SnapshotChoice:
    """Choose from the snapshots at these positions; the next older one that fits is kept as well.

    With `cut_corrupt` a snapshot with a damaged last record fits, and that record becomes damage in memory.
    """
    choice = SnapshotChoice()
    for position in reversed(positions):
        snapshot = snapshots.load(position)
        if snapshot is None:
            logger.warning("snapshot.damaged", position=position, then="an older one and the log after it are read instead")
            choice.unwanted.append(position)
            continue
        evidence = snapshot_evidence(log, damage, snapshot)
        passed = evidence is SnapshotEvidence.PASSED and choice.chosen is not None
        if evidence is not SnapshotEvidence.FITS and position <= log.synced and not passed:
            # It was written when the log was durable up to it, and nothing below that has been cut since.
            choice.suspect = choice.suspect or (snapshot, evidence)
            if evidence in (SnapshotEvidence.DAMAGED, SnapshotEvidence.CHANGED) and cut_corrupt:
                damage.add_range(snapshot.last_record, position, "the record before a snapshot can't be read")
                evidence = SnapshotEvidence.FITS
        if evidence is not SnapshotEvidence.FITS:
            choice.unwanted.append(position)
            continue
        choice.unwanted += [left for left in snapshots.note_durable(position, snapshot.needs_from) if left not in choice.unwanted]
        choice.chosen = choice.chosen or snapshot
    return choice


def snapshot_evidence(log: CommitLog, damage: DamageTable, snapshot: Snapshot) -> SnapshotEvidence:
    """Return whether the snapshot fits the log, and if not, why."""
    if snapshot.last_record < 0 and snapshot.position == log.start:
        return SnapshotEvidence.FITS
    if max(snapshot.last_record, 0) < log.start:
        return SnapshotEvidence.PASSED
    if snapshot.last_record < 0:
        return SnapshotEvidence.OTHER
    if damage.ranges.get(snapshot.last_record, -1) >= snapshot.position:
        return SnapshotEvidence.FITS
    segment = log.segment_of(snapshot.last_record)
    if segment is None:
        return SnapshotEvidence.AHEAD
    data = _record_at(segment, snapshot.last_record)
    if data is None:
        return SnapshotEvidence.DAMAGED
    end = snapshot.last_record + len(data)
    if end == snapshot.position:
        differing = 0 if snapshot.last_head is None else sum(map(ne, data[:BODY_AT], snapshot.last_head))
        if not differing:
            return SnapshotEvidence.FITS
        return SnapshotEvidence.CHANGED if differing <= ROTTEN_BYTES_MAX else SnapshotEvidence.OTHER
    if snapshot.position != segment.end:
        return SnapshotEvidence.OTHER
    head = segment.file.pread(8, end - segment.start)
    size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == 8 else (0, 0)
    return SnapshotEvidence.FITS if magic == BLANK_MAGIC and end + size == segment.end else SnapshotEvidence.DAMAGED


def _record_at(segment: Segment, position: int) -> bytes | None:
    """Return the good record at `position`; None if there is none."""
    size = int.from_bytes(segment.file.pread(4, position - segment.start), "big")
    if size > segment.end - position:
        return None
    data = segment.file.pread(size, position - segment.start)
    try:
        read_record(data, position, {})
    except BadRecordError:
        return None
    return data
