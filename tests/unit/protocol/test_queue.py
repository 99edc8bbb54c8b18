import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.consumer.rebalance import MemberLists, plan
from lockstep.protocol.bodies import ListVersion, MemberList
from lockstep.protocol.topics.allocate import BY_BROKER, owner_of
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout

GROWN = TopicLayout(
    "orders",
    LayoutVersion(3, 7),
    (LayoutEntry("a", 2, 2, 1), LayoutEntry("b", 1, 2, 1), LayoutEntry("a", 1, 1, 3), LayoutEntry("b", 1, 1, 3)),
)


def q(broker: str, queue_id: int) -> MessageQueue:
    return MessageQueue("orders", broker, queue_id)


def test_queues_have_the_layout_order_and_ids_continue_across_a_brokers_entries() -> None:
    assert GROWN.read_queues == (q("a", 0), q("a", 1), q("b", 0), q("b", 1), q("a", 2), q("b", 2))
    assert GROWN.write_queues == (q("a", 0), q("a", 1), q("b", 0), q("a", 2), q("b", 2))


def test_queue_number_is_its_position_among_the_readable_queues() -> None:
    assert [GROWN.number_of[queue] for queue in GROWN.read_queues] == list(range(6))


def test_added_in_returns_the_layout_counter_that_added_a_queue() -> None:
    assert [GROWN.added_in(queue) for queue in GROWN.read_queues] == [1, 1, 1, 1, 3, 3]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_each_added_yields_the_queues_of_a_broker_with_their_counters(name: str) -> None:
    expected = [(queue.queue_id, GROWN.added_in(queue)) for queue in GROWN.queues_of(name)]
    assert list(GROWN.each_added(name)) == expected


@pytest.mark.parametrize("queue", [q("a", 3), q("b", 3), q("a", -1), q("c", 0)])
def test_added_in_raises_for_a_queue_outside_the_layout(queue: MessageQueue) -> None:
    with pytest.raises(KeyError):
        GROWN.added_in(queue)


def test_read_and_write_counts_are_per_broker() -> None:
    assert (GROWN.read_count("b"), GROWN.write_count("b"), GROWN.read_count("c")) == (3, 2, 0)


def test_layout_without_entries_is_a_deleted_topic() -> None:
    gone = TopicLayout("orders", LayoutVersion(4, 1), ())
    assert gone.deleted
    assert gone.read_queues == ()
    assert not GROWN.deleted


@pytest.mark.parametrize(
    ("lower", "higher"),
    [(LayoutVersion(1, 9), LayoutVersion(2, 1)), (LayoutVersion(2, 1), LayoutVersion(2, 2))],
)
def test_layout_versions_are_ordered_by_counter_then_writer(lower: LayoutVersion, higher: LayoutVersion) -> None:
    assert lower < higher


def test_queues_are_ordered_by_topic_broker_and_id() -> None:
    queues = [MessageQueue("t", "b", 0), MessageQueue("t", "a", 10), MessageQueue("t", "a", 2), MessageQueue("s", "z", 9)]
    assert sorted(queues) == [MessageQueue("s", "z", 9), MessageQueue("t", "a", 2), MessageQueue("t", "a", 10), MessageQueue("t", "b", 0)]
    assert str(queues[1]) == "t@a:10"


ENTRIES = st.lists(st.builds(LayoutEntry, st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4), st.integers(1, 5)), max_size=6).map(
    tuple
)


@given(ENTRIES)
def test_queues_of_a_layout_are_unique_and_match_its_counts(entries: tuple[LayoutEntry, ...]) -> None:
    layout = TopicLayout("t", LayoutVersion(1, 1), entries)
    assert len(set(layout.read_queues)) == len(layout.read_queues) == sum(map(layout.read_count, "abc"))
    assert len(set(layout.write_queues)) == len(layout.write_queues) == sum(map(layout.write_count, "abc"))
    for queue in layout.read_queues + layout.write_queues:
        assert layout.added_in(queue) in {entry.counter for entry in entries}


# ---------------------------------------------------------------------------------------------- cost of a layout of many brokers

MANY = TopicLayout(
    "t",
    LayoutVersion(1, 7),
    (*(LayoutEntry(f"foreign-{number}", 16_384, 16_384, 1) for number in range(3)), LayoutEntry("own", 4, 4, 1)),
)


def test_memory_of_a_brokers_queues_is_independent_of_other_brokers_queues() -> None:
    """All 49,156 queues would take some 5 MB."""
    layout = TopicLayout(MANY.topic, MANY.version, MANY.entries)
    lists = MemberLists("me")
    lists.adopt("own", MemberList(("me", "other"), ListVersion(1, 1)))
    tracemalloc.start()
    try:
        own = layout.queues_of("own")
        owners = [owner_of(layout, queue, ("me", "other")) for queue in own]
        wanted = plan("me", BY_BROKER, {"t": layout}, lists, previous={}, reachable=lambda _: True).wanted
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [queue.queue_id for queue in own] == [0, 1, 2, 3]
    assert [layout.number_of[queue] for queue in own] == [49_152, 49_153, 49_154, 49_155]
    assert (owners, list(wanted)) == (["me", "other"] * 2, [own[0], own[2]])
    assert peak_bytes < 100_000


@given(ENTRIES)
def test_computed_queue_numbers_equal_positions_in_the_layout(entries: tuple[LayoutEntry, ...]) -> None:
    layout = TopicLayout("t", LayoutVersion(9, 1), entries)
    assert dict(layout.number_of) == {queue: number for number, queue in enumerate(layout.read_queues)}
    assert list(layout.each_read_queue()) == list(layout.read_queues)
    assert list(layout.each_read_queue(by_name=True)) == sorted(layout.read_queues)
    assert (layout.read_total, layout.write_total) == (len(layout.read_queues), len(layout.write_queues))
    for name in {entry.broker_name for entry in entries}:
        own = [queue for queue in layout.read_queues if queue.broker_name == name]
        assert layout.queues_of(name) == own
        assert [layout.queue_id_at(name, place) for place in range(len(own) + 1)] == [*(queue.queue_id for queue in own), None]
        assert MessageQueue("t", name, layout.id_count(name)) not in layout.number_of
        assert MessageQueue("other", name, 0) not in layout.number_of
