"""Members that were stopped by SIGSTOP, and the one call of each queue that they may make too late."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lockstep.admin.demo.proof import HandledEvent


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a member was stopped by SIGSTOP."""

    member: str
    begun_us: int
    ended_us: int


def late_calls(events: Collection[HandledEvent], pauses: Iterable[Pause]) -> set[HandledEvent]:
    """Return the events of the calls that ordering.md 1.4 and 2.7 allow: of each queue, the call that a paused member was about to make, or
    in, when it was paused, if another member has worked on the queue before that call ended."""
    found = set()
    for pause in pauses:
        for queue in {each.queue for each in events if each.consumer == pause.member}:
            work = sorted((each for each in events if each.queue == queue), key=lambda each: each.begun_us)
            own = [each for each in work if each.consumer == pause.member]
            before = [each.offset for each in own if each.ended_us < pause.begun_us]
            after = [each for each in own if each.ended_us > pause.ended_us]
            if not after or not (after[0].begun_us < pause.begun_us or (before and after[0].offset == before[-1] + 1)):
                continue
            late = {each for each in after if each.begun_us == after[0].begun_us}
            if any(each.consumer != pause.member and pause.begun_us < each.begun_us < max(one.ended_us for one in late) for each in work):
                found |= late
    return found
