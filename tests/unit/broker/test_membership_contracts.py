"""The settings on which a group's members must agree: rejections with their reason, and how long an agreement lasts."""

from dataclasses import replace

import pytest

from lockstep.protocol.bodies import ConsumeFromWhere, LockVerdict
from lockstep.protocol.errors import SubscriptionConflictError
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, Client, joined, ordered


def conflict_of(client: Client) -> SubscriptionConflictError:
    with pytest.raises(SubscriptionConflictError) as caught:
        client.connect() if client.connection == 0 else client.beat()
    return caught.value


def test_differing_contract_is_rejected_with_both_values_of_each_field() -> None:
    bench = Bench()
    Client(bench, "a", ordered(expression="paid")).connect()
    b = Client(bench, "b", ordered(expression="created", ordered=False, consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    text = conflict_of(b).remark
    assert "subscription of orders: 'paid' here, 'created' asked for" in text
    assert "ordered: True here, False asked for" in text
    assert "consume_from_where: CONSUME_FROM_FIRST_OFFSET here, CONSUME_FROM_LAST_OFFSET asked for" in text
    assert "Members: a" in text
    assert "allocate" not in text
    assert bench.lists() == ("a",)


def test_rejected_group_leaves_other_groups_joined_and_the_session_bound() -> None:
    bench = Bench()
    Client(bench, "a").connect()
    b = Client(bench, "b", ordered(expression="x"), ordered("other"))
    conflict_of(b)
    assert bench.lists("other") == ("b",)
    assert b.send_sync() == ()


def test_order_of_topics_and_tags_and_the_version_are_not_differences() -> None:
    bench = Bench()
    one = ordered(topics=("a", "b"), expression="x||y")
    two = replace(one, subscriptions=tuple(replace(s, expression=" y || x ", sub_version=9) for s in reversed(one.subscriptions)))
    Client(bench, "a", one).connect()
    Client(bench, "b", two).connect()
    assert bench.lists() == ("a", "b")


def test_conflict_with_members_in_their_grace_is_temporary() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    assert not conflict_of(b).temporary
    a.close()
    assert conflict_of(b).temporary
    bench.advance(GRACE)
    assert b.beat() is not None
    assert bench.lists() == ("b",)


def test_member_with_another_contract_joins_after_the_last_one_left() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.leave()
    assert b.connect() is not None


def test_contract_holds_while_a_former_member_drains_and_its_commit_counts() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.lock(0)
    a.leave()
    assert conflict_of(b).temporary
    assert a.commit(0, 7, release=True) is LockVerdict.OK
    assert b.beat() is not None


def test_dropped_contract_ends_its_grants() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    epoch = bench.epoch(0)
    a.close()
    bench.c.state.pending.drain()
    bench.advance(GRACE)
    assert bench.epoch(0) > epoch
    assert (GROUP, TOPIC, 0) in bench.stale()
    a.connect()
    assert a.commit(0, 3) is LockVerdict.STALE


def test_freed_epoch_stays_valid_while_another_member_keeps_the_contract() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    a.lock(0)
    b.connect()
    a.close()
    for _ in range(5):
        bench.advance(1_000)
        b.send_sync()
    assert bench.owner(0) is None
    a.connect()
    assert a.commit(0, 3) is LockVerdict.OK


def test_only_member_may_change_the_contract_and_its_grants_end() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.groups = (ordered(expression="x"),)
    bench.c.state.pending.drain()
    assert a.beat() is not None
    assert bench.pushed() == {a.connection: [0]}, "its queues are free under the new contract"
    assert a.commit(0, 1) is LockVerdict.STALE
    subscription = bench.c.membership.subscription(GROUP, TOPIC)
    assert subscription is not None
    assert subscription.expression == "x"


def test_recorded_contract_holds_for_the_session_timeout_after_a_start() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    bench.restart()
    bench.advance(TIMEOUT - 1)
    assert bench.lists() == ()
    assert conflict_of(b).temporary
    bench.advance(1)
    assert b.beat() is not None


def test_contract_created_after_the_start_is_dropped_with_its_last_member() -> None:
    bench = Bench()
    bench.restart()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.leave()
    assert b.connect() is not None


def test_subscription_has_the_version_of_the_heartbeat() -> None:
    bench = Bench()
    group = ordered()
    Client(bench, "a", replace(group, subscriptions=tuple(replace(s, sub_version=4) for s in group.subscriptions))).connect()
    found = bench.c.membership.subscription(GROUP, TOPIC)
    assert found is not None
    assert found.sub_version == 4
    assert bench.c.membership.subscription(GROUP, "other") is None
    assert bench.c.membership.subscription("other", TOPIC) is None
    assert bench.c.membership.member_list(GROUP) is not None
    assert bench.c.membership.member_list("other") is None
