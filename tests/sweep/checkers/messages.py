"""Facts about messages for several checkers: their places, the consumers that may pass over them, and their acknowledgements."""

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from operator import itemgetter

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.names import DLQ_PREFIX
from lockstep.testing.simulation.process import EPOCH_S
from sweep.checkers.facts import Brokers, Losses
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.locks import ClassicLocked, LockGranted, LockRefused
from sweep.events.producers import DelayedSendAcked, SendAcked, SendBegan
from sweep.events.progress import ProgressReset, PullReceived, ResetSent
from sweep.events.readers import ReaderStarted
from sweep.events.sends import DeadLetterResponded, DeadLetterSent, FrameResponded, FrameWritten
from sweep.events.universe import CopyStored, MessageStored, ReadingEnded
from sweep.history import History, ItemVerdict, QueueKey

_POSITION_CODES = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)

StoredPlace = tuple[QueueKey, int]
"""(stored queue, offset)."""


class Messages:
    """The messages of a run, and the places at which the final reading found them."""

    def __init__(self, history: History) -> None:
        self.began: dict[bytes, SendBegan] = {event.body: event for event in history.of(SendBegan)}
        self.acked: dict[bytes, SendAcked] = {}
        for event in history.of(SendAcked):
            self.acked.setdefault(event.body, event)
        self.delayed: dict[bytes, DelayedSendAcked] = {}
        """Acknowledged delayed messages; their places are not known at the acknowledgement."""
        for waits in history.of(DelayedSendAcked):
            self.delayed.setdefault(waits.body, waits)
        self.stored: dict[StoredPlace, MessageStored] = {(event.queue, event.offset): event for event in history.of(MessageStored)}
        self.places: dict[bytes, list[MessageStored]] = {}
        for found in history.of(MessageStored):
            self.places.setdefault(found.body, []).append(found)
        self.read: dict[QueueKey, ReadingEnded] = {event.queue: event for event in history.of(ReadingEnded)}
        self._ahead_s: dict[str, float] = {}
        """Broker → by how much its store times were ahead of the true time at its last response to a send."""
        for response in history.of(FrameResponded):
            if response.stamp_ms:
                self._ahead_s[response.queue.broker] = response.stamp_ms / 1_000 - EPOCH_S - response.t

    def acknowledged(self, body: bytes) -> SendAcked | DelayedSendAcked | None:
        return self.acked.get(body) or self.delayed.get(body)

    def by_queue(self, topic: str) -> dict[QueueKey, list[MessageStored]]:
        """Return the final logs of a topic, each in order."""
        found: dict[QueueKey, list[MessageStored]] = {}
        for (queue, _), stored in sorted(self.stored.items()):
            if queue.topic == topic:
                found.setdefault(queue, []).append(stored)
        return found

    def due_since(self, last: MessageStored, calm_t: float) -> float:
        """Return the time from which on a group has to reach the end of a log: the calm, or the last message's acknowledgement, of one that
        waited its store time."""
        acked, began = self.acked.get(last.body), self.began.get(last.body)
        if began is not None and began.waits and last.stored_t is not None:
            return max(calm_t, last.stored_t - self._ahead_s.get(last.queue.broker, 0.0))
        return calm_t if acked is None else max(calm_t, acked.t)


class PlaceHistory:
    """Which message was at a place at a time. It changes only by a loss (`Losses`): the queue ends before the place, and grows again."""

    def __init__(self, history: History) -> None:
        self._losses = Losses(history)
        self._named: dict[StoredPlace, list[tuple[float, bytes]]] = {}
        """Place → (when, message), in order: what responses to sends named, and at the end (inf) the final reading."""
        written = {event.request: event.bodies for event in history.of(FrameWritten)}
        for response in history.of(FrameResponded):
            for number, body in enumerate(written.get(response.request, ()) if response.offset >= 0 else ()):
                self._named.setdefault((response.queue, response.offset + number), []).append((response.t, body))
        for stored in history.of(MessageStored):
            self._named.setdefault((stored.queue, stored.offset), []).append((inf, stored.body))

    def body_at(self, place: StoredPlace, t: float) -> bytes | None:
        """Return the message that was at this place, which was not empty, at `t`; None if it is not known.

        A message without a response may have been there, and be lost: the names before and after `t` hold only up to the next loss.
        """
        named = self._named.get(place, [])
        at = bisect_right(named, t, key=itemgetter(0))
        before, after = named[:at][-1:], named[at:][:1]
        if before and after and before[0][1] == after[0][1]:
            return before[0][1]
        held = [body for when, body in before + after if not self._losses.between(place[0], min(when, t), max(when, t))]
        return held[0] if held else None


class Passes:
    """Decides which offsets a consumer may pass over: filtered by its subscription, reported as gaps, or dead-lettered."""

    def __init__(self, history: History, messages: Messages) -> None:
        self.messages = messages
        self._places = PlaceHistory(history)
        self._expressions: dict[tuple[int, str, str], set[str]] = {}
        """(process, group, topic) → tags; empty: everything is wanted."""
        self._gaps = reported_gaps(history)
        self._ordered: dict[tuple[str, str], list[int]] = {}
        for consumer in history.of(ConsumerStarted):
            for topic, expression in consumer.expressions:
                if consumer.ordered:
                    self._ordered.setdefault((consumer.group, topic), []).append(consumer.process)
                self._expressions[consumer.process, consumer.group, topic] = tags_of(expression)
        for reader in history.of(ReaderStarted):
            self._expressions[reader.process, reader.group, reader.topic] = tags_of(reader.expression)
        self._dead_letters: dict[tuple[QueueKey, int], float] = {}
        for confirmed in history.of(DeadLetterResponded):
            if confirmed.code == ResponseCode.SUCCESS:
                self._dead_letters.setdefault((confirmed.queue, confirmed.offset), confirmed.t)
        # A broker that ended before its response may have written the dead letter: then the final reading has it.
        there = {(copy.queue.topic, copy.body) for copy in history.of(CopyStored)}
        for sent in history.of(DeadLetterSent):
            found = messages.stored.get((sent.queue.stored, sent.offset))
            if found is not None and (f"{DLQ_PREFIX}{sent.queue.group}", found.body) in there:
                key = sent.queue, sent.offset
                self._dead_letters[key] = min(sent.t, self._dead_letters.get(key, inf))
        parking = {consumer.group for consumer in history.of(ConsumerStarted) if consumer.parks is not None}
        for copy in history.of(CopyStored) if parking else ():
            group = copy.queue.topic.removeprefix(DLQ_PREFIX)
            if group in parking and copy.queue.topic.startswith(DLQ_PREFIX):
                for found in messages.places.get(copy.body, ()):
                    if found.queue.broker == copy.queue.broker:
                        key = found.queue._replace(group=group), found.offset
                        self._dead_letters[key] = -inf  # parks.py checks why and in which order dropped keys are copied
        self._pull_times: dict[tuple[int, QueueKey], list[tuple[float, float]]] = {}
        """(process, queue) → when the pull responses that named the position of the process arrived, and when they were written."""
        for pull in history.of(PullReceived):
            if pull.gap is not None:
                self._gaps.setdefault(pull.queue, []).append(pull.gap)
            if pull.code in _POSITION_CODES and pull.key is None:
                self._pull_times.setdefault((pull.process, pull.queue), []).append((pull.t, pull.response_t))
        self._skipped = _skipped(history)

    def may_pass(self, queue: QueueKey, offset: int, process: int, t: float = inf) -> bool:
        """Return whether the consumer may pass over the offset at `t`; inf: over the message of the final reading."""
        wanted = self._expressions.get((process, queue.group, queue.topic))
        if wanted:
            body = self._places.body_at((queue.stored, offset), self._last_pull_t(process, queue, t))
            sent = None if body is None else self.messages.began.get(body)
            if sent is None or sent.tags not in wanted:
                return True
        dead_t = self._dead_letters.get((queue, offset))
        if dead_t is not None and dead_t <= t:
            return True
        return lies_in(offset, self._gaps.get(queue, ()))

    def _last_pull_t(self, process: int, queue: QueueKey, t: float) -> float:
        """Return when the broker wrote the last pull response: a message that got the offset since was not passed over."""
        times = self._pull_times.get((process, queue), [])
        at = bisect_right(times, t, key=itemgetter(0))
        return times[at - 1][1] if at and t < inf else t

    def skipped(self, queue: QueueKey, offset: int) -> bool:
        """Return whether a reset moved the group's progress forward over it."""
        return lies_in(offset, self._skipped.get(queue, ()))

    def groups(self) -> dict[tuple[str, str], list[int]]:
        """Return the processes that subscribed, by (group, topic) of ordered groups."""
        return self._ordered

    def some_may_pass(self, queue: QueueKey, offset: int, processes: list[int]) -> bool:
        """Return whether some member's subscription passes over it, a gap was reported, or a reset skipped it."""
        return self.skipped(queue, offset) or any(self.may_pass(queue, offset, process) for process in processes)


def _skipped(history: History) -> dict[QueueKey, list[tuple[int, int]]]:
    """Return the offsets that resets skipped, from the group's progress if known. A reset without a response may have been executed."""
    requested: dict[tuple[QueueKey, int], int] = {}
    found: dict[QueueKey, list[tuple[int, int]]] = {}
    for event in history:
        if isinstance(event, ResetSent):
            requested[event.queue, event.request] = event.offset
        elif isinstance(event, ProgressReset):
            requested.pop((event.queue, event.request), None)
            found.setdefault(event.queue, []).append((event.before, event.offset))
    for (queue, _), offset in requested.items():
        found.setdefault(queue, []).append((0, offset))
    return found


def reported_gaps(history: History) -> dict[QueueKey, list[tuple[int, int]]]:
    """Return the gaps of each queue that its consumers were notified of: (first offset, end)."""
    found: dict[QueueKey, list[tuple[int, int]]] = {}
    for gap in history.of(QueueGapSeen):
        found.setdefault(gap.queue, []).append((gap.first, gap.end))
    return found


def lies_in(offset: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= offset < end for first, end in spans)


def tags_of(expression: str) -> set[str]:
    """Return the tags of "a || b"; empty for "*"."""
    tags = {tag.strip() for tag in expression.split("||")} - {""}
    return set() if "*" in tags else tags


def first_offsets(history: History) -> dict[QueueKey, int]:
    """Return the first offset of each group in each queue: messages below are not delivered to it.

    One record of a broker stores the first offsets of a group in all its queues of a topic. If a power cut removed that record, the group
    begins again by its start policy: then only grants from the first response that no cut can have removed count.
    """
    brokers = Brokers(history)
    durable: dict[tuple[str, str, str], int] = {}
    """(group, topic, broker) → place of the first response whose record no power cut can remove."""
    grants: dict[QueueKey, list[tuple[int, int]]] = {}
    """(place, offset)."""
    for place, event in enumerate(history):
        if not (
            isinstance(event, LockGranted) or (isinstance(event, LockRefused) and event.verdict in (ItemVerdict.HELD, ItemVerdict.WAIT))
        ):
            continue
        scope = (event.queue.group, event.queue.topic, event.queue.broker)
        if scope not in durable and brokers.removing_cut(event.queue.broker, event.process, place, event.t) is None:
            durable[scope] = place
        if isinstance(event, LockGranted):
            grants.setdefault(event.queue, []).append((place, event.offset))
    found: dict[QueueKey, int] = {}
    for key, given in grants.items():
        known = durable.get((key.group, key.topic, key.broker), inf)
        found[key] = min([offset for place, offset in given if place >= known] or [offset for _, offset in given])
    for locked in history.of(ClassicLocked):
        if locked.granted:
            found.setdefault(locked.queue, 0)
    return found
