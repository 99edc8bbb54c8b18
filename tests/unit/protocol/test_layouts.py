from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.layouts import LayoutTable
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout


def layout(topic: str, counter: int, writer: int = 0, queues: int = 1) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), (LayoutEntry("a", queues, queues, counter),) if queues else ())


LAYOUTS = st.builds(layout, st.sampled_from("xyz"), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
MANY = st.lists(LAYOUTS, max_size=8)


def test_the_higher_version_wins_by_counter_then_writer() -> None:
    table = LayoutTable()
    assert table.adopt(layout("x", 2, 5))
    assert not table.adopt(layout("x", 2, 5))
    assert not table.adopt(layout("x", 2, 4))
    assert not table.adopt(layout("x", 1, 9))
    assert table.adopt(layout("x", 2, 6))
    assert table.adopt(layout("x", 3, 0))
    assert table.get("x") == layout("x", 3, 0)
    assert table.get("y") is None


def test_a_deleted_topic_is_remembered_so_that_an_old_layout_cannot_bring_it_back() -> None:
    table = LayoutTable([layout("x", 1), layout("y", 1), layout("x", 2, queues=0)])
    assert table.live_topics() == ("y",)
    assert not table.adopt(layout("x", 1))
    assert table.all() == (layout("x", 2, queues=0), layout("y", 1))
    assert len(table) == 2


def test_an_answer_carries_what_the_sender_lacks_or_has_lower() -> None:
    table = LayoutTable([layout("x", 2), layout("y", 2), layout("z", 2)])
    assert table.newer_than([layout("x", 1), layout("y", 2), layout("w", 1)]) == (layout("x", 2), layout("z", 2))
    assert table.newer_than([layout("z", 3)]) == (layout("x", 2), layout("y", 2))
    assert table.newer_than(table.all()) == ()
    assert table.get("w") is None


@given(MANY, MANY)
def test_adopting_is_a_join(one: list[TopicLayout], other: list[TopicLayout]) -> None:
    """Commutative, associative, idempotent: what counts is what was heard, not in which order or how often."""
    there, back = LayoutTable(one + other), LayoutTable(other + one)
    assert there.all() == back.all()
    assert LayoutTable([*LayoutTable(one).all(), *LayoutTable(other).all()]).all() == there.all()
    assert [item for item in one + other if there.adopt(item)] == []


@given(MANY, MANY)
def test_one_exchange_leaves_the_sender_with_everything(mine: list[TopicLayout], theirs: list[TopicLayout]) -> None:
    nameserver, broker = LayoutTable(theirs), LayoutTable(mine)
    for item in nameserver.newer_than(broker.all()):
        assert broker.adopt(item)
    assert broker.all() == LayoutTable(mine + theirs).all()


@given(MANY)
def test_adopt_tells_whether_something_changed(items: list[TopicLayout]) -> None:
    table = LayoutTable()
    for item in items:
        before = table.all()
        assert table.adopt(item) == (table.all() != before)
