"""The final reading: every queue of every broker by a plain client, which is no member of any group, through the wire."""

from typing import TYPE_CHECKING

from lockstep.protocol.bodies import OffsetRange, TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader, PullReply
from lockstep.protocol.message import decode_messages
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.pool import connect
from lockstep.testing.sweep.events import ReadingEnded, Stored
from lockstep.testing.sweep.history import QueueKey
from lockstep.testing.sweep.services import BROKER_PORT

if TYPE_CHECKING:
    from lockstep.testing.sweep.universe import Universe

GROUP = "READER"
TIMEOUT_MS = 10_000
COUNT_MAX = 256


async def read_everything(universe: "Universe") -> None:
    """Stored and ReadingEnded of each queue. A broker that does not answer is a violation."""
    for name, address in universe.brokers.items():
        try:
            endpoint = await connect(Host.current(), f"{address}:{BROKER_PORT}", timeout_ms=TIMEOUT_MS)
            try:
                for topic in universe.setting.topics:
                    answer = await endpoint.request(RequestCode.TOPIC_OFFSETS, to_plain(TopicHeader(topic)), timeout_ms=TIMEOUT_MS)
                    for at in decode_body(TopicOffsets, answer.body).queues:
                        await _read_queue(universe, endpoint, QueueKey("", name, topic, at.queue_id), at)
            finally:
                endpoint.abort("read")
                await endpoint.wait_closed()
        except LockstepError as error:
            universe.wrong("every log can be read", f"{name}: {error!r}")


async def _read_queue(universe: "Universe", endpoint: Endpoint, queue: QueueKey, at: OffsetRange) -> None:
    offset = at.min_offset
    while offset < at.max_offset:
        header = PullHeader(
            GROUP, queue.topic, at.queue_id, offset, max_msg_nums=COUNT_MAX, sys_flag=SUBSCRIPTION, subscription="*", expression_type="TAG"
        )
        answer = await endpoint.request(RequestCode.PULL_MESSAGE, to_plain(header), timeout_ms=TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            universe.wrong("every log can be read", f"{queue} at {offset} of {at.max_offset}: {answer.code} {answer.remark}")
            return
        for message in decode_messages(bytes(answer.body), queue.broker):
            universe.history.append(Stored(*universe.place(), queue, message.queue_offset, message.body, message.sharding_key))
        offset = from_plain(PullReply, answer.fields).next_begin_offset
    universe.history.append(ReadingEnded(*universe.place(), queue, at.min_offset, at.max_offset))
