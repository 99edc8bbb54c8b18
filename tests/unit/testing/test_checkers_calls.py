"""O3 and R4b: when a listener may be called."""

import pytest

from support.stories import C1, C2, Q, Story, epoch
from sweep.checkers.calls import check, overlaps
from sweep.events import (
    ClockSet,
    ConsumerStarted,
    ConsumerStopBegan,
    LeaveSent,
    LockGranted,
    LockSent,
    PauseBegan,
    PauseEnded,
    ProcessEnded,
    StaleReceived,
)


def two(c2_calls_at: float) -> Story:
    """C1 is granted and proven at 1 (asked 0.998: deadline 3.498); its call runs from 2. C2 is granted just before its own call."""
    return Story().granted(1, 1).call(2, None, 1, 0).granted(c2_calls_at - 0.01, 2, C2).call(c2_calls_at, None, 2, 0, where=C2)


def test_calls_one_after_the_other_are_good() -> None:
    assert Story().granted(1, 1).call(2, 2.1, 1, 0).granted(2.2, 2, C2).call(2.3, None, 2, 1, where=C2).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.497, ["O3"]), (3.498, []), (3.499, [])])
def test_a_newer_epochs_call_waits_for_the_older_clients_deadline(t: float, laws: list[str]) -> None:
    assert two(t).broken(check) == laws
    assert [one.excuse for one in overlaps(two(t).history())] == ["its deadline passed"] * (not laws)


@pytest.mark.parametrize(("t", "laws"), [(3.78, ["O3"]), (3.80, [])])
def test_the_deadline_is_on_the_older_clients_own_clock(t: float, laws: list[str]) -> None:
    """At 0.9 of the true speed 3.498 is shown 0.3 s later."""
    assert two(t).add(ClockSet, 0.998, ("C1", 0), boot_ms=998.0, rate=0.893).broken(check) == laws


def test_a_call_that_ended_or_whose_process_is_dead_blocks_no_member() -> None:
    dead = Story().granted(1, 1).call(2, None, 1, 0).add(ProcessEnded, 2.2, C1, how="kill")
    assert dead.granted(2.5, 2, C2).call(2.6, None, 2, 0, where=C2).broken(check) == []


def test_who_was_told_that_its_epoch_is_over_is_excused() -> None:
    for by in ("PULL", "SYNC", "LOCK"):
        story = two(2.5).add(StaleReceived, 2.49, C1, by=by)
        assert story.broken(check) == []
        assert [one.excuse for one in overlaps(story.history())] == ["told that its epoch is over"]
    assert two(2.5).add(StaleReceived, 2.51, C1, by="PULL").broken(check) == ["O3"]
    assert two(2.5).add(StaleReceived, 2.49, C1, by="PULL", epoch=epoch(9)).broken(check) == ["O3"]


@pytest.mark.parametrize(("t", "laws"), [(2.4, ["O3"]), (2.401, [])])
def test_no_call_starts_after_a_newer_epoch_was_granted(t: float, laws: list[str]) -> None:
    """The reverse: C1's call at 2.4, C2's grant answered at 2.4 or a moment later."""
    story = Story().granted(1, 1).add(LockGranted, t, epoch=epoch(2), session="s2").call(2.4, None, 1, 0)
    assert story.broken(check) == laws


@pytest.mark.parametrize(("boot_ms", "laws"), [(3497, []), (3498, ["O3"]), (3499, ["O3"])])
def test_no_call_starts_at_proven_plus_grace_less_500_ms_or_later(boot_ms: int, laws: list[str]) -> None:
    assert Story().granted(1, 1).call(3.4, None, 1, 0, boot_ms=boot_ms).broken(check) == laws


def test_every_answered_sync_moves_the_deadline_by_when_it_was_sent() -> None:
    assert Story().granted(1, 1).proven(3).call(5.49, None, 1, 0).broken(check) == []
    assert Story().granted(1, 1).proven(3).call(5.50, None, 1, 0).broken(check) == ["O3"]


def test_new_connection_grants_no_lease_until_its_first_lock_response() -> None:
    assert Story().granted(1, 1).proven(3, connection=2).call(5, None, 1, 0).broken(check) == ["O3"]
    locked = Story().granted(1, 1).proven(3, connection=2).proven(3.1, connection=2, lock=True).call(5, None, 1, 0)
    assert locked.broken(check) == []


def test_a_call_without_a_grant_or_proof_is_wrong() -> None:
    assert Story().call(2, None, 1, 0).broken(check) == ["O3"]


def test_one_process_calls_a_queue_once_at_a_time() -> None:
    assert Story().granted(1, 1).call(2, 2.2, 1, 0).call(2.3, None, 1, 1).broken(check) == []
    assert Story().granted(1, 1).call(2, None, 1, 0).call(2.3, None, 1, 1).broken(check) == ["O3"]


def test_two_processes_never_call_under_one_epoch() -> None:
    assert Story().granted(1, 1).call(2, None, 1, 0).call(2.3, None, 1, 0, where=C2).broken(check) == ["O3"]


def test_a_queue_is_released_with_its_offset_only_when_its_call_has_ended() -> None:
    assert Story().granted(1, 1).call(2, 2.2, 1, 0).committed(2.3, 1, 1, released=True).broken(check) == []
    assert Story().granted(1, 1).call(2, None, 1, 0).committed(2.3, 1, 1, released=True).broken(check) == ["O3"]


def draining(sent_t: float, **consumer: int) -> Story:
    story = Story().add(ConsumerStarted, 0.5, C1, drain_ms=2_000, **consumer).granted(1, 1).call(1.5, None, 1, 0)
    return story.committed(sent_t + 0.002, 1, None, released=True)


@pytest.mark.parametrize(("sent_t", "laws"), [(3.499, ["O3"]), (3.500, []), (3.501, [])])
def test_a_running_call_is_given_up_past_the_drain_limit(sent_t: float, laws: list[str]) -> None:
    assert draining(sent_t).broken(check) == laws


@pytest.mark.parametrize(("sent_t", "laws"), [(1.999, ["O3"]), (2.000, [])])
@pytest.mark.parametrize("leaving", [ConsumerStopBegan, LeaveSent])
def test_a_stop_has_a_limit_of_its_own(sent_t: float, laws: list[str], leaving: type) -> None:
    assert draining(sent_t, stop_ms=500).add(leaving, 1.6, C1).broken(check) == laws


def test_what_was_given_up_past_its_limit_is_excused() -> None:
    story = draining(3.6).proven(3.5).granted(3.7, 2, C2).call(3.8, None, 2, 0, where=C2)
    assert story.broken(check) == []
    assert [one.excuse for one in overlaps(story.history())] == ["released past its drain limit"]
    again = draining(3.6).proven(3.5).add(LockSent, 3.65, C1, items=((Q, epoch(1)),)).granted(3.7, 2, C2).call(3.8, None, 2, 0, where=C2)
    assert again.broken(check) == ["O3"]


@pytest.mark.parametrize(("t", "laws"), [(3.05, ["O3"]), (3.15, [])])
def test_a_stop_that_ran_out_of_time_is_excused(t: float, laws: list[str]) -> None:
    story = (
        Story().add(ConsumerStarted, 0.5, C1, stop_ms=1_000).granted(1, 1).call(1.5, None, 1, 0).proven(2).add(ConsumerStopBegan, 2.1, C1)
    )
    assert story.granted(t - 0.01, 2, C2).call(t, None, 2, 0, where=C2).broken(check) == laws


def test_a_queue_whose_old_listener_runs_is_not_locked_again_by_its_process() -> None:
    wanted = ((Q, None),)
    assert Story().granted(1, 1).call(2, 2.2, 1, 0).add(LockSent, 2.3, C1, items=wanted).broken(check) == []
    assert Story().granted(1, 1).call(2, None, 1, 0).add(LockSent, 2.3, C1, items=wanted).broken(check) == ["O3"]
    assert Story().granted(1, 1).call(2, None, 1, 0).add(LockSent, 2.3, C2, items=wanted).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.5, []), (3.506, []), (3.51, ["O3"]), (9, ["O3"])])
def test_a_call_in_a_thread_was_decided_up_to_10_ms_before_it_tells_of_itself(t: float, laws: list[str]) -> None:
    """Its deadline is 3.498."""
    story = Story().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1)
    assert story.call(t, t, 1, 0).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(2.005, []), (2.05, ["O3"])])
def test_what_is_granted_to_another_before_its_thread_begins_it_can_not_know(t: float, laws: list[str]) -> None:
    story = Story().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1).granted(2, 2, C2)
    assert story.call(t, t, 1, 0).broken(check) == laws


def test_a_thread_that_was_suspended_was_decided_before() -> None:
    story = Story().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1).add(PauseBegan, 3.4, C1).add(PauseEnded, 9, C1)
    assert story.call(9.005, 9.005, 1, 0).broken(check) == []
    assert story.call(9.02, 9.02, 1, 0).broken(check) == ["O3"]


def test_a_violation_names_queue_epochs_processes_and_times() -> None:
    (found,) = check(two(3.4).history())
    for fact in ("billing orders@broker-a:0", str(epoch(1)), str(epoch(2)), "C1#11", "C2#12", "2.000", "3498"):
        assert fact in str(found)
