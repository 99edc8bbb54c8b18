"""Sessions: their connections, the grace of a closed and the timeout of a silent one, duplicate ids, invalid heartbeats."""

from dataclasses import replace

import pytest

from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.groups.tables.lock_table import LockTable
from lockstep.protocol.bodies import HeartbeatBody, LockVerdict, SyncBody
from lockstep.protocol.errors import DuplicateClientIdError, LocalProtocolError
from support.coordination_kit import GRACE, GROUP, TIMEOUT, Bench, Client, joined, layout, ordered, versions

# ------------------------------------------------------------------------------------------------------------------- sessions


def test_end_of_a_session_does_not_scan_all_locks_for_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(layout(queues=300))
    a = joined(bench, "a")
    a.lock(*range(300))
    a.close()
    looks: list[str] = []
    of_group = LockTable.locks_of_group
    monkeypatch.setattr(LockTable, "locks_of_group", lambda self, group: looks.append(group) or of_group(self, group))
    bench.advance(GRACE)
    assert bench.lists() == ()
    assert {bench.owner(queue_id) for queue_id in range(3)} == {None}
    assert len(looks) < 20


def test_heartbeat_response_has_grace_timeout_term_and_member_list() -> None:
    bench = Bench()
    reply = Client(bench, "a").connect()
    assert reply is not None
    assert (reply.disconnect_grace_ms, reply.session_timeout_ms, reply.term, reply.broker_name) == (GRACE, TIMEOUT, 1, "broker-a")
    assert reply.groups[GROUP].list.members == ("a",)


def test_newer_connection_closes_the_older_one_whose_close_is_ignored() -> None:
    bench = Bench()
    a = joined(bench, "a")
    old = a.connection
    a.connect()
    assert bench.closed() == [old]
    bench.c.membership.connection_closed(old, bench.now_ms)
    bench.advance(GRACE + 10_000)
    a.beat()
    assert bench.lists() == ("a",)


@pytest.mark.parametrize("what", ["lock", "sync", "pull"])
def test_connection_not_bound_to_its_session_is_closed_for_anything_but_heartbeat(what: str) -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    old = a.connection
    a.connect()
    a.connection = old
    response = {"lock": a.send_lock, "sync": a.send_sync, "pull": lambda: a.pull(0)}[what]()
    assert response is None
    assert bench.closed() == [old]
    assert bench.owner(0) == "a"


def test_unregister_on_a_connection_not_bound_to_its_session_closes_it() -> None:
    bench = Bench()
    a = joined(bench, "a")
    old = a.connection
    a.connect()
    assert not bench.c.membership.unregister(old, "a", GROUP, bench.now_ms)
    assert bench.closed() == [old]
    assert bench.lists() == ("a",)


def test_connection_being_closed_binds_no_session() -> None:
    bench = Bench()
    a = joined(bench, "a")
    bench.advance(TIMEOUT)
    assert bench.closed() == [a.connection]
    assert a.beat() is None
    assert bench.lists() == ()
    bench.c.membership.connection_closed(a.connection, bench.now_ms)
    assert a.connect() is not None


def test_late_heartbeat_of_an_older_connection_closes_it_without_a_response() -> None:
    bench = Bench()
    a = joined(bench, "a")
    late, body = bench.new_connection(), replace(a.body(), connection=1)
    a.connect()
    bench.c.state.pending.drain()
    assert bench.c.membership.heartbeat(late, Heartbeat.from_body(body), bench.now_ms) is None
    assert bench.closed() == [late]


def test_heartbeat_without_a_session_on_a_bound_connection_closes_it() -> None:
    bench = Bench()
    a = joined(bench, "a")
    assert bench.c.membership.heartbeat(a.connection, Heartbeat.from_body(HeartbeatBody("a", a.groups)), bench.now_ms) is None
    assert bench.closed() == [a.connection]


@pytest.mark.parametrize(("after", "member"), [(GRACE - 1, True), (GRACE, False)])
def test_closed_session_keeps_locks_and_membership_for_the_grace(after: int, member: bool) -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.close()
    bench.advance(after)
    assert (bench.lists() == ("a",)) is member
    assert bench.owner(0) == ("a" if member else None)


@pytest.mark.parametrize(("after", "member"), [(TIMEOUT - 1, True), (TIMEOUT, False)])
def test_silent_session_and_its_connection_end_in_the_same_tick(after: int, member: bool) -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    bench.c.state.pending.drain()
    bench.advance(after)
    assert bench.closed() == ([] if member else [a.connection])
    assert (bench.lists() == ("a",)) is member
    assert bench.owner(0) == ("a" if member else None)
    if not member:
        assert a.send_sync() is None


def test_any_request_keeps_a_session_alive() -> None:
    bench = Bench()
    a = joined(bench, "a")
    for _ in range(4):
        bench.advance(TIMEOUT - 1)
        assert a.send_sync() == ()
    bench.c.state.sessions.touch(a.connection, bench.now_ms)
    bench.advance(TIMEOUT - 1)
    assert bench.lists() == ("a",)


def test_suspension_of_the_broker_does_not_count_as_silence() -> None:
    bench = Bench()
    joined(bench, "a")
    bench.now_ms += 65_000
    bench.c.tick(bench.now_ms)
    assert bench.lists() == ("a",)
    bench.advance(TIMEOUT - 1_001)
    assert bench.lists() == ("a",)
    bench.advance(1_001)
    assert bench.lists() == ()


def test_reconnect_within_the_grace_changes_no_list_and_no_epoch() -> None:
    bench = Bench()
    a = Client(bench, "a")
    first = a.connect()
    a.lock(0, 1)
    epoch = bench.epoch(0)
    a.close()
    bench.advance(GRACE - 1)
    assert versions(a.connect()) == versions(first)
    assert a.verdicts() == {0: LockVerdict.OK, 1: LockVerdict.OK}
    assert bench.epoch(0) == epoch


# ------------------------------------------------------------------------------------------------------------- duplicate ids


def test_second_live_session_of_a_client_id_is_rejected() -> None:
    bench = Bench()
    Client(bench, "a", session="1" * 32).connect()
    twin = Client(bench, "a", session="2" * 32)
    with pytest.raises(DuplicateClientIdError):
        twin.connect()
    assert twin.send_sync() is None


def test_second_session_in_the_grace_of_the_first_takes_its_membership_not_its_locks() -> None:
    bench = Bench()
    first, second = Client(bench, "a", session="1" * 32), Client(bench, "a", session="2" * 32)
    before = versions(first.connect())
    first.lock(0)
    first.close()
    bench.advance(1_000)
    assert versions(second.connect()) == before
    assert second.verdicts(0, 1) == {0: LockVerdict.WAIT, 1: LockVerdict.OK}
    bench.c.state.pending.drain()
    bench.advance(GRACE - 1_001)
    assert second.verdicts(0)[0] is LockVerdict.WAIT
    bench.advance(1)
    assert bench.pushed() == {second.connection: [0]}
    assert second.verdicts(0)[0] is LockVerdict.OK
    assert bench.lists() == ("a",)


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
def test_invalid_heartbeat_changes_nothing(body: HeartbeatBody) -> None:
    bench = Bench()
    before = bench.c.snapshot()
    with pytest.raises(LocalProtocolError):
        bench.c.membership.heartbeat(1, Heartbeat.from_body(body), bench.now_ms)
    assert bench.c.snapshot() == before
    assert not (bench.c.state.sessions.session_on(1) is not None)


def test_unknown_connection_may_close_or_sync_without_effect() -> None:
    bench = Bench()
    bench.c.membership.connection_closed(99, bench.now_ms)
    assert bench.c.lock_sync.sync(99, SyncBody(), bench.now_ms) is None
    assert bench.closed() == [99]
