from dataclasses import replace

import pytest

from lockstep.broker.tables.lock_table import LockTable
from lockstep.protocol.bodies import HeartbeatBody, ListVersion, StartPoint, SyncBody, Verdict
from lockstep.protocol.errors import DuplicateClientId, LocalProtocolError, SubscriptionConflict
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, layout, ordered


def conflict_of(client: Client) -> SubscriptionConflict:
    with pytest.raises(SubscriptionConflict) as caught:
        client.connect() if client.connection == 0 else client.beat()
    return caught.value


def versions(*replies: object) -> list[ListVersion]:
    found = []
    for reply in replies:
        assert reply is not None
        found.append(reply.groups[GROUP].list.version)  # type: ignore[attr-defined]
    return found


# ------------------------------------------------------------------------------------------------------------------- sessions


def test_the_end_of_a_session_with_many_queues_does_not_look_at_all_of_them_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(layout(queues=300))
    a = Client(bench, "a")
    a.connect()
    a.lock(*range(300))
    a.close()
    looks: list[str] = []
    of_group = LockTable.of_group
    monkeypatch.setattr(LockTable, "of_group", lambda self, group: looks.append(group) or of_group(self, group))
    bench.advance(GRACE)
    assert bench.lists() == ()
    assert {bench.owner(queue_id) for queue_id in range(3)} == {None}
    assert len(looks) < 20


def test_the_answer_to_a_heartbeat_carries_what_grants_rest_on() -> None:
    bench = Bench()
    reply = Client(bench, "a").connect()
    assert reply is not None
    assert (reply.disconnect_grace_ms, reply.session_timeout_ms, reply.term, reply.broker_name) == (GRACE, TIMEOUT, 1, "broker-a")
    assert reply.features == ("ordered",)
    assert reply.groups[GROUP].list.members == ("a",)


def test_binding_a_newer_connection_closes_the_older_one_and_its_close_means_nothing() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    old = a.connection
    a.connect()
    assert bench.closed() == [old]
    bench.c.connection_closed(old, bench.now_ms)
    bench.advance(GRACE + 10_000)
    a.beat()
    assert bench.lists() == ("a",)


@pytest.mark.parametrize("what", ["lock", "sync", "pull"])
def test_only_heartbeat_is_served_on_a_connection_that_is_not_its_sessions(what: str) -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    old = a.connection
    a.connect()
    a.connection = old
    answer = {"lock": a.send_lock, "sync": a.send_sync, "pull": lambda: a.pull(0)}[what]()
    assert answer is None
    assert bench.closed() == [old]
    assert bench.owner(0) == "a"


def test_unregister_on_a_connection_that_is_not_its_sessions_closes_that() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    old = a.connection
    a.connect()
    assert not bench.c.unregister(old, "a", GROUP, bench.now_ms)
    assert bench.closed() == [old]
    assert bench.lists() == ("a",)


def test_a_connection_that_is_being_closed_binds_nothing_any_more() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    bench.advance(TIMEOUT)
    assert bench.closed() == [a.connection]
    assert a.beat() is None
    assert bench.lists() == ()
    bench.c.connection_closed(a.connection, bench.now_ms)
    assert a.connect() is not None


def test_a_late_heartbeat_of_an_older_connection_closes_that_unanswered() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    late, body = bench.new_connection(), replace(a.body(), connection=1)
    a.connect()
    bench.c.drain()
    assert bench.c.heartbeat(late, body, bench.now_ms) is None
    assert bench.closed() == [late]


def test_a_heartbeat_without_a_session_on_a_sessions_connection_closes_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    assert bench.c.heartbeat(a.connection, HeartbeatBody("a", a.groups), bench.now_ms) is None
    assert bench.closed() == [a.connection]


@pytest.mark.parametrize(("after", "member"), [(GRACE - 1, True), (GRACE, False)])
def test_a_closed_session_keeps_locks_and_place_for_the_grace(after: int, member: bool) -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.close()
    bench.advance(after)
    assert (bench.lists() == ("a",)) is member
    assert bench.owner(0) == ("a" if member else None)


@pytest.mark.parametrize(("after", "member"), [(TIMEOUT - 1, True), (TIMEOUT, False)])
def test_a_silent_session_ends_and_its_connection_is_closed_in_the_same_step(after: int, member: bool) -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    bench.c.drain()
    bench.advance(after)
    assert bench.closed() == ([] if member else [a.connection])
    assert (bench.lists() == ("a",)) is member
    assert bench.owner(0) == ("a" if member else None)
    if not member:
        assert a.send_sync() is None


def test_anything_that_is_heard_keeps_a_session_alive() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    for _ in range(4):
        bench.advance(TIMEOUT - 1)
        assert a.send_sync() == ()
    bench.c.heard(a.connection, bench.now_ms)
    bench.advance(TIMEOUT - 1)
    assert bench.lists() == ("a",)


def test_a_broker_that_stood_still_ends_nobody_for_being_silent_meanwhile() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    bench.now_ms += 65_000
    bench.c.tick(bench.now_ms)
    assert bench.lists() == ("a",)
    bench.advance(TIMEOUT - 1_001)
    assert bench.lists() == ("a",)
    bench.advance(1_001)
    assert bench.lists() == ()


def test_reconnecting_within_the_grace_changes_no_list_and_no_epoch() -> None:
    bench = Bench()
    a = Client(bench, "a")
    first = a.connect()
    a.lock(0, 1)
    epoch = bench.epoch(0)
    a.close()
    bench.advance(GRACE - 1)
    assert versions(a.connect()) == versions(first)
    assert a.verdicts() == {0: Verdict.OK, 1: Verdict.OK}
    assert bench.epoch(0) == epoch


# ---------------------------------------------------------------------------------------------------------------------- lists


def test_every_change_of_a_list_raises_its_version_and_tells_every_member() -> None:
    bench = Bench()
    a, b, c = (Client(bench, name) for name in "abc")
    seen = [*versions(a.connect())]
    assert bench.notified() == {GROUP: (a.connection,)}
    seen += versions(b.connect())
    assert bench.notified() == {GROUP: (a.connection, b.connection)}
    c.connect()
    c.leave()
    assert bench.notified() == {GROUP: (a.connection, b.connection)}
    seen += versions(a.beat())
    b.close()
    bench.advance(GRACE)
    assert bench.notified() == {GROUP: (a.connection,)}
    seen += versions(a.beat())
    assert seen == sorted(set(seen), key=lambda version: (version.term, version.counter))


def test_a_heartbeat_that_changes_nothing_tells_nobody() -> None:
    bench = Bench()
    a = Client(bench, "a")
    first = a.connect()
    bench.c.drain()
    assert versions(a.beat()) == versions(first)
    assert bench.c.drain() == []


def test_the_version_of_a_list_never_falls_even_where_the_group_was_gone() -> None:
    bench = Bench()
    a = Client(bench, "a")
    before = versions(a.connect())[0]
    a.leave()
    assert bench.c.member_list(GROUP) is None
    a.groups = (ordered(),)
    after = versions(a.beat())[0]
    bench.restart()
    again = versions(a.connect())[0]
    assert (before.term, before.counter) < (after.term, after.counter) < (again.term, again.counter)


def test_leave_first_then_drain() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    a.lock(0, 1, 2, 3)
    b.connect()
    bench.c.drain()
    assert a.leave()
    assert bench.lists() == ("b",)
    assert bench.notified() == {GROUP: (b.connection,)}
    assert bench.owner(0) == "a"
    assert a.verdicts()[0] is Verdict.OK
    assert a.beat() is not None
    assert bench.lists() == ("b",)
    assert a.commit(0, 5, release=True) is Verdict.OK
    assert bench.pushed() == {b.connection: [0]}
    assert b.lock(0)[0].offset == 5


def test_a_heartbeat_that_no_longer_names_a_group_leaves_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.groups = ()
    a.beat()
    assert bench.lists() == ()
    assert bench.owner(0) == "a"


def test_leaving_twice_or_for_somebody_else_changes_nothing() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    b.connect()
    assert bench.c.unregister(a.connection, "b", GROUP, bench.now_ms)
    assert bench.lists() == ("a", "b")
    a.leave()
    a.leave()
    assert bench.lists() == ("b",)


def test_a_member_that_has_left_is_granted_nothing() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.leave()
    assert a.verdicts(1) == {0: Verdict.OK, 1: Verdict.NOT_YOURS}


# ------------------------------------------------------------------------------------------------------------- duplicate ids


def test_a_second_living_session_of_a_client_id_is_refused_and_bound_to_nothing() -> None:
    bench = Bench()
    Client(bench, "a", session="1" * 32).connect()
    twin = Client(bench, "a", session="2" * 32)
    with pytest.raises(DuplicateClientId):
        twin.connect()
    assert twin.send_sync() is None


def test_during_the_first_ones_grace_the_second_takes_its_place_but_not_its_locks() -> None:
    bench = Bench()
    first, second = Client(bench, "a", session="1" * 32), Client(bench, "a", session="2" * 32)
    before = versions(first.connect())
    first.lock(0)
    first.close()
    bench.advance(1_000)
    assert versions(second.connect()) == before
    assert second.verdicts(0, 1) == {0: Verdict.WAIT, 1: Verdict.OK}
    bench.c.drain()
    bench.advance(GRACE - 1_001)
    assert second.verdicts(0)[0] is Verdict.WAIT
    bench.advance(1)
    assert bench.pushed() == {second.connection: [0]}
    assert second.verdicts(0)[0] is Verdict.OK
    assert bench.lists() == ("a",)


# ------------------------------------------------------------------------------------------------------------------ contracts


def test_a_differing_contract_is_refused_naming_both_sides_field_by_field() -> None:
    bench = Bench()
    Client(bench, "a", ordered(expression="paid")).connect()
    b = Client(bench, "b", ordered(expression="created", ordered=False, consume_from_where=StartPoint.LAST_OFFSET))
    text = conflict_of(b).remark
    assert "subscription of orders: 'paid' here, 'created' asked for" in text
    assert "ordered: True here, False asked for" in text
    assert "consume_from_where: CONSUME_FROM_FIRST_OFFSET here, CONSUME_FROM_LAST_OFFSET asked for" in text
    assert "Members: a" in text
    assert "allocate" not in text
    assert bench.lists() == ("a",)


def test_a_refused_group_leaves_the_others_joined_and_the_session_bound() -> None:
    bench = Bench()
    Client(bench, "a").connect()
    b = Client(bench, "b", ordered(expression="x"), ordered("other"))
    conflict_of(b)
    assert bench.lists("other") == ("b",)
    assert b.send_sync() == ()


def test_the_order_of_topics_and_tags_and_the_subscription_version_are_no_difference() -> None:
    bench = Bench()
    one = ordered(topics=("a", "b"), expression="x||y")
    two = replace(one, subscriptions=tuple(replace(s, expression=" y || x ", sub_version=9) for s in reversed(one.subscriptions)))
    Client(bench, "a", one).connect()
    Client(bench, "b", two).connect()
    assert bench.lists() == ("a", "b")


def test_a_conflict_is_passing_while_the_others_are_only_in_their_grace() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    assert not conflict_of(b).passing
    a.close()
    assert conflict_of(b).passing
    bench.advance(GRACE)
    assert b.beat() is not None
    assert bench.lists() == ("b",)


def test_stop_change_start_just_works() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.leave()
    assert b.connect() is not None


def test_a_contract_stands_while_one_that_left_still_drains_and_its_result_counts() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.lock(0)
    a.leave()
    assert conflict_of(b).passing
    assert a.commit(0, 7, release=True) is Verdict.OK
    assert b.beat() is not None


def test_dropping_a_contract_ends_its_grants() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    epoch = bench.epoch(0)
    a.close()
    bench.c.drain()
    bench.advance(GRACE)
    assert bench.epoch(0) > epoch
    assert (GROUP, TOPIC, 0) in bench.stale()
    a.connect()
    assert a.commit(0, 3) is Verdict.STALE


def test_while_another_member_keeps_the_contract_a_freed_epoch_stays_good() -> None:
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
    assert a.commit(0, 3) is Verdict.OK


def test_the_only_member_may_change_the_contract_and_its_grants_end() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.groups = (ordered(expression="x"),)
    bench.c.drain()
    assert a.beat() is not None
    assert bench.pushed() == {a.connection: [0]}, "its queues are free under the new contract"
    assert a.commit(0, 1) is Verdict.STALE
    subscription = bench.c.subscription(GROUP, TOPIC)
    assert subscription is not None
    assert subscription.expression == "x"


def test_a_recorded_contract_holds_for_the_session_timeout_after_a_start_even_without_a_member() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    bench.restart()
    bench.advance(TIMEOUT - 1)
    assert bench.lists() == ()
    assert conflict_of(b).passing
    bench.advance(1)
    assert b.beat() is not None


def test_a_contract_made_after_the_start_is_dropped_at_once() -> None:
    bench = Bench()
    bench.restart()
    a, b = Client(bench, "a"), Client(bench, "b", ordered(expression="x"))
    a.connect()
    a.leave()
    assert b.connect() is not None


# -------------------------------------------------------------------------------------------------------------------- classic


def test_a_classic_member_leaves_with_its_connection() -> None:
    bench = Bench()
    a, b = ClassicClient(bench, "a"), ClassicClient(bench, "b")
    a.connect()
    b.connect()
    bench.c.drain()
    a.close()
    assert bench.lists() == ("b",)
    assert bench.notified() == {GROUP: (b.connection,)}


@pytest.mark.parametrize(("after", "member"), [(120_000 - 1, True), (120_000, True), (120_000 + 1, False)])
def test_a_classic_member_may_be_silent_for_120_s_and_the_others_are_told(after: int, member: bool) -> None:
    bench = Bench()
    a, b = ClassicClient(bench, "a"), ClassicClient(bench, "b")
    a.connect()
    bench.advance(60_000)
    b.connect()
    bench.c.drain()
    bench.advance(after - 60_000)
    assert bench.lists() == (("a", "b") if member else ("b",))
    assert bench.notified() == ({} if member else {GROUP: (b.connection,)})


@pytest.mark.parametrize(("after", "member"), [(29_999, True), (30_000, True), (30_001, False)])
def test_a_recorded_classic_member_has_30_s_after_a_start(after: int, member: bool) -> None:
    bench = Bench()
    ClassicClient(bench, "a").connect()
    bench.restart()
    bench.advance(after)
    assert (bench.lists() == ("a",)) is member


def test_the_newest_connection_of_a_classic_client_counts() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")
    a.connect()
    old = a.connection
    a.connect()
    bench.c.connection_closed(old, bench.now_ms)
    assert bench.lists() == ("a",)


def test_a_classic_subscription_follows_rocketmq_the_newer_version_wins_and_absent_topics_go() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")

    def beat(expression: str, version: int, *topics: str) -> str | None:
        subscriptions = tuple(replace(s, sub_version=version) for s in ordered(topics=topics, expression=expression).subscriptions)
        a.groups = (replace(ordered(), subscriptions=subscriptions),)
        a.connect()
        found = bench.c.subscription(GROUP, TOPIC)
        return None if found is None else found.expression

    assert beat("x", 5, TOPIC) == "x"
    assert beat("y", 5, TOPIC) == "x"
    assert beat("y", 6, TOPIC, "other") == "y"
    assert beat("y", 7, "other") is None


def test_a_classic_client_may_not_take_a_living_sessions_id_nor_a_session_stay_behind_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    with pytest.raises(DuplicateClientId):
        ClassicClient(bench, "a").connect()
    assert bench.lists() == ("a",)


def test_a_session_that_takes_a_classic_clients_place_is_not_thrown_out_with_it() -> None:
    bench = Bench()
    old = ClassicClient(bench, "a")
    old.connect()
    a = Client(bench, "a")
    a.connect()
    old.close()
    assert bench.lists() == ("a",)
    members = bench.c.member_list(GROUP)
    assert members is not None
    assert not members.classic


def test_a_pull_hears_the_version_that_heartbeats_named() -> None:
    bench = Bench()
    group = ordered()
    Client(bench, "a", replace(group, subscriptions=tuple(replace(s, sub_version=4) for s in group.subscriptions))).connect()
    found = bench.c.subscription(GROUP, TOPIC)
    assert found is not None
    assert found.sub_version == 4
    assert bench.c.subscription(GROUP, "other") is None
    assert bench.c.subscription("other", TOPIC) is None
    assert bench.c.online(GROUP)
    assert not bench.c.online("other")


# --------------------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "body",
    [
        HeartbeatBody("", session="1" * 32),
        HeartbeatBody("a b", session="1" * 32),
        HeartbeatBody("a", session="1" * 31),
        HeartbeatBody("a", session="G" * 32),
        HeartbeatBody("a", (ordered("bad group!"),), session="1" * 32),
        HeartbeatBody("a", (ordered(topics=("bad topic!",)),), session="1" * 32),
        HeartbeatBody("a", tuple(ordered(f"g{i}") for i in range(1_025)), session="1" * 32),
        HeartbeatBody("a", (ordered(expression="x" * 8_193),), session="1" * 32),
        HeartbeatBody("a", (ordered(expression="x" * 8_193),)),
    ],
)
def test_a_heartbeat_that_breaks_the_rules_changes_nothing(body: HeartbeatBody) -> None:
    bench = Bench()
    before = bench.c.snapshot()
    with pytest.raises(LocalProtocolError):
        bench.c.heartbeat(1, body, bench.now_ms)
    assert bench.c.snapshot() == before
    assert not bench.c.has_session(1)


def test_an_unknown_connection_may_close_and_sync_without_harm() -> None:
    bench = Bench()
    bench.c.connection_closed(99, bench.now_ms)
    assert bench.c.sync(99, SyncBody(), bench.now_ms) is None
    assert bench.closed() == [99]
