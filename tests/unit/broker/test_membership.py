"""A group's member list: its version, notifications of changes, departures, and members without a session."""

from dataclasses import replace

import pytest

from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.errors import DuplicateClientIdError
from support.coordination_kit import GRACE, GROUP, TOPIC, Bench, ClassicClient, Client, joined, ordered, versions

# ---------------------------------------------------------------------------------------------------------------------- lists


def test_each_list_change_raises_the_version_and_notifies_every_member() -> None:
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


def test_unchanged_heartbeat_notifies_no_member() -> None:
    bench = Bench()
    a = Client(bench, "a")
    first = a.connect()
    bench.c.state.pending.drain()
    assert versions(a.beat()) == versions(first)
    assert bench.c.state.pending.drain() == []


def test_list_version_never_falls_even_after_the_group_was_gone() -> None:
    bench = Bench()
    a = Client(bench, "a")
    before = versions(a.connect())[0]
    a.leave()
    assert bench.c.membership.member_list(GROUP) is None
    a.groups = (ordered(),)
    after = versions(a.beat())[0]
    bench.restart()
    again = versions(a.connect())[0]
    assert (before.term, before.counter) < (after.term, after.counter) < (again.term, again.counter)


def test_member_leaves_the_list_before_it_drains() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    a.lock(0, 1, 2, 3)
    b.connect()
    bench.c.state.pending.drain()
    assert a.leave()
    assert bench.lists() == ("b",)
    assert bench.notified() == {GROUP: (b.connection,)}
    assert bench.owner(0) == "a"
    assert a.verdicts()[0] is LockVerdict.OK
    assert a.beat() is not None
    assert bench.lists() == ("b",)
    assert a.commit(0, 5, release=True) is LockVerdict.OK
    assert bench.pushed() == {b.connection: [0]}
    assert b.lock(0)[0].offset == 5


def test_heartbeat_without_a_group_leaves_that_group() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.groups = ()
    a.beat()
    assert bench.lists() == ()
    assert bench.owner(0) == "a"


def test_repeated_leave_or_leave_for_another_client_changes_nothing() -> None:
    bench = Bench()
    a = joined(bench, "a")
    joined(bench, "b")
    assert bench.c.membership.unregister(a.connection, "b", GROUP, bench.now_ms)
    assert bench.lists() == ("a", "b")
    a.leave()
    a.leave()
    assert bench.lists() == ("b",)


def test_member_that_has_left_is_granted_no_queue() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.leave()
    assert a.verdicts(1) == {0: LockVerdict.OK, 1: LockVerdict.NOT_YOURS}


# -------------------------------------------------------------------------------------------------------------------- classic


def test_classic_member_leaves_with_its_connection() -> None:
    bench = Bench()
    a, b = ClassicClient(bench, "a"), ClassicClient(bench, "b")
    a.connect()
    b.connect()
    bench.c.state.pending.drain()
    a.close()
    assert bench.lists() == ("b",)
    assert bench.notified() == {GROUP: (b.connection,)}


@pytest.mark.parametrize(("after", "member"), [(120_000 - 1, True), (120_000, True), (120_000 + 1, False)])
def test_classic_member_expires_after_120_s_and_the_others_are_notified(after: int, member: bool) -> None:
    bench = Bench()
    a, b = ClassicClient(bench, "a"), ClassicClient(bench, "b")
    a.connect()
    bench.advance(60_000)
    b.connect()
    bench.c.state.pending.drain()
    bench.advance(after - 60_000)
    assert bench.lists() == (("a", "b") if member else ("b",))
    assert bench.notified() == ({} if member else {GROUP: (b.connection,)})


@pytest.mark.parametrize(("after", "member"), [(29_999, True), (30_000, True), (30_001, False)])
def test_recorded_classic_member_expires_30_s_after_a_start(after: int, member: bool) -> None:
    bench = Bench()
    ClassicClient(bench, "a").connect()
    bench.restart()
    bench.advance(after)
    assert (bench.lists() == ("a",)) is member


def test_close_of_an_older_connection_keeps_a_classic_member() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")
    a.connect()
    old = a.connection
    a.connect()
    bench.c.membership.connection_closed(old, bench.now_ms)
    assert bench.lists() == ("a",)


def test_classic_subscription_changes_with_a_newer_version_and_absent_topics_are_removed() -> None:
    bench = Bench()
    a = ClassicClient(bench, "a")

    def beat(expression: str, version: int, *topics: str) -> str | None:
        subscriptions = tuple(replace(s, sub_version=version) for s in ordered(topics=topics, expression=expression).subscriptions)
        a.groups = (replace(ordered(), subscriptions=subscriptions),)
        a.connect()
        found = bench.c.membership.subscription(GROUP, TOPIC)
        return None if found is None else found.expression

    assert beat("x", 5, TOPIC) == "x"
    assert beat("y", 5, TOPIC) == "x"
    assert beat("y", 6, TOPIC, "other") == "y"
    assert beat("y", 7, "other") is None


def test_classic_client_with_the_id_of_a_live_session_is_rejected() -> None:
    bench = Bench()
    joined(bench, "a")
    with pytest.raises(DuplicateClientIdError):
        ClassicClient(bench, "a").connect()
    assert bench.lists() == ("a",)


def test_session_that_replaced_a_classic_client_stays_when_that_disconnects() -> None:
    bench = Bench()
    old = ClassicClient(bench, "a")
    old.connect()
    joined(bench, "a")
    old.close()
    assert bench.lists() == ("a",)
    members = bench.c.membership.member_list(GROUP)
    assert members is not None
    assert not members.classic
