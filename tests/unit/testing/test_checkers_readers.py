"""P1, O5 and R5 of pull consumers: polls, commits, the result of commit(), no skipped message, the end is reached."""

import pytest

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, LOG, B
from support.pull_histories import PullHistoryBuilder, R
from sweep.checkers.concurrent import check as check_generations
from sweep.checkers.progress import check as check_progress
from sweep.checkers.readers import check
from sweep.events.consumers import QueueGapSeen
from sweep.events.progress import CommitReceived, CommitResponded, ProgressResponded, PullReceived
from sweep.events.universe import CalmBegan, PowerCut, ProcessEnded
from sweep.history import ItemVerdict


def builder(*, auto: bool = False) -> PullHistoryBuilder:
    return PullHistoryBuilder().reader(auto=auto).given(1)


# -------------------------------------------------------------------------------------------------------------- a: polls


@pytest.mark.parametrize(("offsets", "laws"), [((0, 1, 2), []), ((1, 2), ["P1"]), ((0, 2), ["P1"]), ((0, 0), ["P1"])])
def test_polls_must_return_consecutive_offsets_once(offsets: tuple[int, ...], laws: list[str]) -> None:
    assert builder().polled(2, *offsets).broken(check) == laws


@pytest.mark.parametrize(("first", "laws"), [(2, []), (1, ["P1"]), (3, ["P1"])])
def test_poll_must_continue_after_the_previous_one(first: int, laws: list[str]) -> None:
    assert builder().polled(2, 0, 1).polled(3, first).broken(check) == laws


def test_reported_gap_may_be_skipped() -> None:
    assert builder().polled(2, 3).broken(check) == ["P1"]
    assert builder().polled(2, 3).add(QueueGapSeen, 1.5, C1, queue=R, first=0, end=3).broken(check) == []


@pytest.mark.parametrize(("sought", "first", "laws"), [(0, 0, []), (5, 5, []), (0, 2, ["P1"]), (5, 2, ["P1"]), (5, 6, ["P1"])])
def test_poll_after_a_seek_must_start_at_its_offset(sought: int, first: int, laws: list[str]) -> None:
    assert builder().polled(2, 0, 1).sought(2.5, sought).polled(3, first).broken(check) == laws


def test_seek_of_a_queue_not_yet_held_applies_when_it_is_granted() -> None:
    reported = PullHistoryBuilder().reader().sought(0.7, 4).given(1)
    assert reported.polled(2, 4).broken(check) == []
    assert PullHistoryBuilder().reader().sought(0.7, 4).given(1).polled(2, 0).broken(check) == ["P1"]


def test_poll_from_a_queue_that_is_not_assigned_is_a_violation() -> None:
    assert builder().taken(2).polled(2.1, 0).broken(check) == ["P1"]
    assert PullHistoryBuilder().reader().polled(2, 0).broken(check) == ["P1"]
    assert builder().polled(2, 0, assigned=False).broken(check) == ["P1"]
    assert builder().taken(2).given(3).polled(3.1, 0).broken(check) == []


def test_poll_from_a_paused_queue_is_a_violation() -> None:
    assert builder().paused(2, 4).polled(3, 0).broken(check) == ["P1"]
    assert builder().paused(2, 2.5).polled(3, 0).broken(check) == []


def test_seek_and_pause_apply_only_while_the_queue_is_assigned() -> None:
    reported = PullHistoryBuilder().reader().sought(0.7, 4).paused(0.7, 9).unassigned(0.8).given(1)
    assert reported.polled(2, 0).broken(check) == []
    assert reported.polled(3, 4).broken(check) == ["P1"]


@pytest.mark.parametrize(("responded", "laws"), [(3, []), (2, ["P1"]), (4, ["P1"])])
def test_grant_must_start_at_the_offset_of_the_brokers_response(responded: int, laws: list[str]) -> None:
    assert PullHistoryBuilder().reader().given(1, 3, responded=responded).broken(check) == laws


def test_repeated_poll_without_another_grant_is_a_violation() -> None:
    reported = builder().polled(2, 0, 1).reader(0.6, C2)
    assert reported.given(4, 0, where=C2).broken(check) == []
    assert reported.polled(5, 0, 1, where=C2).broken(check) == []
    assert reported.polled(6, 1, where=C2).broken(check) == ["P1"]


# --------------------------------------------------------------------------------------------- tags, and what others had done


def tagged(expression: str, tags: str = "ABAB") -> PullHistoryBuilder:
    """m0, m1 and so on have these tags and exist from the beginning. C1 reads those that its subscription selects."""
    reported = PullHistoryBuilder().reader(expression=expression).given(1)
    for number, tag in enumerate(tags):
        reported.sent(0.1 + number / 100, b"m%d" % number, number, tags=tag)
    return reported


@pytest.mark.parametrize(("expression", "offset", "laws"), [
    ("A", 0, []),
    ("A", 1, ["P1", "P1"]),
    ("B", 1, []),
    ("B", 0, ["P1"]),
    ("A || B", 0, []),
    ("*", 0, []),
    ("C || *", 0, []),
])  # fmt: skip
def test_polled_message_without_a_matching_tag_is_a_violation(expression: str, offset: int, laws: list[str]) -> None:
    """With expression A, a poll of m1 also skips m0."""
    assert tagged(expression).polled(2, offset).broken(check) == laws


def test_polls_and_commits_may_skip_only_filtered_messages() -> None:
    assert tagged("A").polled(2, 0, 2).done(3).moved(4, 4).broken(check) == []
    assert tagged("A").polled(2, 0).done(3).moved(4, 2).broken(check) == []
    assert tagged("A").polled(2, 0).done(3).moved(4, 3).broken(check) == ["P1"], "m2 is wanted"
    assert tagged("A || B").polled(2, 0, 2).broken(check) == ["P1"], "m1 too"


def test_backward_commit_may_skip_to_the_next_selected_message() -> None:
    def back(expression: str) -> PullHistoryBuilder:
        """All messages are done, then it seeks to m1. The next message that A selects is m2."""
        polled = (0, 2) if expression == "A" else (0, 1, 2, 3)
        return tagged(expression).polled(2, *polled).done(2.5).moved(2.8, 4).returned(2.9).sought(3, 1).done(3.5)

    assert back("A").reset(3.8, 1, C1).returned(4).broken(check) == []
    assert back("A").reset(3.8, 2, C1).returned(4).broken(check) == []
    assert back("A").reset(3.8, 3, C1).returned(4).broken(check) == ["P1"]
    assert back("*").reset(3.8, 2, C1).returned(4).broken(check) == ["P1"]
    assert back("A").returned(4).broken(check) == ["P1"]


def test_seek_back_over_filtered_messages_only_needs_no_reset() -> None:
    reported = tagged("A", "AABB").polled(2, 0, 1).done(2.5).moved(2.8, 4).returned(2.9)
    assert reported.sought(3, 2).done(3.5).returned(4).broken(check) == []
    assert reported.sought(5, 1).done(5.5).returned(6).broken(check) == ["P1"]


@pytest.mark.parametrize(("gap", "committed", "laws"), [((5, 7), 5, []), ((5, 7), 4, ["P1", "P1"]), (None, 5, ["P1", "P1"])])
def test_lagging_member_may_skip_removed_messages_that_others_have_committed(
    gap: tuple[int, int] | None, committed: int, laws: list[str]
) -> None:
    """C2 handled m2 to m4 while C1 was suspended."""
    reported = (
        builder().polled(2, 0, 1).done(2.1).reader(2.2, C2).given(2.5, 0, where=C2).polled(2.6, 0, 1, 2, 3, 4, where=C2).done(2.7, where=C2)
    )
    reported.moved(2.8, committed, where=C2).pulled(3, 2, 7, gap).polled(3.1, 7).done(3.2).moved(3.3, 8)
    assert reported.broken(check) == laws


# ------------------------------------------------------------------------------------------------------------- b: commits


@pytest.mark.parametrize(("upto", "laws"), [(0, []), (2, []), (3, ["P1"])])
def test_commit_past_the_messages_reported_as_done_is_a_violation(upto: int, laws: list[str]) -> None:
    assert builder().polled(2, 0, 1).done(3).polled(4, 2, 3).moved(5, upto).broken(check) == laws


def test_commit_of_polled_messages_not_reported_as_done_is_a_violation() -> None:
    assert builder(auto=True).polled(2, 0, 1).moved(3, 2).broken(check) == ["P1"]
    assert builder(auto=True).polled(2, 0, 1).done(2.5, "poll").moved(3, 2).broken(check) == []


def test_message_polled_by_another_member_counts_only_if_committed() -> None:
    first = builder().reader(0.6, C2).polled(2, 0).done(2.5)
    assert first.given(3, 0, where=C2).polled(3.1, 0).done(3.2, where=C2).moved(4, 1, where=C2).broken(check) == ["P1", "P1"]
    second = builder().reader(0.6, C2).polled(2, 0).done(2.5).moved(2.8, 1)
    assert second.given(3, 1, where=C2).polled(3.1, 1, where=C2).done(3.2, where=C2).moved(4, 2, where=C2).broken(check) == []


def test_commit_may_pass_a_forward_seek_and_a_gap() -> None:
    assert builder().polled(2, 0).sought(2.5, 5).done(3).moved(4, 5).broken(check) == []
    assert builder().polled(2, 0).sought(2.5, 5).done(3).moved(4, 6).broken(check) == ["P1"]
    assert builder().polled(2, 0).done(3).moved(4, 4).add(QueueGapSeen, 2.5, C1, queue=R, first=1, end=4).broken(check) == []


def test_queue_revoked_right_after_its_grant_is_released_at_its_start_offset() -> None:
    reported = builder().polled(2, 0).done(2.1).moved(2.3, 1).taken(2.5)
    reported.add(ProgressResponded, 3, B, queue=R, generation=1, offset=5, client=11)
    assert reported.moved(3.5, 5).broken(check) == []
    assert reported.moved(3.6, 6).broken(check) == ["P1"]


# --------------------------------------------------------------------------------------------- c: the result of commit()


def test_commit_that_returns_before_the_broker_has_the_offset_is_a_violation() -> None:
    reported = builder().polled(2, 0, 1).done(3)
    assert reported.returned(4).broken(check) == ["P1"]
    assert builder().polled(2, 0, 1).done(3).moved(3.5, 1).returned(4).broken(check) == ["P1"]
    assert builder().polled(2, 0, 1).done(3).moved(3.5, 2).returned(4).broken(check) == []
    assert builder().polled(2, 0, 1).done(3).moved(3.5, 2, verdict=ItemVerdict.STALE).returned(4).broken(check) == ["P1"]
    assert builder().polled(2, 0, 1).done(3).moved(3.5, 2).polled(3.6, 2).returned(4).broken(check) == [], "which came later"


def test_new_grant_at_or_after_the_offset_confirms_a_commit() -> None:
    assert builder().polled(2, 0, 1).done(3).taken(3.2).given(3.5, 4, generation=2).returned(4).broken(check) == []
    assert builder().polled(2, 0, 1).done(3).taken(3.2).given(3.5, 1, generation=2).returned(4).broken(check) == ["P1"]


def test_backward_commit_requires_a_reset_by_the_same_client() -> None:
    def back() -> PullHistoryBuilder:
        return builder().polled(2, 0, 1).done(2.5).moved(2.8, 2).returned(2.9).sought(3, 0).done(3.5)

    assert back().returned(4).broken(check) == ["P1"]
    assert back().reset(3.8, 0).returned(4).broken(check) == ["P1"], "somebody else's"
    assert back().reset(3.8, 0, C1).returned(4).broken(check) == []
    assert back().reset(3.8, 0, C1, responded=False).returned(4).broken(check) == ["P1"]


def test_commit_must_fail_exactly_if_its_grant_was_lost() -> None:
    assert builder().polled(2, 0, 1).taken(2.5).done(3).failed(3.1).broken(check) == []
    assert builder().polled(2, 0, 1).taken(2.5).done(3).returned(3.1).broken(check) == ["P1"]
    assert builder().polled(2, 0, 1).done(2.2).moved(2.3, 2).taken(2.5).done(3).failed(3.1).broken(check) == ["P1"]
    assert builder().polled(2, 0, 1).done(2.2).taken(2.3).failed(2.5).broken(check) == [], "its response was STALE"
    assert builder().polled(2, 0, 1).done(2.2).failed(2.5, stale=False).broken(check) == []


def test_stale_pull_response_justifies_a_failed_commit() -> None:
    reported = builder().polled(2, 0, 1).done(2.2).moved(2.3, 2).done(3).failed(3.1)
    assert reported.broken(check) == ["P1"]
    reported.add(PullReceived, 3.05, C1, queue=R, epoch=None, code=ResponseCode.STALE_EPOCH, next_offset=None)
    assert reported.broken(check) == []


def test_commit_without_a_received_response_may_fail() -> None:
    reported = builder().polled(2, 0, 1).done(3)
    reported.add(CommitResponded, 3.1, B, queue=R, epoch=None, generation=1, offset=2)
    assert reported.failed(4).broken(check) == []
    reported.add(CommitReceived, 3.2, C1, queue=R, epoch=None, generation=1, offset=2)
    assert reported.broken(check) == ["P1"]
    reported.add(CommitReceived, 3.3, C1, queue=R, epoch=None, generation=1, offset=2, verdict=ItemVerdict.STALE)
    assert reported.broken(check) == [], "it arrived at a connection that was gone, and was asked for again"


def test_failed_commit_is_reported_once() -> None:
    reported = builder().polled(2, 0, 1).taken(2.5).done(3).failed(3.1).done(3.2)
    assert reported.returned(3.3).broken(check) == []
    assert reported.done(3.4).failed(3.5).broken(check) == ["P1"]


def test_lost_grant_under_auto_commit_need_not_be_reported() -> None:
    assert builder(auto=True).polled(2, 0, 1).taken(2.5).done(3, "poll").done(3.2).returned(3.3).broken(check) == []


# ----------------------------------------------------------------------------------------------------- what others ask too


@pytest.mark.parametrize(("generation", "requested", "laws"), [(1, 4.0, ["C1"]), (1, 2.999, []), (2, 4.0, [])])
def test_commit_in_an_older_generation_after_a_reset_is_a_violation(generation: int, requested: float, laws: list[str]) -> None:
    reported = builder().polled(2, 0, 1).done(2.5).reset(3, 0)
    assert reported.moved(requested + 0.002, 2, generation).broken(check_generations) == laws


def test_power_cut_may_revert_a_reset() -> None:
    reported = builder().polled(2, 0, 1).done(2.5).reset(3, 0).add(PowerCut, 3.1, ("B", 0)).add(ProcessEnded, 3.1, B, how="power")
    assert reported.moved(4, 2).broken(check_generations) == []


def test_grant_below_the_committed_offset_is_a_violation() -> None:
    reported = builder().polled(2, 0, 1).done(2.5).moved(3, 2).reader(3.1, C2)
    assert reported.given(4, 1, where=C2).broken(check_progress) == ["O6"]
    assert reported.broken(check_generations) == ["C1"]


# ------------------------------------------------------------------------------------------------------------- at the end


def ended(calm_t: float = 5) -> PullHistoryBuilder:
    """m0 and m1 are in the log at the end."""
    reported = builder()
    reported.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, calm_t, ("", 0)).read(500, b"m0", b"m1")
    return reported


def test_message_that_was_never_polled_is_a_violation() -> None:
    assert ended().polled(2, 0, 1).done(3).moved(4, 2).broken(check) == []
    assert ended().polled(2, 0).done(3).moved(4, 1).broken(check) == ["O5", "R5"]


def test_another_message_at_the_offset_does_not_count() -> None:
    reported = builder().polled(2, 0, 1).done(3).moved(4, 2)
    reported.sent(1, b"m0", 0).sent(1.1, b"other", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"other")
    assert reported.broken(check) == ["O5"]


def test_gap_reset_and_seek_justify_unpolled_messages() -> None:
    def rest() -> PullHistoryBuilder:
        return ended().given(6, 2, 2)

    assert rest().broken(check) == ["O5", "O5"]
    assert rest().reset(5.9, 2, before=0).broken(check) == []
    assert rest().reset(5.9, 2, before=1).broken(check) == ["O5"]
    assert rest().add(QueueGapSeen, 5.5, C1, queue=R, first=0, end=2).broken(check) == []
    assert ended().sought(3, 2).done(3.1).moved(4, 2).broken(check) == []
    assert ended().sought(3, 1).done(3.1).polled(3.2, 1).done(3.3).moved(4, 2).broken(check) == []


def test_messages_before_the_groups_start_or_not_acknowledged_need_no_poll() -> None:
    reported = PullHistoryBuilder().reader().given(1, 1)
    reported.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1", b"m2")
    assert reported.polled(2, 1).done(3).moved(4, 3).broken(check) == ["P1"], "of which nobody knows that it was given"
    assert reported.polled(3.5, 2).done(3.6).broken(check) == []


def test_unpolled_message_removed_by_retention_without_a_reported_gap_is_a_violation() -> None:
    def rest(expression: str = "*") -> PullHistoryBuilder:
        """m0 and m1 are removed at the end, m1 has the tag B."""
        reported = PullHistoryBuilder().reader(expression=expression).given(1).polled(2, 0).done(2.5).pulled(2.8, 1, 2, (1, 2)).moved(3, 2)
        reported.sent(0.1, b"m0", 0, tags="A").sent(0.2, b"m1", 1, tags="B").sent(0.3, b"m2", 2, tags="A")
        reported.polled(4, 2).done(4.1).moved(4.2, 3).add(CalmBegan, 5, ("", 0)).read(500, b"m2", first=2)
        return reported

    assert rest().broken(check) == ["O5"]
    assert rest("A").broken(check) == [], "it is not wanted"
    assert rest().add(QueueGapSeen, 2.8, C1, queue=R, first=1, end=2).broken(check) == []
    assert rest().add(QueueGapSeen, 2.8, C1, queue=R, first=0, end=1).broken(check) == ["O5"]
    assert rest().reset(2.4, 2, before=1).broken(check) == []
    assert rest().add(PowerCut, 6, ("B", 0)).add(ProcessEnded, 6, B, how="power").broken(check) == [], "nobody can say"


@pytest.mark.parametrize(("t", "laws"), [(94.9, []), (95.2, ["R5"])])
def test_readers_must_reach_the_end_within_90_s(t: float, laws: list[str]) -> None:
    assert ended().polled(2, 0, 1).done(3).moved(t, 2).broken(check) == laws


def test_readers_must_reach_the_end_in_the_last_generation() -> None:
    reported = ended().polled(2, 0, 1).done(3).moved(4, 2).reset(4.5, 0)
    assert reported.given(5, 0, 2).broken(check) == ["R5"]
    assert reported.polled(6, 0, 1).done(6.1).moved(7, 2, 2).broken(check) == []


def test_queue_that_was_never_granted_is_a_violation() -> None:
    reported = PullHistoryBuilder().reader()
    reported.sent(1, b"m0", 0).add(CalmBegan, 5, ("", 0)).read(500, b"m0", queue=LOG)
    assert reported.broken(check) == ["O5", "R5"]


def test_run_without_readers_is_not_checked() -> None:
    reported = PullHistoryBuilder()
    reported.sent(1, b"m0", 0).add(CalmBegan, 5, ("", 0)).read(500, b"m0")
    assert reported.broken(check) == []
