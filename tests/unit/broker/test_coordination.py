"""Coordination as a whole: starts, the hold after an assumed loss, time, topics, status."""

from dataclasses import replace

import pytest

from lockstep.broker.groups.coordination import HANDSHAKES_MS, START_GRACES_MAX, TICK_MS_MAX, Coordination, next_term
from lockstep.broker.groups.effects import PushLayout, PushQueueFree
from lockstep.broker.journal import Journal
from lockstep.protocol.bodies import LockVerdict, MemberStatus, QueueStatus, SyncItem
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from support.coordination_kit import (
    BROKER,
    CONFIG,
    GRACE,
    GROUP,
    TIMEOUT,
    TOPIC,
    Bench,
    ClassicClient,
    Client,
    joined,
    layout,
    ordered,
    replay,
)

OK, STALE, NOT_YOURS, HELD, REFUSED, WAIT = LockVerdict


# ------------------------------------------------------------------------------------------------------------------------ terms


@pytest.mark.parametrize(
    ("last", "wall_ms", "term"),
    [(0, 1_577_836_800_000, 1), (0, 1_577_836_801_999, 1), (0, 1_577_836_802_000, 2), (900, 1_577_836_805_000, 901), (5, 0, 6)],
)
def test_term_is_above_the_last_one_and_at_least_the_seconds_since_2020(last: int, wall_ms: int, term: int) -> None:
    assert next_term(last, wall_ms) == term


def test_epochs_rise_over_a_restart_and_over_a_lost_store() -> None:
    bench = Bench()
    a = joined(bench, "a")
    first = a.lock(0)[0].epoch
    bench.restart()
    a.connect()
    assert a.lock(0, held={})[0].epoch > first
    wall_ms = 1_800_000_000_000
    wiped = Coordination(CONFIG, LayoutTable(), bench.ends, Journal())
    wiped.enter_term(next_term(0, wall_ms), assumed_loss=False, now_ms=0)
    assert wiped.state.term << 32 > first
    assert wiped.state.term << 32 < 1 << 63


# ------------------------------------------------------------------------------------------------------------- ordinary starts


def test_owner_keeps_its_epoch_over_a_restart() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1)
    a.commit(0, 5, attempts=2)
    epoch = bench.epoch(0)
    bench.restart()
    assert bench.lists() == ("a",)
    assert a.connect() is not None
    responses = a.lock()
    assert (responses[0].verdict, responses[0].epoch, responses[0].offset, responses[0].attempts) == (OK, epoch, 5, 2)


def test_grace_of_recorded_sessions_starts_when_the_port_opens() -> None:
    bench = Bench()
    a, b = joined(bench, "a"), joined(bench, "b")
    a.lock(0)
    b.lock(1)
    bench.restart(opened=False)
    bench.advance(60_000)
    assert bench.lists() == ("a", "b")
    bench.c.port_opened(bench.now_ms)
    b.connect()
    bench.advance(GRACE - 1)
    assert bench.lists() == ("a", "b")
    assert b.verdicts(0) == {1: OK, 0: NOT_YOURS}
    bench.c.state.pending.drain()
    bench.advance(1)
    assert bench.lists() == ("b",)
    assert bench.pushed() == {b.connection: [0, 2, 3]}
    assert b.verdicts(0) == {1: OK, 0: OK}


def test_grace_of_recorded_sessions_lasts_while_clients_shake_hands() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    epoch = bench.epoch(0)
    bench.restart()
    bench.advance(GRACE - 500)
    for _ in range(6):
        bench.c.extend_start_grace(bench.now_ms)
        bench.advance(HANDSHAKES_MS - 1)
    assert bench.lists() == ("a",)
    assert a.connect() is not None
    assert a.verdicts() == {0: OK}
    assert bench.epoch(0) == epoch


def test_sessions_outlast_a_suspension_and_the_grace_after_it() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    epoch = bench.epoch(0)
    for _ in range(60):
        bench.c.keep_sessions(bench.now_ms)
        bench.advance(TICK_MS_MAX)
    bench.advance(GRACE - 1)
    assert (bench.lists(), a.verdicts(), bench.epoch(0)) == (("a",), {0: OK}, epoch)
    bench.advance(bench.c.state.config.session_timeout_ms)
    assert bench.lists() == ()


def test_grace_of_recorded_sessions_is_extended_by_a_second_from_the_last_handshake_and_not_again() -> None:
    bench = Bench()
    joined(bench, "a")
    bench.restart()
    bench.advance(GRACE)
    bench.c.extend_start_grace(bench.now_ms)
    assert bench.lists() == (), "it was over"
    joined(bench, "b")
    bench.restart()
    bench.c.extend_start_grace(bench.now_ms)
    bench.advance(GRACE - 1)
    assert bench.lists() == ("b",), "it is never shortened"
    bench.c.extend_start_grace(bench.now_ms)
    bench.advance(HANDSHAKES_MS - 1)
    assert bench.lists() == ("b",)
    bench.advance(1)
    assert bench.lists() == ()


def test_grace_of_recorded_sessions_ends_although_somebody_opens_connections_all_the_time() -> None:
    bench = Bench()
    joined(bench, "a")
    bench.restart()
    opened_ms = bench.now_ms
    while bench.lists() and bench.now_ms < opened_ms + 100 * GRACE:
        bench.c.extend_start_grace(bench.now_ms)
        bench.advance(500)
    assert bench.now_ms == opened_ms + START_GRACES_MAX * GRACE


def test_member_list_after_a_start_has_recorded_and_connected_members() -> None:
    bench = Bench()
    joined(bench, "a")
    bench.restart()
    b = joined(bench, "b")
    assert bench.lists() == ("a", "b")
    assert b.verdicts(0, 1) == {0: NOT_YOURS, 1: OK}


def test_recorded_draining_session_has_the_same_grace_as_a_member() -> None:
    bench = Bench()
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    a.lock(1)
    b.connect()
    a.leave()
    bench.restart()
    b.connect()
    assert b.verdicts(1) == {1: WAIT}
    a.connect()
    assert a.commit(1, 4, release=True) is OK
    assert b.lock(1)[1].offset == 4


def test_restart_keeps_every_generation() -> None:
    bench = Bench()
    a = joined(bench, "a")
    before = a.lock(0)[0].generation
    bench.restart()
    a.connect()
    assert a.lock()[0].generation == before


# ---------------------------------------------------------------------------------------------------------------- assumed loss


def bench_after_assumed_loss() -> tuple[Bench, Client, Client]:
    bench = Bench()
    a, b = joined(bench, "a"), joined(bench, "b")
    a.lock(0, 2)
    b.lock(1)
    a.commit(0, 5)
    bench.restart(assumed_loss=True)
    return bench, a, b


def test_assumed_loss_ends_every_recorded_grant() -> None:
    _, a, _ = bench_after_assumed_loss()
    a.connect()
    assert a.commit(0, 6) is STALE
    assert a.pull(0) is False
    assert a.verdicts() == {0: STALE, 2: STALE}


def test_assumed_loss_raises_every_generation() -> None:
    bench, a, _ = bench_after_assumed_loss()
    earlier = replay_generation(bench, 0)
    a.connect()
    bench.advance(GRACE)
    assert a.lock(0, held={})[0].generation > earlier


def replay_generation(bench: Bench, queue_id: int) -> int:
    """The generation that the log held before the last start."""
    before = Bench(config=bench.config)
    before.records = bench.records[:-1]
    found = replay(before).status.read(GROUP, 0, str)
    assert found is not None
    return found.queues[queue_id].generation


@pytest.mark.parametrize(("after", "verdict"), [(GRACE - 1, WAIT), (GRACE, OK)])
def test_no_queue_is_granted_for_one_grace_after_an_assumed_loss(after: int, verdict: LockVerdict) -> None:
    bench, a, _ = bench_after_assumed_loss()
    a.connect()
    bench.advance(after)
    a.held = {}
    assert a.verdicts(0) == {0: verdict}


def test_end_of_the_suspension_notifies_every_member_of_free_queues() -> None:
    bench, a, b = bench_after_assumed_loss()
    a.connect()
    b.connect()
    assert bench.pushed() == {}
    bench.advance(GRACE)
    assert bench.pushed() == {a.connection: [0, 2], b.connection: [1, 3]}
    assert not bench.c.state.grants_suspended


def test_no_member_is_notified_of_free_queues_during_the_suspension() -> None:
    bench, a, _ = bench_after_assumed_loss()
    a.connect()
    Client(bench, "c").connect()
    assert bench.pushed() == {}


def test_start_during_the_suspension_restarts_it() -> None:
    bench, a, _ = bench_after_assumed_loss()
    bench.advance(GRACE - 1)
    bench.restart()
    assert bench.c.state.grants_suspended
    a.connect()
    a.held = {}
    bench.advance(GRACE - 1)
    assert a.verdicts(0) == {0: WAIT}
    bench.advance(1)
    assert a.verdicts(0) == {0: OK}


def test_completed_suspension_is_not_repeated_at_the_next_start() -> None:
    bench, a, _ = bench_after_assumed_loss()
    a.connect()
    bench.advance(GRACE)
    bench.restart()
    a.connect()
    a.held = {}
    assert a.verdicts(0) == {0: OK}


def test_start_with_a_shorter_grace_honors_the_longer_announced_one() -> None:
    bench = Bench(config=replace(CONFIG, disconnect_grace_ms=10_000))
    a = joined(bench, "a")
    a.lock(0)
    bench.config = CONFIG
    bench.restart()
    bench.advance(GRACE - 1)
    bench.restart()
    b = joined(bench, "b")
    bench.advance(9_500)
    assert bench.lists() == ("a", "b")
    assert b.verdicts(0) == {0: NOT_YOURS}
    bench.advance(500)
    assert bench.lists() == ("b",)
    assert b.verdicts(0) == {0: OK}
    bench.restart()
    bench.advance(GRACE)
    assert bench.owner(0) is None


def test_suspension_lasts_as_long_as_the_longest_announced_grace() -> None:
    bench = Bench(config=replace(CONFIG, disconnect_grace_ms=10_000))
    a = joined(bench, "a")
    bench.config = CONFIG
    bench.restart(assumed_loss=True)
    a.connect()
    bench.advance(9_500)
    assert a.verdicts(0) == {0: WAIT}
    bench.advance(500)
    assert a.verdicts(0) == {0: OK}


def test_members_and_progress_survive_an_assumed_loss() -> None:
    bench, _, _ = bench_after_assumed_loss()
    assert bench.lists() == ("a", "b")
    assert bench.progress(0) == (5, 0)


def test_progress_beyond_the_end_of_a_cut_queue_is_lowered_and_its_grant_ended() -> None:
    bench = Bench()
    a = joined(bench, "a")
    before = a.lock(0, 1)[0].generation
    a.commit(0, 500)
    a.commit(1, 400)
    bench.ends.queues = {(TOPIC, 0): (0, 450), (TOPIC, 1): (0, 400)}
    bench.restart()
    a.connect()
    assert a.commit(0, 450) is STALE
    assert a.commit(1, 400) is OK
    response = a.lock(0, held={1: a.held[1]})[0]
    assert response.offset == 450
    assert response.generation > before


# ------------------------------------------------------------------------------------------------------------------------- time


def test_tick_is_due_at_the_next_expiry_and_at_least_every_second() -> None:
    bench = Bench()
    assert bench.c.tick(bench.now_ms) == bench.now_ms + TICK_MS_MAX
    a = joined(bench, "a")
    a.close()
    bench.advance(GRACE - 300)
    assert bench.c.tick(bench.now_ms) == bench.now_ms + 300


def test_nothing_expires_before_the_port_is_open() -> None:
    bench = Bench()
    Client(bench, "a").connect()
    bench.restart(opened=False)
    before = bench.c.snapshot()
    bench.advance(100_000)
    assert bench.c.snapshot() == before


def test_grace_above_the_session_timeout_raises_the_timeout() -> None:
    assert replace(CONFIG, disconnect_grace_ms=60_000).session_timeout_ms == 60_000
    assert CONFIG.session_timeout_ms == TIMEOUT
    with pytest.raises(ConfigError, match="at least 1000"):
        replace(CONFIG, disconnect_grace_ms=999)


def test_effects_callback_is_called_once_until_the_effects_are_drained() -> None:
    bench = Bench()
    woken: list[int] = []
    bench.c.state.pending.drain()
    bench.c.state.pending.on_effects = lambda: woken.append(1)
    Client(bench, "a").connect()
    Client(bench, "b").connect()
    assert woken == [1]
    assert bench.c.state.pending.drain() != []
    assert bench.c.state.pending.drain() == []
    c = joined(bench, "c")
    assert woken == [1, 1]
    bench.c.state.pending.drain()
    c.leave()
    assert woken == [1, 1, 1], "others must hear of it"


# ----------------------------------------------------------------------------------------------------------------------- topics


def deleted_layout(counter: int = 2) -> TopicLayout:
    return TopicLayout(TOPIC, LayoutVersion(counter, 7), ())


def test_topic_deletion_removes_progress_and_locks_and_ends_held_pulls() -> None:
    bench = Bench(layout(), layout("other"))
    a = joined(bench, "a", ordered(topics=(TOPIC, "other")))
    a.lock(0)
    a.commit(0, 5)
    bench.c.state.pending.drain()
    bench.layouts.adopt(deleted_layout())
    bench.c.layout_changed(TOPIC)
    assert bench.stale() == [(GROUP, TOPIC, 0)]
    assert a.commit(0, 6) is STALE
    assert a.verdicts(0, held={}) == {0: REFUSED}
    assert bench.c.legacy.query_offset((GROUP, TOPIC, 0), young=False) is None


def test_added_queues_are_offered_to_their_owners_by_the_member_list() -> None:
    bench = Bench(layout(queues=1))
    a, b = joined(bench, "a"), joined(bench, "b")
    bench.c.state.pending.drain()
    bench.layouts.adopt(layout(queues=2, counter=2))
    bench.c.layout_changed(TOPIC)
    assert bench.pushed() == {a.connection: [0], b.connection: [1]}


def test_subscribers_receive_a_layout_before_the_notice_of_its_free_queues() -> None:
    bench = Bench(layout(queues=1), layout("other"))
    a, b, c = (
        Client(bench, "a"),
        Client(bench, "b", ordered("second", topics=(TOPIC, "other"))),
        Client(bench, "c", ordered("third", topics=("other",))),
    )
    for client in (a, b, c):
        client.connect()
    bench.c.state.pending.drain()
    for again in (layout(queues=2, counter=2), deleted_layout(3)):
        bench.layouts.adopt(again)
        bench.c.layout_changed(TOPIC)
        effects = bench.c.state.pending.drain()
        assert effects[0] == PushLayout(again, (a.connection, b.connection))
        assert [type(effect) for effect in effects[1:]] == ([] if again.deleted else [PushQueueFree, PushQueueFree])
    b.close()
    bench.layouts.adopt(layout(counter=4))
    bench.c.layout_changed(TOPIC)
    assert [effect.connections for effect in bench.drain(PushLayout)] == [(a.connection,)]


def test_contract_of_a_draining_member_is_dropped_with_its_last_topic() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.leave()
    bench.layouts.adopt(deleted_layout())
    bench.c.layout_changed(TOPIC)
    assert bench.c.status.groups() == ()


def test_recreated_topic_starts_with_a_higher_epoch_and_generation() -> None:
    bench = Bench()
    a = joined(bench, "a")
    old = a.lock(0)[0]
    a.commit(0, 5)
    for again in (deleted_layout(), layout(counter=3)):
        bench.layouts.adopt(again)
        bench.c.layout_changed(TOPIC)
    assert a.commit(0, 6) is STALE
    new = a.lock(0, held={})[0]
    assert new.offset == 0
    assert new.epoch > old.epoch
    assert new.generation > old.generation
    assert new.since == 3


# ----------------------------------------------------------------------------------------------------------------------- status


def test_status_has_owner_epoch_progress_and_members_but_no_session() -> None:
    bench = Bench(layout(queues=2))
    a, z = Client(bench, "a"), ClassicClient(bench, "z")
    a.connect()
    z.connect()
    response = a.lock(0)[0]
    z.lock(1)
    a.commit(0, 9, attempts=1)
    bench.now_ms += 700
    status = bench.c.status.read(GROUP, bench.now_ms, lambda connection: f"10.0.0.1:{connection}")
    assert status is not None
    assert status.contract is not None
    assert status.members == (
        MemberStatus("a", a.session[:8], f"10.0.0.1:{a.connection}", True, 700),
        MemberStatus("z", None, f"10.0.0.1:{z.connection}", True, 700),
    )
    assert status.queues == (
        QueueStatus(TOPIC, 0, "a", response.epoch, response.generation, 9, 1_000, 1, 700, None, 0, 0, 700),
        QueueStatus(TOPIC, 1, "z", bench.epoch(1), response.generation, 0, 1_000, 0, None, 59_300, 0, 0),
    )
    assert bench.c.status.read("unknown", bench.now_ms, str) is None
    assert bench.c.status.groups() == (GROUP,)


def test_member_in_its_grace_is_reported_as_not_connected() -> None:
    bench = Bench()
    a, z = Client(bench, "a"), ClassicClient(bench, "z")
    a.connect()
    z.connect()
    bench.restart()
    bench.now_ms += 100
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    assert [(each.client_id, each.connected, each.address, each.heard_ago_ms) for each in status.members] == [
        ("a", False, "", 100),
        ("z", False, "", 100),
    ]


# --------------------------------------------------------------------------------------------------------------------- durable


def test_commits_of_a_turn_are_one_state_record() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1, 2)
    bench.flush()
    count = len(bench.records)
    a.send_sync(*(SyncItem(GROUP, TOPIC, queue_id, epoch, offset=3) for queue_id, epoch in a.held.items()))
    bench.flush()
    assert len(bench.records) == count + 1


def test_requests_without_a_change_write_nothing() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.commit(0, 3)
    bench.flush()
    count = len(bench.records)
    a.beat()
    a.lock()
    a.commit(0, 3)
    a.commit(0, 1)
    a.leave("other")
    bench.c.layout_changed(TOPIC)
    bench.flush()
    assert len(bench.records) == count


def test_only_queues_of_this_broker_can_be_locked() -> None:
    bench = Bench(layout(queues=2, others=2))
    a = joined(bench, "a")
    joined(bench, "b")
    assert bench.c.starts.own_queue_ids(TOPIC) == [0, 1]
    assert bench.c.starts.own_queue_ids("none") == []
    assert a.verdicts(0, 1, 2) == {0: OK, 1: NOT_YOURS, 2: REFUSED}
    assert bench.config.broker_name == BROKER
