"""C1 and R5 of concurrent groups: progress never passes an unfinished message, no message is forgotten, all are handled in the end.

A message is finished for its consumer when a call has handled it, or when the broker has confirmed that it was sent back. Handled in the
end means that a call has handled it, or that it is in the group's dead-letter topic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.account import Account
from sweep.checkers.concurrent_facts import StoredCopies
from sweep.checkers.facts import Brokers, RisingMax
from sweep.checkers.messages import Messages, Passes
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import ConcurrentCallBegan, ConcurrentCallEnded, ConsumerStarted
from sweep.events.progress import CommitResponded, CommitSent, ProgressReset, ProgressResponded, ResetSent
from sweep.events.sends import SendBackResponded, SendBackSent
from sweep.events.universe import CalmBegan, MessageStored
from sweep.history import History, ItemVerdict, QueueKey


def check(history: History) -> list[Violation]:
    shared = {consumer.group for consumer in history.of(ConsumerStarted) if not consumer.ordered}
    return [*(_Finished(history, shared).run() if shared else ()), *_generations(history), *_resets(history), *_handled(history)]


@dataclass(slots=True)
class _GenerationRun:
    """One process at one queue, in one generation."""

    generation: int
    account: Account


class _Finished:
    """C1: one pass over a history."""

    def __init__(self, history: History, groups: set[str]) -> None:
        self.history = history
        self.groups = groups
        self.passes = Passes(history, Messages(history))
        self.runs: dict[tuple[int, QueueKey], _GenerationRun] = {}
        self.calls: dict[int, tuple[ConcurrentCallBegan, _GenerationRun]] = {}
        self.places: dict[tuple[int, str, int], tuple[_GenerationRun, int]] = {}
        """(process, broker, log place) → its queue's run and offset, as given last."""
        self.requested: dict[int, tuple[_GenerationRun, int]] = {}
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for event in self.history:
            if isinstance(event, ProgressResponded):
                self._responded(event)
            elif isinstance(event, ConcurrentCallBegan):
                self._began(event)
            elif isinstance(event, ConcurrentCallEnded):
                known = self.calls.pop(event.call, None)
                if known is not None:
                    known[1].account.finished.update(each.offset for each in known[0].given[: event.done])
            elif isinstance(event, SendBackSent):
                place = self.places.get((event.process, event.broker, event.position))
                if place is not None:
                    self.requested[event.request] = place
            elif isinstance(event, SendBackResponded):
                requested = self.requested.pop(event.request, None)
                if requested is not None and event.code == ResponseCode.SUCCESS:
                    requested[0].account.finished.add(requested[1])
            elif isinstance(event, CommitSent) and event.queue.group in self.groups:
                self._committed(event)
        return self.found

    def _responded(self, event: ProgressResponded) -> None:
        run = self.runs.get((event.client, event.queue))
        if run is None or run.generation < event.generation:
            self.runs[event.client, event.queue] = _GenerationRun(event.generation, Account(event.offset))
        elif run.generation == event.generation:
            run.account.committed = max(run.account.committed, event.offset)

    def _began(self, event: ConcurrentCallBegan) -> None:
        run = self.runs.get((event.process, event.queue))
        if run is None:
            text = f"call {event.call} of {event.queue} in {process_name(event)}: no broker had given it a first offset"
            self.found.append(Violation("C1", event.t, text))
            return
        self.calls[event.call] = (event, run)
        for each in event.given:
            self.places[event.process, event.queue.broker, each.position] = (run, each.offset)

    def _committed(self, event: CommitSent) -> None:
        run, upto = self.runs.get((event.process, event.queue)), event.offset
        if run is None or upto is None or run.generation != event.generation:
            return
        missed = run.account.commit(upto, partial(self.passes.may_pass, event.queue, process=event.process, t=event.t))
        if missed is not None:
            text = f"{event.queue} generation {event.generation} by {process_name(event)} committed {upto}"
            self.found.append(Violation("C1", event.t, f"{text}: {missed} was neither handled nor sent back"))


def _generations(history: History) -> list[Violation]:
    """Check C1, also of pull consumers: neither progress within a generation nor generations fall, and an ended one commits nothing."""
    found = []
    offsets: dict[tuple[QueueKey, int], RisingMax] = {}
    numbers: dict[QueueKey, RisingMax] = {}
    for event in _named(history):
        number, offset, begun = event.generation or 0, event.offset or 0, isinstance(event, ProgressResponded)
        highest = numbers.setdefault(event.queue, RisingMax())
        before = highest.before(event.request_t)
        if before is not None and number < before:
            what = "begun" if begun else f"committed at {offset}"
            found.append(Violation("C1", event.t, f"{event.queue} was {what} in generation {number}: generation {before} was used before"))
        top = offsets.setdefault((event.queue, number), RisingMax())
        accepted = top.before(event.request_t)
        if begun and accepted is not None and offset < accepted:
            text = f"{event.queue}: client {event.client} begins at {offset}, generation {number} had accepted {accepted}"
            found.append(Violation("C1", event.t, text))
        top.add(event.t, offset)
        highest.add(event.t, number)
    return found


def _named(history: History) -> Iterator[ProgressResponded | CommitResponded]:
    """Yield the responses of brokers that name a generation that is in force."""
    for event in history:
        if isinstance(event, CommitResponded) and (event.verdict is not ItemVerdict.OK or event.generation is None or event.offset is None):
            continue
        if isinstance(event, ProgressResponded | CommitResponded):
            yield event


def _resets(history: History) -> list[Violation]:
    """Check C1: a generation from before a reset is over when the reset is confirmed, unless a lossy power cut removes the reset."""
    found, brokers = [], Brokers(history)
    cuts = {cut: broker for broker in brokers.lives for cut in brokers.lossy_cuts(broker)}
    numbers: dict[QueueKey, RisingMax] = {}
    requested: dict[int, float] = {}
    over: dict[QueueKey, tuple[float, int]] = {}
    for named in _named(history):
        numbers.setdefault(named.queue, RisingMax()).add(named.t, named.generation or 0)
    for place, event in enumerate(history):
        if place in cuts:
            over = {queue: reset for queue, reset in over.items() if queue.broker != cuts[place]}
        if isinstance(event, ResetSent):
            requested[event.request] = event.t
        elif isinstance(event, ProgressReset):
            known = numbers.get(event.queue, RisingMax()).before(requested.get(event.request, event.t))
            if known is not None:
                over[event.queue] = (event.t, known)
        elif isinstance(event, ProgressResponded | CommitResponded) and event.queue in over:
            reset_t, last = over[event.queue]
            void = event.generation is None or event.generation > last or event.request_t <= reset_t
            if not void and (isinstance(event, ProgressResponded) or event.verdict is ItemVerdict.OK):
                text = (
                    f"{event.queue} at {event.offset} in generation {event.generation}: a reset, confirmed at {reset_t:.3f}, had ended it"
                )
                found.append(Violation("C1", event.t, text))
    return found


def _handled(history: History) -> list[Violation]:
    """Check R5: every message of the final logs was handled by each concurrent group, or is in its dead-letter topic."""
    if not history.of(CalmBegan) or not history.of(MessageStored):
        return []
    groups = {consumer.group: consumer.expressions[0][0] for consumer in history.of(ConsumerStarted) if not consumer.ordered}
    begins: dict[QueueKey, int] = {}
    for response in history.of(ProgressResponded):
        begins[response.queue] = min(response.offset, begins.get(response.queue, response.offset))
    done, stored_copies = _done(history), StoredCopies(history)
    passes = Passes(history, Messages(history))
    found = []
    for group, topic in groups.items():
        for stored in history.of(MessageStored):
            queue = stored.queue._replace(group=group)
            if stored.queue.topic != topic or stored.offset < begins.get(queue, 0) or passes.may_pass(queue, stored.offset, 0):
                continue
            if passes.skipped(queue, stored.offset):
                continue
            if (group, stored.body) not in done and stored.body not in stored_copies.dead_bodies.get(group, ()):
                text = f"{queue} offset {stored.offset}, {stored.body!r:.60}: no call has handled it, and it is not a dead letter"
                found.append(Violation("R5", stored.t, text))
    return found


def _done(history: History) -> set[tuple[str, bytes]]:
    calls = {call.call: call for call in history.of(ConcurrentCallBegan)}
    found: set[tuple[str, bytes]] = set()
    for end in history.of(ConcurrentCallEnded):
        call = calls.get(end.call)
        if call is not None:
            found.update((call.queue.group, each.body) for each in call.given[: end.done])
    return found
