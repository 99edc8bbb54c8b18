"""Determine what became of one message in each group, from its broker's state. RocketMQ: messageTrackDetail, TrackType.

RocketMQ compares positions only: progress past a message does not prove that a listener was called with it. Here the copies of the message
in the group's retry and dead-letter topics count as well, and its key, if that is parked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lockstep.admin.client import AdminClient
from lockstep.admin.find import Criteria, Found, find_key
from lockstep.admin.search_progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress, ConsumeType, GroupStatus, ParkAction, ParkControlBody, ParkState, QueueStatus
from lockstep.protocol.done_ranges import contains
from lockstep.protocol.errors import (
    BrokerError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    SubscriptionGroupNotExistError,
    TransportError,
)
from lockstep.protocol.message import MessageExt
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from lockstep.protocol.tags import TagFilter

COPIES_MAX = 64
"""Copies of one message in one topic that are looked at: a message is retried 16 times."""


class TrackType(Enum):
    """RocketMQ: TrackType."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"
    PARKED = "PARKED"
    """These three are lockstep's own."""
    RETRYING = "RETRYING"
    DEAD_LETTERED = "DEAD_LETTERED"


MEANINGS: Mapping[TrackType, str] = {
    TrackType.CONSUMED: "the group's progress is past the message",
    TrackType.CONSUMED_BUT_FILTERED: "the group's progress is past the message, and its current subscription does not match the tag",
    TrackType.PULL: "the group pulls and manages its progress itself",
    TrackType.NOT_CONSUME_YET: "the group's progress has not reached the message",
    TrackType.NOT_ONLINE: "no member of the group is connected to the broker",
    TrackType.CONSUME_BROADCASTING: "each member keeps progress of its own, which the broker does not know",
    TrackType.UNKNOWN: "the broker could not be reached",
    TrackType.PARKED: "its sharding key is parked, and the message waits for the replay",
    TrackType.RETRYING: "a copy of it waits in the group's retry topic",
    TrackType.DEAD_LETTERED: "a copy of it is in the group's dead-letter topic",
}


@dataclass(frozen=True, slots=True)
class Track:
    group: str
    type: TrackType
    committed_offset: int | None = None
    """The group's progress in the message's queue; None if it has none."""
    why: str | None = None
    """The error, if `type` is UNKNOWN."""


def track_json(track: Track) -> dict[str, Any]:
    """Return a track as `lockstep message show --track --json` prints it."""
    meaning = track.why or MEANINGS[track.type]
    return {"group": track.group, "track": track.type.value, "committed_offset": track.committed_offset, "meaning": meaning}


async def tracks(admin: AdminClient, broker: BrokerAddress, message: MessageExt, *, printed: bool = False) -> list[Track]:
    """Return a track of every group that subscribes to the message's topic or has progress in its queue at its broker, by group name.

    `printed`: whether the progress of a long search for copies is printed on stderr.
    """
    found = []
    for group in sorted((await admin.group_status(broker, None)).groups):
        try:
            status = (await admin.group_status(broker, group)).status
            if status is not None and _concerns(status, message):
                found.append(await track_with_copies(admin, broker, status, message, printed=printed))
        except SubscriptionGroupNotExistError:
            continue  # it has been removed
        except (BrokerError, TransportError, RemoteProtocolError) as error:
            found.append(Track(group, TrackType.UNKNOWN, why=str(error)))
    return found


async def track_with_copies(
    admin: AdminClient, broker: BrokerAddress, status: GroupStatus, message: MessageExt, *, printed: bool = False
) -> Track:
    """Return the group's track of the message, by its parked keys and its retry and dead-letter topics too. `printed`: as for `tracks`.

    Raises the errors of requests to the broker.
    """
    found = track(status, message)
    if found.type not in (TrackType.CONSUMED, TrackType.CONSUMED_BUT_FILTERED):
        return found
    if await _is_parked(admin, broker, status.group, message):
        return replace(found, type=TrackType.PARKED)
    if found.type is TrackType.CONSUMED_BUT_FILTERED:
        return found
    if await _copies(admin, broker, DLQ_PREFIX + status.group, message, printed=printed):
        return replace(found, type=TrackType.DEAD_LETTERED)
    retries = await _copies(admin, broker, RETRY_PREFIX + status.group, message, printed=printed)
    if any(not _is_finished(status, each) for each in retries):
        return replace(found, type=TrackType.RETRYING)
    return found


async def _is_parked(admin: AdminClient, broker: BrokerAddress, group: str, message: MessageExt) -> bool:
    """Return whether the message is one that waits for the replay of its key: progress passes it."""
    if message.sharding_key is None:
        return False
    try:
        reply = await admin.control_parked(broker, ParkControlBody(ParkAction.LIST, group, message.stored_topic, message.sharding_key))
    except RequestCodeNotSupportedError:
        return False  # a broker of an earlier version parks no keys
    return any(
        row.queue_id == message.queue_id and row.state is not ParkState.ENDED and row.next <= message.queue_offset for row in reply.keys
    )


async def _copies(admin: AdminClient, broker: BrokerAddress, topic: str, message: MessageExt, *, printed: bool) -> list[MessageExt]:
    """Return the copies of the message that its broker has in a topic, by the id that its producer gave it."""
    if message.message_id == message.offset_message_id:
        return []
    found = Found(COPIES_MAX, SearchProgress(admin.host.clock, printed=printed))
    criteria = Criteria(topic, begin_ms=message.stored_ms)
    try:
        await find_key(admin, found, message.message_id, criteria, unique=True, brokers=[broker])
    finally:
        found.progress.end_line()
    return found.messages


def _is_finished(status: GroupStatus, message: MessageExt) -> bool:
    queue = _queue(status, message)
    return queue is not None and (message.queue_offset < queue.committed_offset or contains(queue.done or (), message.queue_offset))


def track(status: GroupStatus, message: MessageExt) -> Track:
    """Return the group's track of the message."""
    queue = _queue(status, message)
    committed = None if queue is None else queue.committed_offset
    return Track(status.group, _type(status, message, _is_finished(status, message)), committed)


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
