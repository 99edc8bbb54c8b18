"""Brokers that write a topic's layout concurrently end with one layout, which has every queue with messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.protocol.topics.layouts import ENTRY_COUNT_MAX, check_layout
from lockstep.protocol.topics.queue import WRITER_MAX, LayoutEntry, LayoutVersion, TopicLayout
from support.layout_cluster import TOPIC, Broker, Cluster, brokers_with_queue_id_gaps

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "register", "late", "restart", "forget", "grow", "narrow"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=30,
)
DRAWS = st.lists(st.integers(0, 4_000_000), min_size=1, max_size=8)


@settings(max_examples=400)
@given(size=st.integers(2, 3), steps=STEPS, draws=DRAWS)
def test_brokers_agree_on_a_layout_with_every_message_for_any_delivery_order(
    size: int, steps: list[tuple[str, int, int, int]], draws: list[int]
) -> None:
    cluster = Cluster(size, draws)
    for step in steps:
        cluster.step(*step)
    cluster.settle()
    assert len({broker.layout for broker in cluster.brokers}) == 1
    assert {broker.name: broker.unreachable for broker in cluster.brokers} == {broker.name: [] for broker in cluster.brokers}
    assert [brokers_with_queue_id_gaps(broker.layout) for broker in cluster.brokers if broker.layout] in ([], [{}] * size)


@settings(max_examples=400)
@given(size=st.integers(2, 3), before=STEPS, place=st.integers(0, 2), after=STEPS, draws=DRAWS)
def test_deletion_wins_against_every_layout_created_without_it(
    size: int, before: list[tuple[str, int, int, int]], place: int, after: list[tuple[str, int, int, int]], draws: list[int]
) -> None:
    cluster = Cluster(size, draws)
    for step in before:
        cluster.step(*step)
    broker = cluster.brokers[place % size]
    if broker.topics.find_layout(TOPIC) is None:
        return
    cluster.step("delete", place, 0, 0)
    knows = {broker.name}
    for step in after:
        other = cluster.brokers[step[1] % size]
        if step[0] == "send" and other.name in knows:
            continue  # it would create the topic again
        cluster.step(*step)
        knows |= {each.name for each in cluster.brokers if each.layout is not None and each.layout.deleted}
    cluster.settle()
    assert all(each.layout is not None and each.layout.deleted and not each.messages for each in cluster.brokers)


def two_brokers() -> tuple[Broker, Broker]:
    cluster = Cluster(2, [1])
    return cluster.brokers[0], cluster.brokers[1]


def test_loser_appends_its_queues_in_the_change_that_adopts_the_winner() -> None:
    """One state record: a crash can't separate the two."""
    a, b = two_brokers()
    a.send(1)
    b.send(0)
    winner, loser = sorted((a, b), key=lambda broker: broker.topics.require_layout(TOPIC).version, reverse=True)
    records = len(loser.log)
    loser.topics.adopt([winner.topics.require_layout(TOPIC)])
    assert len(loser.log) == records + 1
    made = loser.topics.require_layout(TOPIC)
    assert made.entries[0] == winner.topics.require_layout(TOPIC).entries[0]
    assert made.entries[1].broker_name == loser.name
    assert made.version.counter == made.entries[1].counter == 2
    assert loser.unreachable == []


def test_requested_layout_keeps_queues_with_messages() -> None:
    a, _ = two_brokers()
    a.send(1)
    requested = TopicLayout(TOPIC, LayoutVersion(5, 7), (LayoutEntry("broker-b", 3, 3, 1),))
    assert a.topics.create(requested).entries == (*requested.entries, LayoutEntry("broker-a", 2, 2, 6))


def test_only_queues_with_messages_are_appended() -> None:
    a, b = two_brokers()
    a.topics.create_own(TOPIC, 2, 2)
    b.topics.create_own(TOPIC, 2, 2)
    lower, higher = sorted((a, b), key=lambda broker: broker.topics.require_layout(TOPIC).version)
    lower.topics.adopt([higher.topics.require_layout(TOPIC)])
    assert lower.layout == higher.layout


def test_queues_removed_by_an_operator_are_not_appended() -> None:
    a, _ = two_brokers()
    a.send(0)
    a.send(1)
    small = alter_layout(a.topics.require_layout(TOPIC), dict.fromkeys(["broker-a"], (1, 1)), writer=5)
    a.topics.create(small)
    assert a.layout == small
    a.start()
    assert a.layout == small
    grown = alter_layout(small, dict.fromkeys(["broker-a", "broker-b"], (2, 2)), writer=5)
    a.topics.create(grown)
    other = TopicLayout(TOPIC, LayoutVersion(grown.version.counter, WRITER_MAX - 1), small.entries)
    a.topics.adopt([other])
    assert a.unreachable == [], "the marker is older than the queue that was added later"


def test_start_appends_queues_that_the_layout_lacks() -> None:
    a, _ = two_brokers()
    a.send(1)
    a.topics._put(TopicLayout(TOPIC, LayoutVersion(3, 7), (LayoutEntry("broker-b", 3, 3, 1),)))
    a.changed(TOPIC)
    assert a.unreachable == [1]
    a.start()
    assert a.unreachable == []


def test_full_layout_is_adopted_without_appended_queues() -> None:
    """The messages stay on the disk and the log names the topic until an operator frees entries."""
    a, _ = two_brokers()
    a.send(1)
    full = TopicLayout(TOPIC, LayoutVersion(3, 7), tuple(LayoutEntry("broker-b", 1, 1, 1) for _ in range(ENTRY_COUNT_MAX)))
    a.topics.adopt([full])
    assert a.layout == full


# ------------------------------------------------------------------------------------- fewer queues to write than queues to read

A, B = "broker-a", "broker-b"
# The layout before, the queues with messages, the layout that wins, and this broker's counts then: (write, read).
APPENDED: dict[str, tuple[list[LayoutEntry], list[int], list[LayoutEntry], tuple[int, int]]] = {
    "all are written": ([LayoutEntry(A, 4, 4, 1)], [3], [LayoutEntry(A, 2, 2, 1)], (4, 4)),
    "the winner closes queues to writers": ([LayoutEntry(A, 6, 6, 1)], [5], [LayoutEntry(A, 2, 4, 1)], (2, 6)),
    "both close queues to writers": ([LayoutEntry(A, 2, 6, 1)], [5], [LayoutEntry(A, 2, 4, 1)], (2, 6)),
    "the one here closed queues, the winner has none here": ([LayoutEntry(A, 2, 4, 1)], [0, 3], [LayoutEntry(B, 1, 1, 1)], (2, 4)),
    "the one here closed queues, and few have messages": ([LayoutEntry(A, 3, 4, 1)], [0], [LayoutEntry(B, 1, 1, 1)], (1, 1)),
    "the winner closes queues to readers": ([LayoutEntry(A, 6, 6, 1)], [5], [LayoutEntry(A, 4, 2, 1)], (6, 6)),
}


@pytest.mark.parametrize("case", APPENDED)
def test_appended_queues_are_readable_and_keep_the_writable_queue_ids(case: str) -> None:
    here, stored, winner, counts = APPENDED[case]
    a, _ = two_brokers()
    a.topics.create(TopicLayout(TOPIC, LayoutVersion(1, 7), tuple(here)))
    for queue_id in stored:
        a.messages[queue_id] = ["kept"]
    a.topics.adopt([TopicLayout(TOPIC, LayoutVersion(4, 7), tuple(winner))])
    made = a.topics.require_layout(TOPIC)
    assert (made.write_count(A), made.read_count(A)) == counts
    assert brokers_with_queue_id_gaps(made) == {}
    assert not a.unreachable
    check_layout(made)


def test_classic_tool_makes_read_only_queues_writable_before_adding_new_ones() -> None:
    a, _ = two_brokers()
    a.topics.create(TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry(A, 2, 4, 1),)))
    made = a.topics.create_own(TOPIC, 7, 5)
    assert made.entries == (LayoutEntry(A, 4, 4, 1), LayoutEntry(A, 1, 3, 2))
    assert brokers_with_queue_id_gaps(made) == {}
