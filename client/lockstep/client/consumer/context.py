"""The state that all queues of one consumer share."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.events import ConsumerEvent
from lockstep.client.consumer.grants.broadcast import LocalProgress
from lockstep.client.consumer.grants.ownership import GrantPolicy
from lockstep.protocol.tags import TagFilter
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host


@dataclass(slots=True)
class ConsumerContext:
    """One consumer, as its queues see it."""

    group: str
    config: ConsumerConfig
    policy: GrantPolicy
    """How its queues are acquired."""
    listener_name: str
    """The listener's name in logs; "poll" for a pull consumer."""
    filters: Mapping[str, TagFilter]
    """The subscriptions by topic."""
    host: Host
    tasks: Tasks
    runs: Tasks
    """The tasks in which listeners run: they end when the listener does."""
    report: Callable[[ConsumerEvent], None]
    """Pass an event to the user's callbacks."""
    fail: Callable[[BaseException], None]
    """Stop the consumer: it can't go on. `wait_closed()` raises the error."""
    assigned: Mapping[MessageQueue, None] | None = None
    """The queues that the user has assigned; None if member lists and layouts decide."""
    local: LocalProgress | None = None
    """Set in broadcasting: every queue is this member's, and it stores its progress itself."""
    cluster: tuple[str, ...] = ()
    """The addresses of its nameservers."""
    paused: bool = False

    def call_key(self, queue: MessageQueue) -> Hashable:
        """Return the key in `Host.calls` of this process's calls for the group's queue."""
        return self.cluster, self.group, queue
