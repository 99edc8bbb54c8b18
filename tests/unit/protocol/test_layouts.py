import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.topics.layouts import COUNTER_MAX, ENTRY_COUNT_MAX, QUEUES_PER_BROKER_MAX, WRITER_MAX, LayoutTable, check_layout
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout


def layout(topic: str, counter: int, writer: int = 0, queues: int = 1) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), (LayoutEntry("a", queues, queues, counter),) if queues else ())


LAYOUTS = st.builds(layout, st.sampled_from(["x", "y", "z", "TBW102"]), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
MANY = st.lists(LAYOUTS, max_size=8)


def test_higher_layout_version_wins_by_counter_then_writer() -> None:
    table = LayoutTable()
    assert table.adopt(layout("x", 2, 5))
    assert not table.adopt(layout("x", 2, 5))
    assert not table.adopt(layout("x", 2, 4))
    assert not table.adopt(layout("x", 1, 9))
    assert table.adopt(layout("x", 2, 6))
    assert table.adopt(layout("x", 3, 0))
    assert table.get("x") == layout("x", 3, 0)
    assert table.get("y") is None


def test_deleted_topic_is_not_restored_by_an_older_layout() -> None:
    table = LayoutTable([layout("x", 1), layout("y", 1), layout("x", 2, queues=0)])
    assert table.user_topics() == ("y",)
    assert not table.adopt(layout("x", 1))
    assert table.all() == (layout("x", 2, queues=0), layout("y", 1))
    assert len(table) == 2


@given(MANY, MANY)
def test_adopt_is_commutative_associative_and_idempotent(one: list[TopicLayout], other: list[TopicLayout]) -> None:
    """Commutative, associative, idempotent: the result depends on the set of layouts, not on their order or repetition."""
    there, back = LayoutTable(one + other), LayoutTable(other + one)
    assert there.all() == back.all()
    assert [layout.topic for layout in there.all()] == sorted({layout.topic for layout in one + other})
    live = [layout.topic for layout in there.all() if not layout.deleted]
    assert there.live_count == len(live)
    assert there.entry_count == sum(len(layout.entries) for layout in there.all())
    assert there.user_topics() == tuple(topic for topic in live if topic != "TBW102")
    assert there.user_count == len(there.user_topics())
    assert LayoutTable([*LayoutTable(one).all(), *LayoutTable(other).all()]).all() == there.all()
    assert [item for item in one + other if there.adopt(item)] == []


@given(MANY)
def test_adopt_returns_whether_the_table_changed(items: list[TopicLayout]) -> None:
    table = LayoutTable()
    for item in items:
        before = table.all()
        assert table.adopt(item) == (table.all() != before)


def of(*entries: tuple[str, int, int, int], counter: int = 3, writer: int = 7, topic: str = "t") -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(*entry) for entry in entries))


MOST = QUEUES_PER_BROKER_MAX


@pytest.mark.parametrize(
    "layout",
    [
        of(),
        of(("a", 1, 1, 1)),
        of(("a", MOST, MOST, 3), ("b", MOST, MOST, 3)),
        of(("a", MOST - 1, MOST, 1), ("a", 1, 0, 2)),
        of(("a", 1, 1, 1), counter=COUNTER_MAX, writer=WRITER_MAX),
        of(*((f"b{i}", 1, 1, 1) for i in range(ENTRY_COUNT_MAX))),
    ],
)
def test_layout_within_its_limits_is_accepted(layout: TopicLayout) -> None:
    check_layout(layout)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (of(("a", 1, 1, 1), topic="a b"), "topic"),
        (of(("a b", 1, 1, 1)), "broker name"),
        (of(counter=0), "counter 0"),
        (of(counter=COUNTER_MAX + 1), "counter"),
        (of(writer=-1), "writer -1"),
        (of(writer=WRITER_MAX + 1), "writer"),
        (of(("a", MOST + 1, 1, 1)), f"{MOST + 1} queues at a"),
        (of(("a", 1, MOST + 1, 1)), f"{MOST + 1} queues at a"),
        (of(("a", MOST, 1, 1), ("a", 1, 1, 2)), f"{MOST + 1} queues at a"),
        (of(("a", 2, 1, 1)), "2 queues to write at a, 1 to read"),
        (of(("a", 9, 9, 1), ("a", -5, 1, 1)), "write_queue_count=-5"),
        (of(("a", 1, 1, 4)), "counter=4"),
        (of(("a", 1, 1, 0)), "counter=0"),
        (of(*((f"b{i}", 1, 1, 1) for i in range(ENTRY_COUNT_MAX + 1))), f"{ENTRY_COUNT_MAX + 1} entries"),
    ],
)
def test_error_for_a_layout_beyond_its_limits_names_the_value(layout: TopicLayout, words: str) -> None:
    with pytest.raises(LocalProtocolError, match=words):
        check_layout(layout)
