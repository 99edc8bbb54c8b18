"""The durable state of a broker: changed by requests, kept by the log, rebuilt from a snapshot and the log (store.md).

A change is a tuple `(kind, …)` in the Journal. At the end of a loop turn its changes become one state record, or several if one would not
fit into a file of the log. It is written before any response that depends on it is sent. A layout is written at once: the log must have a
topic before it holds a message of it.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from lockstep.broker.groups.coordination import Coordination, CoordinationConfig
from lockstep.broker.journal import Change, Journal, decode_changes
from lockstep.broker.replication.log_parting import Term
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.store.log.stored_record import CopyPlace, Ended, FirstPlace, FrameEnd, ScopeKey
from lockstep.broker.stored_form import NEXT_STEP, UnknownFormError, check_parts, unknown_change
from lockstep.broker.tables.delay_table import KIND as DELIVERED
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.sequence_table import LastFrame, Scope, SequenceTable, StoredFrame
from lockstep.broker.tables.timer_table import KINDS as TIMER_KINDS
from lockstep.broker.tables.timer_table import TimerTable
from lockstep.broker.tables.topic_table import FORGOTTEN, TOPICS_MAX, TopicTable
from lockstep.broker.tables.topic_table import KIND as LAYOUT
from lockstep.broker.tables.transaction_table import ROLLED_BACK, HalfOutcome, TransactionTable
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import WRITER_MAX
from lockstep.runtime.host import Random

SNAPSHOT_FORMAT = 1
SNAPSHOT_PARTS = (
    "format",
    "layouts",
    "sequences",
    "delays",
    "timers",
    "recalled_timers",
    "carried_timers",
    "halves",
    "half_outcomes",
    "carried_halves",
    "coordination",
    "terms",
    "replicas",
)
STORE = "broker.store"
"""(STORE, store id): the store that a start has opened."""
REPLICAS = "log.replicas"
"""(REPLICAS, {member: address}): the copies of the log that its master knows, itself included."""
TERM = "log.term"
"""(TERM, term, begin, assumed loss): a term of a log that has replicas (log_parting.Term)."""
MISREAD = TypeError, ValueError, LookupError, RemoteProtocolError
"""What reading state of another form raises."""
PURGED = "topic.purged"
"""(PURGED, topic, [[queue id, offset], …]): the messages below these offsets were removed by an operator."""


class BrokerState:
    """The tables, connected to one journal and one store. Implements the store's StateReplay."""

    def __init__(self, config: CoordinationConfig, store: Store, random: Random, *, topics_max: int = TOPICS_MAX) -> None:
        self._store = store
        self._broker_name = config.broker_name
        self._random = random
        self.journal = Journal(store.writer.request_write, store.writer.fail_inconsistent)
        self.layouts = LayoutTable()
        self.topics = TopicTable(
            self.layouts,
            self.journal,
            config.broker_name,
            self._topic_changed,
            stored_queue_ids=store.stored_queue_ids,
            new_writer=self.new_writer,
            on_added=lambda topic, added: self.coordination.queues_added(topic, added),
            on_created=lambda topic: self.coordination.topic_created(topic),
            topics_max=topics_max,
        )
        self.sequences = SequenceTable()
        self.delays = DelayTable(self.journal)
        self.timers = TimerTable(self.journal, lambda era: store.stored_ms(era, 0))
        self.transactions = TransactionTable(self.journal, lambda era: store.stored_ms(era, 0))
        store.on_waiting = self.waits
        self.coordination = Coordination(config, self.layouts, store, self.journal)
        self.coordination.state.disk_check = store.check_new_state
        self.replicas: dict[str, str] = {}
        """The copies of the log, as its last master knew them: member → address."""
        self.terms: list[Term] = []
        """The terms of the log, since it has had replicas."""
        self.on_topic_changed: list[Callable[[str], None]] = []
        store.writer.before_write = self.write_changes

    def new_writer(self) -> int:
        """Return 32 random bits that identify the writer of a layout, or of a term."""
        return int.from_bytes(self._random.token(4), "big") % WRITER_MAX

    # --------------------------------------------------------------------------------------------------------------- running

    def write_changes(self) -> None:
        """Append the state record of the changes since the last one. The store calls it at the end of a turn."""
        for body in self.journal.encode(self._store.state_bytes_max):
            self._store.append_state(body)

    def _topic_changed(self, topic: str) -> None:
        self.coordination.layout_changed(topic)
        self.write_changes()
        if self.topics.find_layout(topic) is None:
            self._delete_messages(topic)
        for callback in self.on_topic_changed:
            callback(topic)

    def _delete_messages(self, topic: str) -> None:
        """Delete the topic's messages."""
        self._store.drop_topic(topic)
        self.sequences.drop_topic(topic)

    def purge(self, topic: str, minimums: Mapping[int, int]) -> None:
        """Remove what queues of a topic hold below an offset. Groups that had not consumed it are the caller's concern."""
        self.journal.record((PURGED, topic, [list(pair) for pair in minimums.items()]), self._purge)

    def _purge(self, change: Change) -> None:
        _, topic, minimums = change
        for queue_id, minimum in minimums:
            self._store.hide_below(topic, queue_id, minimum)

    def take_snapshot(self) -> dict[str, Any]:
        """Return all tables as they are now, after writing their changes to the log."""
        self.write_changes()
        return {
            "format": SNAPSHOT_FORMAT,
            "layouts": self.topics.snapshot(),
            "sequences": self.sequences.snapshot(),
            "delays": self.delays.snapshot(),
            **self._waiting(),
            "coordination": self.coordination.snapshot(),
            **({"terms": self.terms, "replicas": self.replicas} if self.terms else {}),
        }

    def _waiting(self) -> dict[str, SnapshotRows]:
        """Return what the waiting rooms have; nothing without any, so that snapshots of other brokers stay what they are."""
        parts = {
            "timers": self.timers.snapshot(),
            "recalled_timers": self.timers.recalled(),
            "carried_timers": self.timers.carried.snapshot(),
            "halves": self.transactions.snapshot(),
            "half_outcomes": self.transactions.outcomes(),
            "carried_halves": self.transactions.carried.snapshot(),
        }
        return {name: rows for name, rows in parts.items() if len(rows)}

    # ---------------------------------------------------------------------------------------------------------------- StateReplay

    def replay_snapshot(self, plain: Any) -> None:
        if not isinstance(plain, dict) or plain.get("format") != SNAPSHOT_FORMAT:
            raise UnknownFormError(f"the snapshot is not of format {SNAPSHOT_FORMAT}: {NEXT_STEP}")
        check_parts("the state", plain, SNAPSHOT_PARTS)
        try:
            self.topics.restore(plain["layouts"])
            self.sequences.restore(plain["sequences"])
            self.delays.restore(plain["delays"])
            self.timers.restore(plain.get("timers", ()), plain.get("recalled_timers", ()), plain.get("carried_timers", ()))
            self.transactions.restore(plain.get("halves", ()), plain.get("half_outcomes", ()), plain.get("carried_halves", ()))
            self.coordination.restore(plain["coordination"])
            self.terms = [Term(*term) for term in plain.get("terms", ())]
            self.replicas = dict(plain.get("replicas", {}))
        except MISREAD as error:
            raise UnknownFormError(f"this version can't read the snapshot ({type(error).__name__}: {error}): {NEXT_STEP}") from error

    def replay_state(self, body: bytes) -> None:
        for change in decode_changes(body):
            try:
                self._replay(change)
            except MISREAD as error:
                raise unknown_change(change, f"{type(error).__name__}: {error}") from error

    def _replay(self, change: Change) -> None:
        if change[0] in (LAYOUT, FORGOTTEN):
            if (topic := self.topics.apply(change)) is not None:
                self._delete_messages(topic)
        elif change[0] == DELIVERED:
            self.delays.apply(change)
        elif change[0] in TIMER_KINDS:
            self.timers.apply(change)
        elif change[0] == ROLLED_BACK:
            self.transactions.apply(change)
        elif change[0] == PURGED:
            self._purge(change)
        elif change[0] == TERM:
            self._add_term(change)
        elif change[0] == REPLICAS:
            self._set_replicas(change)
        elif change[0] == STORE:
            self._check_store(change)
        else:
            self.coordination.apply(change)

    def record_store_id(self) -> None:
        """Record to which store the log belongs. Called by each start."""
        self.journal.record((STORE, self._store.store_id), self._check_store)

    def record_term(self, begin: int, *, assumed_loss: bool) -> None:
        """Record where the present term began: where the log ended before anything of it was appended."""
        self.journal.record((TERM, self.coordination.state.term, begin, assumed_loss, self.new_writer()), self._add_term)

    def _add_term(self, change: Change) -> None:
        term, start = Term(*change[1:]), self._store.log_bounds[0]
        if not self.terms or self.terms[-1].number < term.number:
            self.terms = [old for old, after in pairwise((*self.terms, term)) if after.begin > start] + [term]

    def record_replicas(self, replicas: Mapping[str, str]) -> bool:
        """Record the copies of the log, so that each of them knows the others. Return whether they have changed."""
        if replicas == self.replicas:
            return False
        self.journal.record((REPLICAS, dict(replicas)), self._set_replicas)
        return True

    def _set_replicas(self, change: Change) -> None:
        _, replicas = change
        self.replicas = dict(replicas)

    def _check_store(self, change: Change) -> None:
        _, store_id = change
        if store_id != self._store.store_id:
            raise StoreCorruptError(
                f"the log is of store {store_id}, lockstep/identity names store {self._store.store_id}: it belongs to another broker. "
                "Put the right files into commitlog; nothing was changed"
            )

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return self.sequences.crc_at(Scope(*scope), epoch, first, now_ms=store_ms)

    def ended(self, ended: Ended, place: CopyPlace) -> None:
        if ended.topic == TIMER_TOPIC:
            self.timers.remove(ended.offset, ended.due)
        elif ended.topic == HALF_TOPIC and place.topic == HALF_TOPIC:
            self.transactions.remove(ended.offset, ended.due)
        elif ended.topic == HALF_TOPIC:
            self.transactions.commit(ended.offset, ended.due, HalfOutcome(place.store_ms, place.queue_id, place.offset))
        else:
            self.delays.ended(ended.queue_id, ended.offset)

    def waits(self, topic: str, offset: int, dues: list[int], era: int, first: int | None = None) -> None:
        table = self.timers if topic == TIMER_TOPIC else self.transactions
        for number, due in enumerate(dues):
            table.add(offset + number, due, era)
        if first is not None:
            table.carried.add(first, offset)

    def scopes_fit(self, count: int) -> bool:
        return self.sequences.fits(count)

    def frame(self, scope: ScopeKey, end: FrameEnd, place: FirstPlace) -> None:
        epoch, first, next_, crc, given = end
        self.sequences.record_last(Scope(*scope), LastFrame(epoch, first, next_, crc, StoredFrame(*place), given))
