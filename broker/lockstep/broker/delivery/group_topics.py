"""The topics to which the broker adds messages by itself: those of groups, and the destinations of delayed messages."""

from collections.abc import Callable

from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.errors import NoPermissionError, ServiceNotAvailableError
from lockstep.protocol.names import group_of_topic
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")


class GroupTopics:
    """Creates the topics `%RETRY%…` and `%DLQ%…` of groups, and finds the queues to which delayed messages are delivered."""

    def __init__(
        self,
        topics: TopicTable,
        may_begin: Callable[[str], None] | None = None,
        is_held: Callable[[str], bool] = lambda _topic: False,
    ) -> None:
        """`may_begin` raises ServiceNotAvailableError if the disk has no room for new topics. `is_held` returns whether the writes to a
        topic are held, because its queues are being moved."""
        self._topics = topics
        self._may_begin = may_begin
        self._is_held = is_held

    def create(self, topic: str) -> None:
        """Give the topic a queue of this broker if it has none, for a request.

        Raises ServiceNotAvailableError if the disk has no room for a new topic, and NoPermissionError if the cluster has too many
        (TopicTable.create, `for_group`).
        """
        if self.is_missing(topic):
            if self._may_begin is not None:
                self._may_begin(f"topic {topic}")
            self._create(topic)

    def _create_for_delayed(self, topic: str) -> None:
        """Do the same as `create`, for an acknowledged message that waits for the topic: also on a full disk.

        Raises ServiceNotAvailableError, so that the message stays pending, if the cluster has too many topics.
        """
        if self.is_missing(topic):
            try:
                self._create(topic)
            except NoPermissionError as error:
                raise ServiceNotAvailableError(f"a delayed message stays pending: {error.remark}") from error

    def is_missing(self, topic: str) -> bool:
        """Return whether the topic has no queue of this broker."""
        layout = self._topics.find_layout(topic)
        return layout is None or not self._topics.own_read_count(layout)

    def _create(self, topic: str) -> None:
        """Open one queue. In a topic of users it is closed to writers: one more queue to write to would move keys (ordering.md 9.6)."""
        layout = self._topics.create_own(topic, 1, 0 if group_of_topic(topic) is None else 1, for_group=True)
        log_limited(log, "info", "topic.created", topic=topic, counter=layout.version.counter, why="the broker has a message for it")

    def topic_began(self, topic: str) -> int:
        """Return the counter of the oldest queues in the layout in force, or 0 without a layout."""
        layout = self._topics.find_layout(topic)
        return 0 if layout is None else layout.began

    def deleted_since(self, topic: str, began: int) -> bool:
        """Return whether the topic was deleted, and perhaps created again, since its layout with `began`; False if `began` is 0."""
        layout = self._topics.find_layout(topic)
        return began > 0 and (layout is None or layout.began > began)

    def writable_queue(self, topic: str, queue_id: int, *, held_too: bool = False) -> int | None:
        """Return the queue of this broker that takes a delayed message for the topic, or None if the topic does not exist any more.

        If the queues of this broker are closed to writers, because it is being drained, the broker itself still writes to them; if it has
        none any more, it gets one again that is closed to writers.

        Raises ServiceNotAvailableError, so that the message stays pending, while the writes to the topic are held, unless `held_too`.
        """
        if not held_too and self._is_held(topic):
            raise ServiceNotAvailableError(f"a delayed message stays pending: the queues of topic {topic} are being moved")
        if group_of_topic(topic) is not None or self._topics.find_layout(topic) is not None:
            self._create_for_delayed(topic)
        layout = self._topics.find_layout(topic)
        count = 0 if layout is None else self._topics.own_write_count(layout) or self._topics.own_read_count(layout)
        return queue_id % count if count else None
