"""`lockstep store inspect`: whose store a directory is, what is in it, and what a start would do. Changes nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.broker.offline.closed_state import closed_state
from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_config import found_digests
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog, read_whole
from lockstep.broker.rocketmq_store.foreign_scope import adopted_offsets, adopted_topics, own_names
from lockstep.broker.rocketmq_store.foreign_store import Unfinished, check_unfinished, foreign_reason, read_foreign, start_of
from lockstep.broker.store import Identity, StoreConfig, StoreCorruptError
from lockstep.broker.store.health.check import Removals
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.health.stopped import stopped
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import OnScanned
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.broker.store.log.stored_record import StoredRecord
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity, parse_identity
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.broker.store.start.survey import LogSurvey
from lockstep.protocol.errors import ConfigError, StoreError
from lockstep.protocol.names import SCHEDULE_TOPIC, is_system_topic
from lockstep.runtime.files import Files

ADVICE = "stop it first: it is writing to the directory"


@dataclass(frozen=True, slots=True)
class TopicContent:
    """The messages of a topic in the log."""

    topic: str
    queues: int
    messages: int
    known: bool
    """Whether clients can read it, after a start with --adopt if the directory needs one."""


@dataclass(frozen=True, slots=True)
class GroupContent:
    """The progress of a group in a topic."""

    group: str
    topic: str
    queues: int
    behind: int


@dataclass(slots=True)
class StoreContent:
    """The findings of `inspect_store`."""

    path: str
    owner: str = "nobody"
    """"lockstep", "rocketmq", "both" (a store of lockstep to which RocketMQ's broker has written since) or "nobody"."""
    cluster: str = ""
    broker: str = ""
    log_files: int = 0
    log_file_bytes: int = 0
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    oldest_ms: int = 0
    """When the first record was stored: retention begins with it."""
    topics: list[TopicContent] = field(default_factory=list)
    groups: list[GroupContent] = field(default_factory=list)
    delayed_messages: int = 0
    unfinished: list[Unfinished] = field(default_factory=list)
    """Work of RocketMQ's broker that lockstep does not continue."""
    config_files: list[str] = field(default_factory=list)
    start: str = ""
    """What a start would do."""
    exit_code: int = 0
    """The exit code of a start; with --adopt, if the directory needs it."""


async def inspect_store(files: Files, path: str, progress: Callable[[int], None] = lambda _position: None) -> StoreContent:
    """Read the whole directory. Raise ConfigError if it does not exist, StoreInUseError while a broker has it open.

    `progress` is called with the log position after each MiB.
    """

    async def on_progress(position: int) -> None:
        progress(position)
        await asyncio.sleep(0)

    if not files.exists(path):
        raise ConfigError(f"{path} does not exist: specify the directory that the broker has as --store, or as storePathRootDir")
    with stopped(files, path, ADVICE):
        content = StoreContent(path)
        try:
            await _inspect(files, StoreDirectory(files, path), content, on_progress)
        except StoreError as error:
            content.start = f"is refused: {error}"
            content.exit_code = getattr(error, "exit_code", 1)
        return content


async def _inspect(files: Files, directory: StoreDirectory, content: StoreContent, on_progress: OnScanned) -> None:
    text = directory.read(f"{directory.own}/identity")
    content.config_files = sorted(found_digests(directory))
    content.owner = "lockstep" if text is not None else "nobody"
    wanted = Identity("", "")
    if text is not None:
        own = parse_identity(text, f"{directory.own}/identity")
        content.cluster, content.broker, wanted = own.cluster, own.broker_name, Identity(own.cluster, own.broker_name)
    reason = foreign_reason(files, directory)
    begins = start_of(files, directory, foreign=reason is not None)
    found = directory.survey(wanted, StoreConfig(directory.root), "", begins)
    identity, survey = found.identity, found.log
    content.log_files, content.log_file_bytes = len(survey.starts), identity.segment_bytes
    if reason is not None:
        content.owner = "both" if text is not None else "rocketmq"
        await _inspect_foreign(files, directory, identity, survey, content, reason, on_progress)
    elif text is not None:
        await _inspect_own(files, directory, identity, survey, content, on_progress)
    else:
        content.start = "makes a new store"


async def _inspect_foreign(
    files: Files,
    directory: StoreDirectory,
    identity: StoreIdentity,
    survey: LogSurvey,
    content: StoreContent,
    reason: str,
    on_progress: OnScanned,
) -> None:
    foreign = await read_foreign(files, directory, identity, survey, on_progress, own=content.owner == "both")
    log, config = foreign.log, foreign.config
    known = {topic.topic for topic in adopted_topics(config, log)}
    _add_log(content, log, known)
    if content.owner == "rocketmq":
        content.cluster, content.broker = (names[0] if names else "" for names in own_names(config))
    for group, topic, offsets in adopted_offsets(config):
        if topic in known:
            content.groups.append(GroupContent(group, topic, len(offsets), _behind(log, topic, offsets)))
    content.delayed_messages = log.delayed_count({level - 1: offset for level, offset in config.delays.items()})
    content.delayed_messages += len(foreign.undecided_halves)
    content.unfinished = list(foreign.unfinished)
    content.start = f"needs --adopt: {reason}"
    if foreign.doubts:
        content.start += f". RocketMQ's broker was killed: {foreign.doubts[0]} ({len(foreign.doubts)} of this kind)"
    try:
        check_unfinished(directory.root, foreign.unfinished, ())
    except AdoptionError as error:
        content.start = f"needs --adopt, and is refused even so: {error}"
        content.exit_code = error.exit_code


async def _inspect_own(
    files: Files, directory: StoreDirectory, identity: StoreIdentity, survey: LogSurvey, content: StoreContent, on_progress: OnScanned
) -> None:
    log = CommitLog(files, directory.log, identity.segment_bytes, 0, PathWatch(files))
    newest = next(filter(None, map(Snapshots(files, directory).load, reversed(directory.snapshot_positions()))), None)
    state = closed_state(identity, Removals())
    clock = StoreClock()
    if newest is not None:
        state.replay_snapshot(newest.plain)

    def apply(position: int, body: bytes) -> None:
        if (newest is None or position >= newest.position) and not clock.read_clock_record(position, body):
            state.replay_state(body)

    def note(record: StoredRecord) -> None:
        if newest is not None and record.position < newest.position:
            return
        if record.ends is not None:
            state.ended(record.ends, record.place)
        if record.due is not None:
            state.waits(record.topic, record.queue_offset, [record.due], clock.era)

    content.start = "opens it"
    try:
        found = ForeignLog()
        if survey.starts:
            found = await read_whole(log, survey, on_progress, own=True, on_state=apply, on_waiting=note)
    except StoreCorruptError as error:
        content.start = "reads it from the last snapshot on, and cuts an unfinished tail (damage: `lockstep store check`); "
        content.start += f"this command can't read it whole: {error}"
        return
    known = {layout.topic for layout in state.layouts.all() if layout.read_count(identity.broker_name)}
    _add_log(content, found, known)
    progress = state.coordination.state.progress
    for group in sorted(progress.groups()):
        for topic in sorted(progress.topics_of_group(group)):
            offsets = {queue_id: each.offset for queue_id, each in progress.progress_in_topic(group, topic)}
            content.groups.append(GroupContent(group, topic, len(offsets), _behind(found, topic, offsets)))
    delivered = {queue_id: state.delays.next_offset(queue_id) for queue_id in found.topics.get(SCHEDULE_TOPIC, {})}
    content.delayed_messages = found.delayed_count(delivered) + len(state.timers) + len(state.transactions)


def _add_log(content: StoreContent, log: ForeignLog, known: set[str]) -> None:
    content.log_start, content.log_end, content.records, content.oldest_ms = log.start, log.end, log.record_count, log.oldest_ms
    for topic in sorted({*known, *log.topics}):
        queues = log.topics.get(topic, {})
        if not is_system_topic(topic):
            messages = sum(extent.end - extent.first for extent in queues.values())
            content.topics.append(TopicContent(topic, len(queues), messages, topic in known))


def _behind(log: ForeignLog, topic: str, offsets: dict[int, int]) -> int:
    return sum(max(0, log.end_offset(topic, queue_id) - offset) for queue_id, offset in offsets.items())
