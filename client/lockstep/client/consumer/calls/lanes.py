"""The lanes of one held queue: the messages of one sharding key are in one lane, in queue order, and lanes are independent of each other.

    waiting ──▶ ready ──take──▶ called ──finished──▶ (gone, or ready again if messages of the key wait)
                  ▲                │
                  ├── pausing ◀────┤ failed: the batch waits again, at the head of its lane
                  └── blocked ◀────┘ attempts are exhausted: until `resume`

So calls of one key never overlap and take its messages in order (law K1), while other keys go on. Pure: it knows neither calls nor clocks.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lockstep.protocol.messages.message import MessageExt


@dataclass(slots=True, eq=False)
class KeyLane:
    """The messages of one key that are waiting. It exists while one of its messages waits or is called."""

    key: str | int | None
    """The sharding key. None: all messages without a key, or with the order of queues all of the main flow; an offset: one message without
    a key."""
    waiting: deque[MessageExt] = field(default_factory=deque)


class Lanes:
    """The lanes of one grant.

    Args:
        offset: The committed offset, at which the grant begins.
        attempts: The number of failed calls of the batch that begins at that offset.
        unkeyed_together: Whether messages without a sharding key form one lane, in order, or each message its own.
        by_key: Whether each key has a lane. If not, all messages are in one lane, except for those of `put_replayed`.
        alone_after_failure: Whether a batch that has failed is repeated message by message.
    """

    __slots__ = (
        "_alone_after_failure",
        "_blocked",
        "_by_key",
        "_failed",
        "_lanes",
        "_pausing",
        "_ready",
        "_replay_taken",
        "_sequence",
        "_unkeyed_together",
    )

    def __init__(
        self, offset: int, attempts: int, *, unkeyed_together: bool, by_key: bool = True, alone_after_failure: bool = False
    ) -> None:
        self._lanes: dict[str | int | None, KeyLane] = {}
        self._ready: deque[KeyLane] = deque()
        self._pausing: list[tuple[int, int, KeyLane]] = []
        """A heap of (due time, sequence, lane)."""
        self._sequence = 0
        self._blocked: dict[KeyLane, None] = {}
        self._failed: dict[int, int] = {offset: attempts} if attempts else {}
        """The offset at which a batch begins → the number of its failed calls."""
        self._unkeyed_together = unkeyed_together
        self._by_key = by_key
        self._replay_taken = False
        """Whether the batch that was taken last is of a replay; not by key only."""
        self._alone_after_failure = alone_after_failure

    def __len__(self) -> int:
        """Return the number of lanes."""
        return len(self._lanes)

    @property
    def ready(self) -> bool:
        """Return whether `take` returns a batch."""
        return bool(self._ready)

    @property
    def blocked_keys(self) -> list[str | None]:
        """Return the keys of the blocked lanes; None for messages without a key."""
        return [lane.key if isinstance(lane.key, str) else None for lane in self._blocked]

    @property
    def due_ms(self) -> int | None:
        """Return when the first pause of a lane is over, or None."""
        return self._pausing[0][0] if self._pausing else None

    def most_attempts(self, offset: int) -> int:
        """Return the highest number of failed calls of a batch that begins at `offset` or later."""
        return max((attempts for begin, attempts in self._failed.items() if begin >= offset), default=0)

    def attempts_at(self, offset: int) -> int:
        """Return the number of failed calls of the batch that begins at `offset`."""
        return self._failed.get(offset, 0)

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add fetched messages, in queue order."""
        if not self._by_key:
            self._put_into(None, messages)
            return
        lanes, ready = self._lanes, self._ready
        for message in messages:
            key: str | int | None = message.sharding_key
            if key is None and not self._unkeyed_together:
                key = message.queue_offset
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = KeyLane(key)
                ready.append(lane)
            lane.waiting.append(message)

    def put_replayed(self, key: str, messages: Sequence[MessageExt]) -> None:
        """Add messages of a key that is replayed, in queue order. They are in a lane of their own, whatever the unit of order is."""
        self._put_into(key, messages)

    def _put_into(self, key: str | None, messages: Sequence[MessageExt]) -> None:
        if not messages:
            return  # such as when all that was fetched is left out
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = KeyLane(key)
            self._ready.append(lane)
        lane.waiting.extend(messages)

    def leave_out(self, key: str) -> list[MessageExt]:
        """Remove the waiting messages of a key from its lane and from the common one, and return them. A call that runs goes on."""
        removed: list[MessageExt] = []
        for lane in [lane for lane in (self._lanes.get(key), self._lanes.get(None)) if lane is not None]:
            gone = [message for message in lane.waiting if message.sharding_key == key]
            if gone:
                removed += gone
                lane.waiting = deque(message for message in lane.waiting if message.sharding_key != key)
                self._emptied(lane)
        for message in removed:
            self._failed.pop(message.queue_offset, None)
        return removed

    def take_back(self, key: str) -> int:
        """Remove the messages of a replayed key that wait for a call, and return their number. The call that runs goes on."""
        lane = self._lanes.get(key)
        if lane is None:
            return 0
        count = len(lane.waiting)
        for message in lane.waiting:
            self._failed.pop(message.queue_offset, None)
        lane.waiting.clear()
        self._emptied(lane)
        return count

    def _emptied(self, lane: KeyLane) -> None:
        """Remove a lane from which messages were removed if none waits, and no call of it runs."""
        pausing = [each for each in self._pausing if each[2] is not lane]
        if not lane.waiting and (lane in self._ready or lane in self._blocked or len(pausing) < len(self._pausing)):
            self._ready = deque(each for each in self._ready if each is not lane)
            self._blocked.pop(lane, None)
            self._pausing = pausing
            heapify(self._pausing)
            del self._lanes[lane.key]

    def take(self, count: int) -> tuple[KeyLane, list[MessageExt]] | None:
        """Return the next batch, of at most `count` messages of one lane; None if no lane is ready.

        No other batch of the lane is taken until `finished`, `failed` or `block` is called with this one.
        """
        if not self._ready:
            return None
        lane = self._ready.popleft()
        if not self._by_key:
            lane = self._in_turn(lane)
        waiting = lane.waiting
        if self._alone_after_failure and self._failed and waiting[0].queue_offset in self._failed:
            count = 1
        return lane, [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def _in_turn(self, lane: KeyLane) -> KeyLane:
        """Return the common lane instead of a second replay after another, if it is ready: any number of replays take every second call."""
        common = self._lanes.get(None)
        if lane is not common and common is not None and self._replay_taken and common in self._ready:
            self._ready.remove(common)
            self._ready.appendleft(lane)
            lane = common
        self._replay_taken = lane is not common
        return lane

    def finished(self, lane: KeyLane, batch: list[MessageExt]) -> None:
        """Go on in the lane after a batch that is done."""
        if self._failed:
            self._failed.pop(batch[0].queue_offset, None)
        if lane.waiting:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]

    def failed(self, lane: KeyLane, batch: list[MessageExt], until_ms: int) -> None:
        """Count a failed call, and repeat the batch when `until_ms` has come. The lane's other messages stay behind it."""
        self._put_back(lane, batch)
        self._sequence += 1
        heappush(self._pausing, (until_ms, self._sequence, lane))

    def block(self, lane: KeyLane, batch: list[MessageExt]) -> None:
        """Count a failed call, and repeat the batch after `resume`."""
        self._put_back(lane, batch)
        self._blocked[lane] = None

    def wake(self, now_ms: int) -> int | None:
        """Make lanes ready whose pause is over. Return when the next one is due, or None."""
        while self._pausing and self._pausing[0][0] <= now_ms:
            self._ready.append(heappop(self._pausing)[2])
        return self.due_ms

    def resume(self) -> None:
        """Make all blocked lanes ready."""
        self._ready += self._blocked
        self._blocked.clear()

    def _put_back(self, lane: KeyLane, batch: list[MessageExt]) -> None:
        offset = batch[0].queue_offset
        self._failed[offset] = self._failed.get(offset, 0) + 1
        lane.waiting.extendleft(reversed(batch))
