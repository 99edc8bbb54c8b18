"""The final reading: a plain client that is not a member of any group reads every queue of every broker over the network."""

import asyncio

from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import OffsetRange, TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader, PullReply
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.messages.properties import ORIGIN_MESSAGE_ID
from lockstep.protocol.names import dlq_topic, retry_topic
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT
from lockstep.testing.simulation.process import EPOCH_S
from sweep.events.universe import CopyStored, LayoutInForce, LayoutsRead, MessageStored, ReadingEnded
from sweep.history import Event, QueueKey
from sweep.settings import MAILING
from sweep.universe import Universe

GROUP = "READER"
TIMEOUT_MS = 10_000
COUNT_MAX = 256
BUSY_S = 0.2
"""The time before a refused read is repeated."""


async def read_everything(universe: Universe) -> None:
    """Write MessageStored and ReadingEnded of each queue, and each layout. A broker or nameserver that does not respond is a violation."""
    await _read_layouts(universe)
    for name, address in universe.brokers.items():
        try:
            endpoint = await connect(Host.current(), f"{address}:{BROKER_PORT}", security=universe.security(), timeout_ms=TIMEOUT_MS)
            try:
                for topic in (*universe.setting.topics, *_copies(universe)):
                    response = await endpoint.request(RequestCode.TOPIC_OFFSETS, to_plain(TopicHeader(topic)), timeout_ms=TIMEOUT_MS)
                    if response.code == ResponseCode.TOPIC_NOT_EXIST and topic not in universe.setting.topics:
                        continue
                    for at in decode_body(TopicOffsets, response.body).queues:
                        await _read_queue(universe, endpoint, QueueKey("", name, topic, at.queue_id), at)
            finally:
                endpoint.abort("read")
                await endpoint.wait_closed()
        except LockstepError as error:
            universe.record_violation("every log can be read", f"{name}: {error!r}")


async def _read_layouts(universe: Universe) -> None:
    admin = AdminClient(Host.current(), universe.cluster)
    try:
        registered = {broker.name for broker in await admin.brokers() if broker.registered}
        if away := sorted(set(universe.brokers) - registered):
            universe.record_violation("every broker is registered", f"not registered after the calm: {away}")
        topics = await admin.topics()
        for topic in topics:
            layout = (await admin.route(topic)).layout
            counts = tuple((name, layout.read_count(name)) for name in layout.read_brokers)
            universe.history.append(LayoutInForce(*universe.origin(), topic, counts))
        universe.history.append(LayoutsRead(*universe.origin(), universe.setting.topics_max))
    except LockstepError as error:
        universe.record_violation("every layout can be read", repr(error))


def _copies(universe: Universe) -> list[str]:
    """Return the topics to which brokers copy messages that groups could not handle."""
    setting = universe.setting
    concurrent = [retry_topic(MAILING), dlq_topic(MAILING)] if setting.concurrent else []
    return concurrent + ([] if setting.attempts_max is None else [dlq_topic(group) for group in setting.groups])


async def _read_queue(universe: Universe, endpoint: Endpoint, queue: QueueKey, at: OffsetRange) -> None:
    first = offset = at.min_offset
    give_up_s = universe.loop.now + TIMEOUT_MS / 1_000
    while offset < at.max_offset:
        header = PullHeader(
            GROUP, queue.topic, at.queue_id, offset, max_msg_nums=COUNT_MAX, sys_flag=SUBSCRIPTION, subscription="*", expression_type="TAG"
        )
        response = await endpoint.request(RequestCode.PULL_MESSAGE, to_plain(header), timeout_ms=TIMEOUT_MS)
        if response.code == ResponseCode.SYSTEM_BUSY and universe.loop.now < give_up_s:
            await asyncio.sleep(BUSY_S)  # the broker compares an entry with the log
            continue
        if response.code == ResponseCode.PULL_OFFSET_MOVED and universe.setting.log_bytes_max is not None:
            following = from_plain(PullReply, response.fields).next_begin_offset
            if following > offset:  # retention has removed it since the offsets were read
                first = offset = following
                continue
        if response.code != ResponseCode.SUCCESS:
            universe.record_violation("every log can be read", f"{queue} at {offset} of {at.max_offset}: {response.code} {response.remark}")
            return
        for message in decode_messages(bytes(response.body), queue.broker):
            universe.history.append(_found(universe, queue, message))
        offset = from_plain(PullReply, response.fields).next_begin_offset
    if queue.topic in universe.setting.topics:
        universe.history.append(ReadingEnded(*universe.origin(), queue, first, at.max_offset))


def _found(universe: Universe, queue: QueueKey, message: MessageExt) -> Event:
    place = (*universe.origin(), queue, message.queue_offset, message.body)
    stored_t = message.stored_ms / 1_000 - EPOCH_S
    if queue.topic in universe.setting.topics:
        return MessageStored(*place, message.sharding_key, stored_t, message.physical_offset)
    return CopyStored(*place, message.reconsume_times, message.all_properties.get(ORIGIN_MESSAGE_ID, ""), message.sharding_key, stored_t)
