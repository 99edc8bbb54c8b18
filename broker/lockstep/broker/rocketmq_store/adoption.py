"""Takes over what RocketMQ's broker has left in config/*.json (rocketmq_store/foreign_config.py), in a start with --adopt.

Everything is recorded in the log before the first message is delivered. The directory counts as taken over when that is durable; a start
that ends before it is repeated with --adopt.

| RocketMQ                                | here                                                                                        |
|-----------------------------------------|---------------------------------------------------------------------------------------------|
| a topic of topics.json                  | its layout gets queues of this broker: as many as there, and those that hold messages       |
| perm without the permission to write    | queues that are closed to writers; queues can always be read                                |
| system topics, those named as brokers   | left out                                                                                    |
| an offset of consumerOffset.json        | progress of a new generation, at most the end of the queue. It is lower than the progress   |
|                                         | here only if it continues an export                                                         |
| consumeEnable of subscriptionGroup.json | the setting; the others do not exist here                                                   |
| an offset of delayOffset.json           | where delivery continues in the queue of that delay                                         |
| a half message that is not decided      | one of the room of half messages (foreign_halves.py)                                        |
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_config import ForeignConfig, ForeignTopic
from lockstep.broker.rocketmq_store.foreign_halves import adopt_halves
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.broker.rocketmq_store.foreign_scope import adopted_offsets, adopted_settings, adopted_topics
from lockstep.broker.rocketmq_store.foreign_store import ForeignStore
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import GroupSettings, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import BrokerError, LocalProtocolError, RemoteProtocolError, RequestTimeoutError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.names import SCHEDULE_TOPIC, is_system_topic
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import ClientSecurity

log = get_logger("broker")

TIMEOUT_MS = 6_000
RETRY_S = 1
SETTLE_MS = 5_000
"""How long a nameserver is asked again that had no broker: those that run register within seconds of its start."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was taken over."""

    topics: int
    left_out_topics: tuple[str, ...]
    """Those of topics.json."""
    unknown_topics: tuple[str, ...]
    """Those that have messages and are not in topics.json: nobody can read them."""
    groups: int
    queues: int
    """(group, topic, queue) with progress."""
    kept_queues: int
    """Those of them whose progress here was further, and remains."""
    delayed_messages: int


async def cluster_layouts(
    host: Host, nameservers: Sequence[str], security: ClientSecurity, topics: Collection[str]
) -> dict[str, TopicLayout]:
    """Return topic → the layout in force in the cluster, or its deletion. Wait until every nameserver has responded.

    A layout that was made without knowledge of a deletion is deleted by it, with its messages: so the layouts of adopted topics must follow
    those of the cluster. A nameserver that has just started learns them from the brokers: it is asked again for SETTLE_MS.
    """
    known: dict[str, TopicLayout] = {}
    waiting, settled_ms = dict.fromkeys(nameservers), dict[str, int]()
    while waiting:
        for address in list(waiting):
            try:
                found, ready = await _layouts_at(host, address, security, topics)
            except (TransportError, RemoteProtocolError, RequestTimeoutError) as error:
                log_limited(log, "warning", "adoption.waits", nameserver=address, reason=str(error), then="asked again every second")
                continue
            known |= {each.topic: each for each in found if each.topic not in known or known[each.topic].version < each.version}
            now_ms = host.clock.monotonic_ms()
            if not ready:
                settled_ms.setdefault(address, now_ms + SETTLE_MS)
            if now_ms >= settled_ms.get(address, now_ms):
                del waiting[address]
        if waiting:
            await asyncio.sleep(RETRY_S)
    return known


async def _layouts_at(host: Host, address: str, security: ClientSecurity, topics: Collection[str]) -> tuple[list[TopicLayout], bool]:
    """Return the layouts that a nameserver has, and whether any broker has registered with it since it started."""
    found, ready = [], True
    endpoint = await connect(host, address, security=security)
    try:
        for topic in topics:
            response = await endpoint.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, to_plain(TopicHeader(topic)), timeout_ms=TIMEOUT_MS)
            if response.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.ROUTE_NOT_READY):
                raise RemoteProtocolError(f"{address} answered {response.code} to the route of {topic}: {response.remark}")
            ready = ready and response.code != ResponseCode.ROUTE_NOT_READY
            if response.body:
                found.append(decode_body(TopicRoute, response.body).layout)
    finally:
        endpoint.abort("done")
        await endpoint.wait_closed()
    return found, ready


async def take_over(
    host: Host,
    nameservers: Sequence[str],
    security: ClientSecurity,
    root: str,
    store: Store,
    state: BrokerState,
    foreign: ForeignStore,
) -> None:
    """Record what RocketMQ's broker has left in the directory `root`, and log what it was. Raises AdoptionError, OSError and StoreError."""
    topics = [topic.topic for topic in adopted_topics(foreign.config, foreign.log)]
    cluster = await cluster_layouts(host, nameservers, security, topics)
    found = await adopt(state, foreign, cluster)
    halves = await adopt_halves(store, state, foreign.undecided_halves, foreign.log.ended_halves)
    left_behind = {each.kind: each.count for each in foreign.unfinished}
    if doubts := foreign.doubts:
        then = "RocketMQ's broker was killed: offsets are lowered to the ends of queues"
        log.warning("store.incomplete", found=doubts[0], count=len(doubts), then=then)
    log.info("store.adopted", store=root, **asdict(found), half_messages=halves, left_behind=left_behind)


async def adopt(state: BrokerState, foreign: ForeignStore, cluster: Mapping[str, TopicLayout]) -> Adopted:
    """Record what RocketMQ's broker has left. `cluster`: the layouts of `cluster_layouts`. Raises AdoptionError.

    Call it after `enter_term`, before anything is delivered. The admin port responds meanwhile.
    """
    config, contained, lowers = foreign.config, foreign.log, foreign.continues
    taken = adopted_topics(config, contained)
    for topic in taken:
        try:
            _adopt_topic(state, topic, contained, cluster.get(topic.topic))
        except (BrokerError, LocalProtocolError) as error:
            raise AdoptionError(f"topic {topic.topic} of RocketMQ's broker can't be taken over: {error}") from error
        await asyncio.sleep(0)
    counts = await _adopt_progress(state.coordination, config, lowers=lowers)
    for group, enabled in adopted_settings(config):
        settings = state.coordination.state.settings.get(group) or GroupSettings(group)
        if settings.consume_enable != enabled:
            state.coordination.state.activity.record_activity(group)
            state.coordination.state.settings.record_settings(replace(settings, consume_enable=enabled))
    for level, offset in sorted(config.delays.items()):
        if level > 0 and (end := state.coordination.state.bounds.end_offset(SCHEDULE_TOPIC, level - 1)):
            offset = max(contained.bounds(SCHEDULE_TOPIC, level - 1)[0], min(offset, end))
            state.delays.record_delivered(level - 1, offset if lowers else max(offset, state.delays.next_offset(level - 1)))
    names = {topic.topic for topic in taken}
    delivered = {queue_id: state.delays.next_offset(queue_id) for queue_id in contained.topics.get(SCHEDULE_TOPIC, {})}
    waiting = contained.delayed_count(delivered)
    unknown = tuple(topic for topic in contained.topics if topic not in config.topics and not is_system_topic(topic))
    return Adopted(len(taken), tuple(sorted(set(config.topics) - names)), unknown, *counts, waiting)


def _adopt_topic(state: BrokerState, topic: ForeignTopic, contained: ForeignLog, cluster: TopicLayout | None) -> None:
    """Give the topic's layout queues of this broker, so that the new layout follows the one here and the one of the cluster."""
    name = state.coordination.state.config.broker_name
    stored = max(contained.topics.get(topic.topic, {}), default=-1) + 1
    write = topic.writable_count
    read = max(topic.read_queue_count, write, stored, 1)
    before = state.topics.find_layout(topic.topic) or cluster or TopicLayout(topic.topic, LayoutVersion(0, 0), ())
    write_more, read_more = max(0, write - before.write_count(name)), max(0, read - before.read_count(name))
    if write_more or read_more or before is cluster:
        state.topics.create(before.with_queues(name, write_more, read_more, state.new_writer()), for_group=True)


async def _adopt_progress(coordination: Coordination, config: ForeignConfig, *, lowers: bool) -> tuple[int, int, int]:
    """Return the numbers of groups, of queues with progress, and of those whose progress here remains. `lowers`: none does."""
    state, minimums = coordination.state, dict[tuple[str, int], int]()
    groups, count, kept = dict[str, None](), 0, 0
    for group, topic, offsets in adopted_offsets(config):
        known = {queue_id: offset for queue_id, offset in sorted(offsets.items()) if state.has_queue(topic, queue_id)}
        if not known:
            continue
        groups[group] = None
        count += len(known)
        state.activity.record_activity(group)
        generation = state.fence.draw()
        for queue_id, offset in known.items():
            key = group, topic, queue_id
            end = state.bounds.end_offset(topic, queue_id)  # the log does not tell it if all messages of the queue have been removed
            offset, progress = max(0, min(offset, end)), state.progress.get(key)
            if progress is not None and offset < progress.offset and not lowers:
                kept += 1
            elif progress is None or progress.offset != offset:
                state.progress.set_progress(key, Progress(generation, offset))
                state.end_grant(key, "offsets were adopted")
            minimums[topic, queue_id] = state.bounds.bounds(topic, queue_id)[0]
        await asyncio.sleep(0)
    for _ in coordination.skip_removed(minimums):
        pass
    return len(groups), count, kept
