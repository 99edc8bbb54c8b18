"""The newest messages of many queues: which queue has to be read next, and which messages no unread one can precede. Pure.

Each queue is read from its end backwards, and only as far as it can contribute: what is not read of it was stored no later than the oldest
message that was. So the newest messages of a thousand queues take one read of each, and further reads of a few.
"""

import re
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue

FIRST_COUNT = 8
COUNT_MAX = 256
"""Messages of one queue that are read at a time: twice as many with each read."""
READ_BYTES = 256 * 1024
"""About so many bytes of one queue are read at a time, by the size of the largest message that was seen in it."""
PLACE = re.compile(r"(\d{1,19}):([a-zA-Z0-9._@-]{1,127}):(\d{1,9}):(\d{1,19})", re.ASCII)


class MessagePosition(NamedTuple):
    """A place in the order of all messages of a topic: the one that compares as the largest is the newest."""

    stored_ms: int
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


def parse_place(text: str) -> MessagePosition:
    """Return the place that `str` has made a text of. Raise ConfigError for any other text."""
    found = PLACE.fullmatch(text)
    if found is None or int(found[1]) > TIMESTAMP_MAX or int(found[4]) > TIMESTAMP_MAX:
        raise ConfigError(f"{text[:80]!r} is no place to go on from: expected TIME:BROKER:QUEUE:OFFSET, as the link to older messages has")
    return MessagePosition(int(found[1]), found[2], int(found[3]), int(found[4]))


@dataclass(slots=True, eq=False)
class Rest:
    """The part of a queue that is not read: the offsets from `first` up to `end`, which is not included."""

    queue: MessageQueue
    first: int
    end: int
    newest_ms: int = TIMESTAMP_MAX
    """No message of it was stored later."""
    looked: bool = False
    """Whether its last message was read, so that `end` and `newest_ms` are known."""
    record_bytes: int = 1
    """The size of the largest message that was seen."""
    reads: int = 0

    @property
    def place(self) -> MessagePosition:
        """Return the newest place that a message of the queue can have."""
        return MessagePosition(self.newest_ms, self.queue.broker_name, self.queue.queue_id, self.end)

    def next_count(self, *, selected: bool) -> int:
        """Return how many messages are read next. `selected`: the broker returns only few of them, so that their size is no matter."""
        count = min(FIRST_COUNT << min(self.reads, 8), COUNT_MAX, self.end - self.first)
        return count if selected else max(1, min(count, READ_BYTES // self.record_bytes))

    def place_of(self, message: MessageExt) -> MessagePosition:
        """Return the place of a message of it. If the clock of the broker was set back, messages keep the order of their queue."""
        return MessagePosition(min(message.stored_ms, self.newest_ms), self.queue.broker_name, self.queue.queue_id, message.queue_offset)


class NewestFirst:
    """The newest messages that were found so far, at most `limit`, and what is left of the queues."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rests: list[Rest] = []
        self._found: list[tuple[MessagePosition, MessageExt]] = []
        """The oldest first."""
        self.cut = False
        """Whether a message was found that is older than `limit` others."""

    def open(self, rests: Iterable[Rest]) -> None:
        """Add queues. Those without messages need no read."""
        self._rests += [each for each in rests if each.end > each.first]

    def drop(self, broker: str) -> None:
        """Forget what is left of the queues of a broker, which can't be read."""
        self._rests = [each for each in self._rests if each.queue.broker_name != broker]

    def next_rests(self, count: int) -> list[Rest]:
        """Return which queues are to be read now, at most `count`. There are none if nothing older than what was found is wanted."""
        self._rests = [each for each in self._rests if each.end > each.first]
        full = len(self._found) >= self._limit
        wanted = [each for each in self._rests if not each.looked or not full or each.place > self._found[0][0]]
        return sorted(wanted, key=lambda each: (each.looked, _descending(each.place)))[:count]

    def add(self, place: MessagePosition, message: MessageExt) -> None:
        """Add a message that was found."""
        insort(self._found, (place, message), key=lambda each: each[0])
        if len(self._found) > self._limit:
            del self._found[0]
            self.cut = True

    @property
    def unlooked(self) -> int:
        """Return the number of queues with messages whose last message was not read."""
        return sum(not each.looked for each in self._rests if each.end > each.first)

    def messages(self) -> list[MessageExt]:
        """Return all that was found, the newest first."""
        return [message for _, message in reversed(self._found)]

    def proven(self) -> tuple[list[MessageExt], MessagePosition | None]:
        """Return the messages that none which was not read can precede, and the place from which a search goes on: None if there is
        nothing older."""
        left = [each.place for each in self._rests if each.end > each.first]
        if not left and not self.cut:
            return self.messages(), None
        reached = max(left) if left else self._found[0][0]
        proven = [(place, message) for place, message in reversed(self._found) if place >= reached]
        after = proven[-1][0] if len(proven) == self._limit else reached
        return [message for _, message in proven], after


def _descending(place: MessagePosition) -> tuple[int, int, int]:
    return (-place.stored_ms, -place.queue_id, -place.offset)
