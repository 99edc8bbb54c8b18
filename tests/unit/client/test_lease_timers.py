"""Proof of life, LOCK and SYNC: when each is due, and which responses prove liveness."""

import pytest

from lockstep.client.consumer.grants.lease_timers import LockSchedule, ProofOfLife, SyncSchedule

GRACE_MS, SESSION_MS = 3_000, 20_000


def connected(now_ms: int = 10_000, connection: int = 1) -> ProofOfLife:
    proof = ProofOfLife()
    proof.connected(connection, now_ms, GRACE_MS, SESSION_MS)
    return proof


def test_liveness_is_proven_only_after_the_first_lock_response_of_a_connection() -> None:
    proof = connected()
    proof.responded(proof.sent(10_100, empty=True))
    assert proof.proven_ms is None
    assert proof.deadline_ms < 0
    proof.responded(proof.sent(10_200, lock=True))
    assert proof.proven_ms == 10_200
    assert proof.deadline_ms == 12_700


def test_previous_proof_remains_valid_until_the_first_lock_of_a_new_connection() -> None:
    proof = connected()
    proof.responded(proof.sent(10_000, lock=True))
    proof.disconnected()
    proof.connected(2, 11_000, GRACE_MS, SESSION_MS)
    proof.responded(proof.sent(11_100, empty=True))
    assert proof.proven_ms == 10_000
    proof.responded(proof.sent(11_200, lock=True))
    assert proof.proven_ms == 11_200


@pytest.mark.parametrize(("grace_ms", "deadline_ms"), [(10_000, 12_500), (3_000, 12_500), (1_000, 10_500)])
def test_longer_grace_of_a_restarted_broker_does_not_extend_the_previous_proof(grace_ms: int, deadline_ms: int) -> None:
    proof = connected()
    proof.responded(proof.sent(10_000, lock=True))
    proof.disconnected()
    proof.connected(2, 16_000, grace_ms, SESSION_MS)
    assert proof.deadline_ms == deadline_ms
    proof.responded(proof.sent(16_100, lock=True))
    assert proof.deadline_ms == 16_100 + grace_ms - 500


def test_response_on_an_older_connection_is_no_proof_of_liveness() -> None:
    proof = connected()
    late = proof.sent(10_500, lock=True)
    proof.disconnected()
    proof.connected(2, 11_000, GRACE_MS, SESSION_MS)
    proof.responded(late)
    assert proof.proven_ms is None
    assert not proof.is_locked


def test_proven_time_is_the_send_time_of_a_request_and_never_decreases() -> None:
    proof = connected()
    first, second = proof.sent(10_000, lock=True), proof.sent(10_900, empty=True)
    proof.responded(second)
    assert proof.proven_ms is None
    proof.responded(first)
    assert proof.proven_ms == 10_000
    slow = proof.sent(11_000)
    proof.responded(proof.sent(12_000, empty=True))
    proof.responded(slow)
    assert proof.proven_ms == 12_000


@pytest.mark.parametrize(("holding", "interval_ms"), [(True, 1_000), (False, 5_000)])
def test_empty_sync_is_due_every_third_of_the_grace_if_queues_are_held_and_every_5_s_otherwise(holding: bool, interval_ms: int) -> None:
    proof = connected()
    assert proof.due_ms(holding) == 10_000 + interval_ms
    proof.responded(proof.sent(10_400, lock=True))
    assert proof.due_ms(holding) == 10_400 + interval_ms
    proof.sent(10_800)  # waits for the disk: it proves nothing yet
    assert proof.due_ms(holding) == 10_400 + interval_ms
    proof.sent(11_000, empty=True)
    assert proof.due_ms(holding) == 11_000 + interval_ms


def test_empty_sync_interval_is_at_most_5_s() -> None:
    proof = ProofOfLife()
    proof.connected(1, 0, 60_000, SESSION_MS)
    assert proof.due_ms(True) == 5_000


@pytest.mark.parametrize(("session_timeout_ms", "interval_ms"), [(1_000, 250), (8_000, 2_000), (60_000, 5_000)])
def test_empty_sync_is_due_four_times_per_session_timeout(session_timeout_ms: int, interval_ms: int) -> None:
    proof = ProofOfLife()
    proof.connected(1, 0, 60_000, session_timeout_ms)
    assert (proof.due_ms(False), proof.due_ms(True)) == (interval_ms, interval_ms)


def test_connection_is_dead_after_one_empty_sync_without_response_for_the_grace() -> None:
    proof = connected()
    assert proof.silent_at_ms() is None
    first, second = proof.sent(10_000, empty=True), proof.sent(11_000, empty=True)
    assert proof.silent_at_ms() == 13_000
    proof.responded(first)
    assert proof.silent_at_ms() == 14_000
    proof.responded(second)
    assert proof.silent_at_ms() is None


def test_sync_with_items_or_lock_without_response_does_not_make_the_connection_dead() -> None:
    proof = connected()
    proof.sent(10_000)
    proof.sent(10_000, lock=True)
    assert proof.silent_at_ms() is None


def test_lock_is_due_immediately_on_connect_then_after_1_s_and_every_20_s() -> None:
    schedule = LockSchedule()
    schedule.connected(5_000)
    assert due(schedule, 5_000)
    schedule.sent(5_000)
    assert schedule.due_ms() is None
    schedule.responded()
    assert schedule.due_ms() == 6_000
    schedule.sent(6_000)
    schedule.responded()
    assert schedule.due_ms() == 26_000


def test_trigger_during_a_lock_sends_another_after_its_response() -> None:
    schedule = LockSchedule()
    schedule.connected(0)
    schedule.sent(0)
    schedule.trigger()
    assert schedule.due_ms() is None
    schedule.responded()
    assert schedule.due_ms() == 10
    schedule.sent(12)
    schedule.responded()
    assert schedule.due_ms() == 20_012


def test_disconnect_discards_the_lock_in_flight() -> None:
    schedule = LockSchedule()
    schedule.connected(0)
    schedule.sent(0)
    schedule.connected(700)
    assert due(schedule, 700)


def test_syncs_are_spaced_by_100_ms_with_one_in_flight() -> None:
    schedule = SyncSchedule()
    assert due(schedule, 0)
    schedule.sent(1_000)
    assert schedule.due_ms() is None
    schedule.responded()
    assert schedule.due_ms() == 1_100


def test_release_skips_the_sync_spacing_but_waits_for_the_response() -> None:
    schedule = SyncSchedule()
    schedule.sent(1_000)
    schedule.send_soon()
    assert schedule.due_ms() is None
    schedule.responded()
    assert due(schedule, 1_001)
    schedule.sent(1_001)
    schedule.responded()
    assert schedule.due_ms() == 1_101


def due(schedule: LockSchedule | SyncSchedule, now_ms: int) -> bool:
    at = schedule.due_ms()
    return at is not None and at <= now_ms
