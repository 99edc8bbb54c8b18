"""The layouts that one process knows: the highest version of each topic. Used by nameserver and broker."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_broker_name, check_topic, is_sendable_topic, is_system_topic
from lockstep.protocol.queue import WRITER_MAX, LayoutEntry, TopicLayout

QUEUES_PER_BROKER_MAX = 16_384
"""One consumer may then hold them all with one pull each (the broker holds as many pulls of a connection)."""
QUEUES_MAX = 65_536
"""Of one topic, over all brokers."""
ENTRY_COUNT_MAX = 1_024
"""Brokers, or later additions to them, in one layout: 40 KB of it."""
ENTRIES_MAX = 1 << 20
"""Entries of all layouts together, for 16,384 topics on 64 brokers: 170 bytes each in memory, twice as much with the longest names.
Brokers create no topic beyond them, nameservers take none."""
COUNTER_MAX = 1 << 53
"""What every JSON reader holds exactly."""
PART_LAYOUTS_MAX = 4_096
"""Layouts of one body: a registration, its answer or a notice that has more of them is sent in parts."""
PART_ENTRIES_MAX = 8_192
"""Entries of one body, so that it stays below 2 MiB also with the longest broker names."""

Rank = tuple[int, int, tuple[tuple[str, int, int, int], ...]]


def _rank(layout: TopicLayout) -> Rank:
    """What makes `adopt` a join: the version pair, and, should two writers ever draw the same 32 bits, the entries."""
    return layout.version.counter, layout.version.writer, tuple(map(_entry, layout.entries))


def is_higher(layout: TopicLayout, known: TopicLayout) -> bool:
    """Whether the layout wins against one that is known of its topic."""
    return _rank(layout) > _rank(known)


def _entry(entry: LayoutEntry) -> tuple[str, int, int, int]:
    return entry.broker_name, entry.write_queue_count, entry.read_queue_count, entry.counter


def check_layout(layout: TopicLayout) -> None:
    """Raises LocalProtocolError, naming the topic and the limit, for a layout that no broker and no nameserver accepts."""
    check_topic(layout.topic)
    if not is_sendable_topic(layout.topic):
        raise LocalProtocolError(f"topic {layout.topic}: brokers write it themselves, it has no layout")
    version = layout.version
    if not (1 <= version.counter <= COUNTER_MAX and 0 <= version.writer <= WRITER_MAX):
        raise LocalProtocolError(
            f"topic {layout.topic}: layout counter {version.counter} of writer {version.writer}, expected 1 to {COUNTER_MAX} and 32 bits"
        )
    if len(layout.entries) > ENTRY_COUNT_MAX:
        raise LocalProtocolError(f"topic {layout.topic}: {len(layout.entries)} entries of a layout, {ENTRY_COUNT_MAX} allowed")
    totals: dict[str, tuple[int, int]] = {}
    for entry in layout.entries:
        counts = entry.write_queue_count, entry.read_queue_count
        if min(counts) < 0 or not 1 <= entry.counter <= version.counter:
            raise LocalProtocolError(f"topic {layout.topic}: entry {entry} in layout {version.counter}")
        write_count, read_count = totals.get(entry.broker_name, (0, 0))
        totals[entry.broker_name] = write_count + counts[0], read_count + counts[1]
    for broker_name, counts in totals.items():
        check_broker_name(broker_name)
        for count in counts:
            if not 0 < count <= QUEUES_PER_BROKER_MAX:
                raise LocalProtocolError(f"topic {layout.topic}: {count} queues at {broker_name}, expected 1 to {QUEUES_PER_BROKER_MAX}")
    total = max(layout.read_total, layout.write_total)
    if total > QUEUES_MAX:
        raise LocalProtocolError(f"topic {layout.topic}: {total} queues over all brokers, {QUEUES_MAX} allowed")


def in_parts(layouts: Iterable[TopicLayout]) -> list[Sequence[TopicLayout]]:
    """The layouts in bodies of at most 4,096 layouts and 8,192 entries; one empty part where there are none."""
    return list(each_part(layouts))


def each_part(layouts: Iterable[TopicLayout]) -> Iterator[Sequence[TopicLayout]]:
    """As `in_parts`, one part at a time: the layouts behind it are not asked for before the next one."""
    part: list[TopicLayout] = []
    entry_count = 0
    for layout in layouts:
        entry_count += len(layout.entries)
        if part and (len(part) == PART_LAYOUTS_MAX or entry_count > PART_ENTRIES_MAX):
            yield part
            part, entry_count = [], len(layout.entries)
        part.append(layout)
    yield part


class LayoutTable:
    """Topic → the highest layout heard.

    Adopting is commutative, associative and idempotent: tables that heard the same layouts hold the same layouts.
    """

    __slots__ = ("_layouts", "_topics", "_user_topics", "entry_count", "live_count")

    def __init__(self, layouts: Iterable[TopicLayout] = ()) -> None:
        self._layouts: dict[str, TopicLayout] = {}
        self.live_count = 0
        """Topics that have queues."""
        self.entry_count = 0
        """Entries of all layouts together."""
        self._topics: list[str] = []
        """Of `_layouts`, sorted."""
        self._user_topics: list[str] = []
        """Of `user_topics`."""
        for layout in layouts:
            self.adopt(layout)

    def __len__(self) -> int:
        return len(self._layouts)

    def wants(self, layout: TopicLayout) -> bool:
        """Whether the layout is higher than the one known. Equal → False."""
        known = self._layouts.get(layout.topic)
        return known is None or (known is not layout and is_higher(layout, known))

    def adopt(self, layout: TopicLayout) -> bool:
        """Takes the layout if it is higher than the one known; True if it was taken."""
        if not self.wants(layout):
            return False
        known = self._layouts.get(layout.topic)
        more = (not layout.deleted) - (known is not None and not known.deleted)
        self.live_count += more
        self.entry_count += self.more_entries(layout)
        if more and not is_system_topic(layout.topic):
            if more > 0:
                insort(self._user_topics, layout.topic)
            else:
                del self._user_topics[bisect_left(self._user_topics, layout.topic)]
        if known is None:
            insort(self._topics, layout.topic)
        self._layouts[layout.topic] = layout
        return True

    def more_entries(self, layout: TopicLayout) -> int:
        """By how much `entry_count` grows when the layout takes the place of the one known of its topic; negative where it has fewer."""
        known = self._layouts.get(layout.topic)
        return len(layout.entries) - (0 if known is None else len(known.entries))

    @property
    def deleted_count(self) -> int:
        """Deleted topics."""
        return len(self._layouts) - self.live_count

    def deletions(self, counter_max: int) -> list[str]:
        """The deleted topics whose deletion has at most this counter."""
        return [topic for topic, layout in self._layouts.items() if layout.deleted and layout.version.counter <= counter_max]

    def forget(self, topics: Sequence[str]) -> None:
        """Removes the layouts of these topics, as if they had never been adopted."""
        if not topics:
            return
        for topic in topics:
            layout = self._layouts.pop(topic)
            self.live_count -= not layout.deleted
            self.entry_count -= len(layout.entries)
        self._topics = [topic for topic in self._topics if topic in self._layouts]
        self._user_topics = [topic for topic in self._user_topics if topic in self._layouts]

    def get(self, topic: str) -> TopicLayout | None:
        """The layout known, also of a deleted topic (`deleted`: it has no queues)."""
        return self._layouts.get(topic)

    def all(self) -> tuple[TopicLayout, ...]:
        """Every layout, deleted ones too, by topic."""
        return tuple(map(self._layouts.__getitem__, self._topics))

    def newer_than(self, sent: Iterable[TopicLayout]) -> tuple[TopicLayout, ...]:
        """Every layout that the sender of `sent` lacks or has in a lower version, by topic: what the answer to a registration carries."""
        theirs = LayoutTable(sent)
        return tuple(layout for layout in self.all() if theirs.adopt(layout))

    @property
    def user_count(self) -> int:
        """How many `user_topics` has."""
        return len(self._user_topics)

    def user_topics(self) -> tuple[str, ...]:
        """The topics that have queues, sorted, without the brokers' own."""
        return tuple(self._user_topics)
