"""K1 to K3: the calls of a group that consumes by key, and what it commits (docs/invariants.md).

K1  in an epoch, the calls of one key come one after another and get its messages in order: a failed batch is repeated from its first
    message, and only filtered, reported, dead-lettered or already finished messages are passed over
K2  a commit passes no unfinished message, and its done ranges hold only finished ones; later grants have every acknowledged one, and no
    later message of a key without an earlier one
K3  a consumer has at most `concurrency` calls at a time
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from lockstep.protocol.done_ranges import RANGES_MAX, Ranges, contains, joined
from sweep.checkers.facts import Brokers, Deletions, QueueEpoch, holders
from sweep.checkers.messages import Messages, Passes
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted
from sweep.events.locks import LockGranted
from sweep.events.progress import CommitResponded, CommitSent, ProgressReset, ResetSent
from sweep.events.sends import DeadLetterSent
from sweep.events.universe import ProcessEnded
from sweep.history import CallResult, History, ItemVerdict, QueueKey

NEARLY_FULL = 2 * RANGES_MAX - 32
"""The number of bounds from which the broker may drop the highest ranges: it may know some that are not known here."""


def check(history: History) -> list[Violation]:
    groups = {event.group for event in history.of(ConsumerStarted) if event.lanes is not None or event.parks is not None}
    return [*_Calls(history).run(), *_kept(history)] if groups else []


def _parking(history: History) -> set[str]:
    """Return the groups that park keys."""
    return {event.group for event in history.of(ConsumerStarted) if event.parks is not None}


@dataclass(slots=True)
class _EpochRun:
    """One epoch at work."""

    offset: int
    done: Ranges
    """Both are those of the grant."""
    next_offsets: dict[str | None, int] = field(default_factory=dict)
    """Key → where its next call begins, or later."""
    finished: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    """Finished after the queue was released without an offset. If the release is lost with its connection, LOCK offers them."""
    fenced: bool = False

    def settled(self, offset: int) -> bool:
        return offset < self.offset or contains(self.done, offset) or offset in self.finished


class _Calls:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.messages = Messages(history)
        self.passes = Passes(history, self.messages)
        parking = _parking(history)
        self.runs: dict[QueueEpoch, _EpochRun] = {
            held: _EpochRun(grant.offset, grant.done)
            for held, grant in holders(history).items()
            if not grant.renewal and grant.queue.group not in parking
        }
        """Without those of groups that park keys: parks.py checks which messages they get, and what they commit."""
        self.limits: dict[tuple[int, str], int] = {}
        self.calls: dict[int, CallBegan] = {}
        self.running: dict[int, CallBegan] = {}
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for event in self.history:
            if isinstance(event, ConsumerStarted) and event.lanes is not None:
                self.limits[event.process, event.group] = event.lanes
            elif isinstance(event, ProcessEnded):
                self.running = {number: call for number, call in self.running.items() if call.process != event.process}
            elif isinstance(event, CallBegan) and (event.process, event.queue.group) in self.limits:
                self._began(event)
            elif isinstance(event, CallEnded) and event.call in self.running:
                self._ended(event, self.running.pop(event.call))
            elif isinstance(event, CommitSent) and (event.process, event.queue.group) in self.limits:
                self._committed(event)
        return self.found

    def _began(self, call: CallBegan) -> None:
        where = f"call {call.call} of {call.queue} epoch {call.epoch} offsets {[each for each, _ in call.messages]} in {process_name(call)}"
        mine = [each for each in self.running.values() if (each.process, each.queue.group) == (call.process, call.queue.group)]
        limit = self.limits[call.process, call.queue.group]
        if len(mine) >= limit:
            self.found.append(Violation("K3", call.t, f"{where} started while {len(mine)} calls ran: at most {limit}"))
        (key, *others) = dict.fromkeys(call.keys)
        if others:
            self.found.append(Violation("K1", call.t, f"{where} has messages of the keys {[key, *others]}"))
        for other in mine:
            if other.queue == call.queue and other.epoch == call.epoch and key in other.keys:
                self.found.append(Violation("K1", call.t, f"{where} started while call {other.call} of key {key!r} ran"))
        self.running[call.call] = call
        run = self.runs.get((call.queue, call.epoch))
        if run is None:
            return
        expected = run.next_offsets.get(key, run.offset)
        for offset, _ in call.messages:
            if contains(run.done, offset):
                self.found.append(Violation("K1", call.t, f"{where} got offset {offset}, which an earlier owner had finished"))
            elif offset < expected:
                self.found.append(Violation("K1", call.t, f"{where} got offset {offset} of key {key!r}: {expected} or later was next"))
            elif (missed := next(self._missed(run, call, key, range(expected, offset)), None)) is not None:
                self.found.append(Violation("K1", call.t, f"{where} got offset {offset} of key {key!r}: {missed} was left out"))
            expected = offset + 1

    def _missed(self, run: _EpochRun, call: CallBegan, key: str | None, offsets: range) -> Iterator[int]:
        for offset in offsets:
            stored = self.messages.stored.get((call.queue.stored, offset))
            if stored is None or stored.key != key or (stored.stored_t is not None and stored.stored_t > call.t):
                continue  # after a power cut another message may have had the offset
            if not run.settled(offset) and not self.passes.may_pass(call.queue, offset, call.process, call.t):
                yield offset

    def _ended(self, event: CallEnded, call: CallBegan) -> None:
        run = self.runs.get((event.queue, event.epoch))
        if run is None:
            return
        offsets = [offset for offset, _ in call.messages]
        if event.result is CallResult.CANCEL_IGNORED and run.fenced:
            run.late.update(offsets)
        if event.result is CallResult.SUCCESS or event.result is CallResult.CANCEL_IGNORED:
            run.next_offsets[call.keys[0]] = call.last + 1
            if event.result is CallResult.SUCCESS or not run.fenced:
                run.finished.update(offsets)
        else:
            run.next_offsets[call.keys[0]] = call.first

    def _committed(self, event: CommitSent) -> None:
        run = None if event.epoch is None else self.runs.get((event.queue, event.epoch))
        if run is None:
            return
        if event.offset is None:
            run.fenced = run.fenced or event.released
            return
        if event.by == "LOCK" and run.fenced:
            run.finished |= run.late
            run.fenced = False
        ranges = [(run.offset, event.offset), *zip(event.done[::2], event.done[1::2], strict=True)]
        for first, end in ranges:
            for offset in range(first, end):
                if not run.settled(offset) and not self.passes.may_pass(event.queue, offset, event.process, event.t):
                    where = f"{event.queue} epoch {event.epoch} by {process_name(event)} ({event.by})"
                    text = f"{where} committed {event.offset}, done {event.done}: no call had handled {offset}"
                    self.found.append(Violation("K2", event.t, text))
                    return


@dataclass(slots=True)
class _Done:
    """An acknowledged commit with done ranges."""

    place: int
    commit: CommitResponded


def _kept(history: History) -> list[Violation]:
    """Check K2 over owners and starts. A grant has every acknowledged done range, unless a cut, a reset or a deletion removed it, or there
    are too many. It has no other range: only those that were sent, or dead-lettered, since the last reset.
    """
    brokers = Brokers(history)
    cuts = {cut: broker for broker in brokers.lives for cut in brokers.lossy_cuts(broker)}
    deletions = Deletions(history)
    known: dict[QueueKey, list[_Done]] = {}
    sent: dict[QueueKey, set[int]] = {}
    before_reset: dict[QueueKey, set[int]] = {}
    """What was sent before the last reset, which counts again if a cut removes the reset."""
    calls = {call.call: call for call in history.of(CallBegan)}
    generations = {held: grant.generation for held, grant in holders(history).items()}
    handled: dict[tuple[QueueKey, int], dict[int, str | None]] = {}
    """(queue, generation) → offset → key of the messages that were handled. A call may end after the power cut that removed its messages:
    their offsets have other messages in the next generation."""
    parking = _parking(history)
    full: dict[QueueKey, int] = {}
    """The lowest offset from which the broker may have dropped ranges, because there were too many."""
    found = []
    for place, event in enumerate(history):
        if place in cuts:
            for queue, commits in known.items():
                if queue.broker == cuts[place]:
                    commits[:] = [one for one in commits if not _may_be_gone(brokers, one, place)]
            for queue in [queue for queue in before_reset if queue.broker == cuts[place]]:
                sent.setdefault(queue, set()).update(before_reset.pop(queue))
        if isinstance(event, ProgressReset | ResetSent):
            known.pop(event.queue, None)
            if isinstance(event, ProgressReset):
                before_reset[event.queue] = sent.pop(event.queue, set())
        elif isinstance(event, CommitSent) and event.offset is not None:
            reported = sent.setdefault(event.queue, set())
            reported.update(_offsets(event.done))
            if event.offset >= full.get(event.queue, inf):
                del full[event.queue]
            all_ranges = joined((offset, offset + 1) for offset in sorted(reported) if offset >= event.offset)
            for ranges in (all_ranges, event.done):
                if len(ranges) >= NEARLY_FULL:
                    full[event.queue] = min(full.get(event.queue, ranges[-1]), ranges[-1])
        elif isinstance(event, CallEnded) and event.result is CallResult.SUCCESS and (event.queue, event.epoch) in generations:
            if event.queue.group in parking:
                continue  # a replay is ahead of the progress, which passes its key
            call, generation = calls[event.call], generations[event.queue, event.epoch]
            for (offset, _), key in zip(call.messages, call.keys, strict=True):
                handled.setdefault((event.queue, generation), {})[offset] = key
        elif isinstance(event, DeadLetterSent):
            sent.setdefault(event.queue, set()).add(event.offset)
        elif isinstance(event, CommitResponded) and event.done and event.verdict is ItemVerdict.OK:
            known.setdefault(event.queue, []).append(_Done(place, event))
        elif isinstance(event, LockGranted) and not deletions.any_of(event.queue.topic):
            where = f"{event.queue}: epoch {event.epoch} was granted at {event.offset}, done {event.done}"
            strange = next((offset for offset in _offsets(event.done) if offset not in sent.get(event.queue, ())), None)
            if strange is not None:
                found.append(Violation("K2", event.t, f"{where}: nobody has reported {strange} as done since the last reset"))
            for key, (early, late) in _reordered(handled.get((event.queue, event.generation), {}), event):
                text = f"{where}: {late} of key {key!r} is known as handled, and {early} is not"
                found.append(Violation("K2", event.t, text))
            for one in known.get(event.queue, ()):
                if one.commit.t <= event.request_t and (lost := _lost(one.commit.done, event, full.get(event.queue, inf))) is not None:
                    text = f"{where}, but {lost} was acknowledged as done under epoch {one.commit.epoch} at {one.commit.t:.3f}"
                    found.append(Violation("K2", event.t, text))
                    known.pop(event.queue)
                    break
    return found


def _lost(done: Ranges, grant: LockGranted, high: float) -> int | None:
    """Return a done offset below `high` that the grant does not have."""
    return next((offset for offset in _offsets(done) if grant.offset <= offset < high and not contains(grant.done, offset)), None)


def _reordered(handled: dict[int, str | None], grant: LockGranted) -> Iterator[tuple[str | None, tuple[int, int]]]:
    """Yield keys of which a handled message is in the grant's progress or ranges, and an earlier one that was handled too is not."""
    first_unknown: dict[str | None, int] = {}
    for offset in sorted(handled):
        key = handled[offset]
        if offset >= grant.offset and not contains(grant.done, offset):
            first_unknown.setdefault(key, offset)
        elif key in first_unknown:
            yield key, (first_unknown[key], offset)


def _offsets(done: Ranges) -> Iterator[int]:
    for first, end in zip(done[::2], done[1::2], strict=True):
        yield from range(first, end)


def _may_be_gone(brokers: Brokers, one: _Done, cut: int) -> bool:
    return brokers.removing_cut(one.commit.queue.broker, one.commit.process, one.place, one.commit.t) == cut
