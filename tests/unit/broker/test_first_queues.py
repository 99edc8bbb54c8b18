"""A new topic that clients of RocketMQ create at one broker and send to at another, by the route of TBW102."""

import pytest

from lockstep.broker.journal import Journal
from lockstep.broker.processors.topic import FIRST_SENDS_MS, TopicProcessor
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.broker_fakes import FakeHost


class Broker:
    """broker-b, which learns of topics by layouts."""

    def __init__(self, *, auto_create: bool = True) -> None:
        self.clock = FakeHost().clock
        self.holds = WriteHolds()
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-b")
        self.processor = TopicProcessor(self.topics, self.holds, self.clock, auto_create=auto_create)
        self.topics.on_changed = self.processor.topic_changed

    def learn(self, *brokers: str) -> None:
        """Adopt a layout in which each broker got its queues after the one before."""
        entries = tuple(LayoutEntry(name, 4, 4, number) for number, name in enumerate(brokers, 1))
        self.topics.adopt([TopicLayout("new", LayoutVersion(len(brokers), 7), entries)])

    def own_queues(self, queue_id: int = 0) -> int:
        """Return how many queues the topic has here after a send to this one of 4."""
        return self.topics.own_write_count(self.processor.find_or_create("new", 4, queue_id))


def test_topic_that_another_broker_has_just_created_gets_queues_here() -> None:
    broker = Broker()
    broker.learn("broker-a")
    assert broker.own_queues() == 4
    assert [entry.broker_name for entry in broker.topics.require_layout("new").entries] == ["broker-a", "broker-b"]
    version = broker.topics.require_layout("new").version
    assert broker.own_queues() == 4
    assert broker.topics.require_layout("new").version == version, "once"


def test_third_broker_gets_its_queues_too() -> None:
    broker = Broker()
    broker.learn("broker-a")
    broker.learn("broker-a", "broker-c")
    assert broker.own_queues() == 4


def test_queues_that_a_lost_layout_had_are_added_again() -> None:
    """Both brokers have created the topic at once, and this one kept the queues that held messages."""
    broker = Broker()
    broker.learn("broker-a")
    kept = broker.topics.require_layout("new").with_queues("broker-b", 2, 2, 9)
    broker.topics.adopt([kept])
    assert [broker.own_queues(queue_id) for queue_id in (0, 1)] == [2, 2], "a client that knows the layout names these"
    assert broker.own_queues(3) == 4


@pytest.mark.parametrize("brokers", [("broker-b",), ("broker-a", "broker-b"), ("broker-a", "broker-c")])
def test_topic_that_a_command_has_created_gets_no_queues(brokers: tuple[str, ...]) -> None:
    """Its keys would move."""
    broker = Broker()
    entries = tuple(LayoutEntry(name, 2, 2, 1) for name in brokers)
    broker.topics.adopt([TopicLayout("new", LayoutVersion(1, 7), entries)])
    assert broker.own_queues(3) == (2 if "broker-b" in brokers else 0)


@pytest.mark.parametrize("queue_id", [-1, 4, 77])
def test_queue_that_the_route_of_tbw102_does_not_have_adds_nothing(queue_id: int) -> None:
    broker = Broker()
    broker.learn("broker-a")
    assert broker.own_queues(queue_id) == 0


@pytest.mark.parametrize("ms", [FIRST_SENDS_MS, FIRST_SENDS_MS + 1])
def test_topic_is_new_for_a_time_only(ms: int) -> None:
    """Later no client has a route that names this broker, and queues that are added move keys."""
    broker = Broker()
    broker.learn("broker-a")
    broker.clock.now_ms += ms  # type: ignore[attr-defined]
    assert broker.own_queues() == (4 if ms == FIRST_SENDS_MS else 0)


def test_broker_whose_queues_an_operator_has_removed_gets_none() -> None:
    broker = Broker()
    broker.learn("broker-a", "broker-b")
    removed = LayoutEntry("broker-a", 4, 4, 1), LayoutEntry("broker-b", 0, 0, 3)
    broker.topics.adopt([TopicLayout("new", LayoutVersion(3, 7), removed)])
    assert broker.own_queues() == 0


def test_topic_is_not_new_because_an_operator_adds_queues() -> None:
    broker = Broker()
    broker.topics.on_changed = None
    broker.learn("broker-a")
    broker.topics.on_changed = broker.processor.topic_changed
    broker.topics.adopt([broker.topics.require_layout("new").with_queues("broker-a", 2, 2, 9)])
    assert broker.own_queues() == 0


def test_topic_whose_writes_are_held_gets_no_queues() -> None:
    broker = Broker()
    broker.learn("broker-a")
    broker.holds.hold("new", "move", 1_000, broker.clock.boot_ms())
    assert broker.own_queues() == 0


def test_broker_that_creates_no_topics_adds_no_queues() -> None:
    broker = Broker(auto_create=False)
    broker.learn("broker-a")
    assert broker.own_queues() == 0


def test_topics_are_remembered_for_no_longer_than_they_are_new() -> None:
    broker = Broker()
    for number in range(10):
        broker.topics.adopt([TopicLayout(f"t-{number}", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),))])
        broker.clock.now_ms += FIRST_SENDS_MS // 2  # type: ignore[attr-defined]
    assert len(broker.processor._new_topics) == 3
