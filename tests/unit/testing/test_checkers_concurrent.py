"""C1 and R5 of concurrent groups: progress, generations, every message handled in the end."""

import pytest

from support.concurrent_histories import C1, B, ConcurrentHistoryBuilder, M, R
from support.histories import C2
from sweep.checkers.concurrent import check
from sweep.checkers.progress import check as check_progress
from sweep.events.consumers import QueueGapSeen
from sweep.events.universe import CalmBegan, PowerCut, ProcessEnded
from sweep.history import CallResult


def builder() -> ConcurrentHistoryBuilder:
    return ConcurrentHistoryBuilder().joined().begun(1)


@pytest.mark.parametrize(("upto", "laws"), [(1, []), (2, []), (3, ["C1"])])
def test_commit_past_the_lowest_unfinished_message_is_a_violation(upto: int, laws: list[str]) -> None:
    assert builder().shared(2, 2.5, 0, 1).shared(2, None, 2).shared(2.1, 2.2, 3).moved(3, upto).broken(check) == laws


def test_only_messages_acknowledged_by_a_call_count_as_done() -> None:
    assert builder().shared(2, 2.5, 0, 1, 2, done=2).moved(3, 2).broken(check) == []
    assert builder().shared(2, 2.5, 0, 1, 2, done=2).moved(3, 3).broken(check) == ["C1"]


@pytest.mark.parametrize(("code", "laws"), [(0, []), (1, ["C1"]), (None, ["C1"])])
def test_message_accepted_as_a_send_back_counts_as_finished(code: int | None, laws: list[str]) -> None:
    assert builder().shared(2, 2.5, 0, done=0).back(2.6, 0, code=code).moved(3, 1).broken(check) == laws


def test_commit_before_the_send_back_response_is_a_violation() -> None:
    assert builder().shared(2, 2.5, 0, done=0).moved(2.602, 1).back(2.601, 0).broken(check) == ["C1"]


def test_reported_gap_may_be_skipped() -> None:
    reported = builder().shared(2, 2.5, 1).moved(3, 2)
    assert reported.broken(check) == ["C1"]
    assert reported.add(QueueGapSeen, 1.5, C1, queue=M, first=0, end=1).broken(check) == []


def test_message_handled_by_another_process_counts_only_if_committed() -> None:
    first = builder().shared(2, 2.5, 0)
    assert first.begun(3, 0, where=C2).shared(3.1, 3.2, 1, where=C2).moved(4, 2, where=C2).broken(check) == ["C1"]
    second = builder().shared(2, 2.5, 0).moved(2.8, 1)
    assert second.begun(3, 1, where=C2).shared(3.1, 3.2, 1, where=C2).moved(4, 2, where=C2).broken(check) == []


def test_message_handled_in_an_older_generation_does_not_count() -> None:
    reported = builder().shared(2, 2.5, 0).begun(3, 0, generation=2)
    assert reported.shared(3.1, 3.2, 1).moved(4, 2, generation=2).broken(check) == ["C1"]


def test_call_of_a_queue_without_a_grant_is_a_violation() -> None:
    assert ConcurrentHistoryBuilder().joined().shared(2, 2.5, 0).broken(check) == ["C1"]


@pytest.mark.parametrize(("offset", "generation", "laws"), [(1, 1, []), (0, 1, ["C1"]), (0, 2, [])])
def test_start_below_the_accepted_offset_of_a_generation_is_a_violation(offset: int, generation: int, laws: list[str]) -> None:
    assert builder().shared(2, 2.5, 0).moved(3, 1).begun(4, offset, generation, C2).broken(check) == laws


def test_commit_or_grant_in_an_older_generation_is_a_violation() -> None:
    assert builder().begun(3, 0, generation=2, where=C2).shared(2, 2.5, 0).moved(4, 1, generation=1).broken(check) == ["C1"]
    assert builder().begun(3, 0, generation=2, where=C2).begun(4, 0, generation=1).broken(check) == ["C1"]
    asked_before = builder().begun(3, 0, generation=2, where=C2).shared(2, 2.5, 0).moved(3.001, 1, generation=1)
    assert asked_before.broken(check) == [], "it was on its way"


def test_lost_progress_after_a_restart_is_a_violation_except_after_a_power_cut() -> None:
    reported = builder().shared(2, 2.5, 0).moved(3, 1)
    killed = reported.add(ProcessEnded, 3.1, B, how="kill").begun(5, 0, generation=2, where=C2)
    assert killed.broken(check_progress) == ["O6"]
    cut = builder().shared(2, 2.5, 0).moved(3, 1).add(ProcessEnded, 3.1, B, how="power").add(PowerCut, 3.1, ("B", 0))
    assert cut.begun(5, 0, generation=2, where=C2).broken(check_progress) == []


# ------------------------------------------------------------------------------------------------------------- at the end


def ended() -> ConcurrentHistoryBuilder:
    """m0 and m1 are in the log at the end."""
    reported = builder()
    reported.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1")
    return reported


def test_every_message_must_be_handled_or_dead_lettered() -> None:
    assert ended().shared(2, 3, 0, 1).broken(check) == []
    assert ended().shared(2, 3, 0).broken(check) == ["R5"]
    assert ended().shared(2, 3, 0).copy(b"m1", 3).broken(check) == []
    assert ended().shared(2, 3, 0, 1, done=1).broken(check) == ["R5"]


def test_handled_retry_counts_and_a_pending_one_does_not() -> None:
    retried = ended().shared(2, 3, 0, 1, done=1).back(3, 1).begun(12, queue=R)
    assert retried.broken(check) == ["R5"]
    assert retried.shared(13, 14, 0, queue=R, retries=1, bodies=(b"m1",)).broken(check) == []


def test_unfinished_call_has_handled_no_message() -> None:
    assert ended().shared(2, 3, 0).shared(2, None, 1).broken(check) == ["R5"]


def test_messages_before_the_groups_start_are_not_checked() -> None:
    reported = ConcurrentHistoryBuilder().joined().begun(1, 1)
    reported.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1")
    assert reported.shared(2, 3, 1).broken(check) == []


def test_ordered_group_is_not_checked() -> None:
    reported = ConcurrentHistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0, result=CallResult.ERROR).add(CalmBegan, 5, ("", 0))
    assert reported.read(500, b"m0").broken(check) == []
