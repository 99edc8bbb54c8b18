"""Members that were stopped by SIGSTOP, and the one call of each queue that they may make too late."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lockstep.cli.demo.proof import HandledEvent


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a member was stopped by SIGSTOP."""

    member: str
    begun_us: int
    ended_us: int


def late_calls(events: Collection[HandledEvent], pauses: Iterable[Pause]) -> set[HandledEvent]:
    """Return the events of the calls that ordering.md 1.4 and 2.7 allow: of each queue, the call that a paused member was about to make, or
    in, when it was paused, if another member has worked on the queue before that call ended.

    Such a call carries the epoch of before the pause. A call after the pause under a new grant is not late, whatever its offset is. Members
    without epochs write 0: of them the first call is late if it goes on where the member was.
    """
    found = set()
    for pause in pauses:
        for queue in {each.queue for each in events if each.consumer == pause.member}:
            work = sorted((each for each in events if each.queue == queue), key=lambda each: each.begun_us)
            own = [each for each in work if each.consumer == pause.member]
            before = [(each.epoch, each.offset + 1) for each in own if each.ended_us < pause.begun_us]
            after = [each for each in own if each.ended_us > pause.ended_us]
            late = {each for each in after if each.begun_us == after[0].begun_us}
            ended_us = max((each.ended_us for each in late), default=0)
            others = [each.epoch for each in work if each.consumer != pause.member and pause.begun_us < each.begun_us < ended_us]
            if not others:
                continue
            first = after[0]
            if first.begun_us < pause.begun_us or 0 < first.epoch < max(others) or (first.epoch, first.offset) in before[-1:]:
                found |= late
    return found
