"""Topics: every layout of the cluster, durable, and the rules by which one comes to be. RocketMQ: TopicConfigManager.

A layout is known by its version (counter, writer). What a nameserver hands back is adopted where it is higher (LayoutTable). What somebody
*asks* for is another matter: two who create one topic at once must end with one layout, so that the first to arrive wins at equal counters.

| here          | asked for                      | result                                                        |
|---------------|--------------------------------|---------------------------------------------------------------|
| none          | a layout with queues           | it is taken                                                   |
| none          | a layout without queues        | TOPIC_NOT_EXIST                                               |
| live          | a counter not above            | nothing changes: the answer is the layout in force            |
| live          | a counter above                | it is taken: altered, or deleted if it has no queues          |
| live          | queues all made two above      | it was deleted between: deleted here too, then taken          |
| deleted       | queues, a counter not above    | taken with the next counter: created again                    |
| deleted       | queues, a counter above        | it is taken                                                   |
| deleted       | that very deletion             | nothing changes: a nameserver was faster than who asks        |
| deleted       | another deletion               | TOPIC_NOT_EXIST                                               |
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from lockstep.broker.journal import Journal
from lockstep.protocol.errors import LocalProtocolError, MessageIllegal, NoPermission, RemoteProtocolError, SystemError_, TopicNotExist
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.layouts import LayoutTable, check_layout
from lockstep.protocol.names import check_topic, is_system_topic
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout

KIND = "layout"
"""The journal's word for a change of this table: (KIND, plain layout)."""


class TopicTable:
    """Topic → layout in force, kept by the journal. `on_changed(topic)` is called after every change that is not a replay."""

    def __init__(self, layouts: LayoutTable, journal: Journal, broker_name: str, on_changed: Callable[[str], None] | None = None) -> None:
        self.layouts = layouts
        self.on_changed = on_changed
        self._journal = journal
        self._broker_name = broker_name
        self._writable: dict[str, int] = {}
        self._readable: dict[str, int] = {}
        """Live topic → this broker's queues of it: what every send and pull asks for."""

    def live(self, topic: str) -> TopicLayout:
        """The layout in force; TopicNotExist names the next step."""
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            raise missing(topic)
        return layout

    def find(self, topic: str) -> TopicLayout | None:
        """The layout in force; None where there is none or it was deleted."""
        layout = self.layouts.get(topic)
        return None if layout is None or layout.deleted else layout

    def own_write_count(self, layout: TopicLayout) -> int:
        """Writable queues of this broker: ids 0 … count−1."""
        return layout.write_count(self._broker_name)

    def own_read_count(self, layout: TopicLayout) -> int:
        """Readable queues of this broker: ids 0 … count−1."""
        return layout.read_count(self._broker_name)

    def check_writable(self, topic: str, queue_id: int) -> None:
        """TopicNotExist, or SystemError_ (RocketMQ's answer) where this broker has no such queue to write to."""
        if not 0 <= queue_id < self._writable.get(topic, 0):
            raise self._no_queue(self.live(topic), queue_id, self._writable)

    def check_readable(self, topic: str, queue_id: int) -> None:
        """TopicNotExist, or SystemError_ (RocketMQ's answer) where this broker has no such queue to read."""
        if not 0 <= queue_id < self._readable.get(topic, 0):
            raise self._no_queue(self.live(topic), queue_id, self._readable)

    def adopt(self, layouts: Iterable[TopicLayout]) -> None:
        """What a nameserver handed back: each one that is higher than ours is taken. RemoteProtocolError for one that can't be."""
        for layout in layouts:
            if self.layouts.wants(layout):
                try:
                    check_layout(layout)
                except LocalProtocolError as error:
                    raise RemoteProtocolError(f"the nameserver hands out a layout that can't be: {error}") from None
                self._take(layout)

    def create(self, asked: TopicLayout) -> TopicLayout:
        """A creation, alteration or deletion that somebody asks for; returns the layout in force after it (the table above)."""
        _check(asked)
        here = self.layouts.get(asked.topic)
        if asked.deleted and here == asked:
            return here
        if asked.deleted and (here is None or here.deleted):
            raise missing(asked.topic)
        if here is not None and asked.version.counter <= here.version.counter:
            if not here.deleted:
                return here
            counter = here.version.counter + 1
            entries = tuple(replace(entry, counter=counter) for entry in asked.entries)
            asked = TopicLayout(asked.topic, LayoutVersion(counter, asked.version.writer), entries)
        self._take(asked)
        return self.live(asked.topic) if not asked.deleted else asked

    def create_own(self, topic: str, read_queue_count: int, write_queue_count: int, writer: int) -> TopicLayout:
        """A classic tool asks this broker for queues of its own. What is there stays; queues are added, never taken away."""
        here = self.layouts.get(topic)
        counter = 1 if here is None else here.version.counter + 1
        entries = () if here is None else here.entries
        read_more = read_queue_count - (0 if here is None else here.read_count(self._broker_name))
        write_more = write_queue_count - (0 if here is None else here.write_count(self._broker_name))
        if here is not None and not here.deleted and (read_more, write_more) == (0, 0):
            return here
        if read_more < 0 or write_more < 0 or (entries and read_more != write_more):
            raise NoPermission(
                f"topic {topic} has queues here that this would take away or change: order per key would break; use lockstep topic alter"
            )
        return self.create(
            TopicLayout(topic, LayoutVersion(counter, writer), (*entries, LayoutEntry(self._broker_name, write_more, read_more, counter)))
        )

    def apply(self, change: tuple[object, ...]) -> str:
        """One change from the log; the topic that it is about."""
        _, plain = change
        layout = from_plain(TopicLayout, plain)
        self._adopt(layout)
        return layout.topic

    def snapshot(self) -> list[object]:
        return [to_plain(layout) for layout in self.layouts.all()]

    def restore(self, plain: Iterable[object]) -> None:
        for layout in plain:
            self._adopt(from_plain(TopicLayout, layout))

    def _no_queue(self, layout: TopicLayout, queue_id: int, counts: dict[str, int]) -> SystemError_:
        there = f"{self._broker_name} has {counts.get(layout.topic, 0)} of them in layout {layout.version.counter}"
        return SystemError_(f"queue {queue_id} of topic {layout.topic} is illegal: {there}; refresh the route")

    def _missed_deletion(self, layout: TopicLayout) -> TopicLayout | None:
        """The deletion that must have been between what is here and this layout, if no queue of it is as old as the next change of ours.

        Who was told of the re-creation alone would go on with messages and progress of the topic that was deleted.
        """
        here = self.find(layout.topic)
        if here is None or not layout.began_after(here.version.counter):
            return None
        return TopicLayout(layout.topic, LayoutVersion(layout.began - 1, 0), ())

    def _adopt(self, layout: TopicLayout) -> bool:
        if not self.layouts.adopt(layout):
            return False
        self._writable[layout.topic] = layout.write_count(self._broker_name)
        self._readable[layout.topic] = layout.read_count(self._broker_name)
        return True

    def _take(self, layout: TopicLayout) -> bool:
        missed = self._missed_deletion(layout)
        if missed is not None:
            self._take(missed)
        if not self.layouts.wants(layout):
            return False
        self._journal.do((KIND, to_plain(layout)), lambda _: self._adopt(layout))
        if self.on_changed is not None:
            self.on_changed(layout.topic)
        return True


def missing(topic: str) -> TopicNotExist:
    """Somebody named a topic that is not there."""
    return TopicNotExist(
        f"topic {topic} does not exist: create it with `lockstep topic create {topic}`, or start the broker with --auto-create-topics"
    )


def _check(asked: TopicLayout) -> None:
    check_topic(asked.topic)
    if is_system_topic(asked.topic):
        raise NoPermission(f"topic {asked.topic} is the broker's own")
    try:
        check_layout(asked)
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
