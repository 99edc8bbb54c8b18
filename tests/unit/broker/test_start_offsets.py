"""The start of a group without a commit: its start policy, or the minimum offset after retention."""

import pytest

from lockstep.protocol.bodies import ConsumeFromWhere, LockItem, LockVerdict, MessageModel, SessionLockBody, StartPolicy
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.coordination_kit import GROUP, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered

OK = LockVerdict.OK


# ------------------------------------------------------------------------------------------------------------------------ start


@pytest.mark.parametrize(
    ("where", "begins"),
    [(ConsumeFromWhere.FIRST_OFFSET, [10, 20]), (ConsumeFromWhere.LAST_OFFSET, [50, 60]), (ConsumeFromWhere.TIMESTAMP, [33, 60])],
)
def test_start_policy_is_resolved_once_for_all_queues_of_the_topic(where: ConsumeFromWhere, begins: list[int]) -> None:
    bench = Bench(layout(queues=2, counter=5))
    bench.ends.queues = {(TOPIC, 0): (10, 50), (TOPIC, 1): (20, 60)}
    a = joined(bench, "a", ordered(consume_from_where=where, consume_timestamp_ms=1_000))
    body = SessionLockBody((LockItem(GROUP, TOPIC, 0),))
    needed = bench.c.starts.policies_to_look_up(a.connection, body)
    assert [(start.topic, start.timestamp_ms) for start in needed] == ([(TOPIC, 1_000)] if where is ConsumeFromWhere.TIMESTAMP else [])
    by_time = {(GROUP, TOPIC, 0): 33, (GROUP, TOPIC, 1): 99}
    bench.flush()
    assert bench.c.lock_sync.lock(a.connection, body, bench.now_ms, by_time) is not None
    assert [bench.progress(queue_id)[0] for queue_id in (0, 1)] == begins
    bench.ends.queues = {(TOPIC, 0): (11, 500), (TOPIC, 1): (21, 600)}
    assert bench.c.starts.policies_to_look_up(a.connection, body) == ()
    assert a.lock(1, held={})[1].offset == begins[1]
    view = a.beat()
    assert view is not None
    assert view.groups[GROUP].since == {TOPIC: 5}


def test_start_policy_of_the_lock_overrides_the_contracts() -> None:
    bench = Bench()
    a = joined(bench, "a")
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0), starts=(StartPolicy(GROUP, TOPIC, ConsumeFromWhere.LAST_OFFSET),))
    assert reply is not None
    assert reply.items[0].offset == 1_000


def test_start_by_time_without_a_time_is_the_first_message() -> None:
    bench = Bench()
    bench.ends.queues[TOPIC, 0] = (12, 50)
    a = joined(bench, "a", ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP))
    assert bench.c.starts.policies_to_look_up(a.connection, SessionLockBody((LockItem(GROUP, TOPIC, 0),))) == ()
    assert a.lock(0)[0].offset == 12


def test_queue_added_by_a_later_layout_starts_at_0() -> None:
    bench = Bench(layout(queues=2))
    last = ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    a = joined(bench, "a", last)
    assert a.lock(0)[0].offset == 1_000
    wider = layout(queues=2)
    bench.layouts.adopt(type(wider)(TOPIC, type(wider.version)(2, 7), (*wider.entries, type(wider.entries[0])("broker-a", 1, 1, 2))))
    bench.c.layout_changed(TOPIC)
    assert bench.pushed() == {a.connection: [1, 2]}
    responses = a.lock(1, 2)
    assert (responses[1].offset, responses[2].offset, responses[2].since) == (1_000, 0, 1)
    assert responses[2].generation > responses[1].generation


def test_queue_of_a_broker_added_later_starts_at_0() -> None:
    bench = Bench(layout(counter=5))
    a = joined(bench, "a")
    start = StartPolicy(GROUP, TOPIC, ConsumeFromWhere.LAST_OFFSET, since=3)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 0), starts=(start,))
    assert reply is not None
    assert (reply.items[0].offset, reply.items[0].since) == (0, 3)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("knows_the_broker", [False, True])
def test_queue_added_again_after_its_removal_starts_where_it_ended_then(restarts: bool, knows_the_broker: bool) -> None:
    """Its older messages came before those that the group has consumed elsewhere meanwhile."""
    bench = Bench(layout(queues=1, counter=5))
    a = joined(bench, "a")
    if knows_the_broker:
        assert a.lock(0)[0].offset == 0
    bench.c.queues_added(TOPIC, {1: True})
    bench.layouts.adopt(TopicLayout(TOPIC, LayoutVersion(6, 7), (LayoutEntry("broker-a", 1, 1, 1), LayoutEntry("broker-a", 1, 1, 6))))
    bench.c.layout_changed(TOPIC)
    if restarts:
        bench.restart()
        a = joined(bench, "b")
    bench.ends.queues[TOPIC, 1] = (0, 1_500)
    reply = a.send_lock(LockItem(GROUP, TOPIC, 1), starts=(StartPolicy(GROUP, TOPIC, ConsumeFromWhere.FIRST_OFFSET, since=3),))
    assert reply is not None
    assert reply.items[0].offset == 1_000


def test_group_that_subscribes_to_a_topic_before_its_creation_begins_at_its_first_message() -> None:
    """Also after restarts, after its members have left, and of a topic that had messages before it was deleted."""
    bench = Bench(layout("other"))
    a = joined(bench, "a", ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    bench.restart()
    bench.layouts.adopt(layout(queues=2, counter=3))
    bench.ends.queues = {(TOPIC, 0): (7, 7), (TOPIC, 1): (0, 0)}
    bench.c.queues_added(TOPIC, {0: False, 1: False})
    bench.c.topic_created(TOPIC)
    bench.c.layout_changed(TOPIC)
    bench.ends.queues = {(TOPIC, 0): (7, 50), (TOPIC, 1): (0, 60)}
    assert [bench.c.legacy.query_offset((GROUP, TOPIC, queue_id), young=False) for queue_id in (0, 1)] == [7, 0]
    a.connect()
    a.leave()
    bench.restart()
    b = joined(bench, "b", ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    assert [(each.offset, each.since) for each in b.lock(0, 1).values()] == [(7, 3), (0, 3)]


@pytest.mark.parametrize("where", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.TIMESTAMP])
def test_only_a_group_that_would_begin_at_the_end_is_recorded_when_its_topic_is_created(where: ConsumeFromWhere) -> None:
    bench = Bench(layout("other"))
    Client(bench, "a", ordered(consume_from_where=where, consume_timestamp_ms=1)).connect()
    bench.layouts.adopt(layout())
    bench.c.topic_created(TOPIC)
    assert bench.c.state.progress.since(GROUP, TOPIC) is None


def test_group_that_subscribes_after_the_creation_begins_at_the_end() -> None:
    bench = Bench(layout("other"))
    bench.layouts.adopt(layout())
    bench.c.topic_created(TOPIC)
    a = joined(bench, "a", ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    assert a.lock(0)[0].offset == 1_000


def test_broadcasting_members_are_told_the_layout_counter_of_each_topic() -> None:
    bench = Bench(layout(counter=5))
    bench.layouts.adopt(layout("gone", queues=0, counter=3))
    contract = ordered(topics=(TOPIC, "gone", "unknown"), message_model=MessageModel.BROADCASTING)
    view = Client(bench, "a", contract).connect()
    assert view is not None
    assert view.groups[GROUP].since == {TOPIC: 5, "gone": 3, "unknown": 0}


def test_start_in_a_queue_that_was_added_again_is_set_back_if_the_log_lost_its_end() -> None:
    bench = Bench(layout(queues=1, counter=5))
    bench.c.queues_added(TOPIC, {0: True})
    bench.ends.queues[TOPIC, 0] = (0, 400)
    bench.restart(assumed_loss=True)
    assert bench.c.state.progress.first_offset(TOPIC, 0) == 400


def test_queue_of_a_deleted_topic_starts_at_its_first_offset_and_what_retention_removes_then_is_lost() -> None:
    bench = Bench(layout(queues=1, counter=5))
    a = joined(bench, "a")
    assert a.lock(0)[0].offset == 0
    bench.ends.queues[TOPIC, 1] = (11, 11)
    bench.layouts.adopt(TopicLayout(TOPIC, LayoutVersion(6, 7), (LayoutEntry("broker-a", 1, 1, 1), LayoutEntry("broker-a", 1, 1, 6))))
    bench.c.queues_added(TOPIC, {1: False})
    bench.c.layout_changed(TOPIC)
    bench.ends.queues[TOPIC, 1] = (11, 20)
    assert a.lock(1)[1].offset == 11
    bench.ends.queues[TOPIC, 1] = (15, 20)
    bench.retention_moved({(TOPIC, 1): 15})
    a.close()
    a.connect()
    result = a.lock()[1]
    assert (result.offset, result.gap_first, result.gap_end) == (15, 11, 15)


def test_start_policy_applies_only_to_queues_without_an_offset() -> None:
    bench = Bench()
    tool = ClassicClient(bench, "tool")
    tool.connection = bench.new_connection()
    tool.update(0, 77)
    a = joined(bench, "a", ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    responses = a.lock(0, 1)
    assert (responses[0].offset, responses[1].offset) == (77, 1_000)


# -------------------------------------------------------------------------------------------------------------------------- gaps


def gap(response: object) -> tuple[int | None, int | None]:
    return response.gap_first, response.gap_end  # type: ignore[attr-defined]


def test_retention_gap_is_reported_once_per_connection_until_a_commit_passes_it() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.commit(0, 5, attempts=2)
    bench.retention_moved({(TOPIC, 0): 20})
    bench.retention_moved({(TOPIC, 0): 30})
    assert bench.progress(0) == (30, 0)
    response = a.lock()[0]
    assert (response.verdict, response.offset, gap(response)) == (OK, 30, (5, 30))
    assert gap(a.lock()[0]) == (None, None)
    a.connect()
    check = bench.c.pulls.admit(a.connection, (GROUP, TOPIC, 0), a.held[0])
    assert check is not None
    assert check.gap == (5, 30)
    assert a.commit(0, 25) is OK
    bench.restart()
    a.connect()
    assert gap(a.lock()[0]) == (5, 30)
    assert a.commit(0, 31) is OK
    a.connect()
    assert gap(a.lock()[0]) == (None, None)


def test_new_grant_reports_the_gap_again() -> None:
    """An earlier pull response was sent after its queue had been released, so the gap reached no consumer."""
    bench = Bench()
    a = joined(bench, "a")
    epoch = a.lock(0)[0].epoch
    a.commit(0, 5)
    bench.retention_moved({(TOPIC, 0): 20})
    check = bench.c.pulls.admit(a.connection, (GROUP, TOPIC, 0), epoch)
    assert check is not None
    assert check.gap == (5, 20)
    assert a.commit(0, 5, epoch=epoch, release=True) is OK
    assert gap(a.lock(0, held={})[0]) == (5, 20)


def test_start_moves_groups_below_the_minimum_offset() -> None:
    """Old files are removed durably one by one, and the record that moves the groups may be lost in a crash."""
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0, 1)
    a.commit(0, 5, attempts=2)
    a.commit(1, 20)
    bench.ends.queues = {(TOPIC, 0): (20, 1_000), (TOPIC, 1): (20, 1_000)}
    bench.restart()
    assert (bench.progress(0), bench.progress(1)) == ((20, 0), (20, 0))
    a.connect()
    responses = a.lock()
    assert (responses[0].verdict, responses[0].offset, gap(responses[0]), gap(responses[1])) == (OK, 20, (5, 20), (None, None))


def test_grown_gap_is_reported_again() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    bench.retention_moved({(TOPIC, 0): 20})
    assert gap(a.lock()[0]) == (0, 20)
    bench.retention_moved({(TOPIC, 0): 40})
    assert gap(a.lock()[0]) == (0, 40)


def test_retention_below_the_committed_offset_changes_nothing() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.commit(0, 5)
    before = bench.c.snapshot()
    bench.retention_moved({(TOPIC, 0): 5})
    bench.retention_moved({(TOPIC, 1): 0})
    assert bench.c.snapshot() == before
