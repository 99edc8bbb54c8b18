"""Writes topics, progress and delays of a stopped store to config/*.json, so that RocketMQ's broker opens the directory with them.

What those files have of RocketMQ's own (system topics, groups of its services, fields that lockstep does not know) remains as it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.copy_identity import has_copies
from lockstep.broker.rocketmq_store.errors import ExportError
from lockstep.broker.rocketmq_store.foreign_config import (
    DELAYS,
    GROUPS,
    OFFSETS,
    PERM_READ,
    PERM_WRITE,
    TOPICS,
    KnownContent,
    config_text,
    found_digests,
    read_plain,
    save_known,
)
from lockstep.broker.rocketmq_store.foreign_scope import SYSTEM_GROUP_PREFIX
from lockstep.broker.rocketmq_store.opening import open_store
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.health.stopped import stopped
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity, parse_identity
from lockstep.protocol.crc import crc32
from lockstep.protocol.delays import CUSTOM_QUEUE_ID_BASE, format_delay, queue_delay_ms
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, STATE_TOPIC, is_system_topic
from lockstep.runtime.host import Host

ADVICE = "stop it first: what it writes later would not be in the export"
NEW_TOPIC: dict[str, Any] = {"attributes": {}, "order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
NEW_GROUP: dict[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


HALF_PROGRESS = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"
"""The progress of RocketMQ's broker in half messages. RocketMQ: MixAll.CID_SYS_RMQ_TRANS."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and the settings that RocketMQ's broker needs for the directory."""

    topics: int
    groups: int
    queues: int
    """(group, topic, queue) with progress."""
    delayed_messages: int
    settings: dict[str, str]


async def export_store(host: Host, root: str) -> Exported:
    """Write config/*.json, and the content before to config/*.json.bak, as RocketMQ does. Nothing else in the directory is changed.

    An export that is killed is repeated, or the broker is started: until all files are replaced, both contents of each count as known.

    Raises:
        ConfigError: There is no store.
        ExportError: It was not stopped in order, or RocketMQ's broker would lose a part of it.
        StoreInUseError: A broker has it open.
        StoreError: The store can't be read.
    """
    directory = StoreDirectory(host.files, root)
    text = directory.read(f"{directory.own}/identity") if host.files.exists(directory.own) else None
    if text is None:
        raise ConfigError(f"{root} is not the store of a lockstep broker: it has no lockstep/identity")
    with stopped(host.files, root, ADVICE):
        if host.files.exists(f"{root}/abort"):
            raise ExportError(f"store {root} was not stopped in order: start its broker and stop it, then export the store")
        if has_copies(directory):
            what = f"store {root} has replicas, or is one: RocketMQ's broker would write another log"
            raise ExportError(f"{what}. Forget them first (lockstep replica forget)")
    identity = parse_identity(text, f"{directory.own}/identity")
    config = BrokerConfig(name=identity.broker_name, cluster=identity.cluster, store=root)
    store = (await open_store(config.store_config(), host, config.identity())).store
    try:
        state = BrokerState(config.coordination(), store, host.random)
        await store.recover(state)
        _check(store, state, root)
        plain = read_plain(directory)
        now_ms = host.clock.wall_ms()
        topics, groups, offsets, delays = (
            _topics(state, plain),
            _groups(state, plain),
            _offsets(state, store, plain),
            _delays(state, store, plain),
        )
        tables: dict[str, dict[str, Any]] = {
            OFFSETS: {"offsetTable": offsets},
            DELAYS: {"offsetTable": delays},
            GROUPS: {"subscriptionGroupTable": groups},
            TOPICS: {"topicConfigTable": topics},
        }
        texts = {}
        for name, table in tables.items():
            before = plain.get(name, {})
            version = {"counter": _counter(before) + 1, "stateVersion": 0, "timestamp": now_ms}
            texts[name] = config_text({**before, **table, "dataVersion": version})
        _replace(directory, texts)
        progress = state.coordination.state.progress
        queue_ids = store.queue_ids(SCHEDULE_TOPIC)
        waiting = sum(store.end_offset(SCHEDULE_TOPIC, queue_id) - state.delays.next_offset(queue_id) for queue_id in queue_ids)
        own_topics = sum(state.topics.find_layout(topic) is not None for topic in topics)
        return Exported(own_topics, len(progress.groups()), len(progress), waiting, _settings(identity, root))
    finally:
        await store.close(clean=False, refused=True)


def _replace(directory: StoreDirectory, texts: dict[str, bytes]) -> None:
    """Replace the files of config/ in this order, so that a file is known at each moment, with its old or its new content."""
    digests = {name: crc32(text) for name, text in texts.items()}
    found = found_digests(directory)
    save_known(directory, KnownContent({name: (*([found[name]] if name in found else []), crc) for name, crc in digests.items()}))
    for name, text in texts.items():
        path = f"{directory.root}/config/{name}"
        if name in found:
            directory.replace(f"{path}.bak", directory.read(path) or b"")
        directory.replace(path, text)
    save_known(directory, KnownContent({name: (crc,) for name, crc in digests.items()}, exported=True))


def _check(store: Store, state: BrokerState, root: str) -> None:
    """Raise ExportError if RocketMQ's broker would lose something."""
    if store.damage.ranges or store.damage.message_count:
        raise ExportError(f"store {root} has damage (lockstep/damage), which RocketMQ's broker does not know: it can't be given back to it")
    if state.coordination.state.parks.count:
        groups = sorted({row.group for row in state.coordination.state.parks})
        raise ExportError(
            f"store {root} has parked keys, which RocketMQ's broker does not know (groups {', '.join(groups[:8])}): it would never deliver "
            "their messages. Run this broker, replay or drop them with `lockstep park`, and consume what follows them"
        )
    if count := len(state.timers):
        raise ExportError(
            f"store {root} has {count} messages that wait for a delay of any length, which RocketMQ's broker would not find: it "
            "would never deliver them. Run this broker until they are due, or recall them"
        )
    if count := len(state.transactions):
        raise ExportError(
            f"store {root} has {count} half messages, whose transactions are not decided: RocketMQ's broker would deliver or drop all that "
            "it finds in their topic. Run this broker until their producers have answered, or decide with `lockstep tx`"
        )
    unknown = [
        format_delay(queue_delay_ms(queue_id))
        for queue_id in store.queue_ids(SCHEDULE_TOPIC)
        if queue_id > CUSTOM_QUEUE_ID_BASE and state.delays.next_offset(queue_id) < store.end_offset(SCHEDULE_TOPIC, queue_id)
    ]
    if unknown:
        raise ExportError(
            f"store {root} has delayed messages whose delay RocketMQ's table lacks ({', '.join(unknown)}): RocketMQ's broker would never "
            "deliver them. Run this broker until they are due"
        )


def _counter(before: dict[str, Any]) -> int:
    version = before.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else 0
    return counter if isinstance(counter, int) else 0


def _topics(state: BrokerState, plain: dict[str, Any]) -> dict[str, Any]:
    before = plain.get(TOPICS, {}).get("topicConfigTable", {})
    name = state.coordination.state.config.broker_name
    # A topic that is unknown here, and that RocketMQ made itself, is in no layout: it remains.
    topics = {topic: entry for topic, entry in before.items() if state.layouts.get(topic) is None}
    for layout in state.layouts.all():
        write, read = layout.write_count(name), layout.read_count(name)
        if layout.deleted or not read:
            continue
        entry = {**NEW_TOPIC, **before.get(layout.topic, {})}
        # RocketMQ has one number of queues for each purpose; `perm` closes a topic to writers.
        perm = PERM_READ | (PERM_WRITE if write else 0)
        counts = {"readQueueNums": read, "writeQueueNums": write or read}
        topics[layout.topic] = {**entry, **counts, "perm": perm, "topicName": layout.topic}
    topics[STATE_TOPIC] = {**NEW_TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 0, "topicName": STATE_TOPIC}
    return topics


def _groups(state: BrokerState, plain: dict[str, Any]) -> dict[str, Any]:
    groups = dict(plain.get(GROUPS, {}).get("subscriptionGroupTable", {}))
    settings = state.coordination.state.settings
    for group in dict.fromkeys([*state.coordination.state.progress.groups(), *settings.groups()]):
        groups[group] = {**NEW_GROUP, **groups.get(group, {}), "groupName": group, "consumeEnable": settings.may_consume(group)}
    return groups


def _offsets(state: BrokerState, store: Store, plain: dict[str, Any]) -> dict[str, Any]:
    offsets = {key: value for key, value in plain.get(OFFSETS, {}).get("offsetTable", {}).items() if _is_foreign(key)}
    for (group, topic, queue_id), progress in state.coordination.state.progress:
        offsets.setdefault(f"{topic}@{group}", {})[queue_id] = progress.offset
    if halves := store.end_offset(HALF_TOPIC, 0):
        offsets[HALF_PROGRESS] = {0: halves}  # all of them have ended, and RocketMQ's broker finds no op messages of ours
    return offsets


def _is_foreign(key: str) -> bool:
    topic, _, group = key.partition("@")
    return is_system_topic(topic) or group.startswith(SYSTEM_GROUP_PREFIX)


def _delays(state: BrokerState, store: Store, plain: dict[str, Any]) -> dict[int, int]:
    delays = {int(level): int(offset) for level, offset in plain.get(DELAYS, {}).get("offsetTable", {}).items()}
    queue_ids: Iterable[int] = store.queue_ids(SCHEDULE_TOPIC)
    return delays | {queue_id + 1: state.delays.next_offset(queue_id) for queue_id in queue_ids if queue_id < CUSTOM_QUEUE_ID_BASE}


def _settings(identity: StoreIdentity, root: str) -> dict[str, str]:
    return {
        "brokerClusterName": identity.cluster,
        "brokerName": identity.broker_name,
        "storePathRootDir": root,
        "storePathCommitLog": f"{root}/commitlog",
        "mappedFileSizeCommitLog": str(identity.segment_bytes),
        "mappedFileSizeConsumeQueue": str(identity.queue_file_entries * 20),
    }
