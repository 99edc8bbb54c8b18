"""Determine how far each group is relative to one message, from its broker's state. RocketMQ: messageTrackDetail, TrackType.

Only positions are compared: progress past a message does not prove that a listener was called with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lockstep.admin.client import AdminClient
from lockstep.protocol.bodies import BrokerAddress, ConsumeType, GroupStatus, QueueStatus
from lockstep.protocol.done_ranges import contains
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, SubscriptionGroupNotExistError, TransportError
from lockstep.protocol.message import MessageExt
from lockstep.protocol.tags import TagFilter


class TrackType(Enum):
    """RocketMQ: TrackType."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


MEANINGS: Mapping[TrackType, str] = {
    TrackType.CONSUMED: "the group's progress is past the message",
    TrackType.CONSUMED_BUT_FILTERED: "the group's progress is past the message, and its current subscription does not match the tag",
    TrackType.PULL: "the group pulls and manages its progress itself",
    TrackType.NOT_CONSUME_YET: "the group's progress has not reached the message",
    TrackType.NOT_ONLINE: "no member of the group is connected to the broker",
    TrackType.CONSUME_BROADCASTING: "each member keeps progress of its own, which the broker does not know",
    TrackType.UNKNOWN: "the broker could not be reached",
}


@dataclass(frozen=True, slots=True)
class Track:
    group: str
    type: TrackType
    committed_offset: int | None = None
    """The group's progress in the message's queue; None if it has none."""
    why: str | None = None
    """The error, if `type` is UNKNOWN."""


async def tracks(admin: AdminClient, broker: BrokerAddress, message: MessageExt) -> list[Track]:
    """Return a track of every group that subscribes to the message's topic or has progress in its queue at its broker, by group name."""
    found = []
    for group in sorted((await admin.group_status(broker, None)).groups):
        try:
            status = (await admin.group_status(broker, group)).status
        except SubscriptionGroupNotExistError:
            continue  # it has been removed
        except (BrokerError, TransportError, RemoteProtocolError) as error:
            found.append(Track(group, TrackType.UNKNOWN, why=str(error)))
            continue
        if status is not None and _concerns(status, message):
            found.append(track(status, message))
    return found


def track(status: GroupStatus, message: MessageExt) -> Track:
    """Return the group's track of the message."""
    queue = _queue(status, message)
    committed = None if queue is None else queue.committed_offset
    finished = queue is not None and (message.queue_offset < queue.committed_offset or contains(queue.done or (), message.queue_offset))
    return Track(status.group, _type(status, message, finished), committed)


def _type(status: GroupStatus, message: MessageExt, finished: bool) -> TrackType:
    contract = status.contract
    if not status.members:
        return TrackType.NOT_ONLINE
    if contract is not None and contract.consume_type is ConsumeType.CONSUME_ACTIVELY:
        return TrackType.PULL
    if contract is not None and contract.broadcasting:
        return TrackType.CONSUME_BROADCASTING
    if not finished:
        return TrackType.NOT_CONSUME_YET
    subscribed = () if contract is None else contract.subscriptions
    expressions = [each.expression for each in subscribed if each.topic == message.stored_topic and each.expression_type == "TAG"]
    matches = not expressions or TagFilter.parse(expressions[0]).matches_tag(message.tags)
    return TrackType.CONSUMED if matches else TrackType.CONSUMED_BUT_FILTERED


def _queue(status: GroupStatus, message: MessageExt) -> QueueStatus | None:
    """Return the message's queue, or None if the group has no progress there."""
    place = (message.stored_topic, message.queue_id)
    return next((each for each in status.queues if (each.topic, each.queue_id) == place and each.committed_offset >= 0), None)


def _concerns(status: GroupStatus, message: MessageExt) -> bool:
    subscribed = () if status.contract is None else status.contract.subscriptions
    return _queue(status, message) is not None or any(each.topic == message.stored_topic for each in subscribed)
