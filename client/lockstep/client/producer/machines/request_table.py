"""The requests that wait for a reply. Pure. RocketMQ: RequestFutureHolder.

| a reply, by its correlation id                  | verdict   |                                          |
|-------------------------------------------------|-----------|------------------------------------------|
| to a request that waits, before its deadline    | COUNTED   | the request is answered by it            |
| the one that has answered a request, once more  | REPEATED  | its replier got no response the first time |
| another one to a request that is answered       | ANSWERED  | dropped                                  |
| at or after the deadline                        | LATE      | dropped                                  |
| to a request whose caller waits no more         | ABANDONED | dropped                                  |
| to any other                                    | UNKNOWN   | dropped                                  |

The last requests that have ended are remembered, as many as may wait, so that a late reply to one of them is told why it is dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class ReplyVerdict(Enum):
    """What becomes of a reply. The value says why it is dropped."""

    COUNTED = ""
    REPEATED = "it has been counted before"
    ANSWERED = "another reply has answered the request before"
    LATE = "it is too late: the time of the request has passed"
    ABANDONED = "its requester waits no more: it was cancelled or closed, or its send failed"
    UNKNOWN = "the producer knows no request with its correlation id: its time has passed, or the producer was started again"

    @property
    def is_accepted(self) -> bool:
        """Return whether the request is answered by this reply."""
        return self in (ReplyVerdict.COUNTED, ReplyVerdict.REPEATED)


@dataclass(slots=True)
class _Waiting(Generic[T]):
    deadline_ms: int
    waiter: T


@dataclass(frozen=True, slots=True)
class _Ended:
    verdict: ReplyVerdict
    """That of a later reply."""
    reply_id: str = ""
    """The id of the reply that has answered it."""


class RequestTable(Generic[T]):
    """The requests of one producer by their correlation ids: those that wait, each with its waiter, and the last that have ended.

    Times are monotonic ms.
    """

    __slots__ = ("_count_max", "_ended", "_waiting", "dropped_count")

    def __init__(self, count_max: int) -> None:
        """`count_max`: how many may wait, and how many of those that have ended are remembered."""
        self._count_max = count_max
        self._waiting: dict[str, _Waiting[T]] = {}
        self._ended: dict[str, _Ended] = {}
        self.dropped_count = 0
        """Replies to requests of this producer that were dropped."""

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """Yield the waiters of the requests that wait, in the order of `add`."""
        return iter([waiting.waiter for waiting in self._waiting.values()])

    @property
    def is_full(self) -> bool:
        """Return whether no further request may wait."""
        return len(self._waiting) >= self._count_max

    def waits(self, correlation_id: str) -> bool:
        """Return whether a request of this id waits."""
        return correlation_id in self._waiting

    def knows(self, correlation_id: str) -> bool:
        """Return whether a request of this id waits, or is remembered."""
        return correlation_id in self._waiting or correlation_id in self._ended

    def add(self, correlation_id: str, deadline_ms: int, waiter: T) -> None:
        """Add a request that waits until a deadline."""
        assert not self.is_full
        assert not self.knows(correlation_id), "128 random bits"
        self._waiting[correlation_id] = _Waiting(deadline_ms, waiter)

    def take(self, correlation_id: str, reply_id: str, now_ms: int) -> tuple[ReplyVerdict, T | None]:
        """Take a reply. Return its verdict, and the waiter of the request that it answers if it is COUNTED.

        `reply_id` is the message id of the reply, empty if it has none.
        """
        waiting = self._waiting.get(correlation_id)
        if waiting is not None and now_ms < waiting.deadline_ms:
            self._end(correlation_id, _Ended(ReplyVerdict.ANSWERED, reply_id))
            return ReplyVerdict.COUNTED, waiting.waiter
        ended = self._ended.get(correlation_id, _Ended(ReplyVerdict.UNKNOWN) if waiting is None else _Ended(ReplyVerdict.LATE))
        if ended.reply_id and ended.reply_id == reply_id:
            return ReplyVerdict.REPEATED, None
        self.dropped_count += 1
        return ended.verdict, None

    def expire(self, correlation_id: str) -> T | None:
        """End a request whose deadline has come, if it waits. Return its waiter."""
        waiting = self._waiting.get(correlation_id)
        self._end(correlation_id, _Ended(ReplyVerdict.LATE))
        return None if waiting is None else waiting.waiter

    def abandon(self, correlation_id: str) -> None:
        """End a request whose caller does not wait any more, if it waits."""
        self._end(correlation_id, _Ended(ReplyVerdict.ABANDONED))

    def _end(self, correlation_id: str, ended: _Ended) -> None:
        if self._waiting.pop(correlation_id, None) is None:
            return
        if len(self._ended) >= self._count_max:
            del self._ended[next(iter(self._ended))]
        self._ended[correlation_id] = ended
