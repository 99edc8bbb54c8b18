"""P1, O5 and R5 of pull consumers: polls, commits, the results of commit(), and that nothing is skipped. `async for` polls too.

    a  a holding begins at the group's progress by the broker; its polls return offset after offset from there, each once, until a seek; no
       poll returns messages of a queue that its reader does not have, or has paused
    b  a commit covers messages that were returned and marked as done, and those that a seek or a gap passed over or the group's tags
       filter: nothing else
    c  when commit() has returned, the broker has accepted the messages at hand, also if progress moved back; else it raises StaleEpochError
    d  O5: every acknowledged message was polled, except those that the subscription filters, gaps, resets and seeks forward; messages
       that retention removed first were reported as a gap
    e  R5: in the calm the group reaches the end of every queue
    f  polled messages have a tag that the group subscribes to; other messages are passed over

So only messages without a commit are repeated. progress.py and concurrent.py check that no response names less than was acknowledged, and
that an ended generation commits nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.account import Account
from sweep.checkers.messages import Messages, Passes, lies_in, tags_of
from sweep.checkers.reader_ends import recovered, skipped
from sweep.checkers.violation import Violation, process_name
from sweep.events.progress import CommitReceived, CommitResponded, CommitSent, ProgressReset, ProgressResponded, PullReceived, ResetSent
from sweep.events.readers import (
    PolledMessagesDone,
    PollReturned,
    ReaderCommitFailed,
    ReaderCommitted,
    ReaderQueueAssigned,
    ReaderQueuePaused,
    ReaderQueueResumed,
    ReaderQueueRevoked,
    ReaderQueueUnassigned,
    ReaderStarted,
    SeekReturned,
)
from sweep.history import Event, History, ItemVerdict, QueueKey

Known = dict[tuple[int, QueueKey], dict[int, int]]


def check(history: History) -> list[Violation]:
    groups = {started.group: started.topic for started in history.of(ReaderStarted)}
    if not groups:
        return []
    reading = Reading(history, groups)
    return [*reading.run(), *skipped(history, groups, reading.passes, reading.polled, reading.left_out), *recovered(history, groups)]


@dataclass(slots=True)
class _Holding:
    """One grant of one queue to one reader."""

    process: int
    queue: QueueKey
    generation: int
    account: Account
    next: int
    """The offset at which the next poll begins."""
    done: int
    """Every offset below was returned and is done, or is before the grant."""
    at_hand: set[int] = field(default_factory=set)
    """Returned, or passed over by a seek, since the reader last marked messages as done."""
    given: bool = False
    """Some of these offsets are messages."""
    others: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that another member had handled, and retention removed, before this one polled them."""
    alive: bool = True


@dataclass(frozen=True, slots=True)
class _Promise:
    """The offset of one queue that a successful commit() confirms."""

    holding: _Holding
    offset: int
    done: int
    """Everything below was done before."""

    @property
    def back(self) -> bool:
        """Return whether the broker has to reset the group."""
        return self.offset < self.done


@dataclass(slots=True)
class _Reader:
    """One pull consumer."""

    auto: bool
    holdings: dict[QueueKey, _Holding] = field(default_factory=dict)
    seeks: dict[QueueKey, int] = field(default_factory=dict)
    """Seeks of queues that are not held."""
    paused: set[QueueKey] = field(default_factory=set)
    lost: set[QueueKey] = field(default_factory=set)
    """Revoked with messages at hand, and not reported by commit() yet."""
    promises: list[_Promise] = field(default_factory=list)


class Reading:
    """One pass over a history: a, b, c and f."""

    def __init__(self, history: History, groups: dict[str, str]) -> None:
        self.history = history
        self.groups = groups
        self.messages = Messages(history)
        self.passes = Passes(history, self.messages)
        self.wanted = {started.group: tags_of(started.expression) for started in history.of(ReaderStarted)}
        """Group → tags; empty: all."""
        self.readers: dict[int, _Reader] = {}
        self.current: dict[tuple[int, QueueKey], _Holding] = {}
        """(process, queue) → its last holding."""
        self.polled: set[tuple[QueueKey, int, bytes]] = set()
        self.sought: dict[QueueKey, list[tuple[int, int]]] = {}
        """The offsets that seeks forward passed over."""
        self.accepted: Known = {}
        """(client's process, queue) → generation → highest offset that a broker's response named."""
        self.received: Known = {}
        """The same for responses that have arrived."""
        self.begins: dict[tuple[int, QueueKey], set[tuple[int, int]]] = {}
        """(client's process, queue) → each (generation, offset) that a response named as the group's progress."""
        self.refused: set[tuple[int, QueueKey]] = set()
        """(client's process, queue): a refusal, also of a pull, has arrived since its reader last marked messages as done."""
        self.resets: dict[int, tuple[int, QueueKey]] = {}
        self.went_back: dict[tuple[int, QueueKey], int] = {}
        """(client's process, queue) → the offset of its last confirmed reset."""
        self.found: list[Violation] = []
        self._on: dict[type[Event], Callable[[Event], None]] = {
            ProgressResponded: self._responded,
            CommitResponded: self._accepted,
            CommitReceived: self._received,
            CommitSent: self._commit_sent,
            PullReceived: self._pulled,
            ResetSent: self._reset_sent,
            ProgressReset: self._reset,
            ReaderStarted: self._started,
            ReaderQueueAssigned: self._assigned,
            ReaderQueueRevoked: self._revoked,
            PollReturned: self._polled,
            PolledMessagesDone: self._messages_done,
            ReaderCommitted: self._committed,
            ReaderCommitFailed: self._commit_failed,
            SeekReturned: self._seek_returned,
            ReaderQueuePaused: self._paused,
            ReaderQueueResumed: self._resumed,
            ReaderQueueUnassigned: self._unassigned,
        }

    def run(self) -> list[Violation]:
        for event in self.history:
            handler = self._on.get(type(event))
            if handler is not None:
                handler(event)
        return self.found

    def _report(self, event: Event, text: str) -> None:
        self.found.append(Violation("P1", event.t, text))

    # ---------------------------------------------------------------------------------------------------------- responses of brokers

    def _responded(self, event: Event) -> None:
        assert isinstance(event, ProgressResponded)
        if event.queue.group in self.groups:
            self.begins.setdefault((event.client, event.queue), set()).add((event.generation, event.offset))
            _record_offset(self.accepted, event.client, event.queue, event.generation, event.offset)

    def _accepted(self, event: Event) -> None:
        assert isinstance(event, CommitResponded)
        if event.verdict is ItemVerdict.OK and event.generation is not None and event.offset is not None:
            _record_offset(self.accepted, event.client, event.queue, event.generation, event.offset)

    def _received(self, event: Event) -> None:
        assert isinstance(event, CommitReceived)
        if event.verdict is not ItemVerdict.OK:
            self.refused.add((event.process, event.queue))
        elif event.generation is not None and event.offset is not None:
            _record_offset(self.received, event.process, event.queue, event.generation, event.offset)

    def _reset_sent(self, event: Event) -> None:
        assert isinstance(event, ResetSent)
        self.resets[event.request] = (event.process, event.queue)

    def _reset(self, event: Event) -> None:
        assert isinstance(event, ProgressReset)
        process, _ = self.resets.get(event.request, (0, event.queue))
        self.went_back[process, event.queue] = event.offset

    def _commit_sent(self, event: Event) -> None:
        assert isinstance(event, CommitSent)
        holding = self.current.get((event.process, event.queue))
        if holding is None or event.offset is None or event.generation != holding.generation:
            return
        if (event.generation, event.offset) in self.begins.get((event.process, event.queue), ()):
            return  # a queue that is revoked at once is released at its first offset
        missed = holding.account.commit(event.offset, partial(self._may_pass, holding, t=event.t))
        if missed is not None:
            text = f"{event.queue} generation {event.generation} by {process_name(event)} committed {event.offset}"
            self._report(event, f"{text}: {missed} had not been marked as done there")

    def _pulled(self, event: Event) -> None:
        """Note a gap. Gaps count for the group: a member that was paused begins below it, at offsets that others have handled meanwhile."""
        assert isinstance(event, PullReceived)
        holding = self.current.get((event.process, event.queue))
        if event.code == ResponseCode.STALE_EPOCH:
            self.refused.add((event.process, event.queue))
        if holding is not None and event.gap is not None and event.offset < event.gap[0]:
            known = [offsets for (_, queue), offsets in self.accepted.items() if queue == event.queue]
            if any(offsets.get(holding.generation, 0) >= event.gap[0] for offsets in known):
                holding.others.append((event.offset, event.gap[0]))

    def _may_pass(self, holding: _Holding, offset: int, t: float) -> bool:
        return self.passes.may_pass(holding.queue, offset, holding.process, t) or lies_in(offset, holding.others)

    # -------------------------------------------------------------------------------------------------------- notifications of readers

    def _started(self, event: Event) -> None:
        assert isinstance(event, ReaderStarted)
        self.readers[event.reader] = _Reader(event.auto)

    def _assigned(self, event: Event) -> None:
        assert isinstance(event, ReaderQueueAssigned)
        queue, reader = event.queue, self.readers[event.reader]
        if (event.generation, event.offset) not in self.begins.get((event.process, queue), ()):
            where = f"{queue} in {process_name(event)} begins at {event.offset} in generation {event.generation}"
            self._report(event, f"{where}: no response of a broker named this")
        _record_offset(self.received, event.process, queue, event.generation, event.offset)
        holding = _Holding(event.process, queue, event.generation, Account(event.offset), event.offset, event.offset)
        reader.holdings[queue] = self.current[event.process, queue] = holding
        if queue in reader.seeks:
            self._go(holding, reader.seeks.pop(queue))

    def _revoked(self, event: Event) -> None:
        assert isinstance(event, ReaderQueueRevoked)
        reader = self.readers[event.reader]
        holding = reader.holdings.get(event.queue)
        if holding is not None and holding.generation == event.generation:
            holding.alive = False
            if holding.given:
                reader.lost.add(event.queue)

    def _polled(self, event: Event) -> None:
        assert isinstance(event, PollReturned)
        queue, reader = event.queue, self.readers[event.reader]
        self.polled.update((queue.stored, offset, body) for offset, body in event.messages)
        holding, where = (
            reader.holdings.get(queue),
            f"{queue} offset {event.messages[0][0]} polled by {process_name(event)}",
        )
        if holding is None or not holding.alive:
            self._report(event, f"{where}: the queue was revoked, or never assigned")
            return
        if not event.assigned:
            self._report(event, f"{where}: the queue is not assigned to it any more")
        if queue in reader.paused:
            self._report(event, f"{where}: it has paused the queue")
        strange = [body for _, body in event.messages if self.unwanted(queue.group, body)]
        if strange:
            self._report(event, f"{where}: {strange[0]!r:.60} has none of the tags {sorted(self.wanted[queue.group])}")
        offsets = [offset for offset, _ in event.messages]
        due = holding.next
        for offset in offsets:
            if offset != due and not (offset > due and all(self._may_pass(holding, one, event.t) for one in range(due, offset))):
                self._report(event, f"{where}: offsets {offsets[:20]}, and {due} was next")
                break
            due = offset + 1
        holding.next = offsets[-1] + 1
        holding.at_hand.update(offsets)
        holding.given = True

    def unwanted(self, group: str, body: bytes) -> bool:
        """Return whether the group's subscription filters this message."""
        began, wanted = self.messages.began.get(body), self.wanted[group]
        return bool(wanted) and began is not None and began.tags not in wanted

    def left_out(self, queue: QueueKey, offset: int, body: bytes) -> bool:
        """Return whether the subscription, a reset or a seek forward left this message out."""
        sought = self.sought.get(queue, ())
        return self.unwanted(queue.group, body) or self.passes.skipped(queue, offset) or lies_in(offset, sought)

    # ------------------------------------------------------------------------------------------------------------ actions of readers

    def _seek_returned(self, event: Event) -> None:
        assert isinstance(event, SeekReturned)
        reader = self.readers[event.reader]
        holding = reader.holdings.get(event.queue)
        if holding is None or not holding.alive:
            reader.seeks[event.queue] = event.offset
        else:
            self._go(holding, event.offset)

    def _go(self, holding: _Holding, offset: int) -> None:
        if offset > holding.next:
            self.sought.setdefault(holding.queue, []).append((holding.next, offset))
            holding.at_hand.update(range(holding.next, offset))
        holding.next = offset

    def _paused(self, event: Event) -> None:
        assert isinstance(event, ReaderQueuePaused)
        self.readers[event.reader].paused.add(event.queue)

    def _resumed(self, event: Event) -> None:
        assert isinstance(event, ReaderQueueResumed)
        self.readers[event.reader].paused.discard(event.queue)

    def _unassigned(self, event: Event) -> None:
        assert isinstance(event, ReaderQueueUnassigned)
        reader = self.readers[event.reader]
        reader.paused.discard(event.queue)
        reader.seeks.pop(event.queue, None)

    def _messages_done(self, event: Event) -> None:
        assert isinstance(event, PolledMessagesDone)
        reader = self.readers[event.reader]
        reader.promises = []
        if event.by == "poll":
            reader.lost.clear()
        for holding in reader.holdings.values():
            holding.account.finished |= holding.at_hand
            holding.at_hand.clear()
            holding.given = False
            done = holding.done
            holding.done = max(done, holding.next)
            self.refused.discard((holding.process, holding.queue))
            if holding.alive:
                self.went_back.pop((holding.process, holding.queue), None)
                reader.promises.append(_Promise(holding, holding.next, done))

    def _kept(self, promise: _Promise, known: Known, t: float) -> bool:
        """Return whether the promised offset was accepted. The consumer may have passed over filtered messages after it."""
        holding = promise.holding
        place = (holding.process, holding.queue)
        back = self.went_back.get(place, -1)
        if back >= promise.offset and all(self._may_pass(holding, one, t) for one in range(promise.offset, back)):
            return True
        if promise.back and not all(self._may_pass(holding, one, t) for one in range(promise.offset, promise.done)):
            return False
        return any(generation >= holding.generation and offset >= promise.offset for generation, offset in known.get(place, {}).items())

    def _committed(self, event: Event) -> None:
        assert isinstance(event, ReaderCommitted)
        reader = self.readers[event.reader]
        where = f"commit() in {process_name(event)} returned"
        for queue in sorted(reader.lost):
            self._report(event, f"{where}: {queue} was revoked with messages at hand, and commit() did not raise")
        for promise in reader.promises:
            if not self._kept(promise, self.accepted, event.t):
                holding = promise.holding
                text = f"{holding.queue} at {promise.offset} in generation {holding.generation}"
                self._report(event, f"{where}: no broker has accepted {text}{', which is a move back' if promise.back else ''}")
        reader.lost.clear()

    def _commit_failed(self, event: Event) -> None:
        assert isinstance(event, ReaderCommitFailed)
        reader = self.readers[event.reader]
        places = [(promise.holding.process, promise.holding.queue) for promise in reader.promises]
        refused = any(place in self.refused for place in places)
        if (
            event.stale
            and not reader.lost
            and not refused
            and all(self._kept(promise, self.received, event.t) for promise in reader.promises)
        ):
            where = f"commit() in {process_name(event)}"
            self._report(event, f"{where} raised StaleEpochError, and the commit had been accepted: {event.error}")
        reader.lost.clear()


def _record_offset(known: Known, process: int, queue: QueueKey, generation: int, offset: int) -> None:
    offsets = known.setdefault((process, queue), {})
    offsets[generation] = max(offset, offsets.get(generation, offset))
