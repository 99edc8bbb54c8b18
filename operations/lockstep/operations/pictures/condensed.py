"""Merge spans that are too short to be distinguished in a picture. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.operations.groups.ownership import Span


@dataclass(frozen=True, slots=True)
class Moves:
    """Spans that are shown as one."""

    from_ms: int
    until_ms: int
    count: int
    """Of those in which the queue had an owner."""
    free_ms: int
    """For how long it had no owner, in all."""


def condensed(spans: Sequence[Span], least_ms: float) -> Iterator[Span | Moves]:
    """Yield the spans; those shorter than `least_ms` that follow each other are one, unless a single owner is among two or three."""
    run: list[Span] = []
    for span in spans:
        if span.until_ms - span.from_ms < least_ms:
            run.append(span)
        else:
            yield from _joined(run)
            run = []
            yield span
    yield from _joined(run)


def least_length(lanes: Sequence[Sequence[Span]], period_ms: int, first_ms: float, parts_max: int) -> float:
    """Return from which length on spans are shown in ms: `first_ms`, or more until all lanes together have at most `parts_max` parts.

    Each lane has one part at least.
    """
    least_ms = first_ms
    while least_ms <= period_ms and sum(1 for spans in lanes for _ in condensed(spans, least_ms)) > parts_max:
        least_ms *= 2
    return least_ms


def _joined(run: Sequence[Span]) -> Iterator[Span | Moves]:
    owned = sum(span.client_id is not None for span in run)
    if owned < 2 and len(run) <= 3:
        yield from run
        return
    free_ms = sum(span.until_ms - span.from_ms for span in run if span.known and span.client_id is None)
    yield Moves(run[0].from_ms, run[-1].until_ms, owned, free_ms)
