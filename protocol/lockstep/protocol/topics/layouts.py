"""Layouts known to one process: the highest version of each topic. Used by nameserver and broker."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_broker_name, check_topic, is_sendable_topic, is_system_topic
from lockstep.protocol.topics.queue import WRITER_MAX, LayoutEntry, TopicLayout

QUEUES_PER_BROKER_MAX = 16_384
"""One consumer can hold all of them with one pull each, since the broker holds that many pulls of a connection."""
QUEUES_MAX = 65_536
"""The maximum number of queues of one topic, over all brokers."""
ENTRY_COUNT_MAX = 1_024
"""The maximum number of entries (brokers, or later additions to them) in one layout: 40 KB of it."""
ENTRIES_MAX = 1 << 20
"""The maximum number of entries of all layouts, for 16,384 topics on 64 brokers: 170 bytes each in memory, twice as much with the
longest names. Above it brokers create no topics and nameservers accept none."""
COUNTER_MAX = 1 << 53
"""The largest integer that every JSON reader represents exactly."""
PART_LAYOUTS_MAX = 4_096
"""The maximum number of layouts of one body: longer registrations, responses and notifications are sent in parts."""
PART_ENTRIES_MAX = 8_192
"""The maximum number of entries of one body, which keeps it below 2 MiB even with the longest broker names."""

Rank = tuple[int, int, tuple[tuple[str, int, int, int], ...]]


def _rank(layout: TopicLayout) -> Rank:
    """Return the key that makes `adopt` a join: the version, and the entries in case two writers draw the same 32 bits."""
    return layout.version.counter, layout.version.writer, tuple(map(_entry, layout.entries))


def is_higher(layout: TopicLayout, known: TopicLayout) -> bool:
    """Return whether the layout supersedes `known`, a layout of the same topic."""
    return _rank(layout) > _rank(known)


def _entry(entry: LayoutEntry) -> tuple[str, int, int, int]:
    return entry.broker_name, entry.write_queue_count, entry.read_queue_count, entry.counter


def check_layout(layout: TopicLayout) -> None:
    """Raise LocalProtocolError, naming the topic and the limit, for a layout that no broker or nameserver accepts."""
    check_topic(layout.topic)
    if not is_sendable_topic(layout.topic):
        raise LocalProtocolError(f"topic {layout.topic}: only brokers write to it, so it has no layout")
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
            if count > QUEUES_PER_BROKER_MAX:
                raise LocalProtocolError(f"topic {layout.topic}: {count} queues at {broker_name}, expected 0 to {QUEUES_PER_BROKER_MAX}")
        if counts[0] > counts[1]:
            raise LocalProtocolError(
                f"topic {layout.topic}: {counts[0]} queues to write at {broker_name}, {counts[1]} to read: what is written there could "
                "not be read"
            )
    total = max(layout.read_total, layout.write_total)
    if layout.entries and not total:
        raise LocalProtocolError(f"topic {layout.topic}: none of its brokers has a queue, expected at least one")
    if total > QUEUES_MAX:
        raise LocalProtocolError(f"topic {layout.topic}: {total} queues over all brokers, {QUEUES_MAX} allowed")


def split_layouts(layouts: Iterable[TopicLayout]) -> list[Sequence[TopicLayout]]:
    """Split the layouts into bodies of at most 4,096 layouts and 8,192 entries. Without layouts, return one empty part."""
    return list(iter_layout_parts(layouts))


def iter_layout_parts(layouts: Iterable[TopicLayout]) -> Iterator[Sequence[TopicLayout]]:
    """Yield the parts of `split_layouts` one at a time: the layouts of a part are consumed only when the part is requested."""
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
    """Maps each topic to the highest layout received.

    `adopt` is commutative, associative and idempotent: tables that received the same layouts in any order are equal.
    """

    __slots__ = ("_layouts", "_topics", "_user_topics", "entry_count", "live_count")

    def __init__(self, layouts: Iterable[TopicLayout] = ()) -> None:
        self._layouts: dict[str, TopicLayout] = {}
        self.live_count = 0
        """The number of topics that have queues."""
        self.entry_count = 0
        """The number of entries of all layouts."""
        self._topics: list[str] = []
        """The topics of `_layouts`, sorted."""
        self._user_topics: list[str] = []
        """The topics of `user_topics`, sorted."""
        for layout in layouts:
            self.adopt(layout)

    def __len__(self) -> int:
        return len(self._layouts)

    def is_newer(self, layout: TopicLayout) -> bool:
        """Return whether the layout is higher than the one known; False if equal."""
        known = self._layouts.get(layout.topic)
        return known is None or (known is not layout and is_higher(layout, known))

    def adopt(self, layout: TopicLayout) -> bool:
        """Store the layout if it is higher than the one known. Return whether it was stored."""
        if not self.is_newer(layout):
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
        """Return by how much `entry_count` would grow if the layout replaced the known one of its topic; negative if it has fewer
        entries."""
        known = self._layouts.get(layout.topic)
        return len(layout.entries) - (0 if known is None else len(known.entries))

    @property
    def deleted_count(self) -> int:
        """Return the number of deleted topics."""
        return len(self._layouts) - self.live_count

    def deletions(self, counter_max: int) -> list[str]:
        """Return the topics that were deleted with at most this counter."""
        return [topic for topic, layout in self._layouts.items() if layout.deleted and layout.version.counter <= counter_max]

    def forget(self, topics: Sequence[str]) -> None:
        """Remove the layouts of these topics, as if they had never been adopted."""
        if not topics:
            return
        for topic in topics:
            layout = self._layouts.pop(topic)
            self.live_count -= not layout.deleted
            self.entry_count -= len(layout.entries)
        self._topics = [topic for topic in self._topics if topic in self._layouts]
        self._user_topics = [topic for topic in self._user_topics if topic in self._layouts]

    def get(self, topic: str) -> TopicLayout | None:
        """Return the known layout, also of a deleted topic (`deleted`: it has no queues)."""
        return self._layouts.get(topic)

    def all(self) -> tuple[TopicLayout, ...]:
        """Return all layouts, sorted by topic, including those of deleted topics."""
        return tuple(map(self._layouts.__getitem__, self._topics))

    @property
    def user_count(self) -> int:
        """Return the number of `user_topics`."""
        return len(self._user_topics)

    def user_topics(self) -> tuple[str, ...]:
        """Return the topics that have queues, sorted, without system topics."""
        return tuple(self._user_topics)
