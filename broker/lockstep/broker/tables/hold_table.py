"""Held pulls: long polling that is woken by the arrival itself. RocketMQ: PullRequestHoldService, without its scan every 5 s.

A pull is held under its (topic, queue id) until the first of
    arrival     messages of the queue have become visible
    deadline    `now >= deadline_ms`
    stale       its group's epoch of the queue rose above the one that it carries
    gone        its connection closed
and is then out of the table: whoever took it out answers it, or holds it again.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_PER_CONNECTION_MAX = 16_384
"""Pulls of one connection held at a time: one a queue is the rule, and no topic has more queues at one broker."""


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One waiting pull; `item` is whatever the holder needs to answer it."""

    item: T
    connection_id: int
    group: str
    topic: str
    queue_id: int
    deadline_ms: int
    number: int = field(default=0, init=False)
    """Of this stay in the table, from 1; 0: not held."""


Key = tuple[str, int]


class HoldTable(Generic[T]):
    """(topic, queue id) → its held pulls, first come first."""

    def __init__(self, *, held_per_connection_max: int = HELD_PER_CONNECTION_MAX) -> None:
        self._held_per_connection_max = held_per_connection_max
        self._by_queue: dict[Key, dict[int, HeldPull[T]]] = {}
        self._by_connection: dict[int, dict[int, HeldPull[T]]] = {}
        self._due: list[tuple[int, int, HeldPull[T]]] = []
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull[T]) -> bool:
        """False where the connection already holds as many as it may: answer it now."""
        assert not pull.number, "held twice"
        mine = self._by_connection.setdefault(pull.connection_id, {})
        if len(mine) >= self._held_per_connection_max:
            return False
        self._number += 1
        self._count += 1
        pull.number = self._number
        mine[pull.number] = pull
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull.number] = pull
        heapq.heappush(self._due, (pull.deadline_ms, pull.number, pull))
        return True

    def arrived(self, topic: str, queue_id: int) -> list[HeldPull[T]]:
        """Takes out everyone who waits for this queue."""
        return self._take(self._by_queue.get((topic, queue_id)))

    def of_group(self, group: str, topic: str, queue_id: int) -> list[HeldPull[T]]:
        """Takes out whom a group has waiting at a queue: its epoch rose, or its grant ended."""
        waiting = self._by_queue.get((topic, queue_id), {})
        return self._take({key: pull for key, pull in waiting.items() if pull.group == group})

    def of_topic(self, topic: str) -> list[HeldPull[T]]:
        """Takes out everyone who waits at any queue of a topic: it was deleted or its layout changed."""
        return [pull for key in list(self._by_queue) if key[0] == topic for pull in self.arrived(*key)]

    def of_connection(self, connection_id: int) -> list[HeldPull[T]]:
        """Takes out what a closed connection left behind."""
        return self._take(self._by_connection.get(connection_id))

    def expired(self, now_ms: int) -> list[HeldPull[T]]:
        """Takes out whose deadline has come, earliest first."""
        gone = []
        while self._due and self._due[0][0] <= now_ms:
            _, number, pull = heapq.heappop(self._due)
            if pull.number == number:
                self._remove(pull)
                gone.append(pull)
        return gone

    def everyone(self) -> list[HeldPull[T]]:
        """Takes out all: the broker stops."""
        return [pull for key in list(self._by_queue) for pull in self.arrived(*key)]

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a pull that is still held."""
        while self._due and self._due[0][2].number != self._due[0][1]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _take(self, pulls: dict[int, HeldPull[T]] | None) -> list[HeldPull[T]]:
        taken = list(pulls.values()) if pulls else []
        for pull in taken:
            self._remove(pull)
        self._compact()
        return taken

    def _remove(self, pull: HeldPull[T]) -> None:
        self._count -= 1
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue[key]
        del waiting[pull.number]
        if not waiting:
            del self._by_queue[key]
        mine = self._by_connection[pull.connection_id]
        del mine[pull.number]
        if not mine:
            del self._by_connection[pull.connection_id]
        pull.number = 0

    def _compact(self) -> None:
        """Most pulls are woken long before their deadline: the heap is cleared of them when they are its greater part."""
        if len(self._due) > 2 * self._count + 64:
            self._due = [entry for entry in self._due if entry[2].number == entry[1]]
            heapq.heapify(self._due)

    def __iter__(self) -> Iterator[HeldPull[T]]:
        return (pull for waiting in self._by_queue.values() for pull in waiting.values())
