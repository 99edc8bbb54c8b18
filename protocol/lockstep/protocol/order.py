"""The laws of order, over work that was done. Pure: every checker of order in lockstep uses them.

    skips         after position n of a queue, or of a key, follows n + 1; a lower position repeats
    fence_falls   no work is done under a lower fence than work before it
    overtakings   a message that was acknowledged before another one was sent comes before it

What the work is, which part of it counts and what excuses it, each checker decides for itself.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skip(Generic[T]):
    """`expected` should have followed `before`, and `after` did."""

    before: T | None
    """None: nothing came before."""
    after: T
    expected: int


def skips(work: Iterable[T], position: Callable[[T], int], *, first: int | None = None, backward: bool = True) -> Iterator[Skip[T]]:
    """Yield each place at which work leaves a position out.

    Args:
        first: the position at which work has to begin; None if it may begin anywhere.
        backward: work may return to an earlier position and repeat from there. Else that is a skip too.
    """
    expected, before = first, None
    for each in work:
        at = position(each)
        if expected is not None and (at > expected or (at < expected and not backward)):
            yield Skip(before, each, expected)
        expected, before = at + 1, each


def fence_falls(work: Iterable[T], fence: Callable[[T], int]) -> Iterator[tuple[T, T]]:
    """Yield (one, other) for each `other` under a lower fence than that of `one`, the latest work under the highest fence before it."""
    highest: T | None = None
    for each in work:
        if highest is None or fence(each) >= fence(highest):
            highest = each
        else:
            yield highest, each


def overtakings(
    work: Sequence[T],
    sent: Callable[[T], int],
    acked: Callable[[T], int | None],
    excused: Callable[[T, T], bool] = lambda one, other: False,
) -> Iterator[tuple[T, T]]:
    """Yield (one, other) if `one` comes before `other`, which had been acknowledged before `one` was sent.

    Args:
        work: each message once, in the order that is judged.
        sent: when its send began, in any count that rises with time.
        acked: when it was acknowledged, in the same count; None if it was not.
        excused: whether `one` may come before `other` all the same. Of several others the one that was acknowledged first is yielded.
    """
    later: list[tuple[int, int]] = []
    for index in range(len(work) - 1, -1, -1):
        one = work[index]
        for acknowledged, place in later:
            if acknowledged >= sent(one):
                break
            if not excused(one, work[place]):
                yield one, work[place]
                break
        if (end := acked(one)) is not None:
            insort(later, (end, index))
