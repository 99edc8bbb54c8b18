"""Which member owns which queue: one pure function, run by both ends. RocketMQ: AllocateMessageQueueStrategy.

    name               rule
    by_broker          queue number g (its place in the layout) → members[g mod n] of the members whom THAT broker lists
    average            RocketMQ AVG: a run of consecutive queues each, the first (queues mod n) members one more
    average_by_circle  RocketMQ AVG_BY_CIRCLE: the i-th member has queues i, i+n, i+2n …

Members are sorted; the last two sort all readable queues as RocketMQ does (topic, broker name, queue id) and use one broker's list for all
of them. With equal lists, and a layout in that order, by_broker equals average_by_circle.
"""

from collections.abc import Sequence
from functools import lru_cache

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.queue import MessageQueue, TopicLayout

BY_BROKER = "by_broker"
AVERAGE = "average"
AVERAGE_BY_CIRCLE = "average_by_circle"
STRATEGIES = (BY_BROKER, AVERAGE, AVERAGE_BY_CIRCLE)


def allocate(strategy: str, broker_name: str | None, layout: TopicLayout, members: Sequence[str], me: str) -> tuple[MessageQueue, ...]:
    """The queues that belong to `me` by this member list: those of one broker, or (None) of all. Not a member → none.

    Raises LocalProtocolError for a strategy that does not exist.
    """
    return tuple(queue for queue, owner in _owners(strategy, layout, members) if owner == me and broker_name in (None, queue.broker_name))


def owner_of(layout: TopicLayout, queue: MessageQueue, members: Sequence[str], strategy: str = BY_BROKER) -> str | None:
    """The member to whom the list gives the queue; None where there is no member or the layout has no such readable queue."""
    if strategy != BY_BROKER:
        return dict(_owners(strategy, layout, members)).get(queue)
    number = layout.number_of.get(queue)
    ordered = _ordered(tuple(members))
    return None if number is None or not ordered else ordered[number % len(ordered)]


def _owners(strategy: str, layout: TopicLayout, members: Sequence[str]) -> list[tuple[MessageQueue, str]]:
    if strategy not in STRATEGIES:
        raise LocalProtocolError(f"allocation strategy {strategy!r} does not exist: expected one of {', '.join(STRATEGIES)}")
    ordered = _ordered(tuple(members))
    if not ordered:
        return []
    queues = layout.read_queues if strategy == BY_BROKER else sorted(layout.read_queues)
    if strategy == AVERAGE:
        return list(zip(queues, _runs(ordered, len(queues)), strict=True))
    return [(queue, ordered[number % len(ordered)]) for number, queue in enumerate(queues)]


def _runs(members: tuple[str, ...], queue_count: int) -> list[str]:
    size, rest = divmod(queue_count, len(members))
    return [member for index, member in enumerate(members) for _ in range(size + (index < rest))]


@lru_cache(maxsize=256)
def _ordered(members: tuple[str, ...]) -> tuple[str, ...]:
    """A broker asks for queue after queue with one list."""
    return tuple(sorted(set(members)))
