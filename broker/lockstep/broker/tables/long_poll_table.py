"""Held pulls: long polling that ends when messages arrive. RocketMQ: PullRequestHoldService, without its scan every 5 s.

A pull is held under its topic and queue until the first of these events:
    arrival     messages of the queue have become visible
    deadline    `now >= deadline_ms`
    stale       the epoch of its group's queue rose above the one that it carries
    gone        its connection closed
    excess      a newer pull exceeded one of the limits, or it was lowered, and this pull is the oldest of those that count towards it
The event removes it from the table. The caller then responds to it or holds it again.

Any number of pulls may be woken or due at once. They stay in the table until `take_woken` and `take_expired` remove them, as many at a time
as the caller handles in one turn of its loop.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_PER_CONNECTION_MAX = 16_384
"""Pulls of one connection that are held at a time. A client usually holds one per queue, and no topic has more queues at one broker."""
HELD_MAX = 200_000
"""Pulls that are held at a time. Each takes 1.0 to 1.4 KB."""
LONG_EXPRESSION_CHARS = 256
"""A pull with a longer subscription expression of its own counts towards HELD_EXPRESSION_BYTES_MAX."""
HELD_EXPRESSION_BYTES_MAX = 64 << 20
"""Memory of such expressions in held pulls: 262,144 pulls with the shortest of them."""
HELD_PER_GROUP_MAX = 1_024
"""Pulls of one group that are held at one queue at a time. Usually that is one of its owner, but classic clients may share a queue."""


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """A held pull. `item` is what the caller needs to respond to it."""

    item: T
    connection_id: int
    group: str
    topic: str
    queue_id: int
    deadline_ms: int
    expression_bytes: int = 0
    """Memory of the subscription expression that the pull carries, if that is a long one."""
    user: str = ""
    """Whose pull it is, if it has limits."""
    number: int = field(default=0, init=False)
    """Number of this entry in the table, from 1. 0 if the pull is not held."""


TopicQueue = tuple[str, int]
"""(topic, queue id)"""
HeldPulls = dict[int, HeldPull[T]]
"""Number → pull, in ascending order of numbers."""


class LongPollTable(Generic[T]):
    """A table of held pulls by queue, by group and queue, by connection and by deadline."""

    def __init__(
        self,
        *,
        held_per_connection_max: int = HELD_PER_CONNECTION_MAX,
        held_max: int = HELD_MAX,
        held_per_group_max: int = HELD_PER_GROUP_MAX,
    ) -> None:
        self.held_max = held_max
        self._held_per_connection_max = held_per_connection_max
        self.held_per_group_max = held_per_group_max
        self._number = 0
        self._reset()

    def _reset(self) -> None:
        self._all: OrderedDict[int, HeldPull[T]] = OrderedDict()
        self._by_topic: dict[str, dict[int, HeldPulls[T]]] = {}
        self._by_group: dict[tuple[str, str, int], HeldPulls[T]] = {}
        self._by_connection: dict[int, HeldPulls[T]] = {}
        self._by_user: Counter[str] = Counter()
        """User with limits → number of pulls."""
        self._long: OrderedDict[int, HeldPull[T]] = OrderedDict()
        """The pulls with a long expression."""
        self._long_bytes = 0
        self._due: list[tuple[int, int]] = []
        """(deadline, number), also of pulls that are not held any more: the table must not keep those alive."""
        self._woken: dict[TopicQueue, int] = {}
        """Queue → the highest number held there when it was last woken."""

    def __len__(self) -> int:
        return len(self._all)

    def count_of(self, user: str) -> int:
        """Return how many pulls of a user with limits are held."""
        return self._by_user[user]

    def held_by(self, group: str, topic: str, queue_id: int) -> list[T]:
        """Return what the pulls of a group are that are held at a queue, the oldest first."""
        return [pull.item for pull in self._by_group.get((group, topic, queue_id), {}).values()]

    def hold(self, pull: HeldPull[T]) -> bool:
        """Add a pull; call `take_excess` afterwards. Return False if the connection holds its maximum: respond to the pull at once."""
        assert not pull.number, "the pull is held already"
        mine = self._by_connection.setdefault(pull.connection_id, {})
        if len(mine) >= self._held_per_connection_max:
            return False
        self._number += 1
        pull.number = self._number
        self._all[pull.number] = mine[pull.number] = pull
        if pull.user:
            self._by_user[pull.user] += 1
        if pull.expression_bytes:
            self._long[pull.number] = pull
            self._long_bytes += pull.expression_bytes
        self._by_topic.setdefault(pull.topic, {}).setdefault(pull.queue_id, {})[pull.number] = pull
        self._by_group.setdefault((pull.group, pull.topic, pull.queue_id), {})[pull.number] = pull
        heapq.heappush(self._due, (pull.deadline_ms, pull.number))
        return True

    def take_excess(self, pull: HeldPull[T]) -> HeldPull[T] | None:
        """Remove and return the oldest pull above a limit, after `pull` was held. Return None within the limits of the group and of all."""
        of_group = self._by_group[pull.group, pull.topic, pull.queue_id]
        if len(of_group) > self.held_per_group_max:
            oldest = next(iter(of_group.values()))
        elif len(self._all) > self.held_max:
            oldest = next(iter(self._all.values()))
        elif self._long_bytes > HELD_EXPRESSION_BYTES_MAX:
            oldest = next(iter(self._long.values()))
        else:
            return None
        self._remove([oldest])
        return oldest

    def take_above_limits(self, count: int) -> list[HeldPull[T]]:
        """Remove and return at most `count` pulls above a limit that was lowered, the oldest first: those of all, then those of groups."""
        if (above := len(self._all) - self.held_max) > 0:
            return self._remove(list(islice(self._all.values(), min(above, count))))
        found: list[HeldPull[T]] = []
        for pulls in self._by_group.values():
            found += islice(pulls.values(), max(0, min(len(pulls) - self.held_per_group_max, count - len(found))))
        return self._remove(found)

    def mark_woken(self, topic: str, queue_id: int) -> bool:
        """Mark the pulls held at this queue for `take_woken`: messages have become visible. Return whether there are any."""
        if queue_id not in self._by_topic.get(topic, ()):
            return False
        self._woken[topic, queue_id] = self._number
        return True

    def mark_topic_woken(self, topic: str) -> bool:
        """Mark the pulls of all queues of a topic, because it was deleted or its layout changed."""
        queues = self._by_topic.get(topic, {})
        for queue_id in queues:
            self.mark_woken(topic, queue_id)
        return bool(queues)

    def take_woken(self, count: int) -> list[HeldPull[T]]:
        """Remove and return at most `count` pulls that were woken, queue by queue in the order of waking, the oldest pull first.

        A queue with more of them goes to the end, so that one that is woken again and again does not starve the others.
        """
        taken: list[HeldPull[T]] = []
        while self._woken and len(taken) < count:
            topic, queue_id = key = next(iter(self._woken))
            last = self._woken[key]
            waiting = self._by_topic.get(topic, {}).get(queue_id, {})
            found: list[HeldPull[T]] = []
            for number, pull in waiting.items():
                if number > last or len(taken) + len(found) >= count:
                    break
                found.append(pull)
            del self._woken[key]
            if len(taken) + len(found) >= count and len(found) < len(waiting):
                self._woken[key] = last
            taken += found
        return self._remove(taken)

    @property
    def has_woken(self) -> bool:
        """Return whether `take_woken` may return more."""
        return bool(self._woken)

    def take_group(self, group: str, topic: str, queue_id: int) -> list[HeldPull[T]]:
        """Remove and return the pulls of a group at a queue: its epoch rose, or its grant ended."""
        return self._take(self._by_group.get((group, topic, queue_id)))

    def take_connection(self, connection_id: int) -> list[HeldPull[T]]:
        """Remove and return the pulls of a closed connection."""
        return self._take(self._by_connection.get(connection_id))

    def take_expired(self, now_ms: int, count: int) -> list[HeldPull[T]]:
        """Remove and return at most `count` pulls past their deadline, earliest first."""
        gone: list[HeldPull[T]] = []
        while self._due and self._due[0][0] <= now_ms and len(gone) < count:
            pull = self._all.get(heapq.heappop(self._due)[1])
            if pull is not None:
                gone.append(pull)
        return self._remove(gone)

    def take_all(self) -> list[HeldPull[T]]:
        """Remove and return all pulls: the broker stops."""
        return self._take(self._all)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a pull that is still held."""
        while self._due and self._due[0][1] not in self._all:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _take(self, pulls: HeldPulls[T] | None) -> list[HeldPull[T]]:
        return self._remove(list(pulls.values()) if pulls else [])

    def _remove(self, taken: list[HeldPull[T]]) -> list[HeldPull[T]]:
        """Remove the pulls and return them.

        They leave `_all` in a last step that can't fail. So after an error `clear` returns every pull that no caller has received.
        """
        numbers = [pull.number for pull in taken]
        for pull in taken:
            self._unlink(pull)
        self._compact(numbers)
        for number in numbers:
            del self._all[number]
        return taken

    def clear(self) -> list[HeldPull[T]]:
        """Remove and return all pulls without using the indices, which may be wrong after an error in another call, and reset them."""
        taken = list(self._all.values())
        for pull in taken:
            pull.number = 0
        self._reset()
        return taken

    def _unlink(self, pull: HeldPull[T]) -> None:
        number, queues = pull.number, self._by_topic[pull.topic]
        if self._long.pop(number, None) is not None:
            self._long_bytes -= pull.expression_bytes
        if pull.user:
            self._by_user[pull.user] -= 1
        _drop(queues, pull.queue_id, number)
        if not queues:
            del self._by_topic[pull.topic]
        _drop(self._by_group, (pull.group, pull.topic, pull.queue_id), number)
        _drop(self._by_connection, pull.connection_id, number)
        pull.number = 0

    def _compact(self, leaving: list[int]) -> None:
        """Remove entries of pulls that were woken before their deadline, as most are, when the held ones, without those that are about to
        leave, are a small part."""
        if len(self._due) > 2 * (len(self._all) - len(leaving)) + 64:
            held = self._all.keys() - leaving
            self._due = [entry for entry in self._due if entry[1] in held]
            heapq.heapify(self._due)

    def __iter__(self) -> Iterator[HeldPull[T]]:
        return iter(self._all.values())


def expression_bytes(expression: str | None) -> int:
    """Return the memory that a held pull's expression counts for. 0 for a short one."""
    if expression is None or len(expression) <= LONG_EXPRESSION_CHARS:
        return 0
    return len(expression) if expression.isascii() else 4 * len(expression)


K = TypeVar("K")


def _drop(waiting: dict[K, HeldPulls[T]], key: K, number: int) -> None:
    """Remove one pull from an index, and its entry if it was the last one."""
    pulls = waiting[key]
    del pulls[number]
    if not pulls:
        del waiting[key]
