"""A concurrent group's queue: QUERY grants it, SYNC commits under its generation, and it is never locked."""

from lockstep.client.consumer.grants.ownership import GrantPolicy, OwnershipEvent, OwnershipState, QueueOwnership
from lockstep.protocol.bodies import LockResult, LockVerdict, SyncItem, SyncResult
from lockstep.protocol.topics.queue import MessageQueue

QUEUE = MessageQueue("orders", "a", 2)
GENERATION = 77


def granted(offset: int = 5) -> QueueOwnership:
    own = QueueOwnership("g", QUEUE, GrantPolicy.SHARED)
    own.want()
    sent = own.grant_requested()
    response = LockResult("g", "orders", 2, LockVerdict.OK, offset=offset, generation=GENERATION)
    assert own.handle_lock_response(sent, response) is OwnershipEvent.GRANTED
    return own


def item(offset: int) -> SyncItem:
    return SyncItem("g", "orders", 2, None, GENERATION, offset)


def test_shared_queue_is_queried_once_and_never_locked() -> None:
    own = QueueOwnership("g", QUEUE, GrantPolicy.SHARED)
    assert not own.may_query
    own.want()
    assert own.may_query
    assert own.lock_item() is None
    own.grant_requested()
    assert not own.may_query, "a response is on its way"
    own.disconnected()
    assert own.may_query, "no more"
    own = granted()
    assert (own.state, own.may_query, own.lock_item()) == (OwnershipState.HELD, False, None)


def test_commits_carry_the_generation_and_unconfirmed_ones_are_repeated_after_a_disconnect() -> None:
    own = granted()
    assert own.sync_item() is None
    own.progressed(GENERATION, 9)
    sent = own.sync_item()
    assert sent == item(9)
    own.sync_sent(sent)
    assert own.sync_item() is None
    own.disconnected()
    assert own.sync_item() == item(9)
    again = own.sync_sent(item(9))
    assert own.handle_sync_response(again, SyncResult(LockVerdict.OK)) is OwnershipEvent.CONFIRMED
    assert (own.committed_offset, own.sync_item()) == (9, None)


def test_queue_wanted_again_before_the_release_of_a_grant_that_was_not_wanted_is_queried_again() -> None:
    own = QueueOwnership("g", QUEUE, GrantPolicy.SHARED)
    own.want()
    sent = own.grant_requested()
    own.unwant(0, 1_000)
    response = LockResult("g", "orders", 2, LockVerdict.OK, offset=5, generation=GENERATION)
    assert own.handle_lock_response(sent, response) is OwnershipEvent.GRANTED
    own.in_lock = False
    own.want()
    for lose in (True, False):
        assert own.state is OwnershipState.RELEASING, "nothing consumes under a grant that was never held"
        assert own.sync_item() == item(5)
        released = own.sync_sent(item(5))
        if lose:
            own.disconnected()
    assert own.handle_sync_response(released, SyncResult(LockVerdict.OK)) is OwnershipEvent.CONFIRMED
    assert own.may_query


def test_release_is_the_last_commit_and_is_repeated_after_a_disconnect() -> None:
    own = granted()
    own.progressed(GENERATION, 9)
    own.unwant(0, 1_000)
    assert own.state is OwnershipState.RELEASING
    own.sync_sent(item(9))
    assert own.state is OwnershipState.RELEASED
    own.disconnected()
    assert (own.state, own.sync_item()) == (OwnershipState.RELEASING, item(9))
    sent = own.sync_sent(item(9))
    assert own.handle_sync_response(sent, SyncResult(LockVerdict.OK)) is OwnershipEvent.CONFIRMED
    assert own.done


def test_finished_messages_are_committed_past_the_drain_limit() -> None:
    own = granted()
    own.call_started()
    own.progressed(GENERATION, 7)
    own.unwant(0, 1_000)
    assert own.state is OwnershipState.DRAINING
    assert own.tick(1_000)
    assert own.sync_item() == item(7)


def test_stale_generation_ends_the_grant_and_queries_it_again() -> None:
    own = granted()
    own.progressed(GENERATION, 9)
    sent = own.sync_sent(item(9))
    assert own.handle_sync_response(sent, SyncResult(LockVerdict.STALE)) is OwnershipEvent.STALE
    assert (own.state, own.may_query) == (OwnershipState.WANTED, True)


def test_shared_queue_is_not_queried_while_old_calls_run() -> None:
    own = granted()
    own.call_started()
    assert own.stale(GENERATION)
    assert (own.state, own.may_query) == (OwnershipState.WANTED, False)
    own.call_ended(GENERATION, 0, 0)
    assert own.may_query
