"""R9: the result of a send is true. "Not stored" is stored nowhere, "unknown" at most once, and no message appears that was not sent."""

from collections import Counter

from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation
from sweep.events.consumers import CallBegan
from sweep.events.producers import SendBegan, SendFailed
from sweep.events.sends import FrameWritten
from sweep.events.universe import MessageStored
from sweep.history import History, QueueKey, SendOutcome


def check(history: History) -> list[Violation]:
    messages = Messages(history)
    if not history.of(SendBegan):
        return []
    return [*_never_sent(history, messages), *_definite(history, messages), *_stored_once(history, messages)]


def _seen(history: History) -> dict[bytes, tuple[float, str]]:
    """Return (time, place) of the first appearance of each body, at a listener or in the final log."""
    found: dict[bytes, tuple[float, str]] = {}
    for event in history:
        if isinstance(event, CallBegan):
            for offset, body in event.messages:
                found.setdefault(body, (event.t, f"{event.queue} offset {offset}, given to {event.machine}#{event.process}"))
        elif isinstance(event, MessageStored):
            found.setdefault(event.body, (event.t, f"{event.queue} offset {event.offset} of the final log"))
    return found


def _never_sent(history: History, messages: Messages) -> list[Violation]:
    return [
        Violation("R9", t, f"{where}: {body!r:.60} was never sent")
        for body, (t, where) in _seen(history).items()
        if body not in messages.began
    ]


def _definite(history: History, messages: Messages) -> list[Violation]:
    found = []
    seen = _seen(history)
    for failed in history.of(SendFailed):
        if failed.outcome is SendOutcome.NOT_STORED and failed.body in seen and failed.body not in messages.acked:
            text = f"{failed.body!r:.60} failed at {failed.t:.3f} as not stored ({failed.error}); it is at {seen[failed.body][1]}"
            found.append(Violation("R9", seen[failed.body][0], text))
    return found


def _stored_once(history: History, messages: Messages) -> list[Violation]:
    """Check that a message is stored once, an unkeyed one at most once for each queue that was given up. A keyed send has one queue."""
    found = []
    written: dict[bytes, set[tuple[QueueKey, str | None, int]]] = {}
    """Body → (queue, producer, its epoch there): a queue that is given up and chosen again has a higher epoch."""
    for frame in history.of(FrameWritten):
        for body in frame.bodies:
            written.setdefault(body, set()).add((frame.queue, frame.producer, frame.sequence[1]))
    for body, places in messages.places.items():
        began = messages.began.get(body)
        if began is None or len(places) == 1 or began.waits:
            continue  # delayed messages are checked in delays.py and timers.py
        allowed = Counter(queue for queue, _, _ in written.get(body, ()))
        if began.key is not None or not Counter(stored.queue for stored in places) <= allowed:
            where = ", ".join(f"{stored.queue} offset {stored.offset}" for stored in places)
            key = "unkeyed" if began.key is None else f'key "{began.key}"'
            found.append(
                Violation("R9", places[-1].t, f"{body!r:.60} ({key}, sent at {began.t:.3f}) is stored {len(places)} times: {where}")
            )
    return found + _called_twice(history, messages)


def _called_twice(history: History, messages: Messages) -> list[Violation]:
    """Check the same for messages given to listeners, unless a power cut can have moved the message, or it was sent again after its
    topic was deleted and created again: a scope is deleted with its topic.
    """
    brokers, rewritten = Brokers(history), _Rewritten(history, messages)
    found = []
    first: dict[bytes, tuple[QueueKey, int]] = {}
    for call in history.of(CallBegan):
        for offset, body in call.messages:
            place = (call.queue.stored, offset)
            before = first.setdefault(body, place)
            began = messages.began.get(body)
            if before == place or began is None or began.key is None or began.waits:
                continue
            moved = any(brokers.lossy_cuts(queue.broker) for queue in (before[0], place[0]))
            if not moved and not rewritten.after_deletion(body, before[0], place[0], call.t):
                where = f"{before[0]} offset {before[1]} and {place[0]} offset {offset}"
                found.append(Violation("R9", call.t, f'{body!r:.60} (key "{began.key}") was given to listeners from {where}'))
                first[body] = place
    return found


class _Rewritten:
    """Messages that were written again over the layout of a topic that was created again."""

    def __init__(self, history: History, messages: Messages) -> None:
        self._deletions = Deletions(history)
        self._acked = messages.acked
        self._written: dict[bytes, list[FrameWritten]] = {}
        for frame in history.of(FrameWritten):
            for body in frame.bodies:
                self._written.setdefault(body, []).append(frame)

    def after_deletion(self, body: bytes, first: QueueKey, second: QueueKey, until: float) -> bool:
        """Return whether the message was written to `first` before a deletion of the topic, and, not acknowledged, to `second` after it."""
        acked = self._acked.get(body)
        written = [frame for frame in self._written.get(body, ()) if frame.t <= until]
        again = [frame for frame in written if frame.queue == second and (acked is None or frame.t <= acked.t)]
        before = [frame for frame in written if frame.queue == first]
        return any(self._deletions.between(first.topic, one.layout, other.layout) for one in before for other in again)
