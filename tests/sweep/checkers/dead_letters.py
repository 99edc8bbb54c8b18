"""C2 and R1 of ordered groups: a batch that has failed as often as its group allows is dead-lettered, and its queue continues.

a  it is not dead-lettered before, and not called more often, unless the dead letter could not be written
b  each message is dead-lettered once: the copy and the progress past it are one write. If the broker ends in the middle of it, the copy
   may be stored without the progress, and is then written once more: a repeat, never a loss
c  a confirmed dead letter is stored, and no later grant begins before it
"""

from collections import Counter

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.concurrent_facts import StoredCopies
from sweep.checkers.facts import Brokers
from sweep.checkers.violation import Violation
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted
from sweep.events.locks import ConnectionCut, LockGranted, SessionBound
from sweep.events.sends import DeadLetterResponded, DeadLetterSent
from sweep.events.universe import CopyStored
from sweep.history import History, QueueKey

TORN_S = 1.0
CUT_SEEN_S = 0.5
"""How much sooner than its other end a client may notice that a connection is closed."""


def check(history: History) -> list[Violation]:
    limits = {consumer.group: consumer.attempts_max for consumer in history.of(ConsumerStarted) if consumer.ordered}
    if not history.of(DeadLetterSent) and not any(limits.values()):
        return []
    bodies = _bodies(history)
    return [
        *_exhausted(history, limits),
        *_Attempts(history, limits).run(),
        *_once(history, limits, bodies),
        *_kept(history, bodies),
        *_progress_moves_past(history),
    ]


def _bodies(history: History) -> dict[int, bytes]:
    """Return the message that each DEAD_LETTER request refers to, by request."""
    given: dict[tuple[int, QueueKey, int], bytes] = {}
    found = {}
    for event in history:
        if isinstance(event, CallBegan):
            for offset, body in event.messages:
                given[event.process, event.queue, offset] = body
        elif isinstance(event, DeadLetterSent):
            known = given.get((event.process, event.queue, event.offset))
            if known is not None:
                found[event.request] = known
    return found


def _exhausted(history: History, limits: dict[str, int | None]) -> list[Violation]:
    found = []
    for sent in history.of(DeadLetterSent):
        limit = limits.get(sent.queue.group)
        if limit is None or sent.attempts < limit:
            text = f"{sent.queue} offset {sent.offset} was dead-lettered after {sent.attempts} failed calls: the group allows {limit}"
            found.append(Violation("C2", sent.t, text))
    return found


def _once(history: History, limits: dict[str, int | None], bodies: dict[int, bytes]) -> list[Violation]:
    generations = {(grant.queue, grant.epoch): grant.generation for grant in history.of(LockGranted)}
    requested: dict[tuple[str, str, bytes], dict[tuple[QueueKey, int, int], list[DeadLetterSent]]] = {}
    """(group, broker, body) → place and generation → each request."""
    for sent in history.of(DeadLetterSent):
        if sent.request in bodies:
            places = requested.setdefault((sent.queue.group, sent.queue.broker, bodies[sent.request]), {})
            generation = generations.get((sent.queue, sent.epoch), 0)
            places.setdefault((sent.queue, sent.offset, generation), []).append(sent)
    torn = _torn(history)
    copies: dict[tuple[str, str, bytes], list[CopyStored]] = {}
    """(group, broker, body) → its dead letters, whatever number of failed calls each has."""
    for (group, broker, body, _), dead in StoredCopies(history).dead.items():
        if group in limits:
            copies.setdefault((group, broker, body), []).extend(dead)
    found = []
    for (group, broker, body), stored in copies.items():
        # With manual commit a dead letter does not move progress, and a crash may repeat it (docs/adr/0004).
        allowed = 0
        for requests in requested.get((group, broker, body), {}).values():
            torn_count = sum(sent.request in torn for sent in requests[:-1])
            allowed += 1 + torn_count if all(sent.advance for sent in requests) else len(requests)
        if len(stored) > allowed:
            where = f"dead letter {stored[0].queue} offset {stored[0].offset}: {body!r:.60}"
            found.append(Violation("C2", stored[0].t, f"{where}: it is stored {len(stored)} times, {allowed} are allowed"))
    return found


def _torn(history: History) -> set[int]:
    """Return the requests that got no response, and whose broker ended within a second, perhaps in the middle of the write."""
    responded = {event.request for event in history.of(DeadLetterResponded)}
    ends = [(life.broker, life.ended_t) for lives in Brokers(history).lives.values() for life in lives if life.ended_t is not None]
    return {
        sent.request
        for sent in history.of(DeadLetterSent)
        if sent.request not in responded and any(broker == sent.queue.broker and 0 <= t - sent.t <= TORN_S for broker, t in ends)
    }


def _kept(history: History, bodies: dict[int, bytes]) -> list[Violation]:
    """Check c: a confirmed dead letter is stored, unless a power cut under async flush may have removed it."""
    copies, brokers = StoredCopies(history), Brokers(history)
    read = {copy.queue.broker for copy in history.of(CopyStored)}
    found = []
    for place, event in enumerate(history):
        if not isinstance(event, DeadLetterResponded) or event.code != ResponseCode.SUCCESS or event.queue.broker not in read:
            continue
        body = bodies.get(event.request)
        if body is None or copies.dead_bodies.get(event.queue.group, Counter())[body]:
            continue
        if brokers.removing_cut(event.queue.broker, event.process, place, event.t) is None:
            text = f"{event.queue} offset {event.offset}, {body!r:.60} was dead-lettered at {event.t:.3f}, and is in no dead-letter queue"
            found.append(Violation("R1", event.t, text))
    return found


def _progress_moves_past(history: History) -> list[Violation]:
    """Check c: progress moves past the message in the same write as the dead letter."""
    generations = {(grant.queue, grant.epoch): grant.generation for grant in history.of(LockGranted)}
    confirmed: dict[tuple[QueueKey, int], list[DeadLetterResponded]] = {}
    found = []
    for event in history:
        if isinstance(event, DeadLetterResponded):
            generation = generations.get((event.queue, event.epoch))
            if event.code == ResponseCode.SUCCESS and event.advance and generation is not None:
                confirmed.setdefault((event.queue, generation), []).append(event)
        elif isinstance(event, LockGranted):
            for dead_letter in confirmed.get((event.queue, event.generation), ()):
                if dead_letter.t < event.request_t and event.offset <= dead_letter.offset:
                    text = f"{event.queue} epoch {event.epoch} was granted at offset {event.offset}"
                    found.append(Violation("C2", event.t, f"{text}: {dead_letter.offset} had been dead-lettered at {dead_letter.t:.3f}"))
                    break
    return found


class _Attempts:
    """Checks that a batch is called no more often than its group allows, except after a dead letter that could not be written."""

    def __init__(self, history: History, limits: dict[str, int | None]) -> None:
        self.history = history
        self.limits = limits
        self.calls: dict[int, CallBegan] = {}
        self.excused: dict[tuple[QueueKey, int], None] = {}
        """Batches whose dead letter was requested, or could not be, since their broker was not connected."""
        self.cut: dict[tuple[int, str], set[str | None]] = {}
        """(process, broker) → sessions whose connection was cut, and that have no other one yet. Each group of a process has a session."""
        self.last: dict[QueueKey, tuple[float, CallBegan]] = {}
        """The last call of each queue after which its batch had to be dead-lettered, and when it ended."""

    def run(self) -> list[Violation]:
        found = []
        for event in self.history:
            if isinstance(event, ConnectionCut):
                self._cut(event)
            elif isinstance(event, SessionBound):
                self.cut.get((event.process, event.broker), set[str | None]()).discard(event.session)
            elif isinstance(event, DeadLetterSent):
                self.excused[event.queue, event.offset] = None
            elif isinstance(event, CallEnded):
                self._ended(event)
            elif isinstance(event, CallBegan):
                self.calls[event.call] = event
                limit = self.limits.get(event.queue.group)
                if limit is not None and event.attempt >= limit and (event.queue, event.first) not in self.excused:
                    text = f"call {event.call} of {event.queue} offsets {event.first}…{event.last} had failed {event.attempt} times before"
                    found.append(Violation("C2", event.t, f"{text}: the group allows {limit}"))
        return found

    def _ended(self, event: CallEnded) -> None:
        call, limit = self.calls.pop(event.call, None), self.limits.get(event.queue.group)
        if call is not None and limit is not None and call.attempt + 1 >= limit:
            self.last[event.queue] = (event.t, call)
            if self.cut.get((event.process, event.queue.broker)):
                self.excused[event.queue, call.first] = None

    def _cut(self, event: ConnectionCut) -> None:
        if event.session is not None:
            self.cut.setdefault((event.process, event.broker), set()).add(event.session)
        for queue, (t, call) in self.last.items():
            if queue.broker == event.broker and call.process == event.process and event.t - t < CUT_SEEN_S:
                self.excused[queue, call.first] = None
