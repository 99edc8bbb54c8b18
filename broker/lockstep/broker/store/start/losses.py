"""The messages that a start has lost below its snapshot.

A start reads the log from its newest snapshot on. If it finds damage below (a log file is absent or short, a queue disagrees with the log,
or the record before the snapshot can't be read), it first compares everything below the snapshot with the queues, as a scrub does. So it
knows the lost messages by queue and offset before it changes a file. Without --cut-corrupt the start then fails.
"""

from collections.abc import Iterable, Mapping

from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.log.scan import DamagedRange
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import QueueTable, StoreQueueKey

LostRow = tuple[str, int, int, int]
"""(topic, queue id, first offset, end)."""


def message_count(lost: Iterable[LostRow]) -> int:
    """Return the number of messages in these ranges."""
    return sum(end - first for _, _, first, end in lost)


class Losses:
    """The ScrubReport of that comparison. Adds its findings to the table of damage."""

    def __init__(
        self,
        queues: QueueTable,
        following: dict[StoreQueueKey, int],
        wrong: Iterable[StoreQueueKey],
        damage: DamageTable,
        *,
        known: Mapping[int, int],
        sure: bool,
    ) -> None:
        """`following`: next offsets at the snapshot, of queues with messages below it. `wrong`: queues with unusable entries. `known`:
        damaged ranges whose lost messages are recorded. `sure`: retention has removed nothing since the snapshot, so each queue begins
        where the snapshot has it.
        """
        self._queues = queues
        self._following = following
        self._damage = damage
        self._known = known
        self._unsure = set() if sure else set(wrong)
        self._rewrite = dict.fromkeys(wrong)
        self.rows: list[LostRow] = []
        """Messages that were not known to be lost."""

    @property
    def rewrite(self) -> list[ConsumeQueue]:
        """Return the queues with entries below the snapshot that have to be written again."""
        return [self._queues.get_or_create(*key) for key in self._rewrite]

    def damaged(self, damaged_range: DamagedRange) -> None:
        if self._known.get(damaged_range.begin) != damaged_range.end:
            self._unsure.clear()  # the missing messages may have been there
        self._damage.add_range(damaged_range.begin, damaged_range.end, damaged_range.reason)

    def lost(self, key: StoreQueueKey, first: int, end: int, position: int) -> None:
        if key not in self._following:
            return  # the topic was deleted, or the record that names this queue is damaged
        first = max(first, self._queues.get_or_create(*key).min)
        for low, high in self._damage.not_lost_ranges(*key, first, end):
            self._damage.add_lost(*key, low, high)
            self.rows.append((*key, low, high))
        if first < end:
            self._rewrite[key] = None

    def wrong_entries(self, key: StoreQueueKey, first: int, count: int) -> None:
        self._rewrite[key] = None

    def expected(self, key: StoreQueueKey) -> tuple[int, int]:
        queue = self._queues.get(key)
        return (0, 0) if queue is None or key in self._rewrite else (queue.min, self._following.get(key, 0))

    def queues(self) -> Iterable[StoreQueueKey]:
        return self._following

    def knows(self, key: StoreQueueKey) -> bool:
        return self._queues.get(key) is not None

    def first(self, key: StoreQueueKey) -> int | None:
        queue = self._queues.get(key)
        return None if key in self._unsure else 0 if queue is None else queue.min

    async def end(self, key: StoreQueueKey, seen: int) -> int:
        return self._following.get(key, 0)
