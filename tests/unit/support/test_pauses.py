"""What excuses a call that a paused member made too late."""

from lockstep.cli.demo.proof import HandledEvent
from support.pauses import Pause, late_calls

PAUSES = [Pause("paused", 25, 70)]


def event(consumer: str, offset: int, begun_us: int, ended_us: int, epoch: int = 0) -> HandledEvent:
    return HandledEvent(consumer, 0, offset, "q", epoch, offset, begun_us, ended_us)


TAKEN_OVER = [event("paused", 0, 10, 15), event("other", 1, 30, 35), event("other", 2, 40, 45)]


def test_only_the_one_call_of_a_paused_member_may_be_late() -> None:
    within, about_to = event("paused", 1, 20, 71), event("paused", 1, 71, 72)
    for late in (within, about_to):
        assert late_calls([*TAKEN_OVER, late], PAUSES) == {late}
        assert late_calls([event("paused", 0, 10, 15), late], PAUSES) == set(), "nobody else had the queue"
        assert late_calls([*TAKEN_OVER, late, event("paused", 2, 73, 75)], PAUSES) == {late}
    assert late_calls([*TAKEN_OVER, event("paused", 3, 80, 85)], PAUSES) == set(), "it has the queue again"
    assert late_calls([*TAKEN_OVER, about_to], [Pause("other", 25, 70)]) == set(), "another one was paused"


def test_events_of_one_late_call_are_late_together() -> None:
    batch = [event("paused", 1, 71, 73), event("paused", 2, 71, 74)]
    assert late_calls([*TAKEN_OVER, *batch], PAUSES) == {*batch}
    half = [event("paused", 1, 20, 22), event("paused", 2, 20, 72)]
    assert late_calls([*TAKEN_OVER, *half], PAUSES) == {half[1]}


def test_call_under_a_grant_of_after_the_pause_is_not_late() -> None:
    taken_over = [event("paused", 0, 10, 15, epoch=1), event("other", 1, 30, 35, epoch=2)]
    of_before, of_after = event("paused", 1, 71, 72, epoch=1), event("paused", 1, 73, 74, epoch=3)
    assert late_calls([*taken_over, of_after], PAUSES) == set(), "the other member left, and its result of 1 was not accepted"
    assert late_calls([*taken_over, of_before, of_after], PAUSES) == {of_before}


def test_first_call_of_a_grant_may_be_late() -> None:
    earlier, other = event("paused", 0, 10, 15, epoch=1), event("other", 1, 30, 35, epoch=3)
    late = event("paused", 1, 71, 72, epoch=2)
    assert late_calls([other, late], PAUSES) == {late}
    assert late_calls([earlier, other, late], PAUSES) == {late}


def test_member_without_epochs_is_late_where_it_goes_on() -> None:
    taken_over = [event("paused", 0, 10, 15), event("other", 1, 30, 35, epoch=2)]
    late, again = event("paused", 1, 71, 72), event("paused", 3, 80, 85)
    assert late_calls([*taken_over, late], PAUSES) == {late}
    assert late_calls([*taken_over, again], PAUSES) == set(), "it has the queue again"
