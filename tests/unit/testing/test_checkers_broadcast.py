"""B1–B4 and R5 of broadcasting groups: nothing at brokers, everything on every machine, bounded repeats, each once."""

import pytest

from support.member_stories import AGAIN, MemberStory, N
from support.stories import C1, C2, B, Q
from sweep.checkers.broadcast import check
from sweep.events import LockSent, PowerCut, ProcessEnded, QueueGapSeen, SendBackSent
from sweep.history import CallResult

ERROR, CANCELLED = CallResult.ERROR, CallResult.CANCELLED


def story() -> MemberStory:
    return MemberStory().joined(1)


def test_a_run_without_a_broadcasting_group_is_not_asked() -> None:
    assert MemberStory().ended(b"m0").broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B1


def test_nothing_is_locked_committed_or_sent_back_at_a_broker() -> None:
    assert story().add(LockSent, 2, C1, items=((N, None),)).broken(check) == ["B1"]
    assert story().committed(2, 1, 5, queue=N).broken(check) == ["B1"]
    assert story().add(SendBackSent, 2, C1, group="news", level=0, retries_max=None).broken(check) == ["B1"]


def test_what_other_groups_do_at_brokers_is_their_business() -> None:
    told = story().add(LockSent, 2, C1, items=((Q, None),)).committed(2, 1, 5)
    assert told.broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B2


def test_everything_is_handled_on_every_machine() -> None:
    both = story().joined(1, where=C2).ended(b"m0", b"m1").called(2, 3, 0, 1)
    assert both.broken(check) == ["B2", "B2"]
    assert both.called(2, 3, 0, 1, where=C2).broken(check) == []


def test_what_one_process_of_a_machine_handled_counts_for_the_next() -> None:
    told = story().ended(b"m0", b"m1").called(2, 3, 0).stopped(4).joined(5, 1, AGAIN).called(6, 7, 1, where=AGAIN)
    assert told.broken(check) == []


def test_a_call_that_died_with_its_process_has_handled_nothing() -> None:
    assert story().ended(b"m0").called(2, None, 0).killed(3).broken(check) == ["B2"]
    assert story().ended(b"m0").called(2, None, 0).killed(6.1).broken(check) == [], "it ran for its limit, and may have been dropped"
    assert story().ended(b"m0").called(2, 6.1, 0, result=CANCELLED).broken(check) == []


@pytest.mark.parametrize(("ordered", "result", "laws"), [(True, ERROR, ["B2"]), (False, ERROR, []), (False, CANCELLED, ["B2"])])
def test_what_a_concurrent_listener_fails_is_handled(ordered: bool, result: CallResult, laws: list[str]) -> None:
    assert MemberStory().joined(1, ordered=ordered).ended(b"m0").called(2, 3, 0, result=result).broken(check) == laws


def test_what_a_gap_names_is_left_out() -> None:
    told = story().ended(b"m0", b"m1").called(2, 3, 1)
    assert told.broken(check) == ["B2"]
    assert told.add(QueueGapSeen, 1.5, C1, queue=N, first=0, end=1).broken(check) == []


@pytest.mark.parametrize(("first", "offset", "laws"), [(True, 0, []), (True, 1, ["B2"]), (False, 1, []), (False, 0, ["B2"])])
def test_a_member_begins_where_its_policy_says(first: bool, offset: int, laws: list[str]) -> None:
    told = MemberStory().joined(0.05, offset, first=first).ended(b"m0", b"m1").called(2, 3, *range(offset, 2))
    assert told.broken(check) == laws


def test_at_the_end_means_before_whatever_is_sent_afterwards() -> None:
    told = MemberStory().joined(0.05, 2, first=False).ended(b"m0", b"m1", b"m2").called(2, 3, 2)
    assert told.broken(check) == ["B2"], "m1 was sent at 0.1"


def cut(story: MemberStory, t: float = 10) -> MemberStory:
    """broker-a loses its power, under async flush."""
    story.add(ProcessEnded, t, B, how="power").add(PowerCut, t, ("B", 0))
    return story


def test_who_stood_behind_the_lost_end_of_a_queue_may_miss_what_got_its_offsets() -> None:
    told = story().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 2)
    assert told.broken(check) == ["B2"]
    assert cut(told).broken(check) == []


def test_but_not_what_came_behind_or_when_a_pull_has_told() -> None:
    told = cut(story().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 1))
    assert told.broken(check) == ["B2"], "it had seen the end of m0 only"
    told = cut(story().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 5)).pulled(12, 5, 0, moved=True)
    assert told.broken(check) == ["B2"]


def test_who_died_when_it_was_told_has_not_heard_it_unless_it_began_again() -> None:
    told = cut(story().ended(b"m0", b"m1").called(2, 3, 0).pulled(2, 0, 5)).pulled(12, 5, 0, moved=True).killed(12.5)
    assert told.broken(check) == []
    assert told.assigned(12.1, 0, grant=2).broken(check) == ["B2"]


# ----------------------------------------------------------------------------------------------------------------------- B3


def test_after_a_stop_in_order_nothing_comes_again() -> None:
    told = story().called(2, 2.1, 0, 1).stopped(2.3)
    assert told.joined(5, 2, AGAIN).called(6, 7, 2, where=AGAIN).broken(check) == []
    assert story().called(2, 2.1, 0, 1).stopped(2.3).joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == ["B3"]


def test_a_call_at_the_limit_of_a_stop_may_have_been_given_up() -> None:
    for end, laws in ((3.8, ["B3"]), (4.0, [])):
        told = story().called(2, end, 0).stopped(4.1, took_s=2.0)
        assert told.joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == laws


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize(("killed_t", "laws"), [(3.0, []), (3.3, ["B3"])])
def test_a_crash_repeats_the_last_second(how: str, killed_t: float, laws: list[str]) -> None:
    told = story().called(2, 2.1, 0).killed(killed_t, how=how)
    assert told.joined(5, 0, AGAIN).called(6, 7, 0, where=AGAIN).broken(check) == laws


def test_progress_is_the_smallest_that_is_not_handled() -> None:
    told = story().called(2, None, 0).called(2, 2.1, 1).killed(9)
    assert told.joined(10, 0, AGAIN).called(11, 12, 0, 1, where=AGAIN).broken(check) == []


def test_standstills_do_not_count() -> None:
    told = story().called(2, 2.1, 0).paused(2.5, 8).killed(8.1)
    assert told.joined(10, 0, AGAIN).called(11, 12, 0, where=AGAIN).broken(check) == []
    told = story().called(2, 2.1, 0).paused(2.5, 8).killed(8.9)
    assert told.joined(10, 0, AGAIN).called(11, 12, 0, where=AGAIN).broken(check) == ["B3"]


@pytest.mark.parametrize(("until", "killed_t", "laws"), [(4, 5.0, []), (4, 5.2, ["B3"]), (20, 19, [])])
def test_while_its_disk_fails_a_crash_repeats_more(until: float, killed_t: float, laws: list[str]) -> None:
    told = story().called(2, 2.1, 0).disk_failed(2.5, until).killed(killed_t)
    assert told.joined(30, 0, AGAIN).called(31, 32, 0, where=AGAIN).broken(check) == laws
    assert story().called(2, 2.1, 0).disk_failed(4, 8).killed(7).joined(9, 0, AGAIN).called(10, 11, 0, where=AGAIN).broken(check) == ["B3"]


def test_a_stop_while_the_disk_fails_is_a_crash() -> None:
    told = story().called(2, 2.1, 0).disk_failed(2.0, 10).stopped(2.5)
    assert told.joined(11, 0, AGAIN).called(12, 13, 0, where=AGAIN).broken(check) == []


@pytest.mark.parametrize(("each", "laws"), [(True, ["B3"]), (False, [])])
def test_with_commit_each_only_the_running_call_is_repeated(each: bool, laws: list[str]) -> None:
    told = MemberStory().joined(1, ordered=True, each=each).called(2, 2.1, 0).called(2.2, None, 1).killed(2.3)
    assert told.joined(5, 0, AGAIN, ordered=True, each=each).called(6, 7, 0, where=AGAIN).broken(check) == laws


def test_everything_may_come_again_when_its_broker_has_lost_messages() -> None:
    told = story().called(2, 2.1, 0).called(2, 2.1, 1).stopped(4).joined(12, 2, AGAIN).pulled(13, 2, 0, AGAIN, moved=True)
    told.assigned(13.1, 0, AGAIN, 2).called(14, 15, 0, where=AGAIN, grant=2)
    assert told.broken(check) == ["B3"]
    assert cut(told).broken(check) == []


def test_a_file_has_one_user() -> None:
    assert story().joined(5, 0, AGAIN).broken(check) == ["B3"]
    assert story().stopped(4).joined(5, 0, AGAIN).broken(check) == []
    assert story().killed(4).joined(5, 0, AGAIN).broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- B4


def ordered() -> MemberStory:
    return MemberStory().joined(1, ordered=True)


@pytest.mark.parametrize(("then", "laws"), [(1, []), (2, ["B4"]), (0, ["B4"])])
def test_an_ordered_listener_is_given_offset_after_offset(then: int, laws: list[str]) -> None:
    assert ordered().called(2, 2.1, 0).called(3, 3.1, then).broken(check) == laws


def test_what_an_ordered_listener_fails_is_called_again_and_nothing_behind_it() -> None:
    assert ordered().called(2, 2.1, 0, result=ERROR).called(3, 3.1, 0).broken(check) == []
    assert ordered().called(2, 2.1, 0, result=ERROR).called(3, 3.1, 1).broken(check) == ["B4"]


def test_only_a_gap_is_passed_over() -> None:
    told = ordered().called(2, 2.1, 0).called(3, 3.1, 4)
    assert told.broken(check) == ["B4"]
    assert told.add(QueueGapSeen, 2.5, C1, queue=N, first=1, end=4).broken(check) == []


def test_what_a_concurrent_listener_fails_does_not_come_again() -> None:
    assert story().called(2, 2.1, 0, 1, result=ERROR).called(3, 3.1, 2).broken(check) == []
    assert story().called(2, 2.1, 0, 1, result=ERROR).called(3, 3.1, 1).broken(check) == ["B4"]


def test_a_call_of_a_grant_that_is_over_is_not_asked() -> None:
    assert story().called(2, 2.1, 0).called(3, 3.1, 0, grant=0).broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- R5


def test_a_member_that_never_began_is_found() -> None:
    told = story().joined(1, None, C2).ended(b"m0").called(2, 3, 0)
    assert told.broken(check) == ["R5"]


@pytest.mark.parametrize(("end", "laws"), [(139.0, []), (141.0, ["R5"])])
def test_the_end_of_every_queue_is_reached_in_time(end: float, laws: list[str]) -> None:
    assert story().ended(b"m0", b"m1").called(2, 3, 0).called(end - 1, end, 1).broken(check) == laws
