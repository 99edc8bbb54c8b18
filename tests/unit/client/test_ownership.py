"""QueueOwnership: every transition, the items of LOCK and SYNC in each state, and which responses are accepted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client.consumer.grants.ownership import DEMAND_TRANSITIONS, TRANSITIONS, OwnershipEvent, OwnershipState, QueueOwnership
from lockstep.protocol.bodies import LockItem, LockResult, LockVerdict, SyncItem, SyncResult
from lockstep.protocol.topics.queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 2)
DRAIN_MS = 30_000


def wanted() -> QueueOwnership:
    own = QueueOwnership("billing", QUEUE)
    own.want()
    return own


def lock_result(epoch: int = 7, verdict: LockVerdict = LockVerdict.OK, offset: int = 100, attempts: int = 0) -> LockResult:
    return LockResult("billing", "orders", 2, verdict, epoch=epoch, offset=offset, attempts=attempts)


def lock(own: QueueOwnership, reply: LockResult) -> OwnershipEvent | None:
    item = own.lock_item()
    assert item is not None
    return own.handle_lock_response(own.lock_sent(item), reply)


def sync(own: QueueOwnership, verdict: LockVerdict = LockVerdict.OK) -> tuple[SyncItem, OwnershipEvent | None]:
    item = own.sync_item()
    assert item is not None
    return item, own.handle_sync_response(own.sync_sent(item), SyncResult(verdict, item.epoch))


def held(epoch: int = 7, offset: int = 100) -> QueueOwnership:
    own = wanted()
    assert lock(own, lock_result(epoch, offset=offset)) is OwnershipEvent.GRANTED
    return own


def running(epoch: int = 7) -> QueueOwnership:
    own = held(epoch)
    own.call_started()
    return own


def released() -> QueueOwnership:
    own = held()
    own.unwant(0, DRAIN_MS)
    item = own.sync_item()
    assert item is not None
    own.sync_sent(item)
    return own


def in_state(state: OwnershipState) -> QueueOwnership:
    match state:
        case OwnershipState.WANTED:
            return wanted()
        case OwnershipState.HELD:
            return held()
        case OwnershipState.DRAINING:
            own = running()
            own.unwant(0, DRAIN_MS)
            return own
        case OwnershipState.RELEASING:
            own = held()
            own.unwant(0, DRAIN_MS)
            return own
        case OwnershipState.RELEASED:
            return released()
        case OwnershipState.UNSURE:
            own = released()
            own.disconnected()
            return own
        case OwnershipState.GONE:
            return QueueOwnership("billing", QUEUE)


@pytest.mark.parametrize("state", list(OwnershipState))
@pytest.mark.parametrize("event", list(OwnershipEvent))
def test_each_state_and_event_pair_follows_the_transition_table(state: OwnershipState, event: OwnershipEvent) -> None:
    own = in_state(state)
    assert own.state is state
    after = TRANSITIONS.get((state, event), state)
    own._on(event)
    assert own.state is DEMAND_TRANSITIONS.get((after, own.wanted), after)


@pytest.mark.parametrize("state", [OwnershipState.DRAINING, OwnershipState.RELEASING])
def test_queue_wanted_again_before_its_release_is_sent_keeps_its_epoch(state: OwnershipState) -> None:
    own = in_state(state)
    own.want()
    assert (own.state, own.token, own.sync_item()) == (OwnershipState.HELD, 7, None)
    assert own.drain_at_ms is None


@pytest.mark.parametrize("state", [OwnershipState.RELEASED, OwnershipState.UNSURE])
def test_released_queue_is_acquired_again_only_after_the_response(state: OwnershipState) -> None:
    own = in_state(state)
    own.want()
    assert own.state is state
    assert not own.may_acquire
    own.handle_lock_response(own.lock_sent(LockItem("billing", "orders", 2, 7, 100)), lock_result(0, LockVerdict.STALE))
    assert own.state is OwnershipState.WANTED
    assert own.lock_item() == LockItem("billing", "orders", 2)


def test_renewal_after_a_lost_release_keeps_a_wanted_queue() -> None:
    own = in_state(OwnershipState.UNSURE)
    own.want()
    assert own.lock_item() == LockItem("billing", "orders", 2, 7, 100, 0)
    assert lock(own, lock_result(7)) is OwnershipEvent.RENEWED
    assert own.state is OwnershipState.HELD


def test_unwanted_queue_is_released_again_after_a_lost_release() -> None:
    own = in_state(OwnershipState.UNSURE)
    assert lock(own, lock_result(7)) is OwnershipEvent.RENEWED
    item, _ = sync(own)
    assert item.release
    assert own.state is OwnershipState.GONE
    assert own.done


def test_queue_with_a_release_in_flight_is_not_named_in_lock() -> None:
    assert released().lock_item() is None


def test_grant_of_an_unwanted_queue_is_released_immediately() -> None:
    own = wanted()
    item = own.lock_item()
    assert item is not None
    sent = own.lock_sent(item)
    own.unwant(0, DRAIN_MS)
    assert not own.done  # the response to its LOCK is pending
    own.handle_lock_response(sent, lock_result(9, offset=55, attempts=2))
    assert own.sync_item() == SyncItem("billing", "orders", 2, 9, None, 55, 2, release=True)


def unwanted_grant() -> QueueOwnership:
    """Return a queue that was granted after it was no longer wanted."""
    own = wanted()
    item = own.lock_item()
    assert item is not None
    sent = own.lock_sent(item)
    own.unwant(0, DRAIN_MS)
    assert own.handle_lock_response(sent, lock_result(9)) is OwnershipEvent.GRANTED
    return own


def released_then_granted(own: QueueOwnership) -> None:
    """Check that the grant is released, and that the queue is then acquired under a new one."""
    assert own.state is OwnershipState.RELEASING, "nothing consumes under a grant that was never held"
    item, event = sync(own)
    assert (item.release, event) == (True, OwnershipEvent.CONFIRMED)
    assert own.lock_item() == LockItem("billing", "orders", 2)
    assert lock(own, lock_result(10)) is OwnershipEvent.GRANTED
    assert (own.state, own.token) == (OwnershipState.HELD, 10)


def test_queue_wanted_again_before_the_release_of_a_grant_that_was_not_wanted_gets_a_new_one() -> None:
    own = unwanted_grant()
    own.want()
    released_then_granted(own)


def test_queue_wanted_again_after_a_lost_release_of_a_grant_that_was_not_wanted_gets_a_new_one() -> None:
    own = unwanted_grant()
    item = own.sync_item()
    assert item is not None
    own.sync_sent(item)
    own.disconnected()
    own.want()
    assert lock(own, lock_result(9)) is OwnershipEvent.RENEWED
    released_then_granted(own)


def test_queue_is_not_locked_again_while_its_old_call_runs() -> None:
    own = running()
    own.stale(7)
    assert own.state is OwnershipState.WANTED
    assert own.lock_item() is None
    assert not own.call_ended(7, 101, 0)
    assert own.lock_item() == LockItem("billing", "orders", 2)


def test_stale_response_for_an_epoch_no_longer_held_is_ignored() -> None:
    own = held(7)
    item = SyncItem("billing", "orders", 2, 7, None, 101)
    sent = own.sync_sent(item)
    own.stale(7)
    assert lock(own, lock_result(8)) is OwnershipEvent.GRANTED
    assert own.handle_sync_response(sent, SyncResult(LockVerdict.STALE, 7)) is None
    assert own.stale(7) is False
    assert (own.state, own.token) == (OwnershipState.HELD, 8)


def test_response_that_names_another_epoch_is_ignored() -> None:
    own = held(7)
    sent = own.sync_sent(SyncItem("billing", "orders", 2, 7, None, 101))
    assert own.handle_sync_response(sent, SyncResult(LockVerdict.STALE, 6)) is None
    assert own.state is OwnershipState.HELD


@pytest.mark.parametrize("verdict", [LockVerdict.STALE, LockVerdict.NOT_YOURS, LockVerdict.REFUSED])
def test_refused_renewal_drops_the_queue(verdict: LockVerdict) -> None:
    own = held()
    assert lock(own, lock_result(7, verdict)) is OwnershipEvent.STALE
    assert own.state is OwnershipState.WANTED


@pytest.mark.parametrize("verdict", [LockVerdict.NOT_YOURS, LockVerdict.HELD, LockVerdict.WAIT, LockVerdict.REFUSED])
def test_queue_remains_wanted_after_a_refused_lock(verdict: LockVerdict) -> None:
    own = wanted()
    assert lock(own, lock_result(0, verdict)) is None
    assert own.may_acquire


def test_results_are_named_by_lock_and_committed_by_sync_once() -> None:
    own = running()
    assert own.call_ended(7, 110, 0)
    assert own.lock_item() == LockItem("billing", "orders", 2, 7, 110, 0)
    item, _ = sync(own)
    assert item == SyncItem("billing", "orders", 2, 7, None, 110, 0)
    assert own.sync_item() is None
    assert own.committed_offset == 110


def test_failed_attempts_are_reported_even_if_the_offset_is_unchanged() -> None:
    own = running()
    own.call_ended(7, 100, 1)
    item, _ = sync(own)
    assert (item.offset, item.attempts) == (100, 1)


def test_unconfirmed_commit_is_repeated_after_a_disconnect() -> None:
    own = running()
    own.call_ended(7, 110, 0)
    item = own.sync_item()
    assert item is not None
    own.sync_sent(item)
    assert own.sync_item() is None
    own.disconnected()
    assert own.lock_item() == LockItem("billing", "orders", 2, 7, 110, 0)
    lock(own, lock_result(7))
    assert own.committed_offset == 110
    assert own.sync_item() is None


def test_older_response_does_not_revert_a_newer_one() -> None:
    own = running()
    own.call_ended(7, 105, 0)
    lock_item = own.lock_item()
    assert lock_item is not None
    locked = own.lock_sent(lock_item)
    own.call_started()
    own.call_ended(7, 110, 0)
    sync(own)
    own.handle_lock_response(locked, lock_result(7))
    assert own.committed_offset == 110
    assert own.sync_item() is None


def test_draining_queue_is_released_with_its_final_offset() -> None:
    own = running()
    own.unwant(1_000, DRAIN_MS)
    assert own.state is OwnershipState.DRAINING
    assert own.sync_item() is None
    assert own.lock_item() is not None  # named while it drains: LOCK frees every queue that it does not name
    own.call_ended(7, 101, 0)
    assert own.sync_item() == SyncItem("billing", "orders", 2, 7, None, 101, 0, release=True)


@pytest.mark.parametrize(("now_ms", "given_up"), [(30_999, False), (31_000, True), (31_001, True)])
def test_queue_is_released_without_an_offset_past_the_drain_limit(now_ms: int, given_up: bool) -> None:
    own = running()
    own.unwant(1_000, DRAIN_MS)
    assert own.tick(now_ms) is given_up
    if given_up:
        item, _ = sync(own)
        assert (item.release, item.offset) == (True, None)
        assert not own.call_ended(7, 101, 0)
        assert own.done


def test_result_past_the_drain_limit_counts_if_the_release_is_not_sent_yet() -> None:
    own = running()
    own.unwant(0, DRAIN_MS)
    own.tick(DRAIN_MS)
    assert own.call_ended(7, 101, 0)
    item = own.sync_item()
    assert item is not None
    assert item.offset == 101


def test_stop_shortens_a_drain_and_a_rebalance_never_lengthens_it() -> None:
    own = running()
    own.unwant(0, 30_000)
    own.unwant(1_000, 8_000)
    assert own.drain_at_ms == 9_000
    own.unwant(2_000, 30_000)
    assert own.drain_at_ms == 9_000


def test_cancelled_is_set_a_quarter_of_the_drain_but_at_most_5_s_before_its_end() -> None:
    own = running()
    own.unwant(0, 30_000)
    assert own.cancel_at_ms == 25_000
    own.unwant(0, 8_000)
    assert own.cancel_at_ms == 6_000


commands = st.sampled_from(
    [
        "want",
        "unwant",
        "lock",
        "lock_ok",
        "lock_stale",
        "lock_no",
        "sync",
        "sync_ok",
        "sync_stale",
        "start",
        "end",
        "limit",
        "cut",
        "pull_stale",
    ]
)


@settings(max_examples=400)
@given(st.lists(commands, max_size=80))
def test_ownership_invariants_hold_for_any_sequence_of_responses(steps: list[str]) -> None:
    """A call requires a held epoch. A lock is requested only if no call runs and no request is in flight."""
    own = QueueOwnership("billing", QUEUE)
    locks, syncs = [], []
    epoch, now = 10, 0
    for step in steps:
        now += 1_000
        match step:
            case "want":
                own.want()
            case "unwant":
                own.unwant(now, 5_000)
            case "lock" if not locks and (item := own.lock_item()) is not None:
                assert item.epoch == own.token or (item.epoch is None and not own.running and not own.holds)
                locks.append(own.lock_sent(item))
            case "lock_ok" if locks:
                sent = locks.pop()
                epoch += 1
                own.handle_lock_response(sent, lock_result(epoch if sent.token is None else sent.token, offset=own.offset))
            case "lock_stale" if locks:
                own.handle_lock_response(locks.pop(), lock_result(0, LockVerdict.STALE))
            case "lock_no" if locks:
                own.handle_lock_response(locks.pop(), lock_result(0, LockVerdict.HELD))
            case "sync" if not syncs and (sync_item := own.sync_item()) is not None:
                assert sync_item.epoch == own.token
                assert not (sync_item.release and own.running and sync_item.offset is not None)
                syncs.append(own.sync_sent(sync_item))
            case "sync_ok" if syncs:
                sent = syncs.pop()
                own.handle_sync_response(sent, SyncResult(LockVerdict.OK, sent.token))
            case "sync_stale" if syncs:
                sent = syncs.pop()
                own.handle_sync_response(sent, SyncResult(LockVerdict.STALE, sent.token))
            case "start" if own.state is OwnershipState.HELD and not own.running:
                own.call_started()
            case "end" if own.running:
                own.call_ended(own.token, own.offset + 1, 0)
            case "limit":
                now += 5_000
                own.tick(now)
            case "cut":
                own.disconnected()
                locks.clear()
                syncs.clear()
            case "pull_stale":
                own.stale(own.token)
            case _:
                pass
        assert own.state is not OwnershipState.HELD or own.wanted
        assert own.state is not OwnershipState.WANTED or own.wanted
        assert own.state is not OwnershipState.DRAINING or own.running
        assert not own.done or own.lock_item() is None


def test_error_of_a_call_is_sent_only_with_its_attempts() -> None:
    own = in_state(OwnershipState.HELD)
    own.call_started()
    own.error = "ValueError: no"
    own.call_ended(7, 100, 1)
    item, _ = sync(own)
    assert (item.attempts, item.error) == (1, "ValueError: no")
    own.call_started()
    own.call_ended(7, 101, 0)
    item, _ = sync(own)
    assert (item.attempts, item.error) == (0, None)
