"""A deleted and recreated topic: no earlier message is served in it, and no later message is lost.

The oldest queue of a layout (`began`) stays the same from a topic's creation to its deletion, and is younger in each later creation.
"""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.tables.topic_table import COUNTER_STEP_MAX
from lockstep.client.topics import first_layout
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.protocol.topics.layouts import COUNTER_MAX
from lockstep.protocol.topics.queue import BEGAN_FIRST_DELETIONS_MAX, WRITER_MAX, LayoutVersion, TopicLayout
from support.layout_cluster import TOPIC, Broker, Cluster

COUNTS = range(4)
"""Changes that one broker makes alone."""


def add_queue(cluster: Cluster, broker: Broker, body: str) -> None:
    """Add one queue with a message in it."""
    layout = broker.topics.require_layout(TOPIC)
    count = layout.id_count(broker.name) + 1
    broker.topics.create(alter_layout(layout, dict.fromkeys([broker.name], (count, count)), writer=cluster.writers()))
    broker.send(count - 1, body)


def bodies(broker: Broker) -> list[str]:
    return [body for queue in broker.messages.values() for body in queue]


class RecreatedTopic:
    """Broker b is disconnected; a deletes the topic and creates it again."""

    def __init__(self, before_at_a: int, before_at_b: int) -> None:
        self.cluster = Cluster(2, [7, 3])
        self.a, self.b = self.cluster.brokers
        self.a.topics.create(first_layout(TOPIC, ["broker-a", "broker-b"], 1, 5))
        self.cluster.settle()
        for broker, count in ((self.a, before_at_a), (self.b, before_at_b)):
            broker.send(0, "old")
            for _ in range(count):
                add_queue(self.cluster, broker, "old")
        self.a.topics.create(self.a.topics.require_layout(TOPIC).deletion)
        self.cluster.register(self.a)

    def create_again(self, both: bool, more: int) -> None:
        if both:
            self.a.topics.create(first_layout(TOPIC, ["broker-a", "broker-b"], 1, self.cluster.writers()))
        else:
            self.a.topics.create_own(TOPIC, 1, 1)
        self.a.send(0, "new")
        for _ in range(more):
            add_queue(self.cluster, self.a, "new")
        self.cluster.register(self.a)

    def meet(self, how: str) -> None:
        cluster = self.cluster
        if how == "the nameserver restarts empty, b registers first":
            cluster.nameserver = type(cluster.nameserver)()
            cluster.register(self.b)
        elif how == "the nameserver restarts empty, a registers first":
            cluster.nameserver = type(cluster.nameserver)()
            cluster.register(self.a)
        elif how == "b gets the first request":
            requested = self.a.topics.require_layout(TOPIC)
            self.a.topics.create(self.b.topics.create(requested))
        cluster.settle()

    @property
    def layouts(self) -> set[TopicLayout | None]:
        return {broker.layout for broker in self.cluster.brokers}


MEETINGS = (
    "b registers",
    "the nameserver restarts empty, b registers first",
    "the nameserver restarts empty, a registers first",
    "b gets the first request",
)


@pytest.mark.parametrize("how", MEETINGS)
@pytest.mark.parametrize("both", [True, False])
def test_messages_of_a_deleted_topic_are_never_in_the_recreated_one(how: str, both: bool) -> None:
    for before_at_a, before_at_b, more in product(COUNTS, range(8), COUNTS):
        case = RecreatedTopic(before_at_a, before_at_b)
        case.create_again(both, more)
        sent = bodies(case.a)
        case.meet(how)
        where = (before_at_a, before_at_b, more)
        assert len(case.layouts) == 1, where
        assert "old" not in bodies(case.a) + bodies(case.b), where
        assert bodies(case.a) == sent == ["new"] * (1 + more), where
        assert not case.a.unreachable, where
        before = case.layouts
        for broker in case.cluster.brokers:
            broker.start()
        assert case.layouts == before, "a start finds the same in the log"


@pytest.mark.parametrize("creator", ["a", "b"])
def test_broker_that_returns_before_the_topic_is_recreated_adopts_the_deletion(creator: str) -> None:
    for before_at_a, before_at_b in product(COUNTS, range(8)):
        case = RecreatedTopic(before_at_a, before_at_b)
        case.cluster.settle()
        assert bodies(case.b) == []
        broker = case.a if creator == "a" else case.b
        broker.send(0, "new")
        case.cluster.settle()
        assert bodies(case.a) + bodies(case.b) == ["new"]
        assert not broker.unreachable


@pytest.mark.parametrize("how", MEETINGS)
def test_messages_of_both_brokers_since_the_topic_was_recreated_are_kept(how: str) -> None:
    """Both know the deletion; then each changes the layout alone."""
    for more_at_a, more_at_b in product(COUNTS, range(6)):
        case = RecreatedTopic(0, 0)
        case.cluster.settle()
        case.create_again(both=True, more=0)
        case.cluster.settle()
        case.b.send(0, "new")
        for broker, more in ((case.a, more_at_a), (case.b, more_at_b)):
            for _ in range(more):
                add_queue(case.cluster, broker, "new")
        case.meet(how)
        assert len(case.layouts) == 1
        for broker, more in ((case.a, more_at_a), (case.b, more_at_b)):
            assert bodies(broker) == ["new"] * (1 + more)
            assert not broker.unreachable


@pytest.mark.parametrize("how", MEETINGS)
def test_forgetting_first_deletions_loses_no_message_of_the_current_topic(how: str) -> None:
    """A broker that was away brings its old messages back, which is the cost of forgetting."""
    for before_at_a, before_at_b, more in product(range(2), range(6), COUNTS):
        case = RecreatedTopic(before_at_a, before_at_b)
        deletion = case.a.layout
        assert deletion is not None
        assert deletion.version.counter <= BEGAN_FIRST_DELETIONS_MAX
        assert case.a.topics.forget_deletions(BEGAN_FIRST_DELETIONS_MAX) == 1
        forgotten = case.cluster.nameserver.deletions(BEGAN_FIRST_DELETIONS_MAX)
        assert len(forgotten) == 1
        case.cluster.nameserver.forget(forgotten)
        case.a.changed("another topic")  # writes the log
        case.a.start()
        assert case.a.layout is None
        case.create_again(both=False, more=more)
        sent = bodies(case.a)
        case.meet(how)
        assert len(case.layouts) == 1
        assert bodies(case.a) == sent
        assert "old" in bodies(case.b)
        assert not case.a.unreachable + case.b.unreachable


def test_creation_by_a_broker_that_missed_a_forgotten_deletion_is_the_later_one() -> None:
    """The reason why `forget-deleted` requires every broker to be registered, even without `--all`."""
    case = RecreatedTopic(0, 0)
    case.cluster.settle()
    case.b.send(0, "at b")
    assert case.a.topics.forget_deletions(BEGAN_FIRST_DELETIONS_MAX) == 1
    case.cluster.nameserver.forget(case.cluster.nameserver.deletions(BEGAN_FIRST_DELETIONS_MAX))
    case.create_again(both=False, more=0)
    case.cluster.settle()
    assert (bodies(case.a), bodies(case.b)) == ([], ["at b"])


def test_second_deletion_is_not_forgotten_with_first_ones() -> None:
    """Its topic began with a counter above 1: a broker that returns with it would make the others delete their messages."""
    case = RecreatedTopic(0, 0)
    case.create_again(both=False, more=0)
    case.a.topics.create(case.a.topics.require_layout(TOPIC).deletion)
    assert case.a.topics.forget_deletions(BEGAN_FIRST_DELETIONS_MAX) == 0
    assert case.a.topics.forget_deletions(COUNTER_MAX) == 1


def test_repeated_deletion_keeps_a_topic_created_after_the_first() -> None:
    """Broker c is disconnected and has the higher counter; broker a gets its layout before it knows that b created the topic again."""
    cluster = Cluster(3, [7, 3])
    a, b, c = cluster.brokers
    a.topics.create(first_layout(TOPIC, ["broker-a", "broker-b", "broker-c"], 1, 5))
    cluster.settle()
    for broker in (a, b, c):
        broker.send(0, "old")
    add_queue(cluster, c, "old")
    add_queue(cluster, c, "old")
    a.topics.create(a.topics.require_layout(TOPIC).deletion)
    assert a.layout is not None
    assert b.topics.adopt([a.layout]) == 1
    b.send(0, "new")
    assert c.layout is not None
    a.topics.adopt([c.layout])
    assert a.layout.deleted
    a.start()
    a.send(0, "new")  # it creates the topic too
    cluster.settle()
    assert {broker.name: bodies(broker) for broker in cluster.brokers} == {a.name: ["new"], b.name: ["new"], c.name: []}
    assert not a.unreachable + b.unreachable


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("step", [1_022, 1_100, COUNTER_STEP_MAX])
def test_repeated_deletion_with_a_high_counter_keeps_later_creations(step: int, requests: int) -> None:
    """Broker c is disconnected and takes requests with counters far above; each of them is permitted."""
    cluster = Cluster(3, [7, 3])
    a, b, c = cluster.brokers
    a.topics.create(first_layout(TOPIC, ["broker-a", "broker-b", "broker-c"], 1, 5))
    cluster.settle()
    c.send(0, "old")
    for _ in range(requests):
        layout = c.topics.require_layout(TOPIC)
        c.topics.create(TopicLayout(TOPIC, LayoutVersion(layout.version.counter + step, 1), layout.entries))
    a.topics.create(a.topics.require_layout(TOPIC).deletion)
    assert a.layout is not None
    b.topics.adopt([a.layout])
    b.send(0, "new")
    assert c.layout is not None
    a.topics.adopt([c.layout])
    assert (a.layout.deleted, a.layout.deletes_up_to) == (True, 2)
    cluster.settle()
    assert [bodies(broker) for broker in cluster.brokers] == [[], ["new"], []]
    assert not b.unreachable


@pytest.mark.parametrize(
    ("counter", "writer", "deletes_up_to"), [(2, WRITER_MAX, 2), (2, WRITER_MAX - 2, 2), (9, 0, 9), (1 << 40, WRITER_MAX, 1 << 40)]
)
def test_deletion_whose_writer_is_no_repetition_deletes_all_earlier_creations(counter: int, writer: int, deletes_up_to: int) -> None:
    assert TopicLayout(TOPIC, LayoutVersion(counter, writer), ()).deletes_up_to == deletes_up_to


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "register", "late", "restart", "forget", "grow", "narrow", "delete"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(size=st.integers(2, 3), steps=STEPS, draws=st.lists(st.integers(0, 4_000_000), min_size=1, max_size=8))
def test_messages_are_lost_only_to_a_deletion_of_their_topic_in_any_delivery_order(
    size: int, steps: list[tuple[str, int, int, int]], draws: list[int]
) -> None:
    """Each message has the `began` over which it was sent. Those of the current topic are all stored, and no others are."""
    cluster = Cluster(size, draws)
    sent: list[tuple[str, int, str]] = []
    deletions: list[int] = []
    for number, (word, place, queue_id, late) in enumerate(steps):
        broker = cluster.brokers[place % size]
        before = {queue: len(found) for queue, found in broker.messages.items()}
        cluster.step(word, place, queue_id, late)
        if word == "delete" and broker.layout is not None and broker.layout.deleted:
            deletions.append(broker.layout.version.counter)
        for queue, found in broker.messages.items():
            if word == "send" and len(found) > before.get(queue, 0):
                found[-1] = f"{number} began {broker.topics.require_layout(TOPIC).began}"
                sent.append((broker.name, broker.topics.require_layout(TOPIC).began, found[-1]))
    cluster.settle()
    (layout,) = {broker.layout for broker in cluster.brokers}
    began = layout.began if layout is not None else 0
    there = {(broker.name, body) for broker in cluster.brokers for body in bodies(broker)}
    assert there == {(name, body) for name, at, body in sent if at == began}
    assert all(any(counter >= at for counter in deletions) for _, at, _ in sent if at != began)
    assert not any(broker.unreachable for broker in cluster.brokers)


@given(
    first=st.integers(1, 3),
    changes=st.lists(st.tuples(st.sets(st.sampled_from(["a", "b", "c"]), min_size=1), st.integers(1, 9), st.integers(0, 9)), max_size=8),
)
def test_alter_layout_never_removes_the_oldest_queue(first: int, changes: list[tuple[set[str], int, int]]) -> None:
    layout = first_layout(TOPIC, ["a", "b", "c"][:first], 4, 7)
    for brokers, write_count, more in changes:
        layout = alter_layout(layout, dict.fromkeys(brokers, (write_count, write_count + more)), writer=7)
        assert layout.began == 1
