"""O1 (ordering.md 2.4): progress begins again or jumps only after a request or an event that asks for it."""

import pytest

from support.stories import C1, C2, B, Story, epoch
from sweep.checkers import delivery, keys, progress
from sweep.checkers.generations import check
from sweep.events import (
    BrokerOpened,
    CalmBegan,
    CommitSent,
    ConsumerStarted,
    LayoutSent,
    PowerCut,
    ProcessEnded,
    ProgressReset,
    PullReceived,
    QueueGapSeen,
    ResetSent,
)

ADMIN = ("A", 31)


def reset(offset: int, *, responded: bool = True, before: int = 5) -> Story:
    """C1 has committed 5 when an operator sets the group to `offset` at 3."""
    story = Story().granted(1, 1).committed(2, 1, 5).add(ResetSent, 3, ADMIN, offset=offset, request=7)
    return story.add(ProgressReset, 3.1, B, offset=offset, before=before, request=7) if responded else story


@pytest.mark.parametrize(("responded", "generation", "offset", "laws"), [
    (True, 2, 1, []),
    (True, 2, 5, ["O1"]),
    (True, 2, 0, ["O1"]),
    (True, 1, 5, ["O1"]),
    (False, 2, 1, []),
    (False, 1, 5, []),
    (False, 2, 3, ["O1"]),
])  # fmt: skip
def test_after_a_reset_a_grant_begins_where_it_said(responded: bool, generation: int, offset: int, laws: list[str]) -> None:
    """A reset without a response may have happened, or not."""
    assert reset(1, responded=responded).granted(4, 2, C2, generation=generation, offset=offset).broken(check) == laws


def test_a_new_generation_needs_a_cause() -> None:
    assert Story().granted(1, 1).granted(2, 2, C2, generation=2).broken(check) == ["O1"]
    assert Story().granted(1, 1).granted(2, 2, C2, generation=1).broken(check) == []


def test_a_reset_is_a_cause_once() -> None:
    story = reset(1).granted(4, 2, C2, generation=2, offset=1).granted(5, 3, C1, generation=3, offset=1)
    assert story.broken(check) == ["O1"]


@pytest.mark.parametrize(("sent_t", "laws"), [(0.9985, []), (0.997, ["O1"])])
def test_a_first_grant_leaves_a_reset_that_was_sent_after_it_to_the_next(sent_t: float, laws: list[str]) -> None:
    """Requested at 0.998, answered at 0.999: both waited for the disk."""
    story = Story().add(ResetSent, sent_t, ADMIN, offset=0, request=7).granted(1, 1)
    story.add(ProgressReset, 0.9995, B, offset=0, before=0, request=7)
    assert story.granted(2, 2, C1, generation=2).broken(check) == laws


def test_a_lock_that_was_on_its_way_may_be_answered_as_before() -> None:
    story = reset(1).granted(3.101, 2, C2, offset=5)
    assert story.broken(check) == []


@pytest.mark.parametrize(("flush", "laws"), [("async", []), ("sync", ["O1"])])
def test_a_lossy_power_cut_is_a_cause(flush: str, laws: list[str]) -> None:
    story = Story(flush=flush).granted(1, 1).add(ProcessEnded, 2, B, how="power").add(PowerCut, 2, ("B", 0))
    story.add(BrokerOpened, 3, ("B", 2), term=101, flush=flush)
    assert story.granted(4, 9, C1, generation=2).broken(check) == laws


def test_so_is_a_deleted_topic() -> None:
    story = Story().granted(1, 1).committed(2, 1, 5).add(LayoutSent, 3, ADMIN, counter=2, deleted=True)
    assert story.granted(4, 2, C2, generation=2, offset=0).broken(check) == []


@pytest.mark.parametrize(("offset", "laws"), [(5, []), (6, ["O1"])])
def test_no_grant_names_more_than_was_committed(offset: int, laws: list[str]) -> None:
    assert Story().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=offset).broken(check) == laws


def test_what_was_sent_and_never_answered_may_count() -> None:
    story = Story().granted(1, 1).add(CommitSent, 2, C1, offset=6)
    assert story.granted(3, 2, C2, offset=6).broken(check) == []
    assert story.granted(4, 3, C1, offset=7).broken(check) == ["O1"]


def test_retention_may_move_a_group() -> None:
    story = Story().granted(1, 1).granted(2, 2, C2, offset=9)
    assert story.broken(check) == ["O1"]
    assert story.add(QueueGapSeen, 2.1, C2, first=0, end=9).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.101, []), (3.103, ["O1"])])
def test_nothing_of_before_is_served_after_the_answer(t: float, laws: list[str]) -> None:
    """Asked 2 ms before."""
    assert reset(1).committed(t, 1, 6).broken(check) == laws
    pulled = reset(1).add(PullReceived, t, C1, epoch=epoch(1), code=0, offset=5, request_t=t - 0.002)
    assert pulled.broken(check) == laws


def test_progress_may_fall_by_a_reset_that_nobody_heard_the_answer_of() -> None:
    assert reset(1, responded=False).granted(4, 2, C2, generation=2, offset=1).broken(progress.check) == []
    assert reset(1, responded=False).granted(4, 2, C2, generation=2, offset=2).broken(progress.check) == ["O6"]


def skipping(before: int, offset: int) -> Story:
    """m0, m1, m2 are there; m2 is done under the first grant from 2 on, after a reset from `before` to `offset`, m1 never."""
    story = Story().add(ConsumerStarted, 0.1, C1).granted(0.5, 1)
    for number in range(3):
        story.sent(1 + number / 10, b"m%d" % number, number)
    story.call(1.5, 1.6, 1, 0).committed(1.7, 1, 1)
    story.add(ResetSent, 2, ADMIN, offset=offset, request=7).add(ProgressReset, 2.1, B, offset=offset, before=before, request=7)
    story.granted(3, 2, C1, generation=2, offset=2).call(3.1, 3.2, 2, 2).committed(3.3, 2, 3)
    return story.add(CalmBegan, 3.4, ("", 0)).read(9, b"m0", b"m1", b"m2")


@pytest.mark.parametrize(("before", "offset", "laws"), [(1, 2, []), (2, 2, ["O5"]), (0, 1, ["O5"])])
def test_only_what_was_skipped_by_hand_may_be_left_out(before: int, offset: int, laws: list[str]) -> None:
    assert skipping(before, offset).broken(delivery.check) == laws


def test_order_per_key_ends_where_somebody_skips_and_goes_back() -> None:
    def story(before: int) -> Story:
        back = skipping(before, 2).add(ResetSent, 4, ADMIN, offset=1, request=8)
        back.add(ProgressReset, 4.1, B, offset=1, before=3, request=8).granted(5, 3, C1, generation=3, offset=1)
        return back.call(5.1, 5.2, 3, 1).call(5.3, 5.4, 3, 2)

    assert story(1).broken(keys.check) == []
    assert story(2).broken(keys.check) == ["O4"]
