"""Which queue of a topic takes the next unkeyed message: round robin over those that take messages now. Pure.

A queue takes messages while its broker is connected and the queue is not stalled. Each change and each choice costs a constant number of
steps, whatever the number of queues: a broker with 10,000 queues comes up as one change, and each queue that recovers is one more.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Ring(Generic[T]):
    """A set that is walked in a circle. `add`, `discard` and `next` take constant time; removals change the order of what stays."""

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
        """The item after the last one that this answered. The ring must not be empty."""
        self._at = at = self._at + 1 if self._at + 1 < len(self._items) else 0
        return self._items[at]

    def after(self, item: T) -> T:
        """The item after this one, if it is here; else as `next`."""
        self._at = self._place.get(item, self._at)
        return self.next()

    def rewind(self, place: int = 0) -> None:
        """Go on at the item of this place."""
        self._at = place - 1

    def rewind_to(self, item: T) -> None:
        """Go on at this item."""
        self._at = self._place[item] - 1


class BrokerQueues:
    """The queues of one broker, by their number in the layout."""

    __slots__ = ("left_out", "name", "queues", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.left_out = False
        """Unkeyed messages go to other brokers while there are any."""
        self.queues: Ring[int] = Ring()
        """Those that are not stalled."""


class LiveQueues:
    """The queues of one layout: numbers 0 … n−1. At first no broker is up, and no queue is stalled."""

    __slots__ = ("_any", "_brokers", "_live", "_of_queue", "_turn", "_used", "changes")

    def __init__(self, broker_names: Sequence[str], start: int) -> None:
        """`broker_names`: of each queue. `start`: the number of the first queue to be chosen."""
        self.changes = 0
        """How often a broker has joined those with a live queue, or left them."""
        self._brokers: dict[str, BrokerQueues] = {}
        self._of_queue: list[BrokerQueues] = []
        for number, name in enumerate(broker_names):
            broker = self._brokers.get(name)
            if broker is None:
                broker = self._brokers[name] = BrokerQueues(name)
            broker.queues.add(number)
            self._of_queue.append(broker)
        self._live: Ring[BrokerQueues] = Ring()
        """Brokers that are up and have a queue that is not stalled."""
        self._used: Ring[BrokerQueues] = Ring()
        """Those of them that are not left out; all of them where that would be none."""
        self._any: Ring[int] = Ring(range(len(broker_names)))
        """Walked while none is live."""
        self._any.rewind(start)
        self._turn = self._of_queue[start]
        """The broker whose queues are being walked."""
        self._turn.queues.rewind_to(start)

    @property
    def live_brokers(self) -> list[str]:
        """Names of the brokers with a queue that takes messages now."""
        return [name for name, broker in self._brokers.items() if broker in self._live]

    def has_broker(self, name: str) -> bool:
        return name in self._brokers

    @property
    def any_live(self) -> bool:
        return len(self._live) > 0

    def set_up(self, name: str, up: bool) -> None:
        """The broker was connected or disconnected."""
        broker = self._brokers[name]
        broker.up = up
        self._count(broker)

    def set_stalled(self, number: int, stalled: bool) -> None:
        """The queue takes no messages for now, or takes them again."""
        broker = self._of_queue[number]
        if stalled:
            broker.queues.discard(number)
        else:
            broker.queues.add(number)
        self._count(broker)

    def leave_out(self, names: frozenset[str]) -> None:
        """Unkeyed messages go to the other live brokers from now on; to all where there is no other."""
        for name, broker in self._brokers.items():
            if broker.left_out != (name in names):
                broker.left_out = name in names
                self._count(broker)

    def has_other_broker(self, number: int) -> bool:
        """Another broker has a queue that takes messages now."""
        return len(self._live) > (self._of_queue[number] in self._live)

    def next(self) -> int:
        """The queue of the next message; over all of them while none is live."""
        if not self._used:
            return self._any.next() if not self._live else self._step(self._live)
        return self._step(self._used)

    def next_elsewhere(self, number: int) -> int:
        """A queue for a message that leaves queue `number`, which is stalled or down: at another broker if one is live."""
        away = self._of_queue[number]
        for ring in (self._used, self._live):
            for _ in range(min(2, len(ring))):
                broker = ring.next()
                if broker is not away:
                    return broker.queues.next()
        return away.queues.next()

    def _step(self, brokers: Ring[BrokerQueues]) -> int:
        """Through one broker's queues, then through the next one's: in the order of the layout while nothing changes."""
        broker = self._turn
        queues = broker.queues
        if broker not in brokers._place or queues._at + 1 >= len(queues._items):
            self._turn = broker = brokers.after(broker)
            queues = broker.queues
            queues._at = -1
        queues._at += 1
        return queues._items[queues._at]

    def _count(self, broker: BrokerQueues) -> None:
        live = broker.up and len(broker.queues) > 0
        if live != (broker in self._live):
            self.changes += 1
            (self._live.add if live else self._live.discard)(broker)
        if live and not broker.left_out:
            self._used.add(broker)
        else:
            self._used.discard(broker)
