"""Stores messages whose wait is over in the topic to which they were sent: those of the delay queues and of the waiting rooms."""

from typing import Literal, NamedTuple

from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.delivery.room_copies import Home, HomeBound, W, ended_by
from lockstep.broker.store import Appended, ReadStatus, Store
from lockstep.broker.store.log.stored_record import Ended
from lockstep.protocol.errors import BrokerError, LocalProtocolError, LockstepError, MessageIllegalError, RemoteProtocolError
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

RETRY_MS = 1_000
"""The time after which a message is tried again if the store rejected it or a read."""
ATTEMPTS_MAX = 3
"""The maximum number of attempts for a message with an unexpected error."""
LOSSES = {
    ReadStatus.OFFSET_TOO_SMALL: "retention removed messages that still waited",
    ReadStatus.LOST: "the log is damaged there: messages that still waited are lost",
}
"""Why the next messages are missing permanently."""


class HomePlace(NamedTuple):
    """Where a copy is stored: in which queue of its topic, at which offset."""

    queue_id: int
    offset: int


class HomeDelivery:
    """Stores messages in their own topics."""

    def __init__(self, store: Store, topics: GroupTopics) -> None:
        self._store = store
        self._topics = topics

    def deliver(self, record: RecordView, ended: Ended) -> bool | None:
        """Store the copy of a waiting message, which says that its wait has ended. Return False to try again later.

        Return None if it can never be delivered: it is logged, and counted as lost if it is damaged.
        """
        facts = {"queue_id": ended.queue_id, "offset": ended.offset}
        try:
            waiting = MessageCopy.of(record)
            copy = waiting.as_delivered()
            queue_id = self._destination(copy.topic, copy.queue_id, copy.origin_topic, waiting.origin_began, facts)
            if queue_id is None:
                return None
            store_copy(self._store, copy.sent_to(copy.topic, queue_id).ending(ended))
        except (BrokerError, LocalProtocolError, RemoteProtocolError) as error:
            return self._refused(error, ended, facts)
        return True

    def deliver_bound(self, room: str, home: Home, bound: HomeBound[W]) -> HomePlace | Literal[False] | None:
        """Store the copies of messages of a room with one home, all or none. Return where the first one is, else as `deliver` does."""
        first, count = ended_by(room, bound.waiting[0]), len(bound.waiting)
        facts = {"queue_id": first.queue_id, "offset": first.offset, "count": count}
        try:
            # A move of the queues waits until all transactions are decided. So it holds new half messages, and no decision.
            held_too = room == HALF_TOPIC
            queue_id = self._destination(home.topic, home.queue_id, home.topic, home.began, facts, held_too=held_too)
            if queue_id is None:
                return None
            frame = bound.frame(home.topic, queue_id)
            appended = self._store.append_frame(home.topic, queue_id, frame, count, born_host=home.born_host, trusted=True)
        except (BrokerError, LocalProtocolError, RemoteProtocolError) as error:
            if count > 1 and not (isinstance(error, BrokerError) and error.retriable):
                raise
            return self._refused(error, first, facts)
        return HomePlace(queue_id, appended.queue_offset)

    def _destination(
        self, topic: str, queue_id: int, origin_topic: str, began: int, facts: dict[str, int], *, held_too: bool = False
    ) -> int | None:
        """Return the queue of this broker that takes a message, None if its topic is gone. Raises the errors of `writable_queue`."""
        if self._topics.deleted_since(origin_topic, began):
            log_limited(log, "warning", "delay.destination_gone", topic=origin_topic, **facts, why="its topic was deleted")
            return None
        found = self._topics.writable_queue(topic, queue_id, held_too=held_too)
        if found is None:
            log_limited(log, "warning", "delay.destination_gone", topic=topic, **facts, why="its topic has no queue here any more")
        return found

    def _refused(self, error: LockstepError, ended: Ended, facts: dict[str, int]) -> Literal[False] | None:
        if isinstance(error, BrokerError) and error.retriable:
            log_limited(log, "warning", "delay.refused", **facts, error=str(error))
            return False
        log_limited(log, "error", "delay.undeliverable", **facts, error=str(error))
        self._store.damage.add_lost(ended.topic, ended.queue_id, ended.offset, ended.offset + 1)
        return None

    def still_waits(self, record: RecordView) -> bool:
        """Return whether the topic of a waiting message is still the one to which it was sent."""
        try:
            waiting = MessageCopy.of(record)
            return not self._topics.deleted_since(waiting.origin_topic, waiting.origin_began)
        except RemoteProtocolError:
            return False


def store_copy(store: Store, copy: MessageCopy) -> Appended:
    """Store a message on the broker's own behalf. All such messages are stored here."""
    try:
        frame = copy.frame()
    except LocalProtocolError as error:
        raise MessageIllegalError(str(error)) from None
    return store.append_frame(copy.topic, copy.queue_id, frame, 1, born_host=copy.born_host, trusted=True)
