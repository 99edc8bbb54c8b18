"""B1–B4 and R5 of broadcasting groups: no requests to brokers, every message on every machine, bounded repetition, one call each."""

import pytest

from support.broadcast_histories import AGAIN, BroadcastHistoryBuilder, N
from support.histories import C1, C2, B, Q
from sweep.checkers.broadcast import check
from sweep.events.consumers import QueueGapSeen
from sweep.events.locks import LockSent
from sweep.events.sends import SendBackSent
from sweep.events.universe import CalmBegan, PowerCut, ProcessEnded
from sweep.history import CallResult

ERROR, CANCELLED = CallResult.ERROR, CallResult.CANCELLED


def builder() -> BroadcastHistoryBuilder:
    return BroadcastHistoryBuilder().joined(1)


def test_run_without_a_broadcasting_group_is_not_checked() -> None:
    assert BroadcastHistoryBuilder().ended(b"m0").broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B1


def test_broadcasting_member_that_locks_commits_or_sends_back_at_a_broker_is_a_violation() -> None:
    assert builder().add(LockSent, 2, C1, items=((N, None),)).broken(check) == ["B1"]
    assert builder().committed(2, 1, 5, queue=N).broken(check) == ["B1"]
    assert builder().add(SendBackSent, 2, C1, group="news", level=0, retries_max=None).broken(check) == ["B1"]


def test_locks_and_commits_of_other_groups_are_allowed() -> None:
    reported = builder().add(LockSent, 2, C1, items=((Q, None),)).committed(2, 1, 5)
    assert reported.broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B2


def test_every_message_must_be_handled_on_every_machine() -> None:
    both = builder().joined(1, where=C2).ended(b"m0", b"m1").called(2, 3, 0, 1)
    assert both.broken(check) == ["B2", "B2"]
    assert both.called(2, 3, 0, 1, where=C2).broken(check) == []


def test_message_handled_by_an_earlier_process_of_the_machine_counts() -> None:
    reported = builder().ended(b"m0", b"m1").called(2, 3, 0).stopped(4).joined(5, 1, AGAIN).called(6, 7, 1, where=AGAIN)
    assert reported.broken(check) == []


def test_call_that_ended_with_its_process_has_handled_no_message() -> None:
    assert builder().ended(b"m0").called(2, None, 0).killed(3).broken(check) == ["B2"]
    assert builder().ended(b"m0").called(2, None, 0).killed(6.1).broken(check) == [], "it ran for its limit, and may have been dropped"
    assert builder().ended(b"m0").called(2, 6.1, 0, result=CANCELLED).broken(check) == []


@pytest.mark.parametrize(("ordered", "result", "laws"), [(True, ERROR, ["B2"]), (False, ERROR, []), (False, CANCELLED, ["B2"])])
def test_message_that_a_concurrent_listener_fails_counts_as_handled(ordered: bool, result: CallResult, laws: list[str]) -> None:
    assert BroadcastHistoryBuilder().joined(1, ordered=ordered).ended(b"m0").called(2, 3, 0, result=result).broken(check) == laws


def test_message_of_the_final_log_must_be_handled_even_if_its_offset_was_in_a_reported_gap() -> None:
    reported = builder().add(QueueGapSeen, 1.5, C1, queue=N, first=0, end=1).called(2, 3, 1).add(CalmBegan, 50, ("", 0))
    assert reported.read(500, b"m1", first=1).broken(check) == [], "retention has removed m0"
    assert builder().ended(b"m0", b"m1").add(QueueGapSeen, 1.5, C1, queue=N, first=0, end=1).called(2, 3, 1).broken(check) == ["B2"]


@pytest.mark.parametrize(("first", "offset", "laws"), [(True, 0, []), (True, 1, ["B2"]), (False, 1, []), (False, 0, ["B2"])])
def test_member_must_start_at_consume_from_where(first: bool, offset: int, laws: list[str]) -> None:
    reported = BroadcastHistoryBuilder().joined(0.05, offset, first=first).ended(b"m0", b"m1").called(2, 3, *range(offset, 2))
    assert reported.broken(check) == laws


def test_last_offset_start_must_include_messages_sent_after_the_start() -> None:
    reported = BroadcastHistoryBuilder().joined(0.05, 2, first=False).ended(b"m0", b"m1", b"m2").called(2, 3, 2)
    assert reported.broken(check) == ["B2"], "m1 was sent at 0.1"


def cut(builder: BroadcastHistoryBuilder, t: float = 10) -> BroadcastHistoryBuilder:
    """Cut the power of broker-a, which uses async flush."""
    builder.add(ProcessEnded, t, B, how="power").add(PowerCut, t, ("B", 0))
    return builder


def test_member_past_the_lost_end_of_a_queue_may_miss_messages_that_reuse_its_offsets() -> None:
    reported = builder().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 2)
    assert reported.broken(check) == ["B2"]
    assert cut(reported).broken(check) == []


def test_member_must_not_miss_later_messages_or_those_after_an_offset_moved_response() -> None:
    reported = cut(builder().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 1))
    assert reported.broken(check) == ["B2"], "it had seen the end of m0 only"
    reported = cut(builder().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 5)).pulled(12, 5, 0, moved=True)
    assert reported.broken(check) == ["B2"]


def test_member_that_dies_on_offset_moved_may_miss_messages_unless_it_restarted_the_queue() -> None:
    reported = cut(builder().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 5)).pulled(12, 5, 0, moved=True).killed(12.5)
    assert reported.broken(check) == []
    assert reported.assigned(12.1, 0, grant=2).broken(check) == ["B2"]


# ----------------------------------------------------------------------------------------------------------------------- B3


def test_redelivery_after_a_regular_stop_is_a_violation() -> None:
    reported = builder().called(2, 2.1, 0, 1).stopped(2.3)
    assert reported.joined(5, 2, AGAIN).called(6, 7, 2, where=AGAIN).broken(check) == []
    assert builder().called(2, 2.1, 0, 1).stopped(2.3).joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == ["B3"]


def test_call_at_the_limit_of_a_stop_may_be_repeated() -> None:
    for end, laws in ((3.8, ["B3"]), (4.0, [])):
        reported = builder().called(2, end, 0).stopped(4.1, took_s=2.0)
        assert reported.joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == laws


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize(("killed_t", "laws"), [(3.0, []), (3.3, ["B3"])])
def test_crash_may_repeat_only_the_last_second(how: str, killed_t: float, laws: list[str]) -> None:
    reported = builder().called(2, 2.1, 0).killed(killed_t, how=how)
    assert reported.joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == laws


def test_messages_after_the_lowest_unhandled_one_may_be_repeated() -> None:
    reported = builder().called(2, None, 0).called(2, 2.1, 1).killed(9)
    assert reported.joined(10, 0, AGAIN).called(11, 12, 0, 1, where=AGAIN).broken(check) == []


def test_suspended_time_does_not_count_toward_the_repeated_second() -> None:
    reported = builder().called(2, 2.1, 0).paused(2.5, 8).killed(8.1)
    assert reported.joined(10, 0, AGAIN).called(11, 12, 0, where=AGAIN).broken(check) == []
    reported = builder().called(2, 2.1, 0).paused(2.5, 8).killed(8.9)
    assert reported.joined(10, 0, AGAIN).called(11, 12, 0, where=AGAIN).broken(check) == ["B3"]


@pytest.mark.parametrize(("until", "killed_t", "laws"), [(4, 5.0, []), (4, 5.2, ["B3"]), (20, 19, [])])
def test_crash_during_a_disk_fault_may_repeat_more(until: float, killed_t: float, laws: list[str]) -> None:
    reported = builder().called(2, 2.1, 0).disk_failed(2.5, until).killed(killed_t)
    assert reported.joined(30, 0, AGAIN).called(31, 32, 0, where=AGAIN).broken(check) == laws
    assert builder().called(2, 2.1, 0).disk_failed(4, 8).killed(7).joined(9, 0, AGAIN).called(10, 11, 0, where=AGAIN).broken(check) == [
        "B3"
    ]


def test_stop_during_a_disk_fault_counts_as_a_crash() -> None:
    reported = builder().called(2, 2.1, 0).disk_failed(2.0, 10).stopped(2.5)
    assert reported.joined(11, 0, AGAIN).called(12, 13, 0, where=AGAIN).broken(check) == []


@pytest.mark.parametrize(("each", "laws"), [(True, ["B3"]), (False, [])])
def test_commit_each_may_repeat_only_the_running_call(each: bool, laws: list[str]) -> None:
    reported = BroadcastHistoryBuilder().joined(1, ordered=True, each=each).called(2, 2.1, 0).called(2.2, None, 1).killed(2.3)
    assert reported.joined(5, 0, AGAIN, ordered=True, each=each).called(6, 7, 0, where=AGAIN).broken(check) == laws


def test_any_message_may_be_repeated_if_the_broker_lost_messages() -> None:
    reported = builder().called(2, 2.1, 0).called(2, 2.1, 1).stopped(4).joined(12, 2, AGAIN).pulled(13, 2, 0, AGAIN, moved=True)
    reported.assigned(13.1, 0, AGAIN, 2).called(14, 15, 0, where=AGAIN, grant=2)
    assert reported.broken(check) == ["B3"]
    assert cut(reported).broken(check) == []


def began_again() -> BroadcastHistoryBuilder:
    """Return a history in which messages 1 and 2 are lost after a member handled them: it is told, and begins the queue again."""
    reported = cut(builder().called(2, 2.1, 0, 1, 2)).pulled(11, 3, 1, moved=True)
    return reported.add(QueueGapSeen, 11, C1, queue=N, first=1, end=3).assigned(11.1, 0, grant=2).called(12, 12.1, 0, grant=2)


@pytest.mark.parametrize("orderly", [False, True])
def test_message_with_an_offset_of_a_lost_one_is_no_repetition(orderly: bool) -> None:
    reported = began_again().stopped(20) if orderly else began_again().killed(20)
    assert reported.joined(21, 1, AGAIN).called(22, 23, 1, where=AGAIN).broken(check) == []
    reported = began_again().called(13, 13.1, 1, grant=2)
    reported = reported.stopped(20) if orderly else reported.killed(20)
    assert reported.joined(21, 1, AGAIN).called(22, 23, 1, where=AGAIN).broken(check) == ["B3"]


def test_message_before_a_gap_that_the_member_passed_over_is_a_repetition() -> None:
    reported = builder().called(2, 2.1, 0).add(QueueGapSeen, 3, C1, queue=N, first=1, end=4).called(4, 4.1, 4).stopped(6)
    assert reported.joined(7, 5, AGAIN).called(8, 9, 5, where=AGAIN).broken(check) == []
    assert reported.joined(7, 4, AGAIN).called(8, 9, 4, where=AGAIN).broken(check) == ["B3"]


def test_two_concurrent_users_of_an_offset_file_are_a_violation() -> None:
    assert builder().joined(5, 0, AGAIN).broken(check) == ["B3"]
    assert builder().stopped(4).joined(5, 0, AGAIN).broken(check) == []
    assert builder().killed(4).joined(5, 0, AGAIN).broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B4


def ordered() -> BroadcastHistoryBuilder:
    return BroadcastHistoryBuilder().joined(1, ordered=True)


@pytest.mark.parametrize(("then", "laws"), [(1, []), (2, ["B4"]), (0, ["B4"])])
def test_ordered_broadcast_listener_must_get_consecutive_offsets(then: int, laws: list[str]) -> None:
    assert ordered().called(2, 2.1, 0).called(3, 3.1, then).broken(check) == laws


def test_message_that_an_ordered_listener_fails_must_be_called_again_before_later_ones() -> None:
    assert ordered().called(2, 2.1, 0, result=ERROR).called(3, 3.1, 0).broken(check) == []
    assert ordered().called(2, 2.1, 0, result=ERROR).called(3, 3.1, 1).broken(check) == ["B4"]


def test_ordered_broadcast_listener_may_skip_only_a_reported_gap() -> None:
    reported = ordered().called(2, 2.1, 0).called(3, 3.1, 4)
    assert reported.broken(check) == ["B4"]
    assert reported.add(QueueGapSeen, 2.5, C1, queue=N, first=1, end=4).broken(check) == []
    assert reported.called(4, 4.1, 6).broken(check) == ["B4"]


def test_ordered_broadcast_listener_may_be_given_new_messages_where_a_gap_was_reported() -> None:
    reported = ordered().called(2, 2.1, 0).add(QueueGapSeen, 2.5, C1, queue=N, first=1, end=4).called(3, 3.1, 1)
    assert reported.broken(check) == []
    assert reported.called(4, 4.1, 2).broken(check) == []
    assert reported.called(5, 5.1, 2).broken(check) == ["B4"]


def test_redelivery_of_a_message_that_a_concurrent_broadcast_listener_failed_is_a_violation() -> None:
    assert builder().called(2, 2.1, 0, 1, result=ERROR).called(3, 3.1, 2).broken(check) == []
    assert builder().called(2, 2.1, 0, 1, result=ERROR).called(3, 3.1, 1).broken(check) == ["B4"]


def test_call_of_an_earlier_grant_is_not_checked() -> None:
    assert builder().called(2, 2.1, 0).called(3, 3.1, 0, grant=0).broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- R5


def test_member_that_never_started_a_queue_is_a_violation() -> None:
    reported = builder().joined(1, None, C2).ended(b"m0").called(2, 3, 0)
    assert reported.broken(check) == ["R5"]


@pytest.mark.parametrize(("end", "laws"), [(139.0, []), (141.0, ["R5"])])
def test_end_of_every_queue_must_be_reached_in_time(end: float, laws: list[str]) -> None:
    assert builder().ended(b"m0", b"m1").called(2, 3, 0).called(end - 1, end, 1).broken(check) == laws
