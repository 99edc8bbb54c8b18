"""RocketMQ's own rules: RebalanceLockManager's sequences, and every row of the table of ordering.md 12.3."""

from collections.abc import Callable

import pytest

from lockstep.protocol.bodies import LockBatchBody, LockVerdict, QueueRef
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, TopicNotExistError
from support.coordination_kit import CONFIG, GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered

LEASE = 60_000


def two_clients(bench: Bench) -> tuple[ClassicClient, ClassicClient]:
    a, b = ClassicClient(bench, "a"), ClassicClient(bench, "b")
    a.connect()
    b.connect()
    return a, b


# ------------------------------------------------------------------------------------------------------- RebalanceLockManager


def test_free_queue_is_granted_and_a_held_one_is_not() -> None:
    bench = Bench()
    a, b = two_clients(bench)
    assert a.lock(0, 1) == [0, 1]
    assert b.lock(0, 1, 2) == [2]


def test_repeated_lock_is_reentrant_and_keeps_the_epoch() -> None:
    bench = Bench()
    a, _ = two_clients(bench)
    a.lock(0)
    epoch = bench.epoch(0)
    assert a.lock(0) == [0]
    assert bench.epoch(0) == epoch


@pytest.mark.parametrize(("after", "taken"), [(LEASE - 1, []), (LEASE, []), (LEASE + 1, [0])])
def test_lock_not_renewed_for_60_s_can_be_taken_over(after: int, taken: list[int]) -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0)
    bench.now_ms += after
    assert b.lock(0) == taken
    assert a.lock(0) == ([0] if not taken else [])


@pytest.mark.parametrize(("after", "taken"), [(LEASE, []), (LEASE + 1, [0])])
def test_renewal_restarts_the_60_s_lease(after: int, taken: list[int]) -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0)
    bench.now_ms += LEASE
    assert a.lock(0) == [0]
    bench.now_ms += after
    assert b.lock(0) == taken


def test_client_with_an_expired_lease_reacquires_its_free_queue() -> None:
    bench = Bench()
    a, _ = two_clients(bench)
    a.lock(0)
    epoch = bench.epoch(0)
    bench.now_ms += LEASE + 1
    assert a.lock(0) == [0]
    assert bench.epoch(0) > epoch


def test_takeover_raises_the_epoch() -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0)
    epoch = bench.epoch(0)
    bench.now_ms += LEASE + 1
    b.lock(0)
    assert bench.epoch(0) > epoch


def test_unlock_frees_only_queues_that_the_caller_holds() -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0, 1)
    b.unlock(0)
    assert b.lock(0) == []
    a.unlock(0)
    a.unlock(0, 3)
    assert b.lock(0, 1) == [0]


def test_lock_survives_the_connection_and_the_membership_of_its_client() -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0)
    a.close()
    bench.advance(LEASE)
    assert b.lock(0) == []
    bench.advance(1)
    assert b.lock(0) == [0]


def test_classic_lock_does_not_require_membership() -> None:
    bench = Bench()
    assert ClassicClient(bench, "stranger").lock(0, group="unheard-of") == [0]


def test_queues_of_another_broker_or_without_layout_are_not_granted() -> None:
    bench = Bench()
    a, _ = two_clients(bench)
    assert a.lock(0, broker="broker-b") == []
    assert a.lock(4, -1) == []
    assert a.lock(0, topic="nowhere") == []


def test_restart_restarts_the_lease_of_every_classic_lock() -> None:
    bench = Bench()
    a, b = two_clients(bench)
    a.lock(0)
    bench.advance(LEASE - 10)
    bench.restart()
    bench.advance(LEASE)
    assert b.lock(0) == []
    bench.advance(1)
    assert b.lock(0) == [0]


def test_end_of_a_classic_lease_notifies_waiting_sessions() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")
    a.connect()
    a.lock(0)
    native = joined(bench, "n")
    assert native.verdicts(0) == {0: LockVerdict.HELD}
    for _ in range(6):
        bench.advance(10_000)
        native.beat()
    bench.c.state.pending.drain()
    bench.advance(1)
    assert bench.pushed() == {native.connection: [0]}
    assert native.verdicts(0) == {0: LockVerdict.OK}


def test_queue_is_never_held_by_a_session_and_a_classic_client_at_once() -> None:
    bench = Bench()
    native, a = Client(bench, "n"), ClassicClient(bench, "a")
    native.connect()
    a.connect()
    native.lock(0)
    assert a.lock(0, 1) == [1]
    assert native.verdicts(1) == {0: LockVerdict.OK, 1: LockVerdict.HELD}
    native.close()
    assert a.lock(0) == []
    bench.advance(GRACE)
    assert a.lock(0) == [0]


def test_lease_of_a_dropped_topic_frees_no_queue_of_a_session() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")
    a.connect()
    a.lock(0)
    a.close()
    live = bench.layouts.get(TOPIC)
    assert live is not None
    bench.layouts.adopt(type(live)(TOPIC, type(live.version)(2, 1), ()))
    bench.c.layout_changed(TOPIC)
    bench.layouts.adopt(type(live)(TOPIC, type(live.version)(3, 1), live.entries))
    bench.c.layout_changed(TOPIC)
    native = joined(bench, "n")
    assert native.verdicts(0) == {0: LockVerdict.OK}
    for _ in range(7):
        bench.advance(10_000)
        native.beat()
    assert bench.owner(0) == "n"


def test_invalid_names_are_rejected() -> None:
    bench = Bench()
    with pytest.raises(LocalProtocolError):
        bench.c.legacy.lock(LockBatchBody("a", "bad group!", (QueueRef(TOPIC, "broker-a", 0),)), bench.now_ms)
    with pytest.raises(LocalProtocolError):
        bench.c.legacy.lock(LockBatchBody("", GROUP, ()), bench.now_ms)


# -------------------------------------------------------------------------------------- the table: requests without an epoch

Setting = Callable[[Bench, ClassicClient], None]


def free_queue(bench: Bench, me: ClassicClient) -> None:
    """Return a bench on which queue 0 is free."""


def held_by_me(bench: Bench, me: ClassicClient) -> None:
    me.lock(0)


def held_by_another(bench: Bench, me: ClassicClient) -> None:
    other = ClassicClient(bench, "other")
    other.connect()
    other.lock(0)


def held_by_a_session(bench: Bench, me: ClassicClient) -> None:
    native = joined(bench, "native")
    assert native.verdicts(0) == {0: LockVerdict.OK}


def bench_and_client(made: Setting) -> tuple[Bench, ClassicClient]:
    bench = Bench()
    me = ClassicClient(bench, "me")
    me.connect()
    me.update(0, 50)
    made(bench, me)
    return bench, me


@pytest.mark.parametrize(
    ("made", "commits"), [(free_queue, True), (held_by_me, True), (held_by_another, False), (held_by_a_session, False)]
)
def test_pull_without_epoch_is_served_and_commits_unless_another_client_holds_the_queue(made: Setting, commits: bool) -> None:
    bench, me = bench_and_client(made)
    check = bench.c.pulls.admit(me.connection, (GROUP, TOPIC, 0), None)
    assert check is not None
    assert (check.stale, check.may_commit) == (False, commits)


@pytest.mark.parametrize("made", [free_queue, held_by_me])
@pytest.mark.parametrize("offset", [40, 50, 60])
def test_update_offset_of_an_unheld_queue_is_applied_and_a_lower_value_is_a_reset(made: Setting, offset: int) -> None:
    bench, me = bench_and_client(made)
    row = bench.c.status.read(GROUP, bench.now_ms, str)
    assert row is not None
    before = row.queues[0].generation
    me.update(0, offset)
    row = bench.c.status.read(GROUP, bench.now_ms, str)
    assert row is not None
    assert row.queues[0].committed_offset == offset
    assert (row.queues[0].generation > before) is (offset < 50)
    assert row.queues[0].owner == ("me" if made is held_by_me else None)


@pytest.mark.parametrize(("made", "holder"), [(held_by_another, "other"), (held_by_a_session, "native")])
@pytest.mark.parametrize("offset", [40, 60])
def test_update_offset_of_a_held_queue_is_rejected_with_its_holder_and_counted(made: Setting, holder: str, offset: int) -> None:
    bench, me = bench_and_client(made)
    with pytest.raises(NoPermissionError, match=f"held by {holder} of group {GROUP}"):
        me.update(0, offset)
    assert bench.progress(0) == (50, 0)
    assert bench.c.legacy.refused_update_count == 1


@pytest.mark.parametrize(
    ("made", "owner"), [(free_queue, None), (held_by_me, None), (held_by_another, "other"), (held_by_a_session, "native")]
)
def test_unlock_frees_only_queues_held_by_the_caller(made: Setting, owner: str | None) -> None:
    bench, me = bench_and_client(made)
    me.unlock(0)
    assert bench.owner(0) == owner


@pytest.mark.parametrize("made", [held_by_me, held_by_another])
def test_queue_of_a_classic_client_takes_commits_on_connections_without_a_heartbeat(made: Setting) -> None:
    """Java 4.3 commits at the port − 2, others over pools of connections, tools over connections of their own."""
    bench, me = bench_and_client(made)
    me.connection = bench.new_connection()
    me.update(0, 60)
    assert bench.progress(0) == (60, 0)
    check = bench.c.pulls.admit(me.connection, (GROUP, TOPIC, 0), None)
    assert check is not None
    assert check.may_commit


def test_queue_of_a_session_takes_no_commit_on_a_connection_without_a_heartbeat() -> None:
    bench, me = bench_and_client(held_by_a_session)
    me.connection = bench.new_connection()
    with pytest.raises(NoPermissionError, match="held by native"):
        me.update(0, 60)


def test_queue_of_a_classic_client_takes_no_commit_on_the_connection_of_a_session() -> None:
    bench, me = bench_and_client(held_by_me)
    session = joined(bench, "native")
    me.connection = session.connection
    with pytest.raises(NoPermissionError, match="held by me"):
        me.update(0, 60)


def test_client_commits_on_any_connection_on_which_it_has_sent_a_heartbeat() -> None:
    bench, me = bench_and_client(held_by_me)
    me.connect()
    me.update(0, 60)
    assert bench.progress(0) == (60, 0)


# --------------------------------------------------------------------------------------------------------------------- offsets


def test_reset_of_a_free_queue_invalidates_the_last_grant() -> None:
    bench = Bench()
    native = joined(bench, "n")
    native.lock(0)
    native.commit(0, 50, release=True)
    me = ClassicClient(bench, "me")
    me.connect()
    bench.c.state.pending.drain()
    me.update(0, 20)
    assert bench.stale() == [(GROUP, TOPIC, 0)], "a held pull of the old epoch gets a response"
    assert native.commit(0, 60) is LockVerdict.STALE
    assert bench.progress(0) == (20, 0)


def test_higher_offset_for_a_free_queue_keeps_the_last_grant_valid() -> None:
    bench = Bench()
    native = joined(bench, "n")
    native.lock(0)
    native.commit(0, 50, release=True)
    me = ClassicClient(bench, "me")
    me.connect()
    me.update(0, 55)
    assert native.commit(0, 60) is LockVerdict.OK
    assert bench.progress(0) == (60, 0)


TRUST = CONFIG.classic_trust_ms


@pytest.mark.parametrize("own", [False, True])
def test_classic_client_is_granted_no_queue_after_an_assumed_loss_while_an_earlier_holder_may_trust_its_lock(own: bool) -> None:
    """Another client's grant may be lost, and so may the release of this one's."""
    bench = Bench()
    holder = ClassicClient(bench, "holder")
    holder.connect()
    assert holder.lock(0) == [0]
    bench.restart(assumed_loss=True)
    asking = holder if own else ClassicClient(bench, "other")
    asking.connect()
    bench.advance(TRUST - 1)
    assert asking.lock(0, 1) == []
    bench.restart()
    asking.connect()
    bench.advance(TRUST - 1)
    assert asking.lock(0, 1) == [], "a start within that time begins it again"
    bench.advance(1)
    assert asking.lock(0, 1) == ([0, 1] if own else [1]), "a recorded lock has its lease"
    bench.restart()
    asking.connect()
    assert asking.lock(1, 2) == [1, 2], "a start that assumes no loss does not delay grants"


def test_session_is_granted_no_queue_of_a_group_with_classic_members_while_one_may_trust_a_lost_lock() -> None:
    bench = Bench()
    a, native = ClassicClient(bench, "classic"), Client(bench, "native")
    a.connect()
    native.connect()
    other = joined(bench, "other", ordered("mail"))
    bench.restart(assumed_loss=True)
    a.connect()
    native.connect()
    other.connect()
    bench.advance(CONFIG.disconnect_grace_ms)
    assert bench.pushed() == {other.connection: [0, 1, 2, 3]}
    status = bench.c.status.read("mail", bench.now_ms, str)
    assert status is not None
    assert status.suspended_ms is None
    for ms in (TIMEOUT, TRUST - CONFIG.disconnect_grace_ms - TIMEOUT - 1):
        native.beat()
        bench.advance(ms - 1)
        native.beat()
        bench.advance(1)
    assert native.verdicts(0) == {0: LockVerdict.WAIT}
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    assert status.suspended_ms == 1
    assert bench.notified() == {}
    bench.advance(1)
    assert bench.notified() == {GROUP: (a.connection,)}
    assert native.verdicts(0) == {0: LockVerdict.OK}


def test_query_offset_returns_the_commit_or_0_for_a_young_queue_or_not_found() -> None:
    bench = Bench()
    me = ClassicClient(bench, "me")
    me.connect()
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 0), young=True) == 0
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 0), young=False) is None
    me.update(0, 7)
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 0), young=True) == 7
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 0), young=False) == 7


def test_query_offset_of_a_queue_added_after_the_group_started_is_0() -> None:
    bench = Bench(layout(queues=1))
    native = joined(bench, "n")
    native.lock(0)
    bench.layouts.adopt(layout(queues=2, counter=2))
    bench.c.layout_changed(TOPIC)
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 1), young=False) == 0


@pytest.mark.parametrize(
    ("queue_id", "offset", "error"), [(4, 1, TopicNotExistError), (0, -1, LocalProtocolError), (0, 1_001, LocalProtocolError)]
)
def test_update_offset_of_an_unknown_queue_or_offset_is_rejected(queue_id: int, offset: int, error: type[Exception]) -> None:
    bench = Bench()
    me = ClassicClient(bench, "me")
    me.connect()
    before = bench.c.snapshot()
    with pytest.raises(error):
        me.update(queue_id, offset)
    assert bench.c.snapshot() == before


# -------------------------------------------------------------------------------------------------------- together with sessions


def test_classic_member_switches_the_group_to_its_allocation_until_it_leaves() -> None:
    bench = Bench()
    native, other, me = Client(bench, "a"), Client(bench, "b"), ClassicClient(bench, "z")
    native.connect()
    other.connect()
    me.connect()
    members = bench.c.membership.member_list(GROUP)
    assert members is not None
    assert members.classic
    assert native.verdicts(1) == {1: LockVerdict.OK}
    me.close()
    assert other.verdicts(1) == {1: LockVerdict.HELD}
    assert native.verdicts(3) == {1: LockVerdict.OK, 3: LockVerdict.NOT_YOURS}


def test_classic_heartbeat_is_never_rejected_for_its_subscription() -> None:
    bench = Bench()
    Client(bench, "n", ordered(expression="paid")).connect()
    me = ClassicClient(bench, "me", ordered(expression="created"))
    me.connect()
    assert bench.lists() == ("me", "n")
    found = bench.c.membership.subscription(GROUP, TOPIC)
    assert found is not None
    assert found.expression == "paid"
