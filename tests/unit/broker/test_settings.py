"""Settings of a group: they survive restarts, need no members, and decide whether the group may consume and which subscription counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.tables.settings_table import SettingsTable
from lockstep.broker.journal import Journal, decode_changes
from lockstep.protocol.bodies import ConsumerGroup, GroupSettings, Subscription, SubscriptionPolicy
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, StoreError, SubscriptionConflictError
from support.coordination_kit import GROUP, TOPIC, Bench, Client, joined, ordered

CLASSIC = GroupSettings(GROUP, SubscriptionPolicy.CLASSIC)
SILENT = GroupSettings(GROUP, consume_enable=False)


def tagged(expression: str, **changes: object) -> ConsumerGroup:
    return ordered(expression=expression, **changes)


def join(bench: Bench, name: str, group: ConsumerGroup) -> Client:
    client = joined(bench, name, group)
    return client


def subscribed(bench: Bench) -> str:
    found = bench.c.membership.subscription(GROUP, TOPIC)
    assert found is not None
    return found.expression


SETTINGS = st.builds(GroupSettings, st.sampled_from(["a", "b"]), st.sampled_from(list(SubscriptionPolicy)), st.booleans())


@given(st.lists(SETTINGS, max_size=8))
def test_last_settings_of_each_group_hold_and_are_restored_from_log_and_snapshot(all_set: list[GroupSettings]) -> None:
    journal = Journal()
    table = SettingsTable(journal)
    for settings in all_set:
        table.record_settings(settings)
    last = {settings.group: settings for settings in all_set}
    again, restored = SettingsTable(Journal()), SettingsTable(Journal())
    for record in journal.encode(1 << 20):
        for change in decode_changes(record):
            again.apply(change)
    restored.restore(table.snapshot())
    for each in (table, again, restored):
        assert {group: each.get(group) for group in each.groups()} == last
        for group in ("a", "b", "c"):
            assert each.may_consume(group) == (group not in last or last[group].consume_enable)
            assert each.uses_classic_policy(group) == (group in last and last[group].subscription_policy is SubscriptionPolicy.CLASSIC)


def test_change_of_another_table_is_rejected() -> None:
    with pytest.raises(StoreError, match="does not know the state change 'lock\\.freed'"):
        SettingsTable(Journal()).apply(("lock.freed", "g", "t", 0))


def test_settings_need_no_member_and_survive_a_restart() -> None:
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    bench.restart()
    assert bench.c.status.groups() == (GROUP,)
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    assert (status.settings, status.contract) == (CLASSIC, None)


def test_settings_require_a_group_name() -> None:
    with pytest.raises(LocalProtocolError, match="group is blank"):
        Bench().c.admin.set_settings(GroupSettings(""))


def test_group_with_consumption_disabled_cannot_pull_and_keeps_its_locks() -> None:
    bench = Bench()
    a = join(bench, "a", ordered())
    a.lock(0)
    bench.c.admin.set_settings(SILENT)
    with pytest.raises(NoPermissionError, match="lockstep group update billing --consume"):
        a.pull(0)
    assert a.commit(0, 5).name == "OK", "what it has may be finished"
    bench.c.admin.set_settings(GroupSettings(GROUP))
    assert a.pull(0) is True


def test_strict_policy_rejects_a_second_subscription() -> None:
    bench = Bench()
    join(bench, "a", tagged("tagA"))
    with pytest.raises(SubscriptionConflictError, match="'tagA' here, 'tagB' asked for"):
        join(bench, "b", tagged("tagB"))


def test_classic_policy_last_joiner_decides_and_heartbeats_do_not_revert_it() -> None:
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    a = join(bench, "a", tagged("tagA"))
    b = join(bench, "b", tagged("tagB"))
    assert (subscribed(bench), bench.lists()) == ("tagB", ("a", "b"))
    a.beat()
    assert subscribed(bench) == "tagB"
    b.leave()
    a.beat()
    assert subscribed(bench) == "tagB", "nobody came"
    join(bench, "c", tagged("tagA"))
    assert subscribed(bench) == "tagA"
    assert bench.c.state.override_counts.get(GROUP, 0) == 2
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    assert status.overruled_count == 2


def test_classic_policy_status_has_the_subscription_of_each_member() -> None:
    """ordering.md 11.4: the status of an inconsistent subscription has each member's own one and the one in force."""
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    a = join(bench, "a", tagged("tagA"))
    b = join(bench, "b", tagged("tagB"))
    assert member_expressions(bench) == {"a": "tagA", "b": None}, "None: what the group's contract says"
    a.groups = (with_version(tagged("tagC || tagA"), 7),)
    a.beat()
    assert (subscribed(bench), member_expressions(bench)) == ("tagA || tagC", {"a": None, "b": "tagB"})
    b.leave()
    assert member_expressions(bench) == {"a": None}


def member_expressions(bench: Bench) -> dict[str, str | None]:
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    return {each.client_id: each.subscriptions[0].expression if each.subscriptions else None for each in status.members}


def with_version(group: ConsumerGroup, sub_version: int) -> ConsumerGroup:
    return replace(group, subscriptions=tuple(replace(each, sub_version=sub_version) for each in group.subscriptions))


@pytest.mark.parametrize(("version", "decides"), [(4, "tagB"), (5, "tagB"), (6, "tagA")])
def test_classic_policy_member_decides_again_with_the_highest_version(version: int, decides: str) -> None:
    """RocketMQ: messageQueueChanged raises subVersion, and the next heartbeat overwrites the broker's subscription."""
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    a = join(bench, "a", with_version(tagged("tagA"), 4))
    b = join(bench, "b", with_version(tagged("tagB"), 5))
    a.groups = (with_version(tagged("tagA"), version),)
    view = a.beat()
    assert subscribed(bench) == decides
    assert view is not None
    assert view.groups[GROUP].last_decides
    b.beat()
    assert subscribed(bench) == decides, "an old version turns nothing back"


def test_strict_policy_ignores_a_higher_version() -> None:
    bench = Bench()
    a = join(bench, "a", tagged("tagA"))
    reply = a.beat()
    assert reply is not None
    assert not reply.groups[GROUP].last_decides
    a.groups = (with_version(tagged("tagA"), 9),)
    a.beat()
    with pytest.raises(SubscriptionConflictError):
        join(bench, "b", with_version(tagged("tagB"), 10))
    assert subscribed(bench) == "tagA"


def test_classic_policy_keeps_locks_over_another_members_subscription() -> None:
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    a = join(bench, "a", tagged("tagA"))
    a.lock(0)
    join(bench, "b", tagged("tagB"))
    assert a.pull(0) is True


def test_classic_policy_requires_equal_contracts_except_subscriptions() -> None:
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    join(bench, "a", tagged("tagA"))
    with pytest.raises(SubscriptionConflictError, match="ordered"):
        join(bench, "b", tagged("tagB", ordered=False))


def test_equal_subscription_overrides_no_member() -> None:
    bench = Bench()
    bench.c.admin.set_settings(CLASSIC)
    same = (Subscription(TOPIC, "*"),)
    join(bench, "a", ordered(subscriptions=same))
    join(bench, "b", ordered(subscriptions=same))
    assert bench.c.state.override_counts.get(GROUP, 0) == 0
