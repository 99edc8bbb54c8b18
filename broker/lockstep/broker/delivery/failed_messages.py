"""Stores the copies of messages that a group could not process: in `%RETRY%group` after a delay, or in `%DLQ%group`.

Both count the group, as every other request does with which a group begins, and create the topic of the copy. A request that is refused has
created nothing and has counted no group.
"""

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import store_copy
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.store import Appended, Store

COPY_HEAD_BYTES_MAX = 64 << 10
"""Bytes of a copy's record in addition to the body: its properties take 32 KiB at most."""

COUNTED_MAX = 10_000


class FailedMessages:
    """Stores and counts copies. Callers have made all checks that can refuse the request."""

    def __init__(self, store: Store, coordination: Coordination, delays: DelayedDelivery, group_topics: GroupTopics) -> None:
        self._store = store
        self._coordination = coordination
        self.delays = delays
        self._group_topics = group_topics
        self.counts: dict[tuple[str, str], int] = {}
        """Copies stored since the start, by (topic of the message, group), of at most COUNTED_MAX pairs."""

    def store(self, group: str, copy: MessageCopy, level: int = 0) -> Appended:
        """Store the copy in its topic, which is one of the group; with a level, after its delay."""
        self._store.check_append(len(copy.body) + COPY_HEAD_BYTES_MAX)
        self._coordination.state.limits.check_group_room(group)
        self._group_topics.create(copy.topic)
        self._coordination.state.register_group(group)
        pair = copy.origin_topic, group
        if pair in self.counts or len(self.counts) < COUNTED_MAX:
            self.counts[pair] = self.counts.get(pair, 0) + 1
        return self.delays.append(copy, level) if level > 0 else store_copy(self._store, copy)

    def is_missing(self, topic: str) -> bool:
        """Return whether the topic has no queue of this broker yet."""
        return self._group_topics.is_missing(topic)
