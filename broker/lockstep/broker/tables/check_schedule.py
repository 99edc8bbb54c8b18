"""When the senders of half messages are asked how their transactions have ended. Pure; in memory alone: a start asks anew."""

from collections.abc import Iterable
from heapq import heappop, heappush

FIRST_PAUSE_MS = 30_000
"""The pause after the first question. It doubles with each further one. RocketMQ: transactionCheckInterval."""
PAUSE_MS_MAX = 600_000


class CheckSchedule:
    """The next question about each open half message, by its offset. Times are monotonic ms."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        """Offset → when it is due."""
        self._heap: list[tuple[int, int]] = []
        """(time, offset), and some that are out of date."""
        self._asked: dict[int, int] = {}
        """Offset → questions that were sent."""

    def __len__(self) -> int:
        return len(self._due)

    def put(self, offset: int, at_ms: int) -> None:
        """Ask about the message at this time, instead of another one."""
        self._due[offset] = at_ms
        heappush(self._heap, (at_ms, offset))

    def put_asked(self, offset: int, now_ms: int) -> None:
        """Note that a question was sent, and ask again after a pause."""
        asked = self._asked[offset] = self._asked.get(offset, 0) + 1
        self.put(offset, now_ms + min(FIRST_PAUSE_MS << min(asked - 1, 10), PAUSE_MS_MAX))

    def forget(self, offset: int) -> None:
        """Ask no more."""
        self._due.pop(offset, None)
        self._asked.pop(offset, None)

    def take(self, now_ms: int, count: int) -> list[int]:
        """Return at most `count` messages of which the time has come. Each is put again or forgotten by the caller."""
        taken: list[int] = []
        while self._heap and len(taken) < count and self._heap[0][0] <= now_ms:
            at_ms, offset = heappop(self._heap)
            if self._due.get(offset) == at_ms:
                del self._due[offset]
                taken.append(offset)
        return taken

    def next_ms(self) -> int | None:
        """Return a time before which none is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def put_all(self, offsets: Iterable[int], at_ms: int) -> None:
        """Ask about these messages at this time."""
        for offset in offsets:
            self.put(offset, at_ms)
