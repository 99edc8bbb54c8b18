"""Which queue of a topic takes the next unkeyed message: round robin over the live queues, in runs if many messages are in flight. Pure.

A queue is live while its broker is connected and the queue is not stalled. Each change and each choice costs a constant number of steps,
whatever the number of queues: that a broker with 10,000 queues is connected is one change, and each queue that recovers is one more.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Ring(Generic[T]):
    """A set that is iterated in a circle. `add`, `discard` and `next` take constant time; removals change the order of the other items."""

    __slots__ = ("_at", "_items", "_place")

    def __init__(self, items: Sequence[T] = ()) -> None:
        self._items = list(items)
        self._place = {item: place for place, item in enumerate(self._items)}
        self._at = -1

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._place

    def add(self, item: T) -> None:
        if item not in self._place:
            self._place[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: T) -> None:
        place = self._place.pop(item, None)
        if place is None:
            return
        last = self._items.pop()
        if place < len(self._items):
            self._items[place] = last
            self._place[last] = place

    def next(self) -> T:
        """Return the item after the last one that was returned. The ring must not be empty."""
        self._at = at = self._at + 1 if self._at + 1 < len(self._items) else 0
        return self._items[at]

    def after(self, item: T) -> T:
        """Return the item after this one, if it is in the ring; otherwise the same as `next`."""
        self._at = self._place.get(item, self._at)
        return self.next()

    def rewind(self, place: int = 0) -> None:
        """Continue with the item at this position."""
        self._at = place - 1

    def rewind_to(self, item: T) -> None:
        """Continue with this item."""
        self._at = self._place[item] - 1


class BrokerQueues:
    """The queues of one broker, by their number in the layout."""

    __slots__ = ("left_out", "name", "queues", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.left_out = False
        """Unkeyed messages go to other brokers while there is one."""
        self.queues: Ring[int] = Ring()
        """The queues that are not stalled."""


class LiveQueues:
    """The queues of one layout, with the numbers 0 … n−1. Initially no broker is connected, and no queue is stalled."""

    __slots__ = ("_any", "_brokers", "_last", "_live", "_of_queue", "_run_count", "_turn", "_used", "changes")

    def __init__(self, broker_names: Sequence[str], start: int) -> None:
        """`broker_names`: the broker of each queue. `start`: the number of the first queue to be chosen."""
        self.changes = 0
        """How often a broker has got its first live queue, or lost its last one."""
        self._brokers: dict[str, BrokerQueues] = {}
        self._of_queue: list[BrokerQueues] = []
        for number, name in enumerate(broker_names):
            broker = self._brokers.get(name)
            if broker is None:
                broker = self._brokers[name] = BrokerQueues(name)
            broker.queues.add(number)
            self._of_queue.append(broker)
        self._live: Ring[BrokerQueues] = Ring()
        """Brokers that are connected and have a queue that is not stalled."""
        self._used: Ring[BrokerQueues] = Ring()
        """Those of them that are not left out; all of them if every one is left out."""
        self._any: Ring[int] = Ring(range(len(broker_names)))
        """Used while no queue is live."""
        self._any.rewind(start)
        self._turn = self._of_queue[start]
        """The broker whose queues are iterated now."""
        self._turn.queues.rewind_to(start)
        self._last = start
        """The queue that was returned last."""
        self._run_count = 0
        """The number of messages that it has got in a row; 0 if the next message goes to another queue."""

    @property
    def live_brokers(self) -> list[str]:
        """Return the names of the brokers with a live queue."""
        return [name for name, broker in self._brokers.items() if broker in self._live]

    def has_broker(self, name: str) -> bool:
        return name in self._brokers

    @property
    def any_live(self) -> bool:
        return len(self._live) > 0

    def set_up(self, name: str, up: bool) -> None:
        """Record that the broker was connected or disconnected."""
        broker = self._brokers[name]
        broker.up = up
        self._count(broker)

    def set_stalled(self, number: int, stalled: bool) -> None:
        """Record whether the queue is stalled."""
        broker = self._of_queue[number]
        if stalled:
            broker.queues.discard(number)
        else:
            broker.queues.add(number)
        self._count(broker)

    def leave_out(self, names: frozenset[str]) -> None:
        """Leave these brokers out: unkeyed messages go to the other live brokers, or to all if there is no other."""
        for name, broker in self._brokers.items():
            if broker.left_out != (name in names):
                broker.left_out = name in names
                self._count(broker)

    def has_other_broker(self, number: int) -> bool:
        """Return whether another broker has a live queue."""
        return len(self._live) > (self._of_queue[number] in self._live)

    def next(self, run_max: int = 1) -> int:
        """Return the queue of the next message: a live one, or any if none is live.

        It is the last one again until that has got `run_max` messages in a row, or until the live queues change.
        """
        if 0 < self._run_count < run_max:
            self._run_count += 1
            return self._last
        self._run_count = 1
        if self._used:
            self._last = self._step(self._used)
        else:
            self._last = self._step(self._live) if self._live else self._any.next()
        return self._last

    def next_elsewhere(self, number: int) -> int:
        """Return a queue for a message that leaves queue `number`, which is stalled or not connected: at another broker if one is live."""
        away = self._of_queue[number]
        for ring in (self._used, self._live):
            for _ in range(min(2, len(ring))):
                broker = ring.next()
                if broker is not away:
                    return broker.queues.next()
        return away.queues.next()

    def _step(self, brokers: Ring[BrokerQueues]) -> int:
        """Iterate over one broker's queues, then over the next one's: in the order of the layout as long as nothing changes."""
        broker = self._turn
        queues = broker.queues
        if broker not in brokers._place or queues._at + 1 >= len(queues._items):
            self._turn = broker = brokers.after(broker)
            queues = broker.queues
            queues._at = -1
        queues._at += 1
        return queues._items[queues._at]

    def _count(self, broker: BrokerQueues) -> None:
        self._run_count = 0
        live = broker.up and len(broker.queues) > 0
        if live != (broker in self._live):
            self.changes += 1
            (self._live.add if live else self._live.discard)(broker)
        if live and not broker.left_out:
            self._used.add(broker)
        else:
            self._used.discard(broker)
