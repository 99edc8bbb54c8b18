"""The layouts that one process knows: the highest version of each topic. Used by nameserver and broker."""

from collections.abc import Iterable

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_broker_name, check_topic
from lockstep.protocol.queue import LayoutEntry, TopicLayout

QUEUES_PER_BROKER_MAX = 16_384
"""One consumer may then hold them all with one pull each (the broker holds as many pulls of a connection)."""
ENTRY_COUNT_MAX = 1_024
"""Brokers, or later additions to them, in one layout: 40 KB of it."""
COUNTER_MAX = 1 << 53
"""What every JSON reader holds exactly."""
WRITER_MAX = (1 << 32) - 1

Rank = tuple[int, int, tuple[tuple[str, int, int, int], ...]]


def _rank(layout: TopicLayout) -> Rank:
    """What makes `adopt` a join: the version pair, and, should two writers ever draw the same 32 bits, the entries."""
    return layout.version.counter, layout.version.writer, tuple(map(_entry, layout.entries))


def _entry(entry: LayoutEntry) -> tuple[str, int, int, int]:
    return entry.broker_name, entry.write_queue_count, entry.read_queue_count, entry.counter


def check_layout(layout: TopicLayout) -> None:
    """Raises LocalProtocolError where the layout can't be: every queue of it is made one day, so nobody may claim a billion."""
    check_topic(layout.topic)
    version = layout.version
    if not (1 <= version.counter <= COUNTER_MAX and 0 <= version.writer <= WRITER_MAX):
        raise LocalProtocolError(f"topic {layout.topic}: layout counter {version.counter} of writer {version.writer}, expected 1 or more")
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


class LayoutTable:
    """Topic → the highest layout heard.

    Adopting is commutative, associative and idempotent: tables that heard the same layouts hold the same layouts.
    """

    __slots__ = ("_layouts",)

    def __init__(self, layouts: Iterable[TopicLayout] = ()) -> None:
        self._layouts: dict[str, TopicLayout] = {}
        for layout in layouts:
            self.adopt(layout)

    def __len__(self) -> int:
        return len(self._layouts)

    def wants(self, layout: TopicLayout) -> bool:
        """Whether the layout is higher than the one known. Equal → False."""
        known = self._layouts.get(layout.topic)
        return known is None or (known is not layout and _rank(layout) > _rank(known))

    def adopt(self, layout: TopicLayout) -> bool:
        """Takes the layout if it is higher than the one known; True if it was taken."""
        if not self.wants(layout):
            return False
        self._layouts[layout.topic] = layout
        return True

    def get(self, topic: str) -> TopicLayout | None:
        """The layout known, also of a deleted topic (`deleted`: it has no queues)."""
        return self._layouts.get(topic)

    def all(self) -> tuple[TopicLayout, ...]:
        """Every layout, deleted ones too, by topic."""
        return tuple(self._layouts[topic] for topic in sorted(self._layouts))

    def newer_than(self, sent: Iterable[TopicLayout]) -> tuple[TopicLayout, ...]:
        """Every layout that the sender of `sent` lacks or has in a lower version, by topic: what the answer to a registration carries."""
        theirs = LayoutTable(sent)
        return tuple(layout for layout in self.all() if theirs.adopt(layout))

    def live_topics(self) -> tuple[str, ...]:
        """The topics that have queues, sorted."""
        return tuple(layout.topic for layout in self.all() if not layout.deleted)
