"""Brokers that write layouts of one topic, modeled by tables: each has a TopicTable, connected by a nameserver's LayoutTable."""

from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import TopicLayout

TOPIC = "t"
NAMES = ("broker-a", "broker-b", "broker-c")


class Broker:
    """A TopicTable, the messages of its store, and its log."""

    def __init__(self, name: str, writers: "Writers") -> None:
        self.name = name
        self.writers = writers
        self.messages: dict[int, list[str]] = {}
        """Queue id → bodies of acknowledged messages."""
        self.log: list[bytes] = []
        self.start()

    def start(self) -> None:
        """Start from the log. The messages remain."""
        self.journal = Journal()
        self.topics = TopicTable(
            LayoutTable(), self.journal, self.name, self.changed, stored_queue_ids=lambda _: list(self.messages), new_writer=self.writers
        )
        for body in self.log:
            for change in decode_changes(body):
                self.topics.apply(change)
        self.topics.keep_stored_queues()

    def changed(self, topic: str) -> None:
        self.log += self.journal.encode(1 << 20)
        if self.topics.find_layout(topic) is None:
            self.messages.clear()

    @property
    def layout(self) -> TopicLayout | None:
        return self.topics.layouts.get(TOPIC)

    def send(self, queue_id: int, body: str = "") -> None:
        """A classic send to a broker that creates topics: acknowledged if the queue exists."""
        if self.topics.find_layout(TOPIC) is None:
            self.topics.create_own(TOPIC, 2, 2)
        if queue_id < self.topics.own_write_count(self.topics.require_layout(TOPIC)):
            self.messages.setdefault(queue_id, []).append(body)

    @property
    def unreachable(self) -> list[int]:
        layout = self.topics.find_layout(TOPIC)
        return [queue_id for queue_id in self.messages if layout is None or queue_id >= layout.read_count(self.name)]


class Writers:
    """A source of random bits from the example."""

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
        self.reported: list[TopicLayout] = []
        """Every layout that was ever sent: it may arrive again late."""

    def step(self, word: str, place: int, queue_id: int, late: int) -> None:
        broker = self.brokers[place % len(self.brokers)]
        match word:
            case "send":
                broker.send(queue_id)
            case "register":
                self.register(broker)
            case "late" if self.reported:
                broker.topics.adopt([self.reported[late % len(self.reported)]])
            case "restart":
                broker.start()
            case "forget":
                self.nameserver = LayoutTable()
            case "grow" if (layout := broker.topics.find_layout(TOPIC)) is not None:
                other = self.brokers[late % len(self.brokers)].name
                count = layout.id_count(other) + 1
                broker.topics.create(alter_layout(layout, dict.fromkeys([other], (count, count)), writer=self.writers()))
            case "narrow" if (layout := broker.topics.find_layout(TOPIC)) is not None:
                name = self.brokers[late % len(self.brokers)].name
                if (write_count := layout.write_count(name)) > 1:
                    read_count = layout.id_count(name)
                    narrow = alter_layout(layout, dict.fromkeys([name], (write_count - 1, read_count)), writer=self.writers())
                    broker.topics.create(narrow)
            case "delete" if (layout := broker.topics.find_layout(TOPIC)) is not None:
                broker.topics.create(layout.deletion)
        self.reported += [layout for layout in [broker.layout] if layout is not None]

    def register(self, broker: Broker) -> int:
        """REGISTER_BROKER: return how many layouts of the nameserver the broker adopted."""
        sent = broker.topics.layouts.all()
        for layout in sent:
            self.nameserver.adopt(layout)
        return broker.topics.adopt(self.nameserver.all())

    def settle(self) -> None:
        for _ in range(4 * len(self.brokers)):
            before = [self.nameserver.get(TOPIC), *(broker.layout for broker in self.brokers)]
            for broker in self.brokers:
                self.register(broker)
            if before == [self.nameserver.get(TOPIC), *(broker.layout for broker in self.brokers)]:
                return
        raise AssertionError(f"no end: {[broker.layout for broker in self.brokers]}")


def brokers_with_queue_id_gaps(layout: TopicLayout) -> dict[str, tuple[list[int], list[int]]]:
    """Return the brokers whose writable or readable queue ids are not consecutive from 0, as classic clients compute them."""
    found = {}
    for name in {entry.broker_name for entry in layout.entries}:
        writes = [queue.queue_id for queue in layout.write_queues if queue.broker_name == name]
        reads = [queue.queue_id for queue in layout.read_queues if queue.broker_name == name]
        if (writes, reads) != (list(range(layout.write_count(name))), list(range(layout.read_count(name)))):
            found[name] = (writes, reads)
    return found
