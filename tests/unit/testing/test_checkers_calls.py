"""O3 and R4b: when a listener may be called."""

import pytest

from support.histories import C1, C2, HistoryBuilder, Q, epoch
from sweep.checkers.calls import check, overlaps
from sweep.events.consumers import ConsumerStarted, ConsumerStopBegan
from sweep.events.locks import LeaveSent, LockGranted, LockSent, StaleReceived
from sweep.events.universe import ClockSet, PauseBegan, PauseEnded, ProcessEnded


def two(c2_calls_at: float) -> HistoryBuilder:
    """C1 is granted and proven at 1 (asked 0.998: deadline 3.498); its call runs from 2. C2 is granted just before its own call."""
    return HistoryBuilder().granted(1, 1).call(2, None, 1, 0).granted(c2_calls_at - 0.01, 2, C2).call(c2_calls_at, None, 2, 0, where=C2)


def test_consecutive_calls_are_allowed() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).granted(2.2, 2, C2).call(2.3, None, 2, 1, where=C2).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.497, ["O3"]), (3.498, []), (3.499, [])])
def test_call_of_a_newer_epoch_before_the_older_clients_deadline_is_a_violation(t: float, laws: list[str]) -> None:
    assert two(t).broken(check) == laws
    assert [one.excuse for one in overlaps(two(t).history())] == ["its deadline passed"] * (not laws)


@pytest.mark.parametrize(("t", "laws"), [(3.78, ["O3"]), (3.80, [])])
def test_deadline_is_measured_by_the_older_clients_clock(t: float, laws: list[str]) -> None:
    """A clock at 0.9 of the true speed shows 3.498 only 0.3 s later."""
    assert two(t).add(ClockSet, 0.998, ("C1", 0), boot_ms=998.0, rate=0.893).broken(check) == laws


def test_call_that_ended_or_whose_process_is_dead_blocks_no_member() -> None:
    dead = HistoryBuilder().granted(1, 1).call(2, None, 1, 0).add(ProcessEnded, 2.2, C1, how="kill")
    assert dead.granted(2.5, 2, C2).call(2.6, None, 2, 0, where=C2).broken(check) == []


def test_overlap_with_a_client_that_knows_its_epoch_is_stale_is_allowed() -> None:
    for by in ("PULL", "SYNC", "LOCK"):
        builder = two(2.5).add(StaleReceived, 2.49, C1, by=by)
        assert builder.broken(check) == []
        assert [one.excuse for one in overlaps(builder.history())] == ["notified that its epoch is over"]
    assert two(2.5).add(StaleReceived, 2.51, C1, by="PULL").broken(check) == ["O3"]
    assert two(2.5).add(StaleReceived, 2.49, C1, by="PULL", epoch=epoch(9)).broken(check) == ["O3"]


@pytest.mark.parametrize(("t", "laws"), [(2.4, ["O3"]), (2.401, [])])
def test_call_that_starts_after_a_newer_epoch_was_granted_is_a_violation(t: float, laws: list[str]) -> None:
    """C1's call starts at 2.4, the broker responds to the LOCK of C2 at 2.4 or a moment later."""
    builder = HistoryBuilder().granted(1, 1).add(LockGranted, t, epoch=epoch(2), session="s2").call(2.4, None, 1, 0)
    assert builder.broken(check) == laws


@pytest.mark.parametrize(("boot_ms", "laws"), [(3497, []), (3498, ["O3"]), (3499, ["O3"])])
def test_call_that_starts_within_500_ms_of_the_end_of_the_lease_is_a_violation(boot_ms: int, laws: list[str]) -> None:
    assert HistoryBuilder().granted(1, 1).call(3.4, None, 1, 0, boot_ms=boot_ms).broken(check) == laws


def test_sync_response_extends_the_deadline_by_the_send_time_of_its_request() -> None:
    assert HistoryBuilder().granted(1, 1).proven(3).call(5.49, None, 1, 0).broken(check) == []
    assert HistoryBuilder().granted(1, 1).proven(3).call(5.50, None, 1, 0).broken(check) == ["O3"]


def test_new_connection_grants_no_lease_until_its_first_lock_response() -> None:
    assert HistoryBuilder().granted(1, 1).proven(3, connection=2).call(5, None, 1, 0).broken(check) == ["O3"]
    locked = HistoryBuilder().granted(1, 1).proven(3, connection=2).proven(3.1, connection=2, lock=True).call(5, None, 1, 0)
    assert locked.broken(check) == []


def test_call_without_a_grant_or_proof_is_a_violation() -> None:
    assert HistoryBuilder().call(2, None, 1, 0).broken(check) == ["O3"]


def test_two_concurrent_calls_of_a_queue_in_one_process_are_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.2, 1, 0).call(2.3, None, 1, 1).broken(check) == []
    assert HistoryBuilder().granted(1, 1).call(2, None, 1, 0).call(2.3, None, 1, 1).broken(check) == ["O3"]


def test_calls_of_two_processes_under_one_epoch_are_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, None, 1, 0).call(2.3, None, 1, 0, where=C2).broken(check) == ["O3"]


def test_release_with_an_offset_during_a_call_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.2, 1, 0).committed(2.3, 1, 1, released=True).broken(check) == []
    assert HistoryBuilder().granted(1, 1).call(2, None, 1, 0).committed(2.3, 1, 1, released=True).broken(check) == ["O3"]


def draining(sent_t: float, **consumer: int) -> HistoryBuilder:
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, drain_ms=2_000, **consumer).granted(1, 1).call(1.5, None, 1, 0)
    return builder.committed(sent_t + 0.002, 1, None, released=True)


@pytest.mark.parametrize(("sent_t", "laws"), [(3.499, ["O3"]), (3.500, []), (3.501, [])])
def test_release_during_a_call_is_allowed_only_past_the_drain_limit(sent_t: float, laws: list[str]) -> None:
    assert draining(sent_t).broken(check) == laws


@pytest.mark.parametrize(("sent_t", "laws"), [(1.999, ["O3"]), (2.000, [])])
@pytest.mark.parametrize("leaving", [ConsumerStopBegan, LeaveSent])
def test_stop_timeout_limits_the_drain_of_a_stop(sent_t: float, laws: list[str], leaving: type) -> None:
    assert draining(sent_t, stop_ms=500).add(leaving, 1.6, C1).broken(check) == laws


def test_overlap_with_a_call_released_past_its_drain_limit_is_allowed() -> None:
    builder = draining(3.6).proven(3.5).granted(3.7, 2, C2).call(3.8, None, 2, 0, where=C2)
    assert builder.broken(check) == []
    assert [one.excuse for one in overlaps(builder.history())] == ["released past its drain limit"]
    again = draining(3.6).proven(3.5).add(LockSent, 3.65, C1, items=((Q, epoch(1)),)).granted(3.7, 2, C2).call(3.8, None, 2, 0, where=C2)
    assert again.broken(check) == ["O3"]


@pytest.mark.parametrize(("t", "laws"), [(3.05, ["O3"]), (3.15, [])])
def test_overlap_with_a_call_past_the_stop_timeout_is_allowed(t: float, laws: list[str]) -> None:
    builder = (
        HistoryBuilder()
        .add(ConsumerStarted, 0.5, C1, stop_ms=1_000)
        .granted(1, 1)
        .call(1.5, None, 1, 0)
        .proven(2)
        .add(ConsumerStopBegan, 2.1, C1)
    )
    assert builder.granted(t - 0.01, 2, C2).call(t, None, 2, 0, where=C2).broken(check) == laws


def test_lock_of_a_queue_by_the_process_whose_old_call_runs_is_a_violation() -> None:
    wanted = ((Q, None),)
    assert HistoryBuilder().granted(1, 1).call(2, 2.2, 1, 0).add(LockSent, 2.3, C1, items=wanted).broken(check) == []
    assert HistoryBuilder().granted(1, 1).call(2, None, 1, 0).add(LockSent, 2.3, C1, items=wanted).broken(check) == ["O3"]
    assert HistoryBuilder().granted(1, 1).call(2, None, 1, 0).add(LockSent, 2.3, C2, items=wanted).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.5, []), (3.506, []), (3.51, ["O3"]), (9, ["O3"])])
def test_threaded_call_may_start_up_to_10_ms_after_it_was_scheduled(t: float, laws: list[str]) -> None:
    """Its deadline is 3.498."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1)
    assert builder.call(t, t, 1, 0).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(2.005, []), (2.05, ["O3"])])
def test_threaded_call_may_start_within_10_ms_of_another_members_grant(t: float, laws: list[str]) -> None:
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1).granted(2, 2, C2)
    assert builder.call(t, t, 1, 0).broken(check) == laws


def test_threaded_call_may_start_right_after_a_suspension() -> None:
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1).add(PauseBegan, 3.4, C1).add(PauseEnded, 9, C1)
    assert builder.call(9.005, 9.005, 1, 0).broken(check) == []
    assert builder.call(9.02, 9.02, 1, 0).broken(check) == ["O3"]


def test_text_of_an_overlap_names_queue_epochs_processes_and_times() -> None:
    (found,) = check(two(3.4).history())
    for fact in ("billing orders@broker-a:0", str(epoch(1)), str(epoch(2)), "C1#11", "C2#12", "2.000", "3498"):
        assert fact in str(found)
