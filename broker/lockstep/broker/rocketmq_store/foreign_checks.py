"""What refuses a directory of RocketMQ's broker before anything is written: a part is missing, or can't be a part of a store here."""

from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_config import DELAYS, GROUPS, OFFSETS, TOPICS, ForeignConfig
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.broker.rocketmq_store.foreign_scope import adopted_offsets, adopted_settings, adopted_topics, own_names
from lockstep.broker.store.errors import IdentityError, StoreCorruptError
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.scan import OnScanned
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity
from lockstep.broker.store.start.survey import is_log_name
from lockstep.broker.tables.topic_table import ADOPTED_MAX
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import SCHEDULE_TOPIC, check_group, check_topic, is_system_topic
from lockstep.protocol.topics.layouts import QUEUES_PER_BROKER_MAX
from lockstep.runtime.files import Files

ROCKSDB = ("topics", "subscriptionGroups", "consumerOffsets", "metadata")
"""Directories of config/ in which RocketMQ's broker keeps the same as in config/*.json, if it is set up so."""
BLANK_SIZE = (1 << 31) - 1
"""The size in the entries with which RocketMQ's broker fills the place of removed ones."""


def check_files(files: Files, directory: StoreDirectory, log: ForeignLog, config: ForeignConfig) -> None:
    """Raise StoreCorruptError if a file of config/ is missing, or is not the one that RocketMQ's broker has used last."""
    folder = f"{directory.root}/config"
    for name in ROCKSDB:
        if files.exists(f"{folder}/{name}/CURRENT"):
            raise StoreCorruptError(
                f"{folder}/{name} is a RocksDB: RocketMQ's broker keeps its configuration there, and config/*.json are older. Let it write "
                f"JSON files again, and remove the directory. Nothing was changed"
            )
    stored = [topic for topic in log.topics if not is_system_topic(topic)]
    groups = [group for group, _ in adopted_settings(config)]
    for name, found, why in (
        (TOPICS, stored, f"the log has messages of {len(stored)} topics, such as {next(iter(stored), None)}: nobody could read them"),
        (OFFSETS, groups, f"{GROUPS} has {len(groups)} groups, such as {next(iter(groups), None)}: each would consume all messages again"),
        (DELAYS, log.topics.get(SCHEDULE_TOPIC), "the log has messages with a delay: all would be delivered again"),
    ):
        if found and name not in config.files:
            raise StoreCorruptError(
                f"{folder}/{name} is missing, and {why}. Restore the file; if RocketMQ's broker never wrote it, create it with the content "
                "{}. Nothing was changed"
            )


def check_names(directory: StoreDirectory, log: ForeignLog, config: ForeignConfig) -> None:
    """Raise AdoptionError for a name or number that this version can't take over."""
    folder = f"{directory.root}/config"
    try:
        name, topics = TOPICS, adopted_topics(config, log)
        known = {topic.topic for topic in topics}
        if len(topics) > ADOPTED_MAX:
            raise LocalProtocolError(f"{len(topics)} topics, {ADOPTED_MAX} allowed")
        for topic in topics:
            check_topic(topic.topic)
            count = max(topic.read_queue_count, topic.write_queue_count, *(queue_id + 1 for queue_id in log.topics.get(topic.topic, {})))
            if count > QUEUES_PER_BROKER_MAX:
                raise LocalProtocolError(f"topic {topic.topic} has {count} queues, {QUEUES_PER_BROKER_MAX} allowed")
        name = OFFSETS
        for group, of_topic, _ in adopted_offsets(config):
            if of_topic in known:
                check_group(group)
        name = GROUPS
        for group, enabled in adopted_settings(config):
            if not enabled:
                check_group(group)
    except LocalProtocolError as error:
        raise AdoptionError(
            f"{folder}/{name}: {error}. RocketMQ's broker has to delete it before lockstep can take the directory over. Nothing was changed"
        ) from error


def check_owner(root: str, config: ForeignConfig, identity: StoreIdentity) -> None:
    """Raise IdentityError if RocketMQ's topics name another cluster or broker: the store would keep the wrong name for ever."""
    for what, names, name in zip(("cluster", "broker"), own_names(config), (identity.cluster, identity.broker_name), strict=True):
        if names and name and name not in names:
            raise IdentityError(
                f"store {root} is that of {what} {names[0]}, as a topic of RocketMQ's broker tells, not of {name}: start it with "
                f"{'--cluster' if what == 'cluster' else '--name'} {names[0]}. Nothing was changed"
            )


async def check_complete(
    files: Files, directory: StoreDirectory, identity: StoreIdentity, log: ForeignLog, config: ForeignConfig, on_progress: OnScanned
) -> tuple[str, ...]:
    """Raise StoreCorruptError if consume queues or offsets name messages that the log lacks.

    If RocketMQ's broker was killed, they may be on the disk before the log: return what was found then.
    """
    found: list[str] = []
    ends = {key: extent.end for key, extent in log.queues.items()}
    queues = QueueFiles(files, directory.queues, identity.queue_file_entries, 1)
    for key in directory.queue_directories() if files.exists(directory.queues) else ():
        end, position = _last_entry(files, queues, f"{directory.queues}/{key[0]}/{key[1]}")
        if end and position >= log.end:
            found.append(f"queue {key[1]} of {key[0]} has a message at log position {position}, and the log ends at {log.end}")
        ends[key] = max(ends.get(key, 0), end)
        await on_progress(log.end)
    known = {topic.topic for topic in adopted_topics(config, log)}
    progress = [
        (f"group {group} has the offset", topic, queue_id, offset)
        for group, topic, offsets in adopted_offsets(config)
        if topic in known
        for queue_id, offset in offsets.items()
    ]
    progress += [("delivery of delayed messages has the offset", SCHEDULE_TOPIC, level - 1, at) for level, at in config.delays.items()]
    for who, topic, queue_id, offset in progress:
        if offset > (end := ends.get((topic, queue_id), 0)):
            found.append(f"{who} {offset} in queue {queue_id} of {topic}, which ends at {end}")
    if found and not files.exists(f"{directory.root}/abort"):
        raise StoreCorruptError(
            f"store {directory.root}: {found[0]} ({len(found)} of this kind), so a part of the log is missing: is RocketMQ's "
            "storePathCommitLog another directory, or was a file not copied? Restore it as commitlog. If nothing is missing, correct "
            "config/*.json. Nothing was changed"
        )
    return tuple(found)


def _last_entry(files: Files, queues: QueueFiles, directory: str) -> tuple[int, int]:
    """Return the end of a consume queue on the disk and the log position in its last entry; (0, 0) if it has none.

    The files of RocketMQ's broker have their full length from the start: zeros follow the last entry. The position is −1 if the last entry
    is one of lockstep for a lost message.
    """
    per_file = queues.file_bytes // ENTRY_BYTES
    for start in sorted((int(name) for name in files.listdir(directory) if is_log_name(name)), reverse=True):
        first = low = start // ENTRY_BYTES
        high = first + per_file
        last = 0, 0
        while low < high:
            middle = (low + high) // 2
            data = queues.entries(directory, middle, 1)
            position, size, _ = ENTRY.unpack(data) if data else (0, 0, 0)
            if size:
                low = middle + 1
                last = (0, 0) if size == BLANK_SIZE else (low, position if size > 0 else -1)
            else:
                high = middle
        if low > first:
            return last
    return 0, 0
