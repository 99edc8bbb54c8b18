"""LOCK: grants, renewals, the epochs that are accepted, and notifications of free queues."""

import pytest

from lockstep.protocol.bodies import LockItem, LockVerdict, MessageModel
from lockstep.protocol.errors import LocalProtocolError
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered

OK, STALE, NOT_YOURS, HELD, REFUSED, WAIT = LockVerdict


def pair(bench: Bench) -> tuple[Client, Client]:
    """Return members a (queues 0, 2) and b (queues 1, 3), both connected."""
    a, b = joined(bench, "a"), joined(bench, "b")
    bench.c.state.pending.drain()
    return a, b


# ------------------------------------------------------------------------------------------------------------------- granting


def test_grant_has_all_fields_of_the_first_pull() -> None:
    bench = Bench(layout(counter=3))
    bench.ends.queues[TOPIC, 1] = (40, 90)
    a = joined(bench, "a")
    response = a.lock(1)[1]
    assert (response.verdict, response.offset, response.attempts, response.since) == (OK, 40, 0, 3)
    assert response.epoch == bench.epoch(1)
    assert response.epoch >> 32 == bench.c.state.term
    assert response.generation > 0


def test_every_acquire_raises_the_epoch_and_renewals_keep_it() -> None:
    bench = Bench()
    a = joined(bench, "a")
    first = a.lock(0)[0].epoch
    assert a.lock()[0].epoch == first
    again = a.lock(0, held={})[0].epoch
    assert again > first
    assert a.pull(0, first) is False
    assert a.pull(0, again) is True


def test_members_share_the_queues_by_queue_index() -> None:
    bench = Bench()
    a, b = pair(bench)
    assert a.verdicts(0, 1, 2, 3) == {0: OK, 1: NOT_YOURS, 2: OK, 3: NOT_YOURS}
    assert b.verdicts(0, 1, 2, 3) == {0: NOT_YOURS, 1: OK, 2: NOT_YOURS, 3: OK}


def test_lock_response_has_the_version_of_every_list() -> None:
    bench = Bench()
    a = Client(bench, "a", ordered(), ordered("other"))
    view = a.connect()
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0))
    assert view is not None
    assert reply is not None
    assert reply.versions == {name: group.list.version for name, group in view.groups.items()}
    assert (reply.disconnect_grace_ms, reply.session_timeout_ms) == (GRACE, TIMEOUT)


def test_responses_are_in_the_order_of_the_items() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(2)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 3), LockItem(GROUP, TOPIC, 2, a.held[2]), LockItem(GROUP, TOPIC, 1))
    assert reply is not None
    assert [item.queue_id for item in reply.items] == [3, 2, 1]


@pytest.mark.parametrize(
    ("item", "word"),
    [
        (LockItem(GROUP, TOPIC, 4), "no readable queue 4"),
        (LockItem(GROUP, TOPIC, -1), "no readable queue -1"),
        (LockItem(GROUP, "other", 0), "does not subscribe"),
        (LockItem("concurrent", TOPIC, 0), "not an ordered group"),
        (LockItem("broadcast", TOPIC, 0), "not an ordered group"),
    ],
)
def test_queue_that_cannot_be_locked_is_rejected_with_the_reason(item: LockItem, word: str) -> None:
    bench = Bench()
    a = joined(bench, "a", ordered(), ordered("concurrent", ordered=False), ordered("broadcast", message_model=MessageModel.BROADCASTING))
    reply = a.send_lock(item)
    assert reply is not None
    assert reply.items[0].verdict is REFUSED
    assert word in (reply.items[0].remark or "")


def test_lock_with_a_queue_twice_is_rejected_as_a_whole() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    before = bench.c.snapshot()
    with pytest.raises(LocalProtocolError):
        a.send_lock(LockItem(GROUP, TOPIC, 0, a.held[0]), LockItem(GROUP, TOPIC, 0))
    assert bench.c.snapshot() == before


# ------------------------------------------------------------------------------------------------------------- lock_sync


def test_queue_missing_in_a_lock_is_freed_and_offered_to_its_owner() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1)
    b = joined(bench, "b")
    bench.c.state.pending.drain()
    assert a.verdicts(held={0: a.held[0]}) == {0: OK}
    assert bench.owner(1) is None
    assert bench.pushed() == {b.connection: [1]}


def test_grant_whose_response_was_lost_is_acquired_again() -> None:
    bench = Bench()
    a = joined(bench, "a")
    lost = a.lock(0)[0].epoch
    a.held = {}
    a.connect()
    response = a.lock(0)[0]
    assert response.verdict is OK
    assert response.epoch > lost


def test_lost_grant_is_freed_if_the_list_gives_its_queue_to_another_member() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(1)
    b = joined(bench, "b")
    bench.c.state.pending.drain()
    assert a.verdicts(1, held={}) == {1: NOT_YOURS}
    assert bench.owner(1) is None
    assert bench.pushed() == {b.connection: [1]}
    assert b.verdicts(1) == {1: OK}


def test_item_with_a_stale_epoch_does_not_renew() -> None:
    bench = Bench()
    a = joined(bench, "a")
    old = a.lock(0)[0].epoch
    a.lock(0, held={})
    assert a.verdicts(held={0: old}) == {0: STALE}
    assert bench.owner(0) is None


def test_draining_queue_is_renewed_although_the_list_gives_it_to_another_member() -> None:
    bench = Bench()
    a = joined(bench, "a")
    epoch = a.lock(1)[1].epoch
    b = joined(bench, "b")
    assert a.verdicts() == {1: OK}
    assert bench.epoch(1) == epoch
    assert b.verdicts(1) == {1: HELD}


def test_wait_means_that_the_holder_is_disconnected_in_its_grace() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(1)
    b = joined(bench, "b")
    a.close()
    assert b.verdicts(1) == {1: WAIT}


def test_offset_in_a_lock_is_committed_with_and_without_renewal() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1)
    reply = a.send_lock(
        LockItem(GROUP, TOPIC, 0, a.held[0], offset=9, attempts=2), LockItem(GROUP, TOPIC, 1, a.held[1], offset=1_001, attempts=0)
    )
    assert reply is not None
    assert [(item.verdict, item.offset, item.attempts) for item in reply.items] == [(OK, 9, 2), (REFUSED, 0, 0)]
    assert "ends at 1000" in (reply.items[1].remark or "")
    assert bench.owner(1) == "a"
    assert bench.progress(0) == (9, 2)


def test_freed_epoch_is_valid_for_commit_release_pull_and_renewal_until_superseded() -> None:
    bench = Bench()
    a = joined(bench, "a")
    epoch = a.lock(0)[0].epoch
    assert a.commit(0, 3, release=True) is OK
    assert bench.owner(0) is None
    assert a.pull(0, epoch) is True
    assert a.commit(0, 4) is OK
    assert a.commit(0, 4, release=True) is OK
    assert a.verdicts(held={0: epoch}) == {0: OK}
    assert bench.owner(0) == "a"
    assert bench.epoch(0) == epoch
    assert bench.progress(0) == (4, 0)


def test_freed_epoch_of_a_moved_queue_is_not_renewed_but_its_offset_is_committed() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(1)
    b = joined(bench, "b")
    a.commit(1, None, release=True)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 1, a.held[1], offset=8))
    assert reply is not None
    assert reply.items[0].verdict is NOT_YOURS
    assert bench.owner(1) is None
    assert b.lock(1)[1].offset == 8


def test_epoch_is_valid_only_for_the_session_it_was_granted_to() -> None:
    bench = Bench()
    a, b = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert b.commit(0, 5, epoch=epoch) is STALE
    assert b.pull(0, epoch) is False
    assert b.verdicts(held={0: epoch}) == {0: STALE}
    assert bench.owner(0) == "a"
    assert bench.progress(0) == (0, 0)


def test_rising_epoch_ends_held_pulls() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    bench.c.state.pending.drain()
    a.lock()
    assert bench.stale() == []
    a.lock(0, held={})
    assert bench.stale() == [(GROUP, TOPIC, 0)]


# ------------------------------------------------------------------------------------------------------------------ QUEUE_FREE


def test_released_queue_is_pushed_to_its_owner_by_the_member_list() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1, 2, 3)
    b = joined(bench, "b")
    bench.c.state.pending.drain()
    a.commit(1, 5, release=True)
    assert bench.pushed() == {b.connection: [1]}


def test_free_queue_is_pushed_when_the_list_changes() -> None:
    bench = Bench()
    a, b = pair(bench)
    a.lock(0)
    c = joined(bench, "c")
    assert bench.pushed() == {a.connection: [3], b.connection: [1], c.connection: [2]}


def test_queue_granted_again_before_effects_are_drained_is_pushed_to_no_member() -> None:
    bench = Bench()
    a, b = pair(bench)
    a.lock(0)
    bench.c.state.pending.drain()
    a.lock(0, held={})
    assert bench.pushed() == {}
    assert b.connection


@pytest.mark.parametrize("how", ["strategy", "classic"])
def test_rocketmqs_allocation_notifies_every_member_and_never_returns_not_yours(how: str) -> None:
    bench = Bench()
    group = ordered(allocate="average") if how == "strategy" else ordered()
    a, b = joined(bench, "a", group), joined(bench, "b", group)
    if how == "classic":
        ClassicClient(bench, "z").connect()
    assert a.verdicts(0, 1) == {0: OK, 1: OK}
    assert b.verdicts(1) == {1: HELD}
    bench.c.state.pending.drain()
    a.commit(1, None, release=True)
    assert bench.pushed() == {a.connection: [1], b.connection: [1]}
    a.commit(0, None, release=True)
    assert bench.notified() == ({GROUP: (3,)} if how == "classic" else {})


def test_no_member_is_notified_of_a_concurrent_groups_queues() -> None:
    bench = Bench()
    joined(bench, "a", ordered(ordered=False))
    assert bench.pushed() == {}
