"""A queue of a concurrent group between a consumer and its broker: the machine of ownership.py, without a lock.

QUERY_CONSUMER_OFFSET stands for LOCK: its answer grants, with the progress' generation in the epoch's place. Nobody else is kept out: when
the list gives the queue to another member, that one begins at the committed offset at once, and what runs here is finished beside it. A
release is the last commit. Nothing has to be proven, and after a lost connection the last commit is simply sent again.
"""

from lockstep.client.consumer.ownership import Event, QueueOwnership, Sent, State
from lockstep.protocol.bodies import LockItem, SyncItem


class SharedOwnership(QueueOwnership):
    __slots__ = ()
    fenced = False

    @property
    def asks(self) -> bool:
        return self.may_lock and not self.in_lock

    def pull_fence(self, epoch: int) -> tuple[int | None, int | None]:
        return None, epoch

    def lock_item(self) -> LockItem | None:
        return None

    def query_sent(self) -> Sent:
        self.in_lock = True
        return Sent(self, None, None, 0)

    def sync_item(self) -> SyncItem | None:
        """A release is a commit as well: what is finished counts, also where calls still run past their drain limit."""
        if not self.dirty:
            return None
        return SyncItem(self.group, self.queue.topic, self.queue.queue_id, None, self.epoch, self.offset)

    def sync_sent(self, item: SyncItem) -> Sent:
        release = self.state is State.RELEASING
        self._told = (self.offset, 0)
        if release:
            self._on(Event.SENT)
        return Sent(self, self.epoch, item.offset, 0, release)

    def cut(self) -> None:
        super().cut()
        self._told = self._settled
        self._on(Event.RENEWED)
