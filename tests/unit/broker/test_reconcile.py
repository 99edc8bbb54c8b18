import pytest

from lockstep.protocol.bodies import LockItem, MessageModel, ReconcileBody, StartPoint, StartPolicy, SyncBody, SyncItem, Verdict
from lockstep.protocol.errors import LocalProtocolError
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, layout, ordered

OK, STALE, NOT_YOURS, HELD, REFUSED, WAIT = Verdict


def pair(bench: Bench) -> tuple[Client, Client]:
    """Members a (queues 0, 2) and b (queues 1, 3), both connected."""
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    b.connect()
    bench.c.drain()
    return a, b


# ------------------------------------------------------------------------------------------------------------------- granting


def test_a_grant_carries_everything_for_the_first_pull() -> None:
    bench = Bench(layout(counter=3))
    bench.ends.queues[TOPIC, 1] = (40, 90)
    a = Client(bench, "a")
    a.connect()
    answer = a.lock(1)[1]
    assert (answer.verdict, answer.offset, answer.attempts, answer.since) == (OK, 40, 0, 3)
    assert answer.epoch == bench.epoch(1)
    assert answer.epoch >> 32 == bench.c.term
    assert answer.generation > 0


def test_every_acquire_raises_the_epoch_and_a_renewal_does_not() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    first = a.lock(0)[0].epoch
    assert a.lock()[0].epoch == first
    again = a.lock(0, held={})[0].epoch
    assert again > first
    assert a.pull(0, first) is False
    assert a.pull(0, again) is True


def test_members_share_the_queues_by_their_number_in_the_layout() -> None:
    bench = Bench()
    a, b = pair(bench)
    assert a.verdicts(0, 1, 2, 3) == {0: OK, 1: NOT_YOURS, 2: OK, 3: NOT_YOURS}
    assert b.verdicts(0, 1, 2, 3) == {0: NOT_YOURS, 1: OK, 2: NOT_YOURS, 3: OK}


def test_the_answer_names_the_version_of_every_list_concerned() -> None:
    bench = Bench()
    a = Client(bench, "a", ordered(), ordered("other"))
    view = a.connect()
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0))
    assert view is not None
    assert reply is not None
    assert reply.versions == {name: group.list.version for name, group in view.groups.items()}
    assert (reply.disconnect_grace_ms, reply.session_timeout_ms) == (GRACE, TIMEOUT)


def test_answers_come_in_the_order_of_the_items() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
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
def test_what_nobody_may_lock_is_refused_by_reason(item: LockItem, word: str) -> None:
    bench = Bench()
    a = Client(bench, "a", ordered(), ordered("concurrent", ordered=False), ordered("broadcast", message_model=MessageModel.BROADCASTING))
    a.connect()
    reply = a.send_lock(item)
    assert reply is not None
    assert reply.items[0].verdict is REFUSED
    assert word in (reply.items[0].remark or "")


def test_a_lock_that_names_a_queue_twice_is_refused_whole() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    before = bench.c.snapshot()
    with pytest.raises(LocalProtocolError):
        a.send_lock(LockItem(GROUP, TOPIC, 0, a.held[0]), LockItem(GROUP, TOPIC, 0))
    assert bench.c.snapshot() == before


# ------------------------------------------------------------------------------------------------------------- reconciliation


def test_what_the_list_does_not_name_is_freed_and_told_to_whom_it_belongs() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0, 1)
    b = Client(bench, "b")
    b.connect()
    bench.c.drain()
    assert a.verdicts(held={0: a.held[0]}) == {0: OK}
    assert bench.owner(1) is None
    assert bench.pushed() == {b.connection: [1]}


def test_a_grant_whose_answer_was_lost_is_acquired_anew() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    lost = a.lock(0)[0].epoch
    a.held = {}
    a.connect()
    answer = a.lock(0)[0]
    assert answer.verdict is OK
    assert answer.epoch > lost


def test_a_ghost_hold_is_freed_where_the_list_has_moved_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(1)
    b = Client(bench, "b")
    b.connect()
    bench.c.drain()
    assert a.verdicts(1, held={}) == {1: NOT_YOURS}
    assert bench.owner(1) is None
    assert bench.pushed() == {b.connection: [1]}
    assert b.verdicts(1) == {1: OK}


def test_an_item_with_a_stale_epoch_never_keeps_a_hold() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    old = a.lock(0)[0].epoch
    a.lock(0, held={})
    assert a.verdicts(held={0: old}) == {0: STALE}
    assert bench.owner(0) is None


def test_a_draining_queue_is_renewed_though_the_list_gives_it_to_another() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    epoch = a.lock(1)[1].epoch
    b = Client(bench, "b")
    b.connect()
    assert a.verdicts() == {1: OK}
    assert bench.epoch(1) == epoch
    assert b.verdicts(1) == {1: HELD}


def test_wait_says_that_the_holder_is_only_expected_back() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(1)
    b = Client(bench, "b")
    b.connect()
    a.close()
    assert b.verdicts(1) == {1: WAIT}


def test_finished_work_in_a_lock_is_committed_with_the_renewal_and_without_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0, 1)
    reply = a.send_lock(
        LockItem(GROUP, TOPIC, 0, a.held[0], offset=9, attempts=2), LockItem(GROUP, TOPIC, 1, a.held[1], offset=1_001, attempts=0)
    )
    assert reply is not None
    assert [(item.verdict, item.offset, item.attempts) for item in reply.items] == [(OK, 9, 2), (REFUSED, 0, 0)]
    assert "ends at 1000" in (reply.items[1].remark or "")
    assert bench.owner(1) == "a"
    assert bench.progress(0) == (9, 2)


def test_a_freed_epoch_that_nobody_superseded_commits_releases_pulls_and_renews() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
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


def test_a_freed_epoch_is_not_held_again_where_the_list_has_moved_the_queue_but_its_work_counts() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(1)
    b = Client(bench, "b")
    b.connect()
    a.commit(1, None, release=True)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 1, a.held[1], offset=8))
    assert reply is not None
    assert reply.items[0].verdict is NOT_YOURS
    assert bench.owner(1) is None
    assert b.lock(1)[1].offset == 8


def test_an_epoch_is_good_for_the_session_only_that_it_was_granted_to() -> None:
    bench = Bench()
    a, b = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert b.commit(0, 5, epoch=epoch) is STALE
    assert b.pull(0, epoch) is False
    assert b.verdicts(held={0: epoch}) == {0: STALE}
    assert bench.owner(0) == "a"
    assert bench.progress(0) == (0, 0)


# ------------------------------------------------------------------------------------------------------------------ QUEUE_FREE


def test_a_released_queue_is_pushed_to_the_member_whom_the_list_names() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0, 1, 2, 3)
    b = Client(bench, "b")
    b.connect()
    bench.c.drain()
    a.commit(1, 5, release=True)
    assert bench.pushed() == {b.connection: [1]}


def test_a_free_queue_is_pushed_when_the_list_changes() -> None:
    bench = Bench()
    a, b = pair(bench)
    a.lock(0)
    c = Client(bench, "c")
    c.connect()
    assert bench.pushed() == {a.connection: [3], b.connection: [1], c.connection: [2]}


def test_a_queue_that_was_granted_again_before_effects_are_drained_is_pushed_to_nobody() -> None:
    bench = Bench()
    a, b = pair(bench)
    a.lock(0)
    bench.c.drain()
    a.lock(0, held={})
    assert bench.pushed() == {}
    assert b.connection


@pytest.mark.parametrize("how", ["strategy", "classic"])
def test_where_rocketmqs_rule_is_in_force_everybody_is_told_and_nothing_is_not_yours(how: str) -> None:
    bench = Bench()
    group = ordered(allocate="average") if how == "strategy" else ordered()
    a, b = Client(bench, "a", group), Client(bench, "b", group)
    a.connect()
    b.connect()
    if how == "classic":
        ClassicClient(bench, "z").connect()
    assert a.verdicts(0, 1) == {0: OK, 1: OK}
    assert b.verdicts(1) == {1: HELD}
    bench.c.drain()
    a.commit(1, None, release=True)
    assert bench.pushed() == {a.connection: [1], b.connection: [1]}
    a.commit(0, None, release=True)
    assert bench.notified() == ({GROUP: (3,)} if how == "classic" else {})


def test_nobody_is_told_of_a_concurrent_groups_queues() -> None:
    bench = Bench()
    a = Client(bench, "a", ordered(ordered=False))
    a.connect()
    assert bench.pushed() == {}


# ------------------------------------------------------------------------------------------------------------------------ SYNC


def test_within_a_generation_an_offset_never_falls_and_a_repeat_is_ok() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    assert [a.commit(0, offset) for offset in (5, 3, 5)] == [OK, OK, OK]
    assert bench.progress(0) == (5, 0)


def test_attempts_belong_to_the_committed_offset() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    seen = []
    for offset, attempts in [(0, 1), (0, 2), (0, 1), (4, 0), (3, 9), (4, 1)]:
        a.commit(0, offset, attempts=attempts)
        seen.append(bench.progress(0))
    assert seen == [(0, 1), (0, 2), (0, 2), (4, 0), (4, 0), (4, 1)]


@pytest.mark.parametrize(("offset", "verdict"), [(999, OK), (1_000, OK), (1_001, REFUSED), (-1, REFUSED)])
def test_beyond_the_end_is_refused_and_changes_nothing(offset: int, verdict: Verdict) -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    assert a.commit(0, offset, release=True) is verdict
    assert bench.owner(0) == (None if verdict is OK else "a")
    assert bench.progress(0)[0] == (offset if verdict is OK else 0)


def test_fewer_than_no_attempts_are_refused() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    assert a.commit(0, 1, attempts=-1) is REFUSED
    assert bench.progress(0) == (0, 0)


def test_a_release_without_an_offset_only_frees() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.commit(0, 5)
    epoch = bench.epoch(0)
    assert a.commit(0, None, release=True) is OK
    assert (bench.owner(0), bench.progress(0), bench.epoch(0)) == (None, (5, 0), epoch)


def test_a_superseded_epoch_is_stale_for_everything_and_named_in_the_answer() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    old = a.lock(1)[1].epoch
    b = Client(bench, "b")
    b.connect()
    a.commit(1, 2, release=True)
    new = b.lock(1)[1].epoch
    answers = a.send_sync(SyncItem(GROUP, TOPIC, 1, old, offset=9), SyncItem(GROUP, TOPIC, 1, old, release=True))
    assert answers is not None
    assert [(answer.verdict, answer.epoch) for answer in answers] == [(STALE, old)] * 2
    assert (bench.owner(1), bench.progress(1), bench.epoch(1)) == ("b", (2, 0), new)
    assert a.pull(1, old) is False


def test_a_rising_epoch_answers_held_pulls() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    bench.c.drain()
    a.lock()
    assert bench.stale() == []
    a.lock(0, held={})
    assert bench.stale() == [(GROUP, TOPIC, 0)]


def test_the_answer_to_an_empty_sync_heals_a_lost_notice() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    Client(bench, "b").connect()
    beaten = a.beat()
    assert beaten is not None
    reply = bench.c.sync(a.connection, SyncBody(), bench.now_ms)
    assert reply is not None
    assert reply.versions == {GROUP: beaten.groups[GROUP].list.version}


def test_a_concurrent_group_commits_under_its_generation_upward_only() -> None:
    bench = Bench()
    a = Client(bench, "a", ordered(ordered=False))
    a.connect()
    classic = ClassicClient(bench, "tool")
    classic.connection = bench.new_connection()
    classic.update(0, 5)
    row = bench.c.status(GROUP, bench.now_ms, str)
    assert row is not None
    generation = row.queues[0].generation

    def commit(offset: int | None, number: int | None) -> Verdict:
        answers = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=number, offset=offset))
        assert answers is not None
        return answers[0].verdict

    assert commit(7, generation) is OK
    assert commit(6, generation) is OK
    assert bench.progress(0) == (7, 0)
    assert commit(9, generation + 1) is STALE
    assert commit(9, None) is REFUSED
    assert commit(1_001, generation) is REFUSED
    classic.update(0, 2)
    assert commit(9, generation) is STALE


def test_an_ordered_groups_queue_is_never_committed_without_the_epoch() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    generation = a.lock(0)[0].generation
    for _ in range(2):
        answers = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=generation, offset=7), SyncItem(GROUP, TOPIC, 0, offset=7))
        assert answers is not None
        assert [answer.verdict for answer in answers] == [REFUSED, REFUSED]
        assert bench.progress(0) == (0, 0)
        a.commit(0, None, release=True)


def test_a_queue_that_somebody_has_locked_is_not_committed_under_its_generation() -> None:
    bench = Bench()
    a, classic = Client(bench, "a", ordered(ordered=False)), ClassicClient(bench, "c")
    a.connect()
    classic.connect()
    classic.update(0, 3)
    assert classic.lock(0) == [0]
    status = bench.c.status(GROUP, bench.now_ms, str)
    assert status is not None
    answers = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=status.queues[0].generation, offset=7))
    assert answers is not None
    assert [answer.verdict for answer in answers] == [REFUSED]
    assert bench.progress(0) == (3, 0)


# ------------------------------------------------------------------------------------------------------------------------ start


@pytest.mark.parametrize(
    ("where", "begins"),
    [(StartPoint.FIRST_OFFSET, [10, 20]), (StartPoint.LAST_OFFSET, [50, 60]), (StartPoint.TIMESTAMP, [33, 60])],
)
def test_the_start_policy_is_resolved_once_for_all_queues_of_the_topic(where: StartPoint, begins: list[int]) -> None:
    bench = Bench(layout(queues=2, counter=5))
    bench.ends.queues = {(TOPIC, 0): (10, 50), (TOPIC, 1): (20, 60)}
    a = Client(bench, "a", ordered(consume_from_where=where, consume_timestamp_ms=1_000))
    a.connect()
    body = ReconcileBody((LockItem(GROUP, TOPIC, 0),))
    needed = bench.c.times_needed(a.connection, body)
    assert [(start.topic, start.timestamp_ms) for start in needed] == ([(TOPIC, 1_000)] if where is StartPoint.TIMESTAMP else [])
    by_time = {(GROUP, TOPIC, 0): 33, (GROUP, TOPIC, 1): 99}
    bench.flush()
    assert bench.c.reconcile(a.connection, body, bench.now_ms, by_time) is not None
    assert [bench.progress(queue_id)[0] for queue_id in (0, 1)] == begins
    bench.ends.queues = {(TOPIC, 0): (11, 500), (TOPIC, 1): (21, 600)}
    assert bench.c.times_needed(a.connection, body) == ()
    assert a.lock(1, held={})[1].offset == begins[1]
    view = a.beat()
    assert view is not None
    assert view.groups[GROUP].since == {TOPIC: 5}


def test_the_locks_own_start_policy_goes_before_the_contracts() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0), starts=(StartPolicy(GROUP, TOPIC, StartPoint.LAST_OFFSET),))
    assert reply is not None
    assert reply.items[0].offset == 1_000


def test_a_time_that_nobody_names_is_the_first_message() -> None:
    bench = Bench()
    bench.ends.queues[TOPIC, 0] = (12, 50)
    a = Client(bench, "a", ordered(consume_from_where=StartPoint.TIMESTAMP))
    a.connect()
    assert bench.c.times_needed(a.connection, ReconcileBody((LockItem(GROUP, TOPIC, 0),))) == ()
    assert a.lock(0)[0].offset == 12


def test_a_queue_added_by_a_later_layout_begins_at_0() -> None:
    bench = Bench(layout(queues=2))
    last = ordered(consume_from_where=StartPoint.LAST_OFFSET)
    a = Client(bench, "a", last)
    a.connect()
    assert a.lock(0)[0].offset == 1_000
    wider = layout(queues=2)
    bench.layouts.adopt(type(wider)(TOPIC, type(wider.version)(2, 7), (*wider.entries, type(wider.entries[0])("broker-a", 1, 1, 2))))
    bench.c.layout_changed(TOPIC)
    assert bench.pushed() == {a.connection: [1, 2]}
    answers = a.lock(1, 2)
    assert (answers[1].offset, answers[2].offset, answers[2].since) == (1_000, 0, 1)
    assert answers[2].generation > answers[1].generation


def test_a_broker_added_later_hears_since_from_the_client_and_begins_at_0() -> None:
    bench = Bench(layout(counter=5))
    a = Client(bench, "a")
    a.connect()
    start = StartPolicy(GROUP, TOPIC, StartPoint.LAST_OFFSET, since=3)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0), starts=(start,))
    assert reply is not None
    assert (reply.items[0].offset, reply.items[0].since) == (0, 3)


def test_the_start_policy_applies_only_where_the_group_has_no_offset() -> None:
    bench = Bench()
    tool = ClassicClient(bench, "tool")
    tool.connection = bench.new_connection()
    tool.update(0, 77)
    a = Client(bench, "a", ordered(consume_from_where=StartPoint.LAST_OFFSET))
    a.connect()
    answers = a.lock(0, 1)
    assert (answers[0].offset, answers[1].offset) == (77, 1_000)


# -------------------------------------------------------------------------------------------------------------------------- gaps


def gap(answer: object) -> tuple[int | None, int | None]:
    return answer.gap_first, answer.gap_end  # type: ignore[attr-defined]


def test_retention_moves_a_group_up_and_the_gap_is_told_once_a_connection_until_a_commit_passes_it() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.commit(0, 5, attempts=2)
    bench.c.retention_moved({(TOPIC, 0): 20})
    bench.c.retention_moved({(TOPIC, 0): 30})
    assert bench.progress(0) == (30, 0)
    answer = a.lock()[0]
    assert (answer.verdict, answer.offset, gap(answer)) == (OK, 30, (5, 30))
    assert gap(a.lock()[0]) == (None, None)
    a.connect()
    check = bench.c.check_pull(a.connection, GROUP, TOPIC, 0, a.held[0])
    assert check is not None
    assert check.gap == (5, 30)
    assert a.commit(0, 25) is OK
    bench.restart()
    a.connect()
    assert gap(a.lock()[0]) == (5, 30)
    assert a.commit(0, 31) is OK
    a.connect()
    assert gap(a.lock()[0]) == (None, None)


def test_a_start_moves_the_groups_that_the_last_life_had_not_moved_yet() -> None:
    """Old files go durably one by one; the record that moves the groups may not follow before a crash."""
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0, 1)
    a.commit(0, 5, attempts=2)
    a.commit(1, 20)
    bench.ends.queues = {(TOPIC, 0): (20, 1_000), (TOPIC, 1): (20, 1_000)}
    bench.restart()
    assert (bench.progress(0), bench.progress(1)) == ((20, 0), (20, 0))
    a.connect()
    answers = a.lock()
    assert (answers[0].verdict, answers[0].offset, gap(answers[0]), gap(answers[1])) == (OK, 20, (5, 20), (None, None))


def test_a_gap_that_grows_is_told_again() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    bench.c.retention_moved({(TOPIC, 0): 20})
    assert gap(a.lock()[0]) == (0, 20)
    bench.c.retention_moved({(TOPIC, 0): 40})
    assert gap(a.lock()[0]) == (0, 40)


def test_retention_below_the_progress_changes_nothing() -> None:
    bench = Bench()
    a = Client(bench, "a")
    a.connect()
    a.lock(0)
    a.commit(0, 5)
    before = bench.c.snapshot()
    bench.c.retention_moved({(TOPIC, 0): 5})
    bench.c.retention_moved({(TOPIC, 1): 0})
    assert bench.c.snapshot() == before
