"""Whether another broker has written to a store's directory, and whether a start may take over what it has written (`--adopt`).

| directory                                                           | a start                                                       |
|---------------------------------------------------------------------|---------------------------------------------------------------|
| empty, or only lockstep has written to it                           | opens it                                                      |
| log files or config/*.json of RocketMQ, without `lockstep/identity` | AdoptionError; with --adopt it takes the directory over       |
| a store of lockstep in which config/*.json have changed, or which   | the same: RocketMQ's broker has run there since               |
| another broker has open, or had when it was killed (`abort`)        |                                                               |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct

from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_checks import check_complete, check_files, check_names, check_owner
from lockstep.broker.rocketmq_store.foreign_config import ForeignConfig, KnownContent, found_digests, known_content, read_config
from lockstep.broker.rocketmq_store.foreign_halves import undecided_offsets
from lockstep.broker.rocketmq_store.foreign_log import REVIVE_PREFIX, ForeignLog, read_whole
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import OnScanned
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity
from lockstep.broker.store.start.snapshot import recorded_start
from lockstep.broker.store.start.survey import LogSurvey, log_files
from lockstep.protocol.delays import format_delay, queue_delay_ms
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.runtime.files import Files

TIMERS, POP, COMPACTION = "timers", "pop", "compaction"
LEFT_OUT = (TIMERS, POP, COMPACTION)
"""What `--adopt-without` may name."""
TIMER_CHECK = Struct(">q")
"""The first field of config/timercheck: messages of the timer that are due before this time, in ms, were delivered."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Work of RocketMQ's broker that lockstep does not continue."""

    kind: str
    """One of LEFT_OUT."""
    count: int
    what: str


@dataclass(frozen=True, slots=True)
class ForeignStore:
    """What another broker has left in the directory."""

    log: ForeignLog
    config: ForeignConfig
    continues: bool
    """Whether it continues what an export has written, so that progress that is lower counts: a group was reset there."""
    undecided_halves: Sequence[int]
    """The offsets of half messages of which no end is known."""
    unfinished: tuple[Unfinished, ...]
    doubts: tuple[str, ...]
    """Messages that consume queues or offsets name, and that the log lacks: RocketMQ's broker was killed before they were on the disk."""


def foreign_reason(files: Files, directory: StoreDirectory) -> str | None:
    """Return why a start has to take the directory over from another broker, or None. Raises StoreCorruptError."""
    found = found_digests(directory)
    if directory.read(f"{directory.own}/identity") is None:
        has_log = bool(log_files(files, directory.log))
        return "it has no lockstep/identity, so another program made it" if found or has_log else None
    known = known_content(directory) or KnownContent()
    if changed := sorted(name for name, digest in found.items() if not known.has(name, digest)):
        return f"config/{changed[0]} is not as this store has read or written it last, so RocketMQ's broker has run here since"
    if directory.read(f"{directory.root}/abort"):
        return "its file `abort` has a process id, so RocketMQ's broker has run here since, and was not stopped in order"
    return None


def present_content(directory: StoreDirectory) -> KnownContent:
    """Return the content of config/*.json as it is, which a start of this store has read, or passes over."""
    return KnownContent({name: (digest,) for name, digest in found_digests(directory).items()})


def start_of(files: Files, directory: StoreDirectory, *, foreign: bool) -> Callable[[], int | None]:
    """Return the function that returns where the log begins: where another broker has left it, or where this one has recorded it."""
    if not foreign:
        return partial(recorded_start, files, directory)
    return lambda: min((file.start for file in log_files(files, directory.log)), default=None)


def refusal(root: str, reason: str) -> AdoptionError:
    """Return the error of a start without --adopt."""
    return AdoptionError(
        f"store {root}: {reason}. `lockstep store inspect {root}` shows what is in it; start with --adopt to take it over. "
        "Nothing was changed"
    )


async def read_foreign(
    files: Files, directory: StoreDirectory, identity: StoreIdentity, survey: LogSurvey, on_progress: OnScanned, *, own: bool
) -> ForeignStore:
    """Read the whole directory. Raise StoreCorruptError if a part of it can't be read, and AdoptionError. Changes nothing."""
    log = ForeignLog()
    if survey.starts:
        log = await read_whole(CommitLog(files, directory.log, identity.segment_bytes, 0, PathWatch(files)), survey, on_progress, own=own)
    config = read_config(directory)
    check_files(files, directory, log, config)
    check_names(directory, log, config)
    if not own:
        check_owner(directory.root, config, identity)
    doubts = await check_complete(files, directory, identity, log, config, on_progress)
    _check_delays(QueueFiles(files, directory.queues, identity.queue_file_entries, 1), directory, log, config)
    known = known_content(directory)
    continues, halves = known is not None and known.exported, undecided_offsets(log, config)
    return ForeignStore(log, config, continues, halves, tuple(_unfinished(directory, log, config)), doubts)


def _check_delays(queues: QueueFiles, directory: StoreDirectory, log: ForeignLog, config: ForeignConfig) -> None:
    """Raise AdoptionError if messages wait by other delays of levels: the entry of each has the time when it is due.

    The table itself is not in the directory.
    """
    try:
        for queue_id, (offset, position, store_ms) in sorted(log.last_delayed.items()):
            entry = queues.entries(f"{directory.queues}/{SCHEDULE_TOPIC}/{queue_id}", offset, 1)
            if offset < config.delays.get(queue_id + 1, 0) or len(entry) < ENTRY.size:
                continue
            place, _, due_ms = ENTRY.unpack(entry)
            if place == position and due_ms - store_ms != queue_delay_ms(queue_id):
                raise AdoptionError(
                    f"store {directory.root}: messages of delay level {queue_id + 1} wait {format_delay(max(1, due_ms - store_ms))} by "
                    f"RocketMQ's messageDelayLevel, and would wait {format_delay(queue_delay_ms(queue_id))} here: let RocketMQ's broker "
                    "deliver them first. Nothing was changed"
                )
    finally:
        queues.close()


def check_unfinished(root: str, unfinished: Collection[Unfinished], without: Collection[str]) -> None:
    """Raise AdoptionError if there is work that would not be continued, and that `without` does not name."""
    refused = [each for each in unfinished if each.kind not in without]
    if not refused:
        return
    flags = " ".join(f"--adopt-without {each.kind}" for each in refused)
    raise AdoptionError(
        f"store {root}: " + "; ".join(each.what for each in refused) + ". This version does not continue them: let RocketMQ's broker run "
        f"until they are done, or start with {flags} to leave them behind. Nothing was changed"
    )


def _unfinished(directory: StoreDirectory, log: ForeignLog, config: ForeignConfig) -> list[Unfinished]:
    found = []
    checked = {topic: offsets for (_, topic), offsets in config.offsets.items()}
    check = directory.read(f"{directory.root}/config/timercheck") or b""
    delivered_ms = TIMER_CHECK.unpack_from(check)[0] if len(check) >= TIMER_CHECK.size else 0
    if count := sum(due_ms >= delivered_ms for due_ms in log.timers_ms):
        found.append(Unfinished(TIMERS, count, f"{count} messages with a delay of any length that wait in RocketMQ's timer"))
    if count := sum(_behind(queues, checked.get(topic, {})) for topic, queues in _ends(log).items() if topic.startswith(REVIVE_PREFIX)):
        found.append(Unfinished(POP, count, f"{count} records of POP consumers whose messages may not have been acknowledged"))
    if compacted := sorted(topic.topic for topic in config.topics.values() if topic.compacted):
        count = len(compacted)
        what = f"{count} topics with compaction, such as {compacted[0]}, whose older messages are in files that lockstep does not read"
        found.append(Unfinished(COMPACTION, count, what))
    return found


def _ends(log: ForeignLog) -> dict[str, dict[int, int]]:
    return {topic: {queue_id: extent.end for queue_id, extent in queues.items()} for topic, queues in log.topics.items()}


def _behind(ends: Mapping[int, int], offsets: Mapping[int, int]) -> int:
    return sum(max(0, end - offsets.get(queue_id, 0)) for queue_id, end in ends.items())
