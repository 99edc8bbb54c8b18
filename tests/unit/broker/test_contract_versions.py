"""Contracts of several versions in one group: which members may run together, and which queues they share (ordering.md 11.5)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.contract import CONTRACTS_MAX, contract_of, includes, mixing_refusal
from lockstep.broker.groups.tables.group import Group
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    GroupSettings,
    HeartbeatReply,
    LockItem,
    LockVerdict,
    MessageModel,
    Subscription,
    SubscriptionPolicy,
    SyncItem,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.errors import LocalProtocolError, SubscriptionConflictError
from lockstep.protocol.names import retry_topic
from lockstep.protocol.topics.allocate import MANUAL
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered
from support.effort import usually

RETRY = retry_topic(GROUP)


def declared(version: int, topics: dict[str, str] | None = None, **changes: object) -> ConsumerGroup:
    """Return an ordered group's contract of this version: topic → expression."""
    subscriptions = tuple(Subscription(topic, expression) for topic, expression in (topics or {TOPIC: "*"}).items())
    return ordered(subscriptions=subscriptions, contract_version=version, **changes)


def concurrent(version: int, topics: dict[str, str]) -> ConsumerGroup:
    return declared(version, {**topics, RETRY: "*"}, ordered=False)


def running(bench: Bench, name: str, contract: ConsumerGroup) -> Client:
    client = Client(bench, name, contract)
    assert client.connect() is not None
    return client


def refusal(bench: Bench, contract: ConsumerGroup) -> str:
    return conflict(bench, "newcomer", contract, temporary=False)


def conflict(bench: Bench, name: str, contract: ConsumerGroup, *, temporary: bool) -> str:
    with pytest.raises(SubscriptionConflictError) as caught:
        Client(bench, name, contract).connect()
    assert caught.value.temporary is temporary
    return caught.value.remark.removesuffix(SubscriptionConflictError.TEMPORARY)


def in_force(bench: Bench) -> list[int]:
    group = bench.c.state.groups.get(GROUP)
    return [] if group is None else list(group.contracts)


def shared(bench: Bench, *topics: str) -> list[tuple[str, ...]]:
    members = bench.c.membership.member_list(GROUP)
    assert members is not None
    return [members.members_of(topic) for topic in topics]


CHANGES = {
    "wider tags": ({TOPIC: "a"}, {TOPIC: "a || b"}),
    "every tag": ({TOPIC: "a"}, {TOPIC: "*"}),
    "narrower tags": ({TOPIC: "a || b"}, {TOPIC: "b"}),
    "another topic": ({TOPIC: "*"}, {TOPIC: "*", "refunds": "*"}),
    "fewer topics": ({TOPIC: "*", "refunds": "*"}, {TOPIC: "*"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_higher_version_joins_beside_the_old_one_which_ends_with_its_last_member(change: str) -> None:
    old, new = CHANGES[change]
    bench = Bench()
    a = running(bench, "a", declared(0, old))
    running(bench, "b", declared(1, new))
    running(bench, "c", declared(1, new))
    running(bench, "d", declared(0, old))
    assert bench.lists() == ("a", "b", "c", "d")
    assert in_force(bench) == [0, 1]
    a.leave()
    assert in_force(bench) == [0, 1]
    bench.restart()
    assert in_force(bench) == [0, 1]
    bench.advance(TIMEOUT)
    assert in_force(bench) == [], "nobody has come back"


@pytest.mark.parametrize(
    "changed",
    [
        {"retry": "3 attempts, then dlq"},
        {"consume_from_where": ConsumeFromWhere.LAST_OFFSET},
        {"consume_from_where": ConsumeFromWhere.TIMESTAMP, "consume_timestamp_ms": 5},
    ],
)
def test_settings_that_each_member_applies_alone_may_differ(changed: dict[str, object]) -> None:
    bench = Bench()
    running(bench, "a", declared(3))
    running(bench, "b", declared(4, **changed))
    assert bench.lists() == ("a", "b")
    assert shared(bench, TOPIC) == [("a", "b")]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ordered": False}, "ordered: True here, False asked for"),
        ({"message_model": MessageModel.BROADCASTING}, "message_model: CLUSTERING here, BROADCASTING asked for"),
        ({"order_by": "sharding_key"}, "order_by: queue here, sharding_key asked for"),
        ({"allocate": "AVG"}, "allocate: by_broker here, AVG asked for"),
    ],
)
def test_what_owners_must_agree_on_is_refused_whatever_the_version(changed: dict[str, object], named: str) -> None:
    bench = Bench()
    running(bench, "a", declared(0))
    remark = refusal(bench, declared(1, **changed))
    assert f"members that differ in this can't run together: {named}" in remark
    assert in_force(bench) == [0]


def test_subscriptions_that_become_wider_and_narrower_at_once_are_refused() -> None:
    bench = Bench()
    running(bench, "a", declared(0, {TOPIC: "a || b"}))
    remark = refusal(bench, declared(1, {TOPIC: "b || c"}))
    assert "may become wider or narrower while members run, not both in one change" in remark
    assert "subscription of orders: 'a || b' here, 'b || c' asked for" in remark


def test_three_versions_run_together_if_each_two_of_them_can() -> None:
    bench = Bench()
    running(bench, "a", declared(0, {TOPIC: "a"}))
    running(bench, "b", declared(1, {TOPIC: "a || b"}))
    assert "not both in one change" in refusal(bench, declared(2, {TOPIC: "b || c"})), "it lacks tag a of version 0"
    running(bench, "c", declared(2, {TOPIC: "a || b || c"}))
    assert in_force(bench) == [0, 1, 2]


def test_same_version_with_another_content_is_told_the_next_version() -> None:
    bench = Bench()
    running(bench, "a", declared(0, {TOPIC: "a"}))
    running(bench, "b", declared(4, {TOPIC: "a || b"}))
    remark = refusal(bench, declared(4, {TOPIC: "*"}))
    assert "subscription of orders: 'a || b' here, '*' asked for" in remark
    assert remark.endswith("announce the change: contract_version=5")


def test_member_without_a_version_joins_a_contract_of_the_same_content() -> None:
    bench = Bench()
    running(bench, "a", declared(7, {TOPIC: "a"}))
    running(bench, "b", declared(0, {TOPIC: "a"}))
    assert in_force(bench) == [7]
    assert "announce a change by contract_version=8" in conflict(bench, "c", declared(0, {TOPIC: "*"}), temporary=True)


def test_older_version_is_refused_until_an_operator_allows_it_once() -> None:
    bench = Bench()
    running(bench, "a", declared(2, {TOPIC: "a"}))
    remark = conflict(bench, "newcomer", declared(1), temporary=True)
    assert remark.endswith("or go back to it: lockstep group update billing --next-contract-version 1")
    bench.c.admin.set_settings(GroupSettings(GROUP, next_contract_version=1))
    running(bench, "b", declared(1))
    assert in_force(bench) == [2, 1]
    assert bench.c.state.settings.get(GROUP) is None, "the permission is used, and nothing else was configured"
    running(bench, "c", declared(1))
    running(bench, "d", declared(2, {TOPIC: "a"}))
    bench.restart()
    assert in_force(bench) == [2, 1]


def test_only_member_changes_its_contract_whatever_the_version() -> None:
    bench = Bench()
    a = running(bench, "a", declared(5))
    a.lock(0)
    a.groups = (declared(1, {TOPIC: "x"}),)
    assert a.beat() is not None
    assert in_force(bench) == [1]
    assert a.commit(0, 1) is LockVerdict.STALE


def test_each_member_pulls_and_locks_by_its_own_contract() -> None:
    bench = Bench(layout(), layout("refunds"))
    a = running(bench, "a", declared(0, {TOPIC: "a"}))
    b = running(bench, "b", declared(1, {TOPIC: "a || b", "refunds": "*"}))
    subscription = bench.c.membership.subscription
    assert [found.expression for each in (a, b) if (found := subscription(GROUP, TOPIC, each.connection))] == ["a", "a || b"]
    assert [found.expression for found in [subscription(GROUP, TOPIC)] if found] == ["a || b"], "that of the newest version"
    assert subscription(GROUP, "refunds", a.connection) is None
    owned = {"a": 0, "b": 0}
    for client in (a, b):
        reply = client.send_lock(*[LockItem(GROUP, "refunds", queue_id) for queue_id in range(4)])
        assert reply is not None
        owned[client.name] = sum(item.verdict is LockVerdict.OK for item in reply.items)
        if client is a:
            assert {item.remark for item in reply.items} == {"group billing does not subscribe to refunds"}
    assert owned == {"a": 0, "b": 4}


def test_queues_of_a_topic_are_shared_by_the_members_that_subscribe_to_it() -> None:
    bench = Bench(layout(), layout("refunds"))
    for name, contract in {"a": declared(0), "b": declared(0), "c": declared(1, {TOPIC: "*", "refunds": "*"})}.items():
        running(bench, name, contract)
    assert shared(bench, TOPIC, "refunds") == [("a", "b", "c"), ("c",)]
    running(bench, "d", declared(1, {TOPIC: "*", "refunds": "*"}))
    assert shared(bench, TOPIC, "refunds") == [("a", "b", "c", "d"), ("c", "d")]


def test_retries_belong_to_the_members_with_the_widest_subscriptions() -> None:
    bench = Bench()
    a = running(bench, "a", concurrent(0, {TOPIC: "a || b"}))
    running(bench, "b", concurrent(1, {TOPIC: "a"}))
    assert shared(bench, TOPIC, RETRY) == [("a", "b"), ("a",)]
    running(bench, "c", concurrent(2, {TOPIC: "*"}))
    assert shared(bench, RETRY) == [("c",)]
    a.leave()
    assert shared(bench, TOPIC, RETRY) == [("b", "c"), ("c",)]


def test_classic_member_puts_one_list_for_all_topics_in_force() -> None:
    bench = Bench()
    running(bench, "a", declared(0))
    running(bench, "b", declared(1, {TOPIC: "*", "refunds": "*"}))
    ClassicClient(bench, "z", ordered()).connect()
    assert shared(bench, "refunds") == [("a", "b", "z")]


def test_draining_member_of_an_ended_contract_commits_and_releases() -> None:
    bench = Bench()
    a = running(bench, "a", declared(0, {TOPIC: "a"}))
    a.lock(0, 1, 2, 3)
    b = running(bench, "b", declared(1))
    a.leave()
    assert in_force(bench) == [1]
    assert b.verdicts(0) == {0: LockVerdict.HELD}
    assert bench.c.membership.subscription(GROUP, TOPIC, a.connection) is None, "version 1 does not filter for a member of version 0"
    assert a.commit(0, 7, release=True) is LockVerdict.OK
    assert b.verdicts(0) == {0: LockVerdict.OK}
    assert bench.progress(0)[0] == 7


def test_session_that_changes_its_version_leaves_its_old_contract() -> None:
    bench = Bench()
    running(bench, "b", declared(0))
    a = running(bench, "a", declared(0))
    running(bench, "c", declared(2, {TOPIC: "*", "refunds": "*"}))
    bench.notified()
    before = bench.c.state.version(GROUP)
    a.groups = (declared(2, {TOPIC: "*", "refunds": "*"}),)
    assert a.beat() is not None
    assert shared(bench, "refunds") == [("a", "c")]
    assert bench.c.state.version(GROUP).counter > before.counter
    assert set(bench.notified()[GROUP]) == {1, 2, 3}


def test_subscriptions_replaced_by_the_classic_policy_change_the_list() -> None:
    bench = Bench()
    running(bench, "a", declared(0))
    running(bench, "b", declared(1, {TOPIC: "*", "refunds": "*"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, subscription_policy=SubscriptionPolicy.CLASSIC))
    before = bench.c.state.version(GROUP)
    running(bench, "c", declared(1))
    assert shared(bench, TOPIC) == [("a", "b", "c")]
    assert bench.c.state.version(GROUP).counter > before.counter + 1, "one for the subscriptions, one for the member"


def test_classic_subscription_policy_ignores_versions() -> None:
    bench = Bench()
    running(bench, "a", declared(1, {TOPIC: "a"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, subscription_policy=SubscriptionPolicy.CLASSIC))
    running(bench, "b", declared(0, {TOPIC: "b"}))
    assert in_force(bench) == [1]
    assert [found.expression for found in [bench.c.membership.subscription(GROUP, TOPIC)] if found] == ["b"]


def test_permission_of_a_version_that_is_in_force_is_forgotten_too() -> None:
    bench = Bench()
    running(bench, "a", declared(1))
    running(bench, "b", declared(2, {TOPIC: "a"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, consume_enable=False, next_contract_version=1))
    running(bench, "c", declared(1))
    assert bench.c.state.settings.get(GROUP) == GroupSettings(GROUP, consume_enable=False)


def test_allowed_version_that_can_not_be_mixed_is_told_why() -> None:
    bench = Bench()
    running(bench, "a", declared(2, {TOPIC: "a"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, next_contract_version=1))
    assert "not both in one change" in refusal(bench, declared(1, {TOPIC: "b"}))


def test_member_that_is_only_outdated_at_a_broker_that_was_cut_off_may_ask_again() -> None:
    """All sessions ended at this broker, and a new member came back first. The old ones still run at the other brokers."""
    bench = Bench()
    old, new = running(bench, "old", declared(0, {TOPIC: "a"})), running(bench, "new", declared(1, {TOPIC: "a || b"}))
    for each in (old, new):
        each.close()
    bench.advance(GRACE + 1_000)
    assert new.connect() is not None
    with pytest.raises(SubscriptionConflictError) as caught:
        old.connect()
    assert caught.value.temporary


def test_conflict_with_members_in_their_grace_is_temporary_although_others_are_connected() -> None:
    bench = Bench()
    old = running(bench, "old", declared(0, {TOPIC: "a"}))
    running(bench, "middle", declared(1, {TOPIC: "a || b"}))
    old.close()
    remark = conflict(bench, "new", declared(2, {TOPIC: "b"}), temporary=True)
    assert "subscription of orders: 'a' here, 'b' asked for. Members: old. Stop them" in remark
    bench.advance(GRACE + 1_000)
    running(bench, "again", declared(2, {TOPIC: "b"}))


def test_conflict_with_a_retained_contract_is_temporary_although_others_are_connected() -> None:
    bench = Bench()
    running(bench, "old", declared(0, {TOPIC: "a"}))
    bench.restart()
    running(bench, "middle", declared(1, {TOPIC: "a || b"}))
    conflict(bench, "new", declared(2, {TOPIC: "b"}), temporary=True)
    bench.advance(TIMEOUT)
    running(bench, "again", declared(2, {TOPIC: "b"}))


def test_number_of_versions_in_force_is_limited() -> None:
    bench = Bench()
    for number in range(CONTRACTS_MAX):
        running(bench, f"c{number}", declared(number, retry=f"{number} attempts"))
    remark = conflict(bench, "more", declared(99, retry="99 attempts"), temporary=True)
    assert "contracts of 8 versions are in force, the maximum" in remark


def test_classic_policy_accepts_a_lower_version_at_each_heartbeat() -> None:
    bench = Bench()
    running(bench, "a", declared(3, {TOPIC: "a"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, subscription_policy=SubscriptionPolicy.CLASSIC))
    b = running(bench, "b", declared(1, {TOPIC: "b"}))
    assert b.beat() is not None
    assert in_force(bench) == [3]


def test_classic_policy_puts_one_contract_into_force_for_all_members() -> None:
    bench = Bench()
    running(bench, "a", concurrent(0, {TOPIC: "a"}))
    running(bench, "b", concurrent(1, {TOPIC: "a || b"}))
    bench.c.admin.set_settings(GroupSettings(GROUP, subscription_policy=SubscriptionPolicy.CLASSIC))
    running(bench, "c", concurrent(1, {TOPIC: "c"}))
    assert in_force(bench) == [1]
    assert shared(bench, TOPIC, RETRY) == [("a", "b", "c")] * 2


@pytest.mark.parametrize(("members", "topics"), usually([(1_000, 520)], [(550, 1_000), (1_000, 520)]))
def test_list_of_a_large_group_names_each_set_of_members_once(members: int, topics: int) -> None:
    bench = Bench()
    added = {f"topic-{number}": "*" for number in range(topics)}
    running(bench, "old", declared(0))
    contract = declared(1, {TOPIC: "*", **added})
    for number in range(members):
        last = joined(bench, f"10.200.0.{number}@1#{number:016x}", contract, session=f"{number:032x}")
    raw = encode_body(last.beat())
    reply = decode_body(HeartbeatReply, raw)
    assert len(raw) < 4 * members * 40 + topics * 40
    assert len(reply.groups[GROUP].list.members_of("topic-7")) == members


def test_freed_queues_do_not_count_the_members_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(layout(queues=100))
    holder = running(bench, "a", declared(0))
    holder.lock(*range(100))
    for number in range(100):
        Client(bench, f"m{number:03}", declared(number % 2), session=f"{number:032x}").connect()
    monkeypatch.setattr(Group, "_compute_shares", lambda self: pytest.fail("computed"))
    monkeypatch.setattr(Group, "_members_with", lambda self, versions: pytest.fail("computed"))
    group = bench.c.state.groups.get(GROUP)
    assert group is not None
    group.members = Unread(group.members)
    holder.send_sync(*[SyncItem(GROUP, TOPIC, queue_id, epoch, offset=1, release=True) for queue_id, epoch in holder.held.items()])


class Unread(dict[str, str | None]):
    """A dict that is not read as a whole."""

    def items(self) -> Any:
        pytest.fail("all members are read")


@pytest.mark.parametrize("version", [-1, 1 << 31])
def test_version_outside_its_range_is_refused(version: int) -> None:
    with pytest.raises(LocalProtocolError, match=r"contract version .*: 0 to 2147483647 allowed"):
        contract_of(declared(version))


def test_members_with_queues_by_hand_of_two_versions_run_together() -> None:
    bench = Bench()
    manual = replace(declared(0, ordered=False, allocate=MANUAL), subscriptions=())
    running(bench, "a", manual)
    running(bench, "b", replace(manual, contract_version=1, consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    assert bench.lists() == ("a", "b")


EXPRESSIONS = st.sampled_from(["*", "a", "b", "c", "a || b", "b || c", "a || b || c"])
CONTRACTS = st.dictionaries(st.sampled_from(["t", "u", "v"]), EXPRESSIONS, max_size=3).map(lambda topics: contract_of(declared(0, topics)))


def matched(contract: ConsumerGroup) -> set[tuple[str, str]]:
    """Return the (topic, tag) that the contract matches. Tag d is named by no expression."""
    return {(each.topic, tag) for each in contract.subscriptions for tag in "abcd" if each.expression == "*" or tag in each.expression}


@given(CONTRACTS, CONTRACTS)
def test_a_contract_includes_another_if_it_matches_all_that_the_other_matches(one: ConsumerGroup, other: ConsumerGroup) -> None:
    assert includes(one, other) == (matched(one) >= matched(other))
    may_mix = matched(one) >= matched(other) or matched(one) <= matched(other)
    assert (mixing_refusal(one, other) is None) == (mixing_refusal(other, one) is None) == may_mix
