"""Checks order and completeness from the files that the consumers write. Pure: the input is lines, the result a Verdict.

A consumer appends one line for each event that it has handled: its order and step, the begin and end of the listener call, and the
fence (queue and epoch) of the call. The check reads nothing else: no offsets of brokers and no counters of clients.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from lockstep.protocol.errors import LockstepError
from lockstep.protocol.order import fence_falls, skips


class ProofError(LockstepError):
    """A line of a consumer's file can't be parsed."""


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """One handled event."""

    consumer: str
    order: int
    step: int
    queue: str
    epoch: int
    offset: int
    begun_us: int
    """By the monotonic clock of the machine, which all its processes share."""
    ended_us: int

    def line(self) -> str:
        return json.dumps(
            [self.consumer, self.order, self.step, self.queue, str(self.epoch), self.offset, self.begun_us, self.ended_us],
            separators=(",", ":"),
        )


def parse_handled_event(line: str) -> HandledEvent:
    try:
        consumer, order, step, queue, epoch, offset, begun, ended = json.loads(line)
        return HandledEvent(str(consumer), int(order), int(step), str(queue), int(epoch), int(offset), int(begun), int(ended))
    except (ValueError, TypeError) as error:
        raise ProofError(f"not a line of a consumer: {line[:120]!r} ({error})") from error


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of a queue's owner. `idle_us`: from the end of the old owner's last listener call to the start of the new owner's first."""

    queue: str
    old_owner: str
    new_owner: str
    idle_us: int


@dataclass(slots=True)
class Verdict:
    """The result of the check. `faults` is empty if the order held and no event is missing."""

    events: int = 0
    repeats: int = 0
    """Events handled again after a handover: counted, not a fault, since delivery is at least once."""
    faults: list[str] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class SentSteps:
    """The numbers of steps of one order whose sends were acknowledged and attempted. Between these two numbers are stored."""

    acknowledged: int
    tried: int


def prove(events: Iterable[HandledEvent], sent: Mapping[int, SentSteps]) -> Verdict:
    """Check that
    1. every order's events were first handled in order from step 0 on, no acknowledged one is missing, and each one was sent;
    2. in one epoch of one queue the handled offsets rise by one: no offset is skipped, swapped or repeated;
    3. the next epoch of a queue begins at or before the end of the one before it: no offset is skipped at a handover;
    4. no event of an older epoch began after a newer epoch had handled one: the old owner had stopped;
    5. no event is stored at two places: a retried send was stored once.
    """
    verdict = Verdict()
    runs: dict[str, dict[int, list[HandledEvent]]] = {}
    for event in events:
        verdict.events += 1
        runs.setdefault(event.queue, {}).setdefault(event.epoch, []).append(event)
    done: dict[int, int] = {}
    places: dict[tuple[int, int], tuple[str, int]] = {}
    for queue in sorted(runs):
        _prove_queue(queue, [runs[queue][epoch] for epoch in sorted(runs[queue])], verdict)
        _follow_orders(queue, [event for epoch in sorted(runs[queue]) for event in runs[queue][epoch]], done, verdict)
        for event in (event for epoch in runs[queue] for event in runs[queue][epoch]):
            place = places.setdefault((event.order, event.step), (queue, event.offset))
            if place != (queue, event.offset):
                verdict.faults.append(
                    f"order {event.order} step {event.step} is stored twice: at {place[0]} {place[1]} and at {queue} {event.offset}"
                )
    _prove_orders(done, sent, verdict)
    return verdict


def _prove_queue(queue: str, epochs: list[list[HandledEvent]], verdict: Verdict) -> None:
    for run in epochs:
        for skip in skips(run, lambda event: event.offset, backward=False):
            assert skip.before is not None
            epoch, offset, before = skip.after.epoch, skip.after.offset, skip.before.offset
            verdict.faults.append(f"{queue} epoch {epoch}: offset {offset} was handled right after {before} by {skip.after.consumer}")
    for old, new in pairwise(epochs):
        last, first = old[-1], new[0]
        if any(skips((last, first), lambda event: event.offset)):
            verdict.faults.append(f"{queue}: epoch {first.epoch} begins at offset {first.offset}, the one before ended at {last.offset}")
    edges = sorted((event for run in epochs for event in dict.fromkeys((run[0], run[-1]))), key=lambda event: (event.begun_us, event.epoch))
    for first, last in fence_falls(edges, lambda event: event.epoch):
        what = f"{last.consumer} began offset {last.offset} of epoch {last.epoch}"
        verdict.faults.append(f"{queue}: {what} after epoch {first.epoch} had begun")
    for old, new in pairwise(epochs):
        last, first = old[-1], new[0]
        if first.consumer != last.consumer:
            verdict.handovers.append(Handover(queue, last.consumer, first.consumer, first.begun_us - last.ended_us))


def _follow_orders(queue: str, events: list[HandledEvent], done: dict[int, int], verdict: Verdict) -> None:
    for event in events:
        expected = done.get(event.order, 0)
        if event.step < expected:
            verdict.repeats += 1
            continue
        if any(skips((event,), lambda event: event.step, first=expected)):
            where = f"{queue}, offset {event.offset}, {event.consumer}"
            verdict.faults.append(f"order {event.order}: step {event.step} was handled while step {expected} was not ({where})")
        done[event.order] = event.step + 1


def _prove_orders(done: Mapping[int, int], sent: Mapping[int, SentSteps], verdict: Verdict) -> None:
    for order in sorted(sent):
        if done.get(order, 0) < sent[order].acknowledged:
            verdict.faults.append(f"order {order}: only {done.get(order, 0)} of {sent[order].acknowledged} steps were handled")
    for order in sorted(done):
        if order not in sent:
            verdict.faults.append(f"order {order} was handled and never sent")
        elif done[order] > sent[order].tried:
            verdict.faults.append(f"order {order}: step {done[order] - 1} was handled and never sent")
