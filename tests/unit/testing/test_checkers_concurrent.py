"""C1 and R5 of concurrent groups: progress, generations, everything handled in the end."""

import pytest

from support.shared_stories import C1, B, M, R, SharedStory
from support.stories import C2
from sweep.checkers.concurrent import check
from sweep.checkers.progress import check as check_progress
from sweep.events import CalmBegan, PowerCut, ProcessEnded, QueueGapSeen
from sweep.history import CallResult


def story() -> SharedStory:
    return SharedStory().joined().begun(1)


@pytest.mark.parametrize(("upto", "laws"), [(1, []), (2, []), (3, ["C1"])])
def test_progress_goes_to_the_smallest_unfinished_message(upto: int, laws: list[str]) -> None:
    assert story().shared(2, 2.5, 0, 1).shared(2, None, 2).shared(2.1, 2.2, 3).moved(3, upto).broken(check) == laws


def test_only_what_a_call_says_is_done_counts() -> None:
    assert story().shared(2, 2.5, 0, 1, 2, done=2).moved(3, 2).broken(check) == []
    assert story().shared(2, 2.5, 0, 1, 2, done=2).moved(3, 3).broken(check) == ["C1"]


@pytest.mark.parametrize(("code", "laws"), [(0, []), (1, ["C1"]), (None, ["C1"])])
def test_what_the_broker_took_back_is_finished(code: int | None, laws: list[str]) -> None:
    assert story().shared(2, 2.5, 0, done=0).back(2.6, 0, code=code).moved(3, 1).broken(check) == laws


def test_a_commit_before_the_answer_to_the_send_back_is_found() -> None:
    assert story().shared(2, 2.5, 0, done=0).moved(2.602, 1).back(2.601, 0).broken(check) == ["C1"]


def test_what_a_gap_names_is_passed_over() -> None:
    told = story().shared(2, 2.5, 1).moved(3, 2)
    assert told.broken(check) == ["C1"]
    assert told.add(QueueGapSeen, 1.5, C1, queue=M, first=0, end=1).broken(check) == []


def test_what_another_process_did_counts_when_it_was_committed() -> None:
    first = story().shared(2, 2.5, 0)
    assert first.begun(3, 0, where=C2).shared(3.1, 3.2, 1, where=C2).moved(4, 2, where=C2).broken(check) == ["C1"]
    second = story().shared(2, 2.5, 0).moved(2.8, 1)
    assert second.begun(3, 1, where=C2).shared(3.1, 3.2, 1, where=C2).moved(4, 2, where=C2).broken(check) == []


def test_what_was_done_in_an_older_generation_does_not_count() -> None:
    told = story().shared(2, 2.5, 0).begun(3, 0, generation=2)
    assert told.shared(3.1, 3.2, 1).moved(4, 2, generation=2).broken(check) == ["C1"]


def test_a_call_of_a_queue_that_was_never_granted_is_found() -> None:
    assert SharedStory().joined().shared(2, 2.5, 0).broken(check) == ["C1"]


@pytest.mark.parametrize(("offset", "generation", "laws"), [(1, 1, []), (0, 1, ["C1"]), (0, 2, [])])
def test_within_a_generation_nobody_begins_below_what_was_accepted(offset: int, generation: int, laws: list[str]) -> None:
    assert story().shared(2, 2.5, 0).moved(3, 1).begun(4, offset, generation, C2).broken(check) == laws


def test_a_generation_that_is_over_commits_nothing_and_does_not_come_back() -> None:
    assert story().begun(3, 0, generation=2, where=C2).shared(2, 2.5, 0).moved(4, 1, generation=1).broken(check) == ["C1"]
    assert story().begun(3, 0, generation=2, where=C2).begun(4, 0, generation=1).broken(check) == ["C1"]
    asked_before = story().begun(3, 0, generation=2, where=C2).shared(2, 2.5, 0).moved(3.001, 1, generation=1)
    assert asked_before.broken(check) == [], "it was on its way"


def test_a_restart_forgets_no_progress_but_for_a_lossy_power_cut() -> None:
    told = story().shared(2, 2.5, 0).moved(3, 1)
    killed = told.add(ProcessEnded, 3.1, B, how="kill").begun(5, 0, generation=2, where=C2)
    assert killed.broken(check_progress) == ["O6"]
    cut = story().shared(2, 2.5, 0).moved(3, 1).add(ProcessEnded, 3.1, B, how="power").add(PowerCut, 3.1, ("B", 0))
    assert cut.begun(5, 0, generation=2, where=C2).broken(check_progress) == []


# ------------------------------------------------------------------------------------------------------------- at the end


def ended() -> SharedStory:
    """m0 and m1 are in the log at the end."""
    told = story()
    told.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1")
    return told


def test_everything_is_handled_or_a_dead_letter() -> None:
    assert ended().shared(2, 3, 0, 1).broken(check) == []
    assert ended().shared(2, 3, 0).broken(check) == ["R5"]
    assert ended().shared(2, 3, 0).copy(b"m1", 3).broken(check) == []
    assert ended().shared(2, 3, 0, 1, done=1).broken(check) == ["R5"]


def test_a_retry_that_was_handled_counts_and_one_that_waits_does_not() -> None:
    retried = ended().shared(2, 3, 0, 1, done=1).back(3, 1).begun(12, queue=R)
    assert retried.broken(check) == ["R5"]
    assert retried.shared(13, 14, 0, queue=R, retries=1, bodies=(b"m1",)).broken(check) == []


def test_a_call_that_did_not_end_has_handled_nothing() -> None:
    assert ended().shared(2, 3, 0).shared(2, None, 1).broken(check) == ["R5"]


def test_what_lies_before_the_groups_begin_is_not_its_business() -> None:
    told = SharedStory().joined().begun(1, 1)
    told.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1")
    assert told.shared(2, 3, 1).broken(check) == []


def test_an_ordered_group_is_not_asked() -> None:
    told = SharedStory().granted(1, 1).call(2, 2.1, 1, 0, result=CallResult.ERROR).add(CalmBegan, 5, ("", 0))
    assert told.read(500, b"m0").broken(check) == []
