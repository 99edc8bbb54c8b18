"""Proves from the consumers' own files what was done to every order: pure, lines in, verdict out.

A consumer appends one line for each event that it has handled: which order and step, when its listener began and ended, and the
fence (queue and epoch) under which it did so. The proof reads nothing else: no offset of any broker, no counter of any client.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from lockstep.protocol.errors import LockstepError
from lockstep.protocol.order import fence_falls, skips


class ProofError(LockstepError):
    """A consumer's file holds a line that no consumer writes."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One handled event."""

    consumer: str
    order: int
    step: int
    queue: str
    epoch: int
    offset: int
    begun_us: int
    """Monotonic clock of the machine, which all processes on it share."""
    ended_us: int

    def line(self) -> str:
        return json.dumps(
            [self.consumer, self.order, self.step, self.queue, str(self.epoch), self.offset, self.begun_us, self.ended_us],
            separators=(",", ":"),
        )


def parse_deed(line: str) -> Deed:
    try:
        consumer, order, step, queue, epoch, offset, begun, ended = json.loads(line)
        return Deed(str(consumer), int(order), int(step), str(queue), int(epoch), int(offset), int(begun), int(ended))
    except (ValueError, TypeError) as error:
        raise ProofError(f"not a line of a consumer: {line[:120]!r} ({error})") from error


@dataclass(frozen=True, slots=True)
class HandOver:
    """A queue went from one owner to the next: from the end of the old one's last listener call to the start of the new one's first."""

    queue: str
    giver: str
    taker: str
    gap_us: int


@dataclass(slots=True)
class Verdict:
    """What the files say. `faults` is empty when order held and nothing is missing."""

    events: int = 0
    repeats: int = 0
    """Events handled again after a hand-over: at-least-once, counted, not a fault."""
    faults: list[str] = field(default_factory=list)
    hand_overs: list[HandOver] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Told:
    """How many of an order's steps there are: at least those that were acknowledged, at most those that were tried."""

    acknowledged: int
    tried: int


def prove(deeds: Iterable[Deed], told: Mapping[int, Told]) -> Verdict:
    """Checks that
    1. every order's events were first handled in order from step 0 on, none that was acknowledged is missing, none was never sent;
    2. in one epoch of one queue the offsets handled rise one by one: nothing skipped, nothing swapped, nothing twice;
    3. the next epoch of a queue begins at or before the end of the one before it: nothing skipped at a hand-over;
    4. no event of an older epoch was begun after a newer epoch had handled one: the old owner had stopped;
    5. no event stands at two places: a retried send was stored once.
    """
    verdict = Verdict()
    runs: dict[str, dict[int, list[Deed]]] = {}
    for deed in deeds:
        verdict.events += 1
        runs.setdefault(deed.queue, {}).setdefault(deed.epoch, []).append(deed)
    done: dict[int, int] = {}
    places: dict[tuple[int, int], tuple[str, int]] = {}
    for queue in sorted(runs):
        _prove_queue(queue, [runs[queue][epoch] for epoch in sorted(runs[queue])], verdict)
        _follow_orders(queue, [deed for epoch in sorted(runs[queue]) for deed in runs[queue][epoch]], done, verdict)
        for deed in (deed for epoch in runs[queue] for deed in runs[queue][epoch]):
            place = places.setdefault((deed.order, deed.step), (queue, deed.offset))
            if place != (queue, deed.offset):
                verdict.faults.append(
                    f"order {deed.order} step {deed.step} is stored twice: at {place[0]} {place[1]} and at {queue} {deed.offset}"
                )
    _prove_orders(done, told, verdict)
    return verdict


def _prove_queue(queue: str, epochs: list[list[Deed]], verdict: Verdict) -> None:
    for run in epochs:
        for skip in skips(run, lambda deed: deed.offset, backward=False):
            assert skip.before is not None
            epoch, offset, before = skip.after.epoch, skip.after.offset, skip.before.offset
            verdict.faults.append(f"{queue} epoch {epoch}: offset {offset} was handled right after {before} by {skip.after.consumer}")
    for old, new in pairwise(epochs):
        last, first = old[-1], new[0]
        if any(skips((last, first), lambda deed: deed.offset)):
            verdict.faults.append(f"{queue}: epoch {first.epoch} begins at offset {first.offset}, the one before ended at {last.offset}")
    edges = sorted((deed for run in epochs for deed in dict.fromkeys((run[0], run[-1]))), key=lambda deed: (deed.begun_us, deed.epoch))
    for first, last in fence_falls(edges, lambda deed: deed.epoch):
        what = f"{last.consumer} began offset {last.offset} of epoch {last.epoch}"
        verdict.faults.append(f"{queue}: {what} after epoch {first.epoch} had begun")
    for old, new in pairwise(epochs):
        last, first = old[-1], new[0]
        if first.consumer != last.consumer:
            verdict.hand_overs.append(HandOver(queue, last.consumer, first.consumer, first.begun_us - last.ended_us))


def _follow_orders(queue: str, deeds: list[Deed], done: dict[int, int], verdict: Verdict) -> None:
    for deed in deeds:
        expected = done.get(deed.order, 0)
        if deed.step < expected:
            verdict.repeats += 1
            continue
        if any(skips((deed,), lambda deed: deed.step, first=expected)):
            where = f"{queue}, offset {deed.offset}, {deed.consumer}"
            verdict.faults.append(f"order {deed.order}: step {deed.step} was handled while step {expected} was not ({where})")
        done[deed.order] = deed.step + 1


def _prove_orders(done: Mapping[int, int], told: Mapping[int, Told], verdict: Verdict) -> None:
    for order in sorted(told):
        if done.get(order, 0) < told[order].acknowledged:
            verdict.faults.append(f"order {order}: only {done.get(order, 0)} of {told[order].acknowledged} steps were handled")
    for order in sorted(done):
        if order not in told:
            verdict.faults.append(f"order {order} was handled and never sent")
        elif done[order] > told[order].tried:
            verdict.faults.append(f"order {order}: step {done[order] - 1} was handled and never sent")
