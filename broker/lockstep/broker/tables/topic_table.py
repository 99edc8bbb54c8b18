"""Topics: every layout of the cluster, durable, and the rules by which layouts are made. RocketMQ: TopicConfigManager.

A layout is identified by its version (counter, writer). A layout that a nameserver returns is adopted if its version is higher than that of
the one here (LayoutTable). For requests the rules are different: if two clients create one topic at the same time, one layout must result,
so at equal counters the first request wins.

| here          | requested                      | result                                                                         |
|---------------|--------------------------------|--------------------------------------------------------------------------------|
| none          | a layout with queues           | It is stored.                                                                  |
| none          | a layout without queues        | TOPIC_NOT_EXIST                                                                |
| live          | a counter not above            | No change. The response has the layout in force.                               |
| live          | a counter above                | It is stored: the topic is altered, or deleted if the layout has no queues.    |
| live          | of a later creation, above     | The topic was deleted in between: it is deleted here too, then stored.         |
| live          | of an earlier creation, above  | The layout here remains, with a counter above the requested one.               |
| deleted       | queues, a counter not above    | It is stored with the next counter: the topic is created again.                |
| deleted       | queues, a counter above        | It is stored: the topic is created again.                                      |
| deleted       | the same deletion              | No change: a nameserver delivered the deletion before the request arrived.     |
| deleted       | another deletion               | TOPIC_NOT_EXIST                                                                |

A counter may be at most 2^20 above the one here. So a broker may lag behind a client's layout, and no request can use the counters up.

Two brokers may write a layout of one topic at the same time, for example when each creates it for a first send. One layout wins, and the
messages in the loser's queues must remain readable. So a broker with queues that the winner lacks appends those that hold messages, with
the next counter, in the step in which it adopts the winner. Each such step adds the queues of one broker, so the brokers agree after at
most one step each. A broker appends nothing if the topic was deleted, and no queues that an operator removed (LayoutEntry: markers).

A deletion wins against every layout that was made without knowledge of it: a broker that knows the deletion repeats it with the next
counter. The deletion names the last creation that it covers (`TopicLayout.deletes_up_to`), so a topic that was created after the deletion
that an operator requested remains.

This also holds after the topic was created again. All layouts between a creation and a deletion have the same oldest queue
(`TopicLayout.began`), and it is younger after each creation. Of two live layouts the one with the older `began` belongs to the deleted
topic, whatever the counters are: a broker that changed the layout several times while it was disconnected may have the higher counter. A
broker that has the older one deletes its messages and progress. A broker that receives the older one keeps its own layout, and gives it a
counter above that of the other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lockstep.broker.journal import Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import read_stored, unknown_change
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    LocalProtocolError,
    MessageIllegalError,
    NoPermissionError,
    TopicNotExistError,
)
from lockstep.protocol.fields import to_plain
from lockstep.protocol.names import check_topic, how_to_create, is_sendable_topic, is_system_topic
from lockstep.protocol.topics.layout_counts import with_counts
from lockstep.protocol.topics.layouts import COUNTER_MAX, ENTRIES_MAX, QUEUES_PER_BROKER_MAX, LayoutTable, check_layout
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue, TopicLayout
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

KIND = "layout"
"""The kind of this table's journal changes: (KIND, plain layout), and True if the topic was deleted before it."""
FORGOTTEN = "layout.deletions_forgotten"
"""(FORGOTTEN, highest counter of the forgotten deletions)."""
COUNTER_STEP_MAX = 1 << 20
"""How far a requested counter may be above the one here."""
TOPICS_MAX = 16_384
"""Live topics of a cluster. This is the default of the setting `topics_max`."""
ADOPTED_MAX = 65_536
"""Number of live topics at which no unknown topic is adopted: the highest topics_max. Below it a broker keeps all topics of the cluster,
also if other brokers have a higher topics_max or create topics at the same time."""
ADOPTED_ENTRIES_MAX = 2 * ENTRIES_MAX
"""Entries of all layouts at which no unknown topic is adopted: as many as a nameserver keeps, and as many of this broker's own."""
TOMBSTONES_MAX = 65_536
"""Number of deleted topics that are remembered. At this limit no topic with a new name is created."""
NAMES_MAX = (ADOPTED_MAX + TOMBSTONES_MAX) // 4 * 3
"""Topics and deleted topics together. At this limit not even a group's retry or dead letter topic is created (`for_group`). It is three
quarters of the topics that a broker adopts, which is as many as a nameserver takes from one broker alone."""
ASKED_ENTRIES_MAX = ENTRIES_MAX // 16 * 15
"""Entries of all layouts above which no request may add one. The rest, up to the limit of nameservers, is reserved for topics of groups."""


class TopicTable:
    """A table of topic → layout in force, kept by the journal. Calls `on_changed(topic)` after every change that is not a replay."""

    def __init__(
        self,
        layouts: LayoutTable,
        journal: Journal,
        broker_name: str,
        on_changed: Callable[[str], None] | None = None,
        *,
        stored_queue_ids: Callable[[str], Iterable[int]] = lambda _topic: (),
        new_writer: Callable[[], int] = lambda: 0,
        on_added: Callable[[str, Mapping[int, bool]], None] | None = None,
        on_created: Callable[[str], None] | None = None,
        topics_max: int = TOPICS_MAX,
    ) -> None:
        """`stored_queue_ids(topic)` returns the queues that hold messages here, `new_writer()` 32 random bits.

        `on_added(topic, {queue id: removed})` is called before `on_changed` if a layout has queues of this broker that were not there
        before. `removed`: an operator has removed the queue, so its messages from before are stored. `on_created(topic)` is called then if
        the topic has come to exist: it was unknown here, or deleted.
        """
        self.layouts = layouts
        self.on_changed = on_changed
        self.on_added = on_added
        self.on_created = on_created
        self.topics_max = topics_max
        self._stored_queue_ids = stored_queue_ids
        self._new_writer = new_writer
        self._journal = journal
        self._broker_name = broker_name
        self._writable: dict[str, int] = {}
        self._readable: dict[str, int] = {}
        """Live topic → number of this broker's queues. Looked up for every send and pull."""

    def require_layout(self, topic: str) -> TopicLayout:
        """Return the layout in force. Raise TopicNotExistError, which names the next step, if there is none."""
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            raise topic_missing(topic)
        return layout

    def find_layout(self, topic: str) -> TopicLayout | None:
        """Return the layout in force, or None if there is none or the topic was deleted."""
        layout = self.layouts.get(topic)
        return None if layout is None or layout.deleted else layout

    def own_write_count(self, layout: TopicLayout) -> int:
        """Return the number of writable queues of this broker. Their ids are 0 … count−1."""
        return layout.write_count(self._broker_name)

    def own_read_count(self, layout: TopicLayout) -> int:
        """Return the number of readable queues of this broker. Their ids are 0 … count−1."""
        return layout.read_count(self._broker_name)

    def has_oldest_queue(self, layout: TopicLayout) -> bool:
        """Return whether this broker has queues since the topic was created."""
        return any(entry.broker_name == self._broker_name and entry.counter == layout.began for entry in layout.entries)

    def is_writable(self, topic: str, queue_id: int) -> bool:
        """Return whether clients can write to the queue."""
        return 0 <= queue_id < self._writable.get(topic, 0)

    def check_writable(self, topic: str, queue_id: int) -> None:
        """Raise an error if clients can't write to the queue.

        NoPermissionError for a topic of the broker's own, TopicNotExistError, or BrokerSystemError (as RocketMQ) for a queue that does not
        exist.
        """
        if not self.is_writable(topic, queue_id):
            raise self._no_queue(topic, queue_id, self._writable)

    def check_readable(self, topic: str, queue_id: int) -> None:
        """Raise an error if clients can't read the queue, as `check_writable`."""
        if not 0 <= queue_id < self._readable.get(topic, 0):
            raise self._no_queue(topic, queue_id, self._readable)

    @property
    def is_full(self) -> bool:
        """Return whether the table has its maximum of topics, so that no unknown topic is adopted."""
        layouts = self.layouts
        topics_full = layouts.live_count >= ADOPTED_MAX or layouts.deleted_count >= TOMBSTONES_MAX
        return topics_full or layouts.entry_count >= ADOPTED_ENTRIES_MAX

    def adopt(self, layouts: Iterable[TopicLayout]) -> int:
        """Adopt each layout of a nameserver that is newer than the one here, and return their number. Invalid ones are logged.

        An unknown topic is skipped if this table is full.
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
            then = "this broker can't get queues of them; delete topics that are no longer used"
            log_limited(log, "error", "topics.not_adopted", count=left_out, **facts, then=then)
        return taken

    def create(self, asked: TopicLayout, *, for_group: bool = False, by_broker: bool = False) -> TopicLayout:
        """Create, alter or delete a topic on request (the table above), and return the layout that is then in force.

        With `for_group` a message of a group needs the topic, so NAMES_MAX and ENTRIES_MAX are the limits instead of those for requests.
        `by_broker`: the broker itself asks, so that the topic may be a system topic. Raises TopicNotExistError, NoPermissionError and
        MessageIllegalError.
        """
        check_topic(asked.topic)
        if is_system_topic(asked.topic) and not by_broker:
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
        """Create the topic, or add queues, so that this broker has these counts. Existing queues remain. Raises the errors of `create`.

        Only with `for_group` may a live topic get queues that are closed to writers.
        """
        here = self.layouts.get(topic)
        read_more = read_queue_count - (0 if here is None else here.read_count(self._broker_name))
        write_more = write_queue_count - (0 if here is None else here.write_count(self._broker_name))
        if here is not None and not here.deleted and (read_more, write_more) == (0, 0):
            return here
        if (here is None or here.deleted) and min(read_queue_count, write_queue_count) < 1:
            counts = f"{read_queue_count} queues to read, {write_queue_count} to write"
            raise MessageIllegalError(f"topic {topic} was not created: {counts}, expected 1 to {QUEUES_PER_BROKER_MAX} of each")
        if read_more < 0 or write_more < 0 or (here is not None and here.entries and read_more != write_more and not for_group):
            raise NoPermissionError(
                f"topic {topic} has queues here that this would remove or change, and order per key would break; use lockstep topic alter"
            )
        before = TopicLayout(topic, LayoutVersion(0, 0), ()) if here is None or here.deleted else here
        return self.create(before.with_queues(self._broker_name, write_more, read_more, self._new_writer()), for_group=for_group)

    def create_system(self, topic: str) -> None:
        """Give a system topic a queue of this broker, if it has none. Raises the errors of `create`."""
        here = self.layouts.get(topic)
        before = TopicLayout(topic, LayoutVersion(0, 0), ()) if here is None or here.deleted else here
        if not before.read_count(self._broker_name):
            self.create(before.with_queues(self._broker_name, 1, 1, self._new_writer()), by_broker=True)

    def alter_own(self, topic: str, read_queue_count: int, write_queue_count: int) -> TopicLayout:
        """Give this broker these counts of queues of a live topic. Queues are closed or removed from the end; whether groups have consumed
        them is the caller's concern. Raises the errors of `create`.
        """
        here = self.require_layout(topic)
        after = with_counts(here, {self._broker_name: (write_queue_count, read_queue_count)}, writer=self._new_writer())
        if after is here:
            return here
        if not after.write_total:
            raise NoPermissionError(
                f"nothing was changed: topic {topic} would have no queue to write to. Give another broker queues of it first, or delete it"
            )
        return self.create(after)

    def forget_deletions(self, counter_max: int) -> int:
        """Forget the topics that were deleted with at most this counter, and return their number."""
        before = self.layouts.deleted_count
        self._journal.record((FORGOTTEN, counter_max), self._forget)
        return before - self.layouts.deleted_count

    def keep_stored_queues(self) -> None:
        """Give topics that hold messages here a queue of this broker if their layout has none. Called at the start.

        The layout of another broker that won was full, so that none could be appended, and an operator has altered the topic since.
        """
        for layout in self.layouts.all():
            if layout.deleted or layout.id_count(self._broker_name) or layout.last_removal_counter(self._broker_name):
                continue
            if ids := list(self._stored_queue_ids(layout.topic)):
                self._append_queues(layout, max(ids) + 1, max(ids) + 1)
                self._changed(layout.topic)

    def apply(self, change: tuple[object, ...]) -> str | None:
        """Apply one change from the log. Return the topic whose messages it deletes, or None if it deletes none."""
        if change[0] == FORGOTTEN:
            self._forget(change)
            return None
        _, plain, *created_again = change
        if len(created_again) > 1:
            raise unknown_change(change)
        layout = read_stored(TopicLayout, plain)
        adopted = self._adopt(layout)
        deletes = (adopted and created_again) or self.find_layout(layout.topic) is None
        return layout.topic if deletes else None

    def snapshot(self) -> SnapshotRows:
        layouts = self.layouts.all()
        return SnapshotRows(len(layouts), lambda: map(to_plain, layouts))

    def restore(self, plain: Iterable[object]) -> None:
        for layout in plain:
            self._adopt(read_stored(TopicLayout, layout))

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
        self._writable[layout.topic] = layout.write_count(self._broker_name)
        self._readable[layout.topic] = layout.read_count(self._broker_name)
        return True

    def _put_if_higher(self, layout: TopicLayout) -> bool:
        """Put a layout into force if it is newer. Journal it together with what follows from it, and call `on_changed` once."""
        if not self.layouts.is_newer(layout):
            return False
        here = self.layouts.get(layout.topic)
        last = layout.version.counter >= COUNTER_MAX  # no layout can follow it
        if here is None:
            self._put(layout)
            self._report_added(None, layout)
        elif here.deleted:
            # The deletion here remains in force: it deletes a layout that was made without knowledge of it, and is merged with another one.
            known = here.deletes_up_to
            repeated = layout.deletes_up_to < known if layout.deleted else layout.began <= known
            self._put(layout.deletion_up_to(known) if repeated and not last else layout)
            self._report_added(None, layout)
        elif here.began > (layout.deletes_up_to if layout.deleted else layout.began) and not last:
            self._put(TopicLayout(here.topic, LayoutVersion(layout.version.counter + 1, self._new_writer()), here.entries))
        elif layout.deleted:
            self._put(layout)
        elif layout.began > here.began:
            self._put_created_again(layout)
            self._report_added(None, layout)
        else:
            self._put(layout)
            self._append_queues(layout, self._id_count_to_keep(here, layout), here.write_count(self._broker_name))
            self._report_added(here, layout)
        after = self.find_layout(layout.topic)
        if after is not None and (here is None or here.began != after.began) and self.on_created is not None:
            self.on_created(layout.topic)
        self._changed(layout.topic)
        return True

    def _put_created_again(self, layout: TopicLayout) -> None:
        """Put the layout of a later creation into force, after deleting this broker's messages of the topic that was deleted.

        The deletion is not journaled as a layout. Its counter would have to be above the one here, so that it would win against `layout`
        after a crash between the two.
        """
        self._adopt(replace(layout, entries=()))
        self._changed(layout.topic)
        self._put(layout, created_again=True)

    def _id_count_to_keep(self, here: TopicLayout, layout: TopicLayout) -> int:
        """Return how many queue ids keep this broker's messages readable in `layout`, which follows `here`. 0 if it has enough."""
        name = self._broker_name
        first, end = layout.id_count(name), here.id_count(name)
        if first >= end:
            return 0
        last = max((queue_id for queue_id in self._stored_queue_ids(layout.topic) if first <= queue_id < end), default=None)
        if last is None or layout.last_removal_counter(name) > here.added_in(MessageQueue(layout.topic, name, last)):
            return 0
        return last + 1

    def _report_added(self, before: TopicLayout | None, layout: TopicLayout) -> None:
        """Call `on_added` for the queues of this broker that `layout` has, and `before`, which it follows, had not. None: a new topic.

        They are new, or an operator removed them before `before`, or between the two if this broker was away meanwhile. Queues that
        `_append_queues` has kept are not among them: they hold messages of this topic.
        """
        if self.on_added is None or self.find_layout(layout.topic) is None:
            return
        removed_in = layout.last_removal_counter(self._broker_name)
        known = {} if before is None else dict(before.each_added(self._broker_name))
        added = {
            queue_id: bool(removed_in)
            for queue_id, added_in in layout.each_added(self._broker_name)
            if queue_id not in known or (added_in > known[queue_id] and removed_in > known[queue_id])
        }
        if added:
            self.on_added(layout.topic, added)

    def _append_queues(self, layout: TopicLayout, id_count: int, write_count: int) -> None:
        """Append queues of this broker to the layout in force, up to `id_count` ids, all of them readable.

        `write_count` of them are writable, but none if the layout has closed queues of this broker to writers.
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
                log, "error", "layout.queues_unreachable", **facts, reason=str(error), then="alter the topic and restart this broker"
            )
            return
        self._put(grown)
        log_limited(log, "info", "layout.queues_kept", **facts, why="they hold messages, and the layout that won lacks them")

    def _put(self, layout: TopicLayout, *, created_again: bool = False) -> None:
        change = (KIND, to_plain(layout), True) if created_again else (KIND, to_plain(layout))
        self._journal.record(change, lambda _: self._adopt(layout))

    def _changed(self, topic: str) -> None:
        if self.on_changed is not None:
            self.on_changed(topic)

    def _check_room(self, topic: str, *, known: bool) -> None:
        """Raise NoPermissionError if the cluster has its maximum of topics, or remembers its maximum of deleted ones."""
        live, deleted = self.layouts.live_count, self.layouts.deleted_count
        if live >= self.topics_max:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster has {live} topics, topics_max allows {self.topics_max}. Delete topics that "
                "are no longer used, or raise it (`lockstep broker config set --all topics_max=…`, --topics-max at the next start)"
            )
        if deleted >= TOMBSTONES_MAX and not known:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster remembers {deleted} deleted topics, {TOMBSTONES_MAX} are allowed. "
                f"Use the name of a topic that was deleted, or see `lockstep topic forget-deleted`"
            )

    def _check_names(self, topic: str) -> None:
        """Raise NoPermissionError if the cluster has its maximum of topic names, which also applies to the topics of groups."""
        if len(self.layouts) >= NAMES_MAX:
            raise NoPermissionError(
                f"topic {topic} was not created: the cluster has {self.layouts.live_count} topics and remembers "
                f"{self.layouts.deleted_count} deleted ones, {NAMES_MAX} together are allowed. Delete topics that are no longer used, "
                "and see `lockstep topic forget-deleted`"
            )

    def _check_entries(self, asked: TopicLayout, limit: int) -> None:
        """Raise NoPermissionError if the layouts of all topics would have more than `limit` entries."""
        count, more = self.layouts.entry_count, self.layouts.more_entries(asked)
        if more > 0 and count + more > limit:
            raise NoPermissionError(
                f"topic {asked.topic} was not changed: its layout would have {more} entries more, the layouts of all topics have {count}, "
                f"{limit} are allowed. Delete topics that are no longer used, or use fewer brokers for each"
            )


def topic_missing(topic: str) -> TopicNotExistError:
    """Return the error for a topic that does not exist."""
    return TopicNotExistError(f"topic {topic} does not exist: {how_to_create(topic, ', or start the broker with --auto-create-topics')}")


def _created_again(asked: TopicLayout, gone: TopicLayout) -> TopicLayout:
    """Return the requested layout with a version above the deletion's, and with queues that the deletion does not cover."""
    counter = max(asked.version.counter, gone.version.counter + 1)
    first = gone.deletes_up_to + 1
    entries = tuple(entry if entry.counter >= first else replace(entry, counter=first) for entry in asked.entries)
    return TopicLayout(asked.topic, LayoutVersion(counter, asked.version.writer), entries)


def _check(asked: TopicLayout, here: TopicLayout | None) -> None:
    """Raise MessageIllegalError for an invalid layout, or for a counter that is too far above the one here."""
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
