"""What several checkers want to know of messages: where each was stored, who may pass over it, what was acknowledged."""

from lockstep.testing.sweep.events import ConsumerStarted, QueueGapSeen, ReadingEnded, SendAcked, SendBegan, Stored
from lockstep.testing.sweep.history import History, QueueKey
from lockstep.testing.sweep.wire_events import GrantAnswered, PullReceived

Place = tuple[QueueKey, int]
"""(stored queue, offset)."""


class Messages:
    """The messages of a run as its final reading has them."""

    def __init__(self, history: History) -> None:
        self.began: dict[bytes, SendBegan] = {event.body: event for event in history.of(SendBegan)}
        self.acked: dict[bytes, SendAcked] = {}
        for event in history.of(SendAcked):
            self.acked.setdefault(event.body, event)
        self.stored: dict[Place, Stored] = {(event.queue, event.offset): event for event in history.of(Stored)}
        self.places: dict[bytes, list[Stored]] = {}
        for found in history.of(Stored):
            self.places.setdefault(found.body, []).append(found)
        self.read: dict[QueueKey, ReadingEnded] = {event.queue: event for event in history.of(ReadingEnded)}


class Passes:
    """Which offsets a consumer may pass over without a call: filtered by its subscription, or reported as gone."""

    def __init__(self, history: History, messages: Messages) -> None:
        self._messages = messages
        self._expressions: dict[tuple[int, str, str], set[str]] = {}
        """(process, group, topic) → tags; empty: everything is wanted."""
        self._gaps: dict[QueueKey, list[tuple[int, int]]] = {}
        self._ordered: dict[tuple[str, str], list[int]] = {}
        for consumer in history.of(ConsumerStarted):
            for topic, expression in consumer.expressions:
                if consumer.ordered:
                    self._ordered.setdefault((consumer.group, topic), []).append(consumer.process)
                self._expressions[consumer.process, consumer.group, topic] = tags_of(expression)
        for gap in history.of(QueueGapSeen):
            self._gaps.setdefault(gap.queue, []).append((gap.first, gap.end))
        for pull in history.of(PullReceived):
            if pull.gap is not None:
                self._gaps.setdefault(pull.queue, []).append(pull.gap)

    def may_pass(self, queue: QueueKey, offset: int, process: int) -> bool:
        tags = self._expressions.get((process, queue.group, queue.topic))
        if tags:
            stored = self._messages.stored.get((queue.stored, offset))
            began = None if stored is None else self._messages.began.get(stored.body)
            if began is None or began.tags not in tags:
                return True
        return any(first <= offset < end for first, end in self._gaps.get(queue, ()))

    def groups(self) -> dict[tuple[str, str], list[int]]:
        """(group, topic) of ordered groups → processes that subscribed."""
        return self._ordered

    def some_may_pass(self, queue: QueueKey, offset: int, processes: list[int]) -> bool:
        """Some member's subscription passes over it, or a gap was reported."""
        return any(self.may_pass(queue, offset, process) for process in processes)


def tags_of(expression: str) -> set[str]:
    """The tags of "a || b"; empty for "*"."""
    tags = {tag.strip() for tag in expression.split("||")} - {""}
    return set() if "*" in tags else tags


def first_offsets(history: History) -> dict[QueueKey, int]:
    """Where each group began in each queue: what lies below is not its business."""
    found: dict[QueueKey, int] = {}
    for event in history.of(GrantAnswered):
        found[event.queue] = min(event.offset, found.get(event.queue, event.offset))
    return found
