"""ordering.md 7: the first offset of a group, and that no message acknowledged after its start is skipped.

    a  messages sent after a broker had responded to the group's first LOCK are at or after the first grant's offset, in every queue of
       that broker: one record stores the first offsets of all of them, so neither a crash nor a later first grant skips a message
    b  LAST_OFFSET: messages acknowledged before any LOCK of the group was written are before it
    c  TIMESTAMP: messages sent at that time or later are at or after it, messages acknowledged earlier before it
    d  FIRST_OFFSET: no message of the log is before it
    e  LAST_OFFSET, and a member had been running when the topic was created: as FIRST_OFFSET

For pull consumers the request for their first offset counts as LOCK.
Queues that a later layout added begin at 0: only a and the first half of c are checked for them.
"""

from dataclasses import dataclass, replace
from math import inf

from lockstep.runtime.steady_clock import STEP_MS
from sweep.checkers.facts import Brokers
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import ConsumerStarted
from sweep.events.locks import LockGranted, LockRefused, LockSent
from sweep.events.progress import CommitSent, ProgressResponded, ResetSent
from sweep.events.readers import ReaderStarted
from sweep.events.sends import FrameResponded, FrameWritten, LayoutSent
from sweep.events.universe import MessageStored
from sweep.history import History, ItemVerdict, QueueKey

JOINED_S = 2.0
"""A member that starts without faults has joined every broker so long after it began to start."""
STORE_S = (STEP_MS + 22) / 1_000
"""Store times differ from the wall clock by up to STEP_MS, and by the drift between two readings (2 % of 1 s); whole milliseconds."""
StartScope = tuple[str, str, str]
"""(group, topic, broker)."""
Policy = ConsumerStarted | ReaderStarted
Grant = LockGranted | ProgressResponded
"""A group of pull consumers requests its first offset, and no lock."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """One stored message."""

    stored: MessageStored
    written_t: float
    response_t: float


def check(history: History) -> list[Violation]:
    policies: dict[str, Policy] = {started.group: started for started in history.of(ConsumerStarted) if started.ordered}
    policies |= {started.group: started for started in history.of(ReaderStarted)}
    if not policies or not history.of(MessageStored):
        return []
    starts = _Starts(history)
    found = []
    for key, grant in starts.first.items():
        policy = policies.get(key.group)
        if policy is not None and policy.where == "LAST_OFFSET" and starts.had_subscribed(key):
            policy = replace(policy, where="FIRST_OFFSET")
        if policy is not None and key not in starts.moved:
            found += starts.compare(policy, grant, starts.messages.get(key.stored, []))
    return found


class _Starts:
    """The first grant of each group in each queue, and when brokers had recorded it."""

    def __init__(self, history: History) -> None:
        self.brokers = Brokers(history)
        self.first: dict[QueueKey, Grant] = {}
        self.places: dict[QueueKey, int] = {}
        self.first_requests: dict[str, float] = {}
        """Group → when its first LOCK was written; of pull consumers: when the first one started."""
        self.resolved: dict[StartScope, float] = {}
        """The time from which on a broker has recorded the group's first offsets."""
        self.moved = {event.queue for event in history.of(ResetSent)}
        """Queues whose progress was reset by an operator, or by a client without a session."""
        self.moved |= {event.queue for event in history.of(CommitSent) if event.by == "UPDATE"}
        self.altered_t = min((event.t for event in history.of(LayoutSent) if event.counter > 1), default=inf)
        self.created: dict[str, float] = {}
        """Topic → when a client sent its first layout."""
        for layout in history.of(LayoutSent):
            self.created.setdefault(layout.topic, layout.t)
        self.started: dict[str, float] = {}
        """Group → when its first member started."""
        policies: list[Policy] = [*history.of(ConsumerStarted), *[reader for reader in history.of(ReaderStarted) if not reader.by_hand]]
        for started in policies:
            self.started[started.group] = min(started.t, self.started.get(started.group, inf))
        self.ended = {event.topic for event in history.of(LayoutSent) if event.deleted}
        self.times = {event_place: event.t for event_place, event in enumerate(history) if event_place in self._cuts()}
        for place, event in enumerate(history):
            if isinstance(event, LockSent):
                for key, _ in event.items:
                    self.first_requests.setdefault(key.group, event.t)
            elif isinstance(event, ReaderStarted):
                self.first_requests.setdefault(event.group, event.t)
            elif isinstance(event, Grant):
                self._responded(event, place)
                if event.queue.topic not in self.ended and event.queue not in self.first:
                    self.first[event.queue], self.places[event.queue] = event, place
            elif isinstance(event, LockRefused) and event.verdict in (ItemVerdict.HELD, ItemVerdict.WAIT):
                self._responded(event, place)
        self.read = Messages(history).read
        self.messages = _messages(history)

    def had_subscribed(self, key: QueueKey) -> bool:
        """Return whether a member of the group ran when the topic was created."""
        return self.started.get(key.group, inf) + JOINED_S < self.created.get(key.topic, -inf)

    def _cuts(self) -> set[int]:
        return {cut for broker in self.brokers.lives for cut in self.brokers.lossy_cuts(broker)}

    def _responded(self, event: Grant | LockRefused, place: int) -> None:
        scope = (event.queue.group, event.queue.topic, event.queue.broker)
        if scope not in self.resolved and self.brokers.removing_cut(event.queue.broker, event.process, place, event.t) is None:
            self.resolved[scope] = event.t

    def compare(self, policy: Policy, grant: Grant, sent: list[_Sent]) -> list[Violation]:
        key, begin = grant.queue, grant.offset
        cut_t = min((self.times[cut] for cut in self.brokers.lossy_cuts(key.broker) if cut > self.places[key]), default=inf)
        added = min((one.written_t for one in sent), default=inf) > self.altered_t
        resolved_t = self.resolved.get((key.group, key.topic, key.broker), inf)
        request_t = self.first_requests.get(key.group, inf)
        where = f"{key} began at {begin} ({policy.where}, granted by {process_name(grant)})"
        found = []
        for one in sent:
            if one.written_t > cut_t:
                continue  # its offset may have belonged to another message
            what = f"{where}: offset {one.stored.offset}, {one.stored.body!r:.40}"
            late = one.stored.offset < begin
            if late and one.written_t > resolved_t:
                found.append(
                    Violation(
                        "O5", grant.t, f"{what} was sent at {one.written_t:.3f}; the group's first offset was recorded at {resolved_t:.3f}"
                    )
                )
            elif late and policy.where == "TIMESTAMP" and one.written_t > policy.since_t + STORE_S:
                found.append(Violation("O5", grant.t, f"{what} was sent at {one.written_t:.3f}, after {policy.since_t:.3f}"))
            elif not late and not added and policy.where == "LAST_OFFSET" and one.response_t < request_t:
                found.append(
                    Violation("start", grant.t, f"{what} was stored at {one.response_t:.3f}, the first LOCK was sent at {request_t:.3f}")
                )
            elif not late and not added and policy.where == "TIMESTAMP" and one.response_t < policy.since_t - STORE_S:
                found.append(Violation("start", grant.t, f"{what} was stored at {one.response_t:.3f}, before {policy.since_t:.3f}"))
        read = self.read.get(key.stored)
        if policy.where == "FIRST_OFFSET" and read is not None and begin > max(0, read.first):
            found.append(Violation("start", grant.t, f"{where}: the log begins at {read.first}"))
        return found[:1]


def _messages(history: History) -> dict[QueueKey, list[_Sent]]:
    """Return the messages of each stored queue, with the times of their first write and response there. One may be in two queues."""
    written: dict[tuple[QueueKey, bytes], float] = {}
    responded: dict[tuple[QueueKey, bytes], float] = {}
    bodies: dict[int, tuple[bytes, ...]] = {}
    for event in history:
        if type(event) is FrameWritten:
            bodies[event.request] = () if event.durable is False else event.bodies  # the response is sent before readers see it
            for body in event.bodies:
                written.setdefault((event.queue, body), event.t)
        elif isinstance(event, FrameResponded) and event.offset >= 0:
            for body in bodies.get(event.request, ()):
                responded.setdefault((event.queue, body), event.t)
    found: dict[QueueKey, list[_Sent]] = {}
    for stored in history.of(MessageStored):
        place = stored.queue, stored.body
        if place in written:
            found.setdefault(stored.queue, []).append(_Sent(stored, written[place], responded.get(place, inf)))
    return found
