"""P1, O5 and R5 of pull consumers: polls, commits, the result of commit(), nothing skipped, the end is reached."""

import pytest

from lockstep.protocol.codes import ResponseCode
from support.reader_stories import R, ReaderStory
from support.stories import C1, C2, LOG, B
from sweep.checkers.concurrent import check as check_generations
from sweep.checkers.progress import check as check_progress
from sweep.checkers.readers import check
from sweep.events import CalmBegan, CommitReceived, CommitResponded, PowerCut, ProcessEnded, ProgressResponded, PullReceived, QueueGapSeen
from sweep.history import ItemVerdict


def story(*, auto: bool = False) -> ReaderStory:
    return ReaderStory().reader(auto=auto).given(1)


# -------------------------------------------------------------------------------------------------------------- a: polls


@pytest.mark.parametrize(("offsets", "laws"), [((0, 1, 2), []), ((1, 2), ["P1"]), ((0, 2), ["P1"]), ((0, 0), ["P1"])])
def test_polls_give_offset_after_offset_each_once(offsets: tuple[int, ...], laws: list[str]) -> None:
    assert story().polled(2, *offsets).broken(check) == laws


@pytest.mark.parametrize(("first", "laws"), [(2, []), (1, ["P1"]), (3, ["P1"])])
def test_a_poll_goes_on_behind_the_one_before(first: int, laws: list[str]) -> None:
    assert story().polled(2, 0, 1).polled(3, first).broken(check) == laws


def test_what_a_gap_names_is_passed_over() -> None:
    assert story().polled(2, 3).broken(check) == ["P1"]
    assert story().polled(2, 3).add(QueueGapSeen, 1.5, C1, queue=R, first=0, end=3).broken(check) == []


@pytest.mark.parametrize(("sought", "first", "laws"), [(0, 0, []), (5, 5, []), (0, 2, ["P1"]), (5, 2, ["P1"]), (5, 6, ["P1"])])
def test_behind_a_seek_a_poll_begins_there(sought: int, first: int, laws: list[str]) -> None:
    assert story().polled(2, 0, 1).sought(2.5, sought).polled(3, first).broken(check) == laws


def test_a_seek_of_a_queue_that_is_not_held_counts_when_it_is() -> None:
    told = ReaderStory().reader().sought(0.7, 4).given(1)
    assert told.polled(2, 4).broken(check) == []
    assert ReaderStory().reader().sought(0.7, 4).given(1).polled(2, 0).broken(check) == ["P1"]


def test_a_poll_gives_of_queues_that_its_reader_has() -> None:
    assert story().taken(2).polled(2.1, 0).broken(check) == ["P1"]
    assert ReaderStory().reader().polled(2, 0).broken(check) == ["P1"]
    assert story().polled(2, 0, assigned=False).broken(check) == ["P1"]
    assert story().taken(2).given(3).polled(3.1, 0).broken(check) == []


def test_a_poll_passes_over_what_is_paused() -> None:
    assert story().paused(2, 4).polled(3, 0).broken(check) == ["P1"]
    assert story().paused(2, 2.5).polled(3, 0).broken(check) == []


def test_what_was_asked_of_a_queue_counts_while_it_is_assigned() -> None:
    told = ReaderStory().reader().sought(0.7, 4).paused(0.7, 9).unassigned(0.8).given(1)
    assert told.polled(2, 0).broken(check) == []
    assert told.polled(3, 4).broken(check) == ["P1"]


@pytest.mark.parametrize(("responded", "laws"), [(3, []), (2, ["P1"]), (4, ["P1"])])
def test_a_holding_begins_where_the_broker_said(responded: int, laws: list[str]) -> None:
    assert ReaderStory().reader().given(1, 3, responded=responded).broken(check) == laws


def test_a_repeat_takes_another_grant() -> None:
    told = story().polled(2, 0, 1).reader(0.6, C2)
    assert told.given(4, 0, where=C2).broken(check) == []
    assert told.polled(5, 0, 1, where=C2).broken(check) == []
    assert told.polled(6, 1, where=C2).broken(check) == ["P1"]


# --------------------------------------------------------------------------------------------- tags, and what others had done


def tagged(expression: str, tags: str = "ABAB") -> ReaderStory:
    """m0, m1 and so on have these tags and exist from the beginning; C1 reads those it subscribes to."""
    told = ReaderStory().reader(expression=expression).given(1)
    for number, tag in enumerate(tags):
        told.sent(0.1 + number / 100, b"m%d" % number, number, tags=tag)
    return told


@pytest.mark.parametrize(("expression", "offset", "laws"), [
    ("A", 0, []),
    ("A", 1, ["P1", "P1"]),
    ("B", 1, []),
    ("B", 0, ["P1"]),
    ("A || B", 0, []),
    ("*", 0, []),
    ("C || *", 0, []),
])  # fmt: skip
def test_what_polls_give_has_a_tag_of_the_expression(expression: str, offset: int, laws: list[str]) -> None:
    """Of A, m1 is not m0 either."""
    assert tagged(expression).polled(2, offset).broken(check) == laws


def test_polls_and_commits_go_over_what_is_left_out_and_over_nothing_else() -> None:
    assert tagged("A").polled(2, 0, 2).done(3).moved(4, 4).broken(check) == []
    assert tagged("A").polled(2, 0).done(3).moved(4, 2).broken(check) == []
    assert tagged("A").polled(2, 0).done(3).moved(4, 3).broken(check) == ["P1"], "m2 is wanted"
    assert tagged("A || B").polled(2, 0, 2).broken(check) == ["P1"], "m1 too"


def test_a_commit_that_goes_back_may_go_to_the_next_message_that_is_wanted() -> None:
    def back(expression: str) -> ReaderStory:
        """Everything is done; then it seeks m1, of which A wants nothing before m2."""
        polled = (0, 2) if expression == "A" else (0, 1, 2, 3)
        return tagged(expression).polled(2, *polled).done(2.5).moved(2.8, 4).returned(2.9).sought(3, 1).done(3.5)

    assert back("A").reset(3.8, 1, C1).returned(4).broken(check) == []
    assert back("A").reset(3.8, 2, C1).returned(4).broken(check) == []
    assert back("A").reset(3.8, 3, C1).returned(4).broken(check) == ["P1"]
    assert back("*").reset(3.8, 2, C1).returned(4).broken(check) == ["P1"]
    assert back("A").returned(4).broken(check) == ["P1"]


def test_a_seek_back_over_nothing_that_is_wanted_goes_nowhere() -> None:
    told = tagged("A", "AABB").polled(2, 0, 1).done(2.5).moved(2.8, 4).returned(2.9)
    assert told.sought(3, 2).done(3.5).returned(4).broken(check) == []
    assert told.sought(5, 1).done(5.5).returned(6).broken(check) == ["P1"]


@pytest.mark.parametrize(("gap", "committed", "laws"), [((5, 7), 5, []), ((5, 7), 4, ["P1", "P1"]), (None, 5, ["P1", "P1"])])
def test_who_is_behind_the_group_passes_over_what_others_had_done_and_retention_has_taken(
    gap: tuple[int, int] | None, committed: int, laws: list[str]
) -> None:
    """C2 had m2 to m4 while C1 was suspended."""
    told = (
        story().polled(2, 0, 1).done(2.1).reader(2.2, C2).given(2.5, 0, where=C2).polled(2.6, 0, 1, 2, 3, 4, where=C2).done(2.7, where=C2)
    )
    told.moved(2.8, committed, where=C2).pulled(3, 2, 7, gap).polled(3.1, 7).done(3.2).moved(3.3, 8)
    assert told.broken(check) == laws


# ------------------------------------------------------------------------------------------------------------- b: commits


@pytest.mark.parametrize(("upto", "laws"), [(0, []), (2, []), (3, ["P1"])])
def test_a_commit_covers_what_was_said_to_be_done(upto: int, laws: list[str]) -> None:
    assert story().polled(2, 0, 1).done(3).polled(4, 2, 3).moved(5, upto).broken(check) == laws


def test_what_was_given_and_not_said_to_be_done_is_not_covered() -> None:
    assert story(auto=True).polled(2, 0, 1).moved(3, 2).broken(check) == ["P1"]
    assert story(auto=True).polled(2, 0, 1).done(2.5, "poll").moved(3, 2).broken(check) == []


def test_what_another_member_gave_counts_when_it_was_committed() -> None:
    first = story().reader(0.6, C2).polled(2, 0).done(2.5)
    assert first.given(3, 0, where=C2).polled(3.1, 0).done(3.2, where=C2).moved(4, 1, where=C2).broken(check) == ["P1", "P1"]
    second = story().reader(0.6, C2).polled(2, 0).done(2.5).moved(2.8, 1)
    assert second.given(3, 1, where=C2).polled(3.1, 1, where=C2).done(3.2, where=C2).moved(4, 2, where=C2).broken(check) == []


def test_a_seek_forward_and_a_gap_are_covered() -> None:
    assert story().polled(2, 0).sought(2.5, 5).done(3).moved(4, 5).broken(check) == []
    assert story().polled(2, 0).sought(2.5, 5).done(3).moved(4, 6).broken(check) == ["P1"]
    assert story().polled(2, 0).done(3).moved(4, 4).add(QueueGapSeen, 2.5, C1, queue=R, first=1, end=4).broken(check) == []


def test_a_queue_that_came_and_went_at_once_is_released_where_it_begins() -> None:
    told = story().polled(2, 0).done(2.1).moved(2.3, 1).taken(2.5)
    told.add(ProgressResponded, 3, B, queue=R, generation=1, offset=5, client=11)
    assert told.moved(3.5, 5).broken(check) == []
    assert told.moved(3.6, 6).broken(check) == ["P1"]


# --------------------------------------------------------------------------------------------- c: the result of commit()


def test_when_commit_returns_the_broker_has_what_was_at_hand() -> None:
    told = story().polled(2, 0, 1).done(3)
    assert told.returned(4).broken(check) == ["P1"]
    assert story().polled(2, 0, 1).done(3).moved(3.5, 1).returned(4).broken(check) == ["P1"]
    assert story().polled(2, 0, 1).done(3).moved(3.5, 2).returned(4).broken(check) == []
    assert story().polled(2, 0, 1).done(3).moved(3.5, 2, verdict=ItemVerdict.STALE).returned(4).broken(check) == ["P1"]
    assert story().polled(2, 0, 1).done(3).moved(3.5, 2).polled(3.6, 2).returned(4).broken(check) == [], "which came later"


def test_who_begins_again_behind_it_has_it() -> None:
    assert story().polled(2, 0, 1).done(3).taken(3.2).given(3.5, 4, generation=2).returned(4).broken(check) == []
    assert story().polled(2, 0, 1).done(3).taken(3.2).given(3.5, 1, generation=2).returned(4).broken(check) == ["P1"]


def test_a_commit_that_goes_back_has_reset_the_group() -> None:
    def back() -> ReaderStory:
        return story().polled(2, 0, 1).done(2.5).moved(2.8, 2).returned(2.9).sought(3, 0).done(3.5)

    assert back().returned(4).broken(check) == ["P1"]
    assert back().reset(3.8, 0).returned(4).broken(check) == ["P1"], "somebody else's"
    assert back().reset(3.8, 0, C1).returned(4).broken(check) == []
    assert back().reset(3.8, 0, C1, responded=False).returned(4).broken(check) == ["P1"]


def test_what_came_too_late_is_told_and_nothing_else() -> None:
    assert story().polled(2, 0, 1).taken(2.5).done(3).failed(3.1).broken(check) == []
    assert story().polled(2, 0, 1).taken(2.5).done(3).returned(3.1).broken(check) == ["P1"]
    assert story().polled(2, 0, 1).done(2.2).moved(2.3, 2).taken(2.5).done(3).failed(3.1).broken(check) == ["P1"]
    assert story().polled(2, 0, 1).done(2.2).taken(2.3).failed(2.5).broken(check) == [], "its answer was STALE"
    assert story().polled(2, 0, 1).done(2.2).failed(2.5, stale=False).broken(check) == []


def test_a_pull_that_was_refused_is_a_reason_too() -> None:
    told = story().polled(2, 0, 1).done(2.2).moved(2.3, 2).done(3).failed(3.1)
    assert told.broken(check) == ["P1"]
    told.add(PullReceived, 3.05, C1, queue=R, epoch=None, code=ResponseCode.STALE_EPOCH, next_offset=None)
    assert told.broken(check) == []


def test_what_a_power_cut_took_back_before_anybody_heard_of_it_is_refused_with_reason() -> None:
    told = story().polled(2, 0, 1).done(3)
    told.add(CommitResponded, 3.1, B, queue=R, epoch=None, generation=1, offset=2)
    assert told.failed(4).broken(check) == []
    told.add(CommitReceived, 3.2, C1, queue=R, epoch=None, generation=1, offset=2)
    assert told.broken(check) == ["P1"]
    told.add(CommitReceived, 3.3, C1, queue=R, epoch=None, generation=1, offset=2, verdict=ItemVerdict.STALE)
    assert told.broken(check) == [], "it arrived at a connection that was gone, and was asked for again"


def test_it_is_told_once() -> None:
    told = story().polled(2, 0, 1).taken(2.5).done(3).failed(3.1).done(3.2)
    assert told.returned(3.3).broken(check) == []
    assert told.done(3.4).failed(3.5).broken(check) == ["P1"]


def test_with_auto_commit_who_polls_on_need_not_be_told() -> None:
    assert story(auto=True).polled(2, 0, 1).taken(2.5).done(3, "poll").done(3.2).returned(3.3).broken(check) == []


# ----------------------------------------------------------------------------------------------------- what others ask too


@pytest.mark.parametrize(("generation", "asked", "laws"), [(1, 4.0, ["C1"]), (1, 2.999, []), (2, 4.0, [])])
def test_an_answered_reset_ends_the_generations_of_before(generation: int, asked: float, laws: list[str]) -> None:
    told = story().polled(2, 0, 1).done(2.5).reset(3, 0)
    assert told.moved(asked + 0.002, 2, generation).broken(check_generations) == laws


def test_a_power_cut_may_take_the_reset_back() -> None:
    told = story().polled(2, 0, 1).done(2.5).reset(3, 0).add(PowerCut, 3.1, ("B", 0)).add(ProcessEnded, 3.1, B, how="power")
    assert told.moved(4, 2).broken(check_generations) == []


def test_what_was_acknowledged_is_not_forgotten() -> None:
    told = story().polled(2, 0, 1).done(2.5).moved(3, 2).reader(3.1, C2)
    assert told.given(4, 1, where=C2).broken(check_progress) == ["O6"]
    assert told.broken(check_generations) == ["C1"]


# ------------------------------------------------------------------------------------------------------------- at the end


def ended(calm_t: float = 5) -> ReaderStory:
    """m0 and m1 are in the log at the end."""
    told = story()
    told.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, calm_t, ("", 0)).read(500, b"m0", b"m1")
    return told


def test_everything_was_polled() -> None:
    assert ended().polled(2, 0, 1).done(3).moved(4, 2).broken(check) == []
    assert ended().polled(2, 0).done(3).moved(4, 1).broken(check) == ["O5", "R5"]


def test_another_message_at_its_place_does_not_count() -> None:
    told = story().polled(2, 0, 1).done(3).moved(4, 2)
    told.sent(1, b"m0", 0).sent(1.1, b"other", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"other")
    assert told.broken(check) == ["O5"]


def test_a_gap_a_reset_and_a_seek_excuse() -> None:
    def rest() -> ReaderStory:
        return ended().given(6, 2, 2)

    assert rest().broken(check) == ["O5", "O5"]
    assert rest().reset(5.9, 2, before=0).broken(check) == []
    assert rest().reset(5.9, 2, before=1).broken(check) == ["O5"]
    assert rest().add(QueueGapSeen, 5.5, C1, queue=R, first=0, end=2).broken(check) == []
    assert ended().sought(3, 2).done(3.1).moved(4, 2).broken(check) == []
    assert ended().sought(3, 1).done(3.1).polled(3.2, 1).done(3.3).moved(4, 2).broken(check) == []


def test_what_lies_before_the_groups_begin_and_what_was_not_acknowledged_is_not_its_business() -> None:
    told = ReaderStory().reader().given(1, 1)
    told.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1", b"m2")
    assert told.polled(2, 1).done(3).moved(4, 3).broken(check) == ["P1"], "of which nobody knows that it was given"
    assert told.polled(3.5, 2).done(3.6).broken(check) == []


def test_what_retention_removed_was_polled_or_reported() -> None:
    def rest(expression: str = "*") -> ReaderStory:
        """m0 and m1 are removed at the end, m1 has the tag B."""
        told = ReaderStory().reader(expression=expression).given(1).polled(2, 0).done(2.5).pulled(2.8, 1, 2, (1, 2)).moved(3, 2)
        told.sent(0.1, b"m0", 0, tags="A").sent(0.2, b"m1", 1, tags="B").sent(0.3, b"m2", 2, tags="A")
        told.polled(4, 2).done(4.1).moved(4.2, 3).add(CalmBegan, 5, ("", 0)).read(500, b"m2", first=2)
        return told

    assert rest().broken(check) == ["O5"]
    assert rest("A").broken(check) == [], "it is not wanted"
    assert rest().add(QueueGapSeen, 2.8, C1, queue=R, first=1, end=2).broken(check) == []
    assert rest().add(QueueGapSeen, 2.8, C1, queue=R, first=0, end=1).broken(check) == ["O5"]
    assert rest().reset(2.4, 2, before=1).broken(check) == []
    assert rest().add(PowerCut, 6, ("B", 0)).add(ProcessEnded, 6, B, how="power").broken(check) == [], "nobody can say"


@pytest.mark.parametrize(("t", "laws"), [(94.9, []), (95.2, ["R5"])])
def test_the_end_is_reached_within_90_s(t: float, laws: list[str]) -> None:
    assert ended().polled(2, 0, 1).done(3).moved(t, 2).broken(check) == laws


def test_the_end_is_that_of_the_last_generation() -> None:
    told = ended().polled(2, 0, 1).done(3).moved(4, 2).reset(4.5, 0)
    assert told.given(5, 0, 2).broken(check) == ["R5"]
    assert told.polled(6, 0, 1).done(6.1).moved(7, 2, 2).broken(check) == []


def test_a_queue_that_was_never_granted_is_found() -> None:
    told = ReaderStory().reader()
    told.sent(1, b"m0", 0).add(CalmBegan, 5, ("", 0)).read(500, b"m0", queue=LOG)
    assert told.broken(check) == ["O5", "R5"]


def test_without_readers_nobody_is_asked() -> None:
    told = ReaderStory()
    told.sent(1, b"m0", 0).add(CalmBegan, 5, ("", 0)).read(500, b"m0")
    assert told.broken(check) == []
