"""The limits of members and subscriptions that a broker remembers, over all connections and for each connection."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.broker.groups.contract import contract_of
from lockstep.broker.groups.heartbeats import GROUPS_PER_CLIENT_MAX, Heartbeat
from lockstep.broker.groups.membership import MEMBERS_PER_CONNECTION_MAX, SUBSCRIPTION_BYTES_PER_CONNECTION_MAX
from lockstep.broker.groups.tables.group_table import GROUP_TOPIC_BYTES
from lockstep.broker.groups.tables.subscription_table import SubscriptionTable, estimated_bytes
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, Subscription
from lockstep.protocol.errors import NoPermissionError
from support.coordination_kit import CONFIG, Bench, ClassicClient, Client, ordered


def bench(**limits: int) -> Bench:
    return Bench(config=replace(CONFIG, **limits))


def subscribed(topics: int, first: int = 0, group: str = "g") -> ConsumerGroup:
    return ConsumerGroup(group, tuple(Subscription(f"t{first + number}", "a||b") for number in range(topics)))


@pytest.mark.parametrize("kind", [Client, ClassicClient])
def test_member_above_the_limit_is_rejected_by_name_and_known_members_continue(kind: Any) -> None:
    on = bench(members_max=3)
    members = [kind(on, f"c{number}", ordered("g1"), ordered("g2")) for number in range(2)]
    members[0].connect()
    with pytest.raises(NoPermissionError, match=r"has 3 members of groups, 3 are allowed \(--members-max\): c1 can't join group g2"):
        members[1].connect()
    assert on.c.state.groups.member_count == 3
    members[0].beat()
    members[0].close()
    on.advance(5_000)
    members[1].beat()
    assert (on.c.state.groups.member_count, on.c.membership.member_count("g2")) == (2, 1)


def test_members_of_the_log_count_for_the_limit_after_a_restart() -> None:
    on = bench(members_max=2)
    members = [Client(on, f"c{number}") for number in range(2)]
    for each in members:
        each.connect()
    on.restart()
    assert on.c.state.groups.member_count == 2
    with pytest.raises(NoPermissionError, match="2 are allowed"):
        Client(on, "c2").connect()


def test_classic_members_per_connection_are_limited() -> None:
    on = bench()
    connection = on.new_connection()
    for number in range(MEMBERS_PER_CONNECTION_MAX):
        on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody(f"c{number}", (ordered(),))), on.now_ms)
    with pytest.raises(NoPermissionError, match="this connection has 256 members of groups, 256 are allowed: one-more can't join"):
        on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody("one-more", (ordered(),))), on.now_ms)
    on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody("c0", (ordered(),))), on.now_ms)
    ClassicClient(on, "another").connect()
    assert on.c.state.groups.member_count == MEMBERS_PER_CONNECTION_MAX + 1 == GROUPS_PER_CLIENT_MAX + 1
    on.c.membership.connection_closed(connection, on.now_ms)
    assert on.c.state.groups.member_count == 1


@pytest.mark.parametrize("large", [False, True])
def test_members_are_not_moved_to_a_connection_at_its_limit(large: bool) -> None:
    on = bench()
    first, second = on.new_connection(), on.new_connection()
    group = subscribed(1_000 if large else 1)
    count = SUBSCRIPTION_BYTES_PER_CONNECTION_MAX // estimated_bytes(group.subscriptions) if large else MEMBERS_PER_CONNECTION_MAX
    for connection in (first, second):
        for number in range(count):
            on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody(f"c{connection}-{number}", (group,))), on.now_ms)
    for number in range(count):
        with pytest.raises(NoPermissionError, match="are allowed: "):
            on.c.membership.heartbeat(first, Heartbeat.from_body(HeartbeatBody(f"c{second}-{number}", (group,))), on.now_ms)
    on.c.membership.connection_closed(first, on.now_ms)
    assert on.c.state.groups.member_count == count
    on.c.membership.connection_closed(second, on.now_ms)
    assert on.c.state.groups.member_count == 0


def test_subscription_bytes_of_classic_members_per_connection_are_limited() -> None:
    on = bench()
    connection = on.new_connection()
    for number in range(SUBSCRIPTION_BYTES_PER_CONNECTION_MAX // estimated_bytes(subscribed(1_000).subscriptions)):
        on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody(f"c{number}", (subscribed(1_000),))), on.now_ms)
    with pytest.raises(NoPermissionError, match="the members of this connection have subscriptions of"):
        on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody("one-more", (subscribed(1_000),))), on.now_ms)
    on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody("c0", (subscribed(900),))), on.now_ms)
    on.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody("c0", (subscribed(1_000),))), on.now_ms)


@pytest.mark.parametrize("kind", [Client, ClassicClient])
def test_subscription_bytes_are_limited_and_equal_subscriptions_count_once(kind: Any) -> None:
    size = estimated_bytes(subscribed(10).subscriptions)
    on = bench(subscription_bytes_max=2 * size + 2 * 10 * GROUP_TOPIC_BYTES + 50)
    for number in range(20):
        kind(on, f"same-{number}", subscribed(10, group="g1")).connect()
    assert on.c.state.groups.subscription_bytes <= size + 10 * GROUP_TOPIC_BYTES + 20
    other = kind(on, "other", subscribed(10, 20, group="g2"))
    other.connect()
    third = kind(on, "third", subscribed(10, 40, group="g3"))
    with pytest.raises(
        NoPermissionError, match=r"bytes, \d+ are allowed \(--subscriptions-mib-max\): third can't subscribe with \d+ bytes more"
    ):
        third.connect()
    kind(on, "same-again", subscribed(10, group="g1")).connect()
    other.beat()
    other.close()
    on.advance(5_000)
    third.beat()


@pytest.mark.parametrize("kind", [Client, ClassicClient])
def test_each_group_counts_its_topics_even_for_shared_subscriptions(kind: Any) -> None:
    limit = estimated_bytes(contract_of(subscribed(100)).subscriptions) + 10 * 100 * GROUP_TOPIC_BYTES
    on = bench(subscription_bytes_max=limit)
    clients = [kind(on, f"c{number}", subscribed(100, group=f"g{number}")) for number in range(11)]
    for each in clients[:10]:
        each.connect()
    assert on.c.state.groups.subscription_bytes == limit
    with pytest.raises(NoPermissionError, match="c10 can't subscribe with 10000 bytes more in group g10"):
        clients[10].connect()
    clients[0].beat()
    clients[0].close()
    on.advance(5_000)
    clients[10].beat()
    assert on.c.state.groups.subscription_bytes == limit


def test_classic_subscriptions_are_stored_normalized_as_they_are_counted() -> None:
    on = bench()
    for number in range(2):
        subscription = Subscription("t", " " * 8_000 + "".join(["a ||", " b"]), sub_version=number)
        ClassicClient(on, f"c{number}", ConsumerGroup(f"g{number}", (subscription,))).connect()
    first, second = (on.c.membership.subscription(f"g{number}", "t") for number in range(2))
    assert first is not None
    assert second is not None
    assert (first.expression, first.sub_version, second.sub_version) == ("a || b", 0, 1)
    assert second.expression is first.expression
    assert on.c.state.groups.subscription_bytes == estimated_bytes((first,)) + 2 * GROUP_TOPIC_BYTES


def test_counts_are_zero_after_all_members_left() -> None:
    on = bench()
    members = [
        kind(on, f"{kind.__name__}-{number}", subscribed(3, number, f"g{number}")) for number in range(5) for kind in (ClassicClient,)
    ]
    members += [Client(on, f"n{number}", subscribed(3, number, f"n{number}")) for number in range(5)]  # type: ignore[misc]
    for each in members:
        each.connect()
        each.beat()
    assert on.c.state.groups.subscription_bytes > 0
    for each in members:
        each.close()
    on.advance(200_000)
    table = on.c.state.groups.subscriptions
    assert (on.c.state.groups.member_count, on.c.state.groups.subscription_bytes, len(table)) == (0, 0, 0)


def test_subscription_versions_of_topics_without_a_subscriber_are_forgotten() -> None:
    on = bench()
    member, stays = ClassicClient(on, "m"), ClassicClient(on, "stays", ConsumerGroup("g", (Subscription("kept", sub_version=7),)))
    stays.connect()
    member.groups = (subscribed(50),)
    member.connect()
    for first in range(0, 5_000, 50):
        member.groups = (subscribed(50, first),)
        member.beat()
    group = on.c.state.groups.get("g")
    assert group is not None
    assert len(group.sub_versions) <= 2 * 51
    assert group.sub_versions["kept"] == 7


def test_shared_subscription_is_kept_while_it_is_used() -> None:
    table = SubscriptionTable()
    one, same = ((Subscription("t", "a"),) for _ in range(2))
    first = table.acquire(one)
    assert table.additional_bytes(same) == 0
    assert table.acquire(same) is first
    table.release(same)
    assert table.bytes == estimated_bytes(one)
    table.release(one)
    assert (table.bytes, len(table)) == (0, 0)
