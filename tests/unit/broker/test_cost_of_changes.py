"""A change visits only the affected topics, groups, locks, leases and connections. Counted by lines and calls."""

import pytest

from lockstep.broker.groups import start_policy
from lockstep.broker.groups.effects import PushQueueFree
from lockstep.broker.groups.group_state import FREES_PER_TICK
from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.groups.tables import group
from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.journal import Journal
from lockstep.broker.tables.sequence_table import Scope, SequenceTable, StoredFrame
from lockstep.protocol.bodies import HeartbeatBody, LockItem, LockVerdict
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.topics.layouts import ENTRY_COUNT_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.testing.simulation.disk import SimFiles
from support.coordination_kit import BROKER, CONFIG, GROUP, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered
from support.counting import Steps
from support.store_kit import append, open_store


def test_layout_change_visits_only_groups_that_subscribe_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(layout(), layout("other"))
    for number in range(50):
        Client(bench, f"m{number}", ordered(f"g{number}", ("other",))).connect()
    a = joined(bench, "a")
    bench.c.state.pending.drain()
    bench.layouts.adopt(layout(queues=5, counter=2))
    monkeypatch.setattr(GroupTable, "__iter__", None)
    bench.c.layout_changed(TOPIC)
    assert bench.pushed() == {a.connection: [0, 1, 2, 3, 4]}


def lines_to_delete(others: int) -> int:
    """Return the lines of the tables that run to delete a topic of four queues in addition to another one of `others` queues."""
    bench = Bench(layout(), layout("other", others))
    a = joined(bench, "a", ordered(topics=(TOPIC, "other")))
    for topic, count in ((TOPIC, 4), ("other", others)):
        for queue_id in range(count):
            bench.c.state.progress.set_progress((GROUP, topic, queue_id), Progress(1, 0))
            bench.c.state.grant((GROUP, topic, queue_id), a.session, "a")
    bench.c.state.pending.drain()
    bench.layouts.adopt(layout(queues=0, counter=2))
    with Steps("/tables/") as steps:
        bench.c.layout_changed(TOPIC)
    assert sorted(topic for (_, topic, _), _ in bench.c.state.locks) == ["other"] * others
    return steps.count


def test_topic_deletion_visits_only_its_own_queues() -> None:
    assert lines_to_delete(200) == lines_to_delete(2)


async def test_queues_of_a_topic_are_found_without_visiting_others() -> None:
    async def lines(others: int) -> int:
        store = await open_store(SimFiles())
        for number in range(others):
            append(store, b"x", topic=f"t{number}")
        for queue_id in (2, 0):
            append(store, b"x", topic="mine", queue_id=queue_id)
        with Steps("broker/store/") as steps:
            assert store.queue_ids("mine") == [2, 0]
            assert store.stored_queue_ids("mine") == [2, 0]
        await store.close()
        return steps.count

    assert await lines(100) == await lines(1)


def test_connection_close_visits_only_its_own_classic_members() -> None:
    def lines(others: int) -> int:
        bench = Bench()
        members = [ClassicClient(bench, f"m{number}") for number in range(others)]
        mine = ClassicClient(bench, "mine")
        for each in (*members, mine):
            each.connect()
        with Steps("broker/groups/membership.py") as steps:
            mine.close()
            bench.c.membership.connection_closed(12_345, bench.now_ms)
        assert bench.lists() == tuple(sorted(each.name for each in members))
        return steps.count

    assert lines(100) == lines(2)


def test_topic_deletion_visits_only_its_own_start_policies() -> None:
    def lines(others: int) -> int:
        table = ProgressTable(Journal())
        for topic in (TOPIC, *(f"t{number}" for number in range(others))):
            table.record_start(GROUP, topic, since=3, generation=1, offsets=[(0, 5)])
        with Steps("broker/groups/tables/progress_table.py") as steps:
            table.drop_topic(TOPIC)
        assert table.since(GROUP, TOPIC) is None
        assert [table.since(GROUP, f"t{number}") for number in range(others)] == [3] * others
        return steps.count

    assert lines(200) == lines(2)


def test_free_queues_are_found_without_scanning_all_layout_entries() -> None:
    def lines(entries: int) -> int:
        parts = tuple(LayoutEntry(BROKER, 2_000 // entries, 2_000 // entries, number + 1) for number in range(entries))
        bench = Bench(TopicLayout(TOPIC, LayoutVersion(entries, 7), parts))
        Client(bench, "a").connect()
        bench.c.state.pending.drain(10)
        with Steps("protocol/topics/queue.py") as steps:
            pushes = bench.c.state.pending.drain(100)
        assert sum(len(each.queues) for each in pushes if isinstance(each, PushQueueFree)) == 50
        return steps.count

    halvings = 9
    assert lines(500) <= lines(1) + 50 * 3 * halvings, "three lookups for each queue"


def test_start_in_a_topic_visits_each_layout_entry_once() -> None:
    entries = tuple(LayoutEntry(BROKER, 4, 4, number + 1) for number in range(ENTRY_COUNT_MAX))
    bench = Bench(TopicLayout(TOPIC, LayoutVersion(ENTRY_COUNT_MAX, 7), entries))
    a = joined(bench, "a")
    with Steps("lockstep/protocol/topics/queue.py") as steps:
        assert a.verdicts(0) == {0: LockVerdict.OK}
    assert len(bench.c.state.progress) == 4 * ENTRY_COUNT_MAX
    assert steps.count < 40 * ENTRY_COUNT_MAX


def test_tick_visits_only_expired_leases_and_frees_a_limited_number() -> None:
    bench = Bench(layout(queues=3 * FREES_PER_TICK))
    dies, lives = ClassicClient(bench, "dies"), ClassicClient(bench, "lives")
    dies.lock(*range(2 * FREES_PER_TICK + 1))
    bench.advance(1_000)
    lives.lock(*range(2 * FREES_PER_TICK + 1, 3 * FREES_PER_TICK))
    bench.c.tick(bench.now_ms)
    with Steps("lockstep/broker/groups/legacy_clients.py") as steps:
        bench.c.tick(bench.now_ms)
    assert steps.count < 20
    held = bench.c.status.held_count(GROUP)
    bench.now_ms += CONFIG.classic_lock_ms - 500
    for left in (2 * FREES_PER_TICK, FREES_PER_TICK, FREES_PER_TICK - 1, FREES_PER_TICK - 1):
        due_ms = bench.c.tick(bench.now_ms)
        assert bench.c.status.held_count(GROUP) == left
        assert (due_ms == bench.now_ms + 1) == (left > FREES_PER_TICK - 1)
    assert held == 3 * FREES_PER_TICK


def test_tick_frees_a_limited_number_of_locks_of_expired_sessions() -> None:
    bench = Bench(layout(queues=2 * FREES_PER_TICK + 1))
    a = joined(bench, "a")
    a.lock(*range(2 * FREES_PER_TICK + 1))
    a.close()
    bench.advance(CONFIG.disconnect_grace_ms - 1)
    bench.now_ms += 1
    for left in (FREES_PER_TICK + 1, 1):
        assert bench.c.tick(bench.now_ms) == bench.now_ms + 1
        assert (bench.c.status.held_count(GROUP), bench.lists()) == (left, ())
    bench.c.tick(bench.now_ms)
    assert (bench.c.status.held_count(GROUP), len(bench.c.state.sessions)) == (0, 0)


def test_session_that_reconnects_during_the_release_keeps_its_remaining_locks() -> None:
    bench = Bench(layout(queues=FREES_PER_TICK + 1))
    a = joined(bench, "a")
    a.lock(*range(FREES_PER_TICK + 1))
    a.close()
    bench.advance(CONFIG.disconnect_grace_ms - 1)
    bench.now_ms += 1
    bench.c.tick(bench.now_ms)
    a.connect()
    assert set(a.verdicts().values()) == {LockVerdict.OK}
    assert bench.c.status.held_count(GROUP) == FREES_PER_TICK + 1


@pytest.mark.parametrize("known_before", [False, True])
def test_deletion_of_an_unused_topic_visits_no_group(known_before: bool) -> None:
    def lines(groups: int) -> int:
        bench = Bench(layout(), layout("other"))
        client = ClassicClient(bench, "c")
        client.connect()
        for number in range(groups):
            bench.c.legacy.update_offset(client.connection, (f"g{number}", TOPIC, 0), 5, bench.now_ms)
            client.lock(1, group=f"g{number}")
        if known_before:
            client.lock(0, topic="other")
            bench.layouts.adopt(layout("other", counter=3).deletion)
            bench.c.layout_changed("other")
        bench.flush()
        bench.layouts.adopt(TopicLayout("other", LayoutVersion(9, 7), ()))
        with Steps("lockstep/broker/") as steps:
            bench.c.layout_changed("other")
        assert len(bench.journal) == 0
        return steps.count

    assert lines(200) == lines(2)


def test_topic_deletion_visits_no_sequences_of_other_topics() -> None:
    def lines(others: int) -> int:
        table = SequenceTable(scope_count_max=others + 1)
        frame = FrameSequence("p", 0, 1, 0, 1, True, 0, False)
        for number in range(others + 10):
            table.record_frame(Scope(f"p{number}", 0, "kept", 0), frame, StoredFrame(0, 0, 0))
        table.record_frame(Scope("p", 0, TOPIC, 0), frame, StoredFrame(0, 0, 0))
        table.drop_topic(TOPIC)
        assert len(table) == others
        with Steps("tables/sequence_table.py") as steps:
            table.drop_topic(TOPIC)
        table.drop_topic("kept")
        assert len(table) == 0
        return steps.count

    assert lines(200) == lines(2)


def test_members_leaving_together_sort_the_member_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    connection = bench.new_connection()
    for number in range(100):
        bench.c.membership.heartbeat(connection, Heartbeat.from_body(HeartbeatBody(f"c{number}", (ordered(),))), bench.now_ms)
    ClassicClient(bench, "stays").connect()
    bench.c.state.pending.drain()
    bench.flush()
    sorts: list[int] = []
    monkeypatch.setattr(group, "sorted", lambda found: sorts.append(len(found)) or sorted(found), raising=False)  # type: ignore[func-returns-value]
    bench.c.membership.connection_closed(connection, bench.now_ms)
    assert bench.lists() == ("stays",)
    bench.restart()
    assert bench.lists() == ("stays",)
    assert sorts == [1, 1]


def test_starting_queues_per_interval_are_limited_and_members_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_policy, "STARTS_MAX", 6)
    topics = [f"t{number}" for number in range(5)]
    bench = Bench(*(layout(topic, 3) for topic in topics), layout("wide", 7))
    a = Client(bench, "a", ordered(topics=[*topics, "wide"]))
    b = Client(bench, "b", ordered("other", topics=topics))
    for member in (a, b):
        member.connect()
    bench.c.state.pending.drain()

    def locks(*topics: str) -> list[LockVerdict]:
        reply = a.send_lock(*(LockItem(GROUP, topic, queue_id) for topic in topics for queue_id in range(3)))
        assert reply is not None
        return [response.verdict for response in reply.items[::3]]

    ok, waits = LockVerdict.OK, LockVerdict.WAIT
    assert locks("t0", "t1", "t2", "t3") == [ok, ok, waits, waits]
    assert {queue.topic for effect in bench.drain(PushQueueFree) for queue in effect.queues} == {"t2", "t3"}, (
        "it is notified to send LOCK again"
    )
    reply = b.send_lock(LockItem("other", "t0", 0))
    assert reply is not None
    assert reply.items[0].verdict is waits, "the sum is over all groups"
    bench.advance(start_policy.START_WINDOW_MS - 1)
    assert locks("t2") == [waits]
    bench.advance(1)
    assert locks("wide", "t2") == [ok, waits], "one topic may begin, however wide it is"
    bench.advance(start_policy.START_WINDOW_MS)
    assert locks("t2", "t3", "t4") == [ok, ok, waits]
