"""Brokers that write one topic's layout at once end with one layout, which has every queue in which messages lie."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.admin.layout_change import altered
from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.layouts import ENTRY_COUNT_MAX, LayoutTable
from lockstep.protocol.queue import WRITER_MAX, LayoutEntry, LayoutVersion, TopicLayout

TOPIC = "t"
NAMES = ("broker-a", "broker-b", "broker-c")


class Broker:
    """A TopicTable, the messages of its store, and its log."""

    def __init__(self, name: str, writers: "Writers") -> None:
        self.name = name
        self.writers = writers
        self.messages: dict[int, int] = {}
        """Queue id → acknowledged messages."""
        self.log: list[bytes] = []
        self.start()

    def start(self) -> None:
        """From its log; the messages are still there."""
        self.journal = Journal()
        self.topics = TopicTable(
            LayoutTable(), self.journal, self.name, self.changed, stored=lambda _: list(self.messages), new_writer=self.writers
        )
        for body in self.log:
            for change in decode_changes(body):
                self.topics.apply(change)
        self.topics.keep_stored_queues()

    def changed(self, topic: str) -> None:
        self.log += self.journal.encode(1 << 20)
        if self.topics.find(topic) is None:
            self.messages.clear()

    @property
    def layout(self) -> TopicLayout | None:
        return self.topics.layouts.get(TOPIC)

    def send(self, queue_id: int) -> None:
        """A classic send to a broker that creates topics: acknowledged where the queue exists."""
        if self.topics.find(TOPIC) is None:
            self.topics.create_own(TOPIC, 2, 2)
        if queue_id < self.topics.own_write_count(self.topics.live(TOPIC)):
            self.messages[queue_id] = self.messages.get(queue_id, 0) + 1

    @property
    def unreachable(self) -> list[int]:
        layout = self.topics.find(TOPIC)
        return [queue_id for queue_id in self.messages if layout is None or queue_id >= layout.read_count(self.name)]


class Writers:
    """Random bits, from the example."""

    def __init__(self, draws: list[int]) -> None:
        self.draws = draws
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.draws[self.count % len(self.draws)] * 1_000 + self.count


class Cluster:
    def __init__(self, size: int, draws: list[int]) -> None:
        self.writers = Writers(draws)
        self.brokers = [Broker(name, self.writers) for name in NAMES[:size]]
        self.nameserver = LayoutTable()
        self.told: list[TopicLayout] = []
        """Every layout that was ever on the wire: it may arrive again, late."""

    def step(self, word: str, place: int, queue_id: int, late: int) -> None:
        broker = self.brokers[place % len(self.brokers)]
        match word:
            case "send":
                broker.send(queue_id)
            case "register":
                self.register(broker)
            case "late" if self.told:
                broker.topics.adopt([self.told[late % len(self.told)]])
            case "restart":
                broker.start()
            case "forget":
                self.nameserver = LayoutTable()
            case "grow" if (layout := broker.topics.find(TOPIC)) is not None:
                other = self.brokers[late % len(self.brokers)].name
                count = layout.id_count(other) + 1
                broker.topics.create(altered(layout, [other], write_count=count, read_count=count, writer=self.writers()))
            case "delete" if (layout := broker.topics.find(TOPIC)) is not None:
                broker.topics.create(layout.deletion)
        self.told += [layout for layout in [broker.layout] if layout is not None]

    def register(self, broker: Broker) -> int:
        """REGISTER_BROKER: how many layouts the answer brought."""
        sent = broker.topics.layouts.all()
        for layout in sent:
            self.nameserver.adopt(layout)
        return broker.topics.adopt(self.nameserver.newer_than(sent))

    def settle(self) -> None:
        for _ in range(4 * len(self.brokers)):
            before = [self.nameserver.get(TOPIC), *(broker.layout for broker in self.brokers)]
            for broker in self.brokers:
                self.register(broker)
            if before == [self.nameserver.get(TOPIC), *(broker.layout for broker in self.brokers)]:
                return
        raise AssertionError(f"no end: {[broker.layout for broker in self.brokers]}")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "register", "late", "restart", "forget", "grow"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=30,
)
DRAWS = st.lists(st.integers(0, 4_000_000), min_size=1, max_size=8)


@settings(max_examples=400)
@given(size=st.integers(2, 3), steps=STEPS, draws=DRAWS)
def test_in_any_order_of_delivery_the_brokers_agree_and_every_message_is_in_the_layout(
    size: int, steps: list[tuple[str, int, int, int]], draws: list[int]
) -> None:
    cluster = Cluster(size, draws)
    for step in steps:
        cluster.step(*step)
    cluster.settle()
    assert len({broker.layout for broker in cluster.brokers}) == 1
    assert {broker.name: broker.unreachable for broker in cluster.brokers} == {broker.name: [] for broker in cluster.brokers}


@settings(max_examples=400)
@given(size=st.integers(2, 3), before=STEPS, place=st.integers(0, 2), after=STEPS, draws=DRAWS)
def test_a_deletion_wins_against_every_layout_that_was_made_without_it(
    size: int, before: list[tuple[str, int, int, int]], place: int, after: list[tuple[str, int, int, int]], draws: list[int]
) -> None:
    cluster = Cluster(size, draws)
    for step in before:
        cluster.step(*step)
    broker = cluster.brokers[place % size]
    if broker.topics.find(TOPIC) is None:
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


def test_the_loser_appends_its_queues_in_the_step_in_which_it_takes_the_winner() -> None:
    """One state record: no crash comes between."""
    a, b = two_brokers()
    a.send(1)
    b.send(0)
    winner, loser = sorted((a, b), key=lambda broker: broker.topics.live(TOPIC).version, reverse=True)
    records = len(loser.log)
    loser.topics.adopt([winner.topics.live(TOPIC)])
    assert len(loser.log) == records + 1
    made = loser.topics.live(TOPIC)
    assert made.entries[0] == winner.topics.live(TOPIC).entries[0]
    assert made.entries[1].broker_name == loser.name
    assert made.version.counter == made.entries[1].counter == 2
    assert loser.unreachable == []


def test_a_requested_layout_keeps_the_queues_too() -> None:
    a, _ = two_brokers()
    a.send(1)
    asked = TopicLayout(TOPIC, LayoutVersion(5, 7), (LayoutEntry("broker-b", 3, 3, 1),))
    assert a.topics.create(asked).entries == (*asked.entries, LayoutEntry("broker-a", 2, 2, 6))


def test_only_queues_with_messages_are_appended() -> None:
    a, b = two_brokers()
    a.topics.create_own(TOPIC, 2, 2)
    b.topics.create_own(TOPIC, 2, 2)
    lower, higher = sorted((a, b), key=lambda broker: broker.topics.live(TOPIC).version)
    lower.topics.adopt([higher.topics.live(TOPIC)])
    assert lower.layout == higher.layout


def test_queues_that_an_operator_took_away_are_not_appended() -> None:
    a, _ = two_brokers()
    a.send(0)
    a.send(1)
    small = altered(a.topics.live(TOPIC), ["broker-a"], write_count=1, read_count=1, writer=5)
    a.topics.create(small)
    assert a.layout == small
    a.start()
    assert a.layout == small
    grown = altered(small, ["broker-a", "broker-b"], write_count=2, read_count=2, writer=5)
    a.topics.create(grown)
    other = TopicLayout(TOPIC, LayoutVersion(grown.version.counter, WRITER_MAX - 1), small.entries)
    a.topics.adopt([other])
    assert a.unreachable == [], "the marker is older than the queue that was added later"


def test_a_start_repairs_what_an_earlier_version_left_behind() -> None:
    a, _ = two_brokers()
    a.send(1)
    a.topics._put(TopicLayout(TOPIC, LayoutVersion(3, 7), (LayoutEntry("broker-b", 3, 3, 1),)))
    a.changed(TOPIC)
    assert a.unreachable == [1]
    a.start()
    assert a.unreachable == []


def test_a_layout_without_room_is_taken_as_it_is() -> None:
    """The messages stay on the disk and the log names the topic; an operator makes room."""
    a, _ = two_brokers()
    a.send(1)
    full = TopicLayout(TOPIC, LayoutVersion(3, 7), tuple(LayoutEntry("broker-b", 1, 1, 1) for _ in range(ENTRY_COUNT_MAX)))
    a.topics.adopt([full])
    assert a.layout == full
