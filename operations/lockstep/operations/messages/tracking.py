"""Ask the broker of a message what became of it in each group: progress, parked keys, and copies in the groups' own topics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError
from lockstep.operations.messages.find import Criteria, Found, find_key
from lockstep.operations.messages.message_query import was_recalled
from lockstep.operations.messages.message_track import Track, TrackType, concerns, is_finished, track
from lockstep.operations.messages.waiting import home_queue, waiting_of
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress, GroupStatus, ParkAction, ParkControlBody, ParkedKey, ParkState
from lockstep.protocol.errors import (
    BrokerError,
    LockstepError,
    RemoteProtocolError,
    SubscriptionGroupNotExistError,
    TransportError,
)
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, group_of_topic

COPIES_MAX = 1 << 20
"""Copies of one message that are looked at, in all groups: each is retried 16 times."""


async def tracks(admin: AdminClient, broker: BrokerAddress, message: MessageExt) -> list[Track]:
    """Return a track of every group that subscribes to the message's topic or has progress in its queue at its broker, by group name."""
    recalled = await was_recalled(admin, broker, message)
    found: dict[str, Track] = {}
    statuses: dict[str, GroupStatus] = {}
    for group in sorted((await admin.group_status(broker, None)).groups):
        try:
            status = (await admin.group_status(broker, group)).status
        except SubscriptionGroupNotExistError:
            continue  # it has been removed
        except (BrokerError, TransportError, RemoteProtocolError) as error:
            found[group] = Track(group, TrackType.UNKNOWN, why=str(error))
            continue
        if status is not None and concerns(status, message):
            statuses[group] = status
    finished = [name for name, status in statuses.items() if is_finished(status, message)]
    copies: Mapping[str, MessageExt] = {}
    try:
        copies = await _newest_copies(admin, broker, finished, message)
    except LockstepError as error:
        for group in finished:
            found[group] = Track(group, TrackType.UNKNOWN, why=str(error))
    for group, status in statuses.items():
        if group not in found:
            try:
                parked = group in finished and await parked_row(admin, broker, group, message) is not None
                found[group] = track(status, message, copy=copies.get(group), parked=parked, recalled=recalled)
            except (BrokerError, TransportError, RemoteProtocolError) as error:
                found[group] = Track(group, TrackType.UNKNOWN, why=str(error))
    return [found[group] for group in sorted(found)]


async def track_with_copies(
    admin: AdminClient,
    broker: BrokerAddress,
    status: GroupStatus,
    message: MessageExt,
    *,
    parked: bool | None = None,
) -> Track:
    """Return the group's track of the message, by its parked keys and its retry and dead-letter topics too.

    `parked`: whether it waits for the replay of its key; None if the broker is to be asked. Raises the errors of requests to the broker,
    and OperationError if its log could not be searched.
    """
    if not is_finished(status, message):
        return track(status, message, recalled=await was_recalled(admin, broker, message))
    if parked is None:
        parked = await parked_row(admin, broker, status.group, message) is not None
    copies = {} if parked else await _newest_copies(admin, broker, [status.group], message)
    return track(status, message, copy=copies.get(status.group), parked=parked)


async def parked_row(admin: AdminClient, broker: BrokerAddress, group: str, message: MessageExt) -> ParkedKey | None:
    """Return the parked key for whose replay the message waits, or None if it does not: progress passes such a message.

    Raises the errors of requests to the broker.
    """
    if message.sharding_key is None or waiting_of(message) is not None:
        return None
    reply = await admin.control_parked(broker, ParkControlBody(ParkAction.LIST, group, message.stored_topic, message.sharding_key))
    waiting = (row for row in reply.keys if row.queue_id == message.queue_id and row.state is not ParkState.ENDED)
    return next((row for row in waiting if row.next <= message.queue_offset), None)


@dataclass(slots=True)
class _NewestCopies(Found):
    """The newest copy of a message in each group's topics, of a search that finds the newest first."""

    by_group: dict[str, MessageExt] = field(default_factory=dict)

    def add(self, message: MessageExt) -> None:
        group = group_of_topic(home_queue(message).topic)
        if group is not None:
            self.by_group.setdefault(group, message)


async def _newest_copies(admin: AdminClient, broker: BrokerAddress, groups: Iterable[str], message: MessageExt) -> Mapping[str, MessageExt]:
    """Return the newest copy that the message's broker has in the topics of each of these groups, by the id that its producer gave it.

    The log is searched once for all groups, and not at all if none of them has such a topic. Raises OperationError if it can't be searched.
    """
    own = {prefix + group for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)}
    if not own or message.message_id == message.offset_message_id or own.isdisjoint(await admin.topics()):
        return {}
    found = _NewestCopies(COPIES_MAX, SearchProgress(admin.host.clock, reporter=admin.reporter))
    try:
        await find_key(admin, found, message.message_id, Criteria(begin_ms=message.stored_ms), unique=True, brokers=[broker])
    finally:
        found.progress.end()
    if found.failed:
        raise OperationError(f"its copies could not be searched for: {'; '.join(found.failed.values())}")
    return found.by_group
