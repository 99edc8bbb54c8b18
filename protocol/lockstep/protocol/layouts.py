"""The layouts that one process knows: the highest version of each topic. Used by nameserver and broker."""

from collections.abc import Iterable

from lockstep.protocol.queue import LayoutEntry, TopicLayout

Rank = tuple[int, int, tuple[tuple[str, int, int, int], ...]]


def _rank(layout: TopicLayout) -> Rank:
    """What makes `adopt` a join: the version pair, and, should two writers ever draw the same 32 bits, the entries."""
    return layout.version.counter, layout.version.writer, tuple(map(_entry, layout.entries))


def _entry(entry: LayoutEntry) -> tuple[str, int, int, int]:
    return entry.broker_name, entry.write_queue_count, entry.read_queue_count, entry.counter


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

    def adopt(self, layout: TopicLayout) -> bool:
        """Takes the layout if it is higher than the one known; True if it was taken. Equal → False."""
        known = self._layouts.get(layout.topic)
        if known is not None and (known is layout or _rank(layout) <= _rank(known)):
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
