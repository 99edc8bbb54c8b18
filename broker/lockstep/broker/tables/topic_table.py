"""Topics: every layout of the cluster, durable, and the rules by which one comes to be. RocketMQ: TopicConfigManager.

A layout is known by its version (counter, writer). What a nameserver hands back is adopted where it is higher (LayoutTable). What somebody
*asks* for is another matter: two who create one topic at once must end with one layout, so that the first to arrive wins at equal counters.

| here          | asked for                      | result                                                        |
|---------------|--------------------------------|---------------------------------------------------------------|
| none          | a layout with queues           | it is taken                                                   |
| none          | a layout without queues        | TOPIC_NOT_EXIST                                               |
| live          | a counter not above            | nothing changes: the answer is the layout in force            |
| live          | a counter above                | it is taken: altered, or deleted if it has no queues          |
| live          | of a later creation, above     | it was deleted between: deleted here too, then taken          |
| live          | of an earlier creation, above  | the one here stays, with a counter above the one asked for    |
| deleted       | queues, a counter not above    | taken with the next counter: created again                    |
| deleted       | queues, a counter above        | it is taken: created again                                    |
| deleted       | that very deletion             | nothing changes: a nameserver was faster than who asks        |
| deleted       | another deletion               | TOPIC_NOT_EXIST                                               |

A counter may be at most 2^20 above the one here: a broker may lag behind a client's layout, and no request can use the counters up.

Two brokers may write a layout of one topic at once, for example when each creates it for a first send. One layout wins, and the messages
in the loser's queues must stay readable: a broker whose queues the winner lacks appends those that hold messages, with the next counter, in
the step in which it takes the winner. Each such step adds the queues of one broker, so that the brokers agree after at most one step each.
A broker appends nothing when the topic was deleted, nor queues that an operator took away (LayoutEntry: markers). A deletion wins against
every layout that was made without knowledge of it: a broker that knows the deletion repeats it with the next counter. It says up to which
creation it deletes (`TopicLayout.deletes_up_to`): what was created after the deletion that an operator asked for stays.

Also after the topic was created again: all layouts between a creation and a deletion have the same oldest queue (`TopicLayout.began`), and
it is younger after each creation. Of two live layouts the one with the older `began` is of the topic that was deleted, whatever their
counters are: a broker that changed the layout several times while it was cut off may have the higher counter. A broker that has it drops
messages and progress; a broker that is given it keeps its own layout, with a counter above it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from lockstep.broker.journal import Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    LocalProtocolError,
    MessageIllegalError,
    NoPermissionError,
    TopicNotExistError,
)
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.layouts import COUNTER_MAX, ENTRIES_MAX, QUEUES_PER_BROKER_MAX, LayoutTable, check_layout
from lockstep.protocol.names import check_topic, is_sendable_topic, is_system_topic
from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited

log = get_logger("broker")

KIND = "layout"
"""The journal's word for a change of this table: (KIND, plain layout), and True if the topic was deleted before it."""
FORGOTTEN = "layout.deletions_forgotten"
"""(FORGOTTEN, highest counter of the deletions that were forgotten)."""
COUNTER_STEP_MAX = 1 << 20
"""How far above the counter here a requested one may be."""
TOPICS_MAX = 16_384
"""Live topics of a cluster: the default of the setting `topics_max`."""
ADOPTED_MAX = 65_536
"""Live topics, above which none is adopted that is not known: the highest topics_max. Below it a broker keeps what the cluster has, also
where other brokers have a higher topics_max, or create topics at the same time."""
ADOPTED_ENTRIES_MAX = 2 * ENTRIES_MAX
"""Entries of all layouts, above which no topic is adopted that is not known: what a nameserver keeps, and as many of this broker's own."""
TOMBSTONES_MAX = 65_536
"""Deleted topics that are remembered. Beyond them no topic of a new name is created."""
NAMES_MAX = (ADOPTED_MAX + TOMBSTONES_MAX) // 4 * 3
"""Topics and deleted topics together. At this limit not even a group's retry or dead letter topic is created (`for_group`). It is three
quarters of the topics that a broker adopts, which is as many as a nameserver takes from one broker alone."""
ASKED_ENTRIES_MAX = ENTRIES_MAX // 16 * 15
"""Entries of all layouts above which no request adds one; the rest, up to what nameservers take, is for the topics of groups."""


class TopicTable:
    """Topic → layout in force, kept by the journal. `on_changed(topic)` is called after every change that is not a replay."""

    def __init__(
        self,
        layouts: LayoutTable,
        journal: Journal,
        broker_name: str,
        on_changed: Callable[[str], None] | None = None,
        *,
        stored: Callable[[str], Iterable[int]] = lambda _topic: (),
        new_writer: Callable[[], int] = lambda: 0,
        topics_max: int = TOPICS_MAX,
    ) -> None:
        """`stored(topic)`: ids of the queues in which messages lie here. `new_writer()`: 32 random bits."""
        self.layouts = layouts
        self.on_changed = on_changed
        self.topics_max = topics_max
        self._stored_queue_ids = stored
        self._new_writer = new_writer
        self._journal = journal
        self._broker_name = broker_name
        self._writable: dict[str, int] = {}
        self._readable: dict[str, int] = {}
        """Live topic → this broker's queues of it: what every send and pull asks for."""

    def require_layout(self, topic: str) -> TopicLayout:
        """The layout in force; TopicNotExistError names the next step."""
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            raise topic_missing(topic)
        return layout

    def find_layout(self, topic: str) -> TopicLayout | None:
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
        """NoPermissionError for a topic of the broker's own, TopicNotExistError, BrokerSystemError (RocketMQ's answer) for a queue that is
        not there."""
        if not 0 <= queue_id < self._writable.get(topic, 0):
            raise self._no_queue(topic, queue_id, self._writable)

    def check_readable(self, topic: str, queue_id: int) -> None:
        """As `check_writable`, of a queue to read."""
        if not 0 <= queue_id < self._readable.get(topic, 0):
            raise self._no_queue(topic, queue_id, self._readable)

    @property
    def is_full(self) -> bool:
        """Whether as many topics are known as may be: one that is not known is not adopted."""
        layouts = self.layouts
        topics_full = layouts.live_count >= ADOPTED_MAX or layouts.deleted_count >= TOMBSTONES_MAX
        return topics_full or layouts.entry_count >= ADOPTED_ENTRIES_MAX

    def adopt(self, layouts: Iterable[TopicLayout]) -> int:
        """Takes each layout of a nameserver that is higher than the one here; returns how many. Impossible ones are logged.

        A topic that is not known here is left out when this table is `is_full`.
        """
        taken = left_out = 0
        for layout in layouts:
            if self.layouts.get(layout.topic) is None and self.is_full:
                left_out += 1
            elif self.layouts.is_newer(layout):
                try:
                    check_layout(layout)
                except LocalProtocolError as error:
                    log_limited(log, "error", "layout.refused", source="nameserver", reason=str(error))
                else:
                    taken += self._put_if_higher(layout)
        if left_out:
            facts = {"topics": self.layouts.live_count, "deleted": self.layouts.deleted_count, "entries": self.layouts.entry_count}
            then = "this broker can't be given queues of them; delete topics that are not used any more"
            log_limited(log, "error", "topics.not_adopted", count=left_out, **facts, then=then)
        return taken

    def create(self, asked: TopicLayout, *, for_group: bool = False) -> TopicLayout:
        """A creation, alteration or deletion on request (the table above); returns the layout in force after it.

        `for_group`: a message of a group needs the topic, so NAMES_MAX and ENTRIES_MAX are the limits instead of those for requests. Raises
        TopicNotExistError, NoPermissionError and MessageIllegalError.
        """
        check_topic(asked.topic)
        if is_system_topic(asked.topic):
            raise NoPermissionError(f"topic {asked.topic} is the broker's own")
        here = self.layouts.get(asked.topic)
        if asked.deleted and here == asked:
            return here
        if asked.deleted and (here is None or here.deleted):
            raise topic_missing(asked.topic)
        if here is not None and not here.deleted and asked.version.counter <= here.version.counter:
            _check(asked, here)
            return here
        if here is not None and here.deleted:
            asked = _created_again(asked, here)
        _check(asked, here)
        if for_group and here is None:
            self._check_names(asked.topic)
        elif (here is None or here.deleted) and not for_group:
            self._check_room(asked.topic, known=here is not None)
        self._check_entries(asked, ENTRIES_MAX if for_group else ASKED_ENTRIES_MAX)
        self._put_if_higher(asked)
        return self.require_layout(asked.topic) if not asked.deleted else asked

    def create_own(self, topic: str, read_queue_count: int, write_queue_count: int, *, for_group: bool = False) -> TopicLayout:
        """Gives this broker so many queues of the topic. What is there stays; queues are added, never taken away. As `create`."""
        here = self.layouts.get(topic)
        read_more = read_queue_count - (0 if here is None else here.read_count(self._broker_name))
        write_more = write_queue_count - (0 if here is None else here.write_count(self._broker_name))
        if here is not None and not here.deleted and (read_more, write_more) == (0, 0):
            return here
        if (here is None or here.deleted) and min(read_queue_count, write_queue_count) < 1:
            counts = f"{read_queue_count} queues to read, {write_queue_count} to write"
            raise MessageIllegalError(f"topic {topic} was not created: {counts}, expected 1 to {QUEUES_PER_BROKER_MAX} of each")
        if read_more < 0 or write_more < 0 or (here is not None and here.entries and read_more != write_more):
            raise NoPermissionError(
                f"topic {topic} has queues here that this would take away or change: order per key would break; use lockstep topic alter"
            )
        before = TopicLayout(topic, LayoutVersion(0, 0), ()) if here is None or here.deleted else here
        return self.create(before.with_queues(self._broker_name, write_more, read_more, self._new_writer()), for_group=for_group)

    def forget_deletions(self, counter_max: int) -> int:
        """Forgets the deleted topics whose deletion has at most this counter; returns how many."""
        before = self.layouts.deleted_count
        self._journal.record((FORGOTTEN, counter_max), self._forget)
        return before - self.layouts.deleted_count

    def keep_stored_queues(self) -> None:
        """For the start: topics that have messages here and no queue of this broker in their layout get one.

        A broker of an earlier version left such topics behind when another broker's layout won.
        """
        for layout in self.layouts.all():
            if layout.deleted or layout.id_count(self._broker_name) or layout.last_removal_counter(self._broker_name):
                continue
            if ids := list(self._stored_queue_ids(layout.topic)):
                self._append_queues(layout, max(ids) + 1, max(ids) + 1)
                self._changed(layout.topic)

    def log_invalid_layouts(self) -> None:
        """For the start: names each layout that this version would not accept. The broker serves it; nameservers leave it out."""
        for layout in self.layouts.all():
            try:
                check_layout(layout)
            except LocalProtocolError as error:
                then = "nameservers leave this topic out, no client is sent here for it; see `limits of topics` in docs/operations.md"
                log.error("layout.impossible", topic=layout.topic, reason=str(error), then=then)

    def apply(self, change: tuple[object, ...]) -> str | None:
        """One change from the log. Returns the topic whose messages it deletes, None if it deletes none."""
        if change[0] == FORGOTTEN:
            self._forget(change)
            return None
        _, plain, *created_again = change
        layout = from_plain(TopicLayout, plain)
        adopted = self._adopt(layout)
        deletes = (adopted and created_again) or self.find_layout(layout.topic) is None
        return layout.topic if deletes else None

    def snapshot(self) -> SnapshotRows:
        layouts = self.layouts.all()
        return SnapshotRows(len(layouts), lambda: map(to_plain, layouts))

    def restore(self, plain: Iterable[object]) -> None:
        for layout in plain:
            self._adopt(from_plain(TopicLayout, layout))

    def _no_queue(self, topic: str, queue_id: int, counts: dict[str, int]) -> BrokerError:
        if not is_sendable_topic(topic):
            return NoPermissionError(f"topic {topic} is the broker's own: clients neither send to it nor read it")
        layout = self.require_layout(topic)
        there = f"{self._broker_name} has {counts.get(layout.topic, 0)} of them in layout {layout.version.counter}"
        return BrokerSystemError(f"queue {queue_id} of topic {layout.topic} is illegal: {there}; refresh the route")

    def _forget(self, change: tuple[object, ...]) -> None:
        _, counter_max = change
        assert isinstance(counter_max, int)
        self.layouts.forget(self.layouts.deletions(counter_max))
        for counts in (self._writable, self._readable):
            for topic in [topic for topic in counts if self.layouts.get(topic) is None]:
                del counts[topic]

    def _adopt(self, layout: TopicLayout) -> bool:
        if not self.layouts.adopt(layout):
            return False
        own = is_sendable_topic(layout.topic)  # an earlier version may have stored a layout of another one
        self._writable[layout.topic] = layout.write_count(self._broker_name) if own else 0
        self._readable[layout.topic] = layout.read_count(self._broker_name) if own else 0
        return True

    def _put_if_higher(self, layout: TopicLayout) -> bool:
        """Puts a layout into force if it is higher: journals it, with what follows from it, and calls `on_changed` once."""
        if not self.layouts.is_newer(layout):
            return False
        here = self.layouts.get(layout.topic)
        last = layout.version.counter >= COUNTER_MAX  # nothing can follow it
        if here is None:
            self._put(layout)
        elif here.deleted:
            # The deletion here counts on: it deletes a layout that was made without knowledge of it, and adds to another deletion.
            known = here.deletes_up_to
            repeated = layout.deletes_up_to < known if layout.deleted else layout.began <= known
            self._put(layout.deletion_up_to(known) if repeated and not last else layout)
        elif here.began > (layout.deletes_up_to if layout.deleted else layout.began) and not last:
            self._put(TopicLayout(here.topic, LayoutVersion(layout.version.counter + 1, self._new_writer()), here.entries))
        elif layout.deleted:
            self._put(layout)
        elif layout.began > here.began:
            self._put_created_again(layout)
        else:
            self._put(layout)
            self._append_queues(layout, self._id_count_to_keep(here, layout), here.write_count(self._broker_name))
        self._changed(layout.topic)
        return True

    def _put_created_again(self, layout: TopicLayout) -> None:
        """Puts the layout of a later creation into force: what this broker has of the topic that was deleted is dropped first.

        The deletion is not journaled as a layout: its counter would have to be above the one here, and so it would win against `layout`
        after a crash between the two.
        """
        self._adopt(replace(layout, entries=()))
        self._changed(layout.topic)
        self._put(layout, created_again=True)

    def _id_count_to_keep(self, here: TopicLayout, layout: TopicLayout) -> int:
        """How many queue ids this broker needs so that its messages stay readable in `layout`, which follows `here`; 0: it has enough."""
        name = self._broker_name
        first, end = layout.id_count(name), here.id_count(name)
        if first >= end:
            return 0
        last = max((queue_id for queue_id in self._stored_queue_ids(layout.topic) if first <= queue_id < end), default=None)
        if last is None or layout.last_removal_counter(name) > here.added_in(MessageQueue(layout.topic, name, last)):
            return 0
        return last + 1

    def _append_queues(self, layout: TopicLayout, id_count: int, write_count: int) -> None:
        """Appends queues of this broker to the layout in force, up to `id_count` ids, all of which can be read.

        Of them `write_count` can be written, but none where the layout has closed queues of this broker to writers.
        """
        name = self._broker_name
        more = id_count - layout.id_count(name)
        if more <= 0:
            return
        written = layout.write_count(name)
        write_more = max(0, min(write_count, id_count) - written) if written == layout.id_count(name) else 0
        grown = layout.with_queues(name, write_more, id_count - layout.read_count(name), self._new_writer())
        facts = {"topic": layout.topic, "queues": more, "counter": grown.version.counter}
        try:
            check_layout(grown)
        except LocalProtocolError as error:
            log_limited(
                log, "error", "layout.queues_unreachable", **facts, reason=str(error), then="alter the topic, and restart this broker"
            )
            return
        self._put(grown)
        log_limited(log, "info", "layout.queues_kept", **facts, why="messages lie in them, and the layout that won lacks them")

    def _put(self, layout: TopicLayout, *, created_again: bool = False) -> None:
        change = (KIND, to_plain(layout), True) if created_again else (KIND, to_plain(layout))
        self._journal.record(change, lambda _: self._adopt(layout))

    def _changed(self, topic: str) -> None:
        if self.on_changed is not None:
            self.on_changed(topic)

    def _check_room(self, topic: str, *, known: bool) -> None:
        """NoPermissionError where the cluster has as many topics as it may have, or remembers as many deleted ones."""
        live, deleted = self.layouts.live_count, self.layouts.deleted_count
        if live >= self.topics_max:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster has {live} topics, topics_max allows {self.topics_max}. Delete topics that "
                f"are not used any more, or start every broker with a higher --topics-max"
            )
        if deleted >= TOMBSTONES_MAX and not known:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster remembers {deleted} deleted topics, {TOMBSTONES_MAX} are allowed. "
                f"Use the name of a topic that was deleted, or see `lockstep topic forget-deleted`"
            )

    def _check_names(self, topic: str) -> None:
        """NoPermissionError where the cluster has as many names of topics as even the topics of groups may bring it to."""
        if len(self.layouts) >= NAMES_MAX:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster has {self.layouts.live_count} topics and remembers "
                f"{self.layouts.deleted_count} deleted ones, {NAMES_MAX} together are allowed. Delete topics that are not used any "
                "more, and see `lockstep topic forget-deleted`"
            )

    def _check_entries(self, asked: TopicLayout, limit: int) -> None:
        """NoPermissionError where the layouts of all topics would have more than `limit` entries."""
        count, more = self.layouts.entry_count, self.layouts.more_entries(asked)
        if more > 0 and count + more > limit:
            raise NoPermissionError(
                f"topic {asked.topic} was not changed: its layout would have {more} entries more, the layouts of all topics have {count}, "
                f"{limit} are allowed. Delete topics that are not used any more, or use fewer brokers for each"
            )


def topic_missing(topic: str) -> TopicNotExistError:
    """Somebody named a topic that is not there."""
    return TopicNotExistError(
        f"topic {topic} does not exist: create it with `lockstep topic create {topic}`, or start the broker with --auto-create-topics"
    )


def _created_again(asked: TopicLayout, gone: TopicLayout) -> TopicLayout:
    """What is asked for, with a version above the deletion's and queues that it does not delete."""
    counter = max(asked.version.counter, gone.version.counter + 1)
    first = gone.deletes_up_to + 1
    entries = tuple(entry if entry.counter >= first else replace(entry, counter=first) for entry in asked.entries)
    return TopicLayout(asked.topic, LayoutVersion(counter, asked.version.writer), entries)


def _check(asked: TopicLayout, here: TopicLayout | None) -> None:
    """MessageIllegalError for a layout that can't be, or whose counter is too far above the one here."""
    counter = 0 if here is None else here.version.counter
    try:
        check_layout(asked)
    except LocalProtocolError as error:
        raise MessageIllegalError(str(error)) from None
    if asked.version.counter > counter + COUNTER_STEP_MAX:
        raise MessageIllegalError(
            f"topic {asked.topic}: layout counter {asked.version.counter} is more than {COUNTER_STEP_MAX} above {counter}, the one in "
            f"force here: read the topic's route and change that layout"
        )
