"""The tables of an outbox, and the statements on them.

A row of the first table is a message. Its record is encoded when it is added, except the number of its queue. The states of a row:

    added      no frame                      --framed--> it is one of the records of a frame, in the order of `id`
    framed     frame, queue and layout       --stored--> (the row is deleted)
                                             --unframed--> (certainly not stored) added, with all later ones of the queue
                                             --refused--> (certainly not stored, and never will be) refused
    refused    the reason in `refused`

The second table has one row: the producer id of the frames, the number of the last one, and the relay that works now. Whoever frames or
unframes rows changes that row first, in the same transaction: so relays do it one after the other, and one that works no more notices.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from lockstep.client.database import DIALECTS, Database, Dialect, Statement, Steps, table_name
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.messages.compression import COMPRESS_OVER_BYTES
from lockstep.protocol.messages.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.record import INT32, QUEUE_ID_AT
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.host import Host

FRAME_BYTES_MAX, FRAME_COUNT_MAX = 256 * 1024, 500
"""The size of a frame, unless it has one message. As much as a broker parses of one connection in one turn of its loop."""
WINDOW = 2_000
"""How many messages are framed in one transaction."""
KEY_LOCKS = 1_024
"""The number of locks that the sharding keys of one outbox share in PostgreSQL: a transaction with many keys must not use up those of the
server (6,400 by default)."""
REASON_LENGTH_MAX = 1_000

SCHEMA: Mapping[Dialect, tuple[str, str]] = {"sqlite": ("INTEGER", "BLOB"), "postgresql": ("BIGSERIAL", "BYTEA")}
"""The types of an id that the database gives, and of bytes."""
ADD = "INSERT INTO {table} (topic, message_id, key_crc, record) VALUES (:topic, :message_id, :key_crc, :record)"
LOCK = "SELECT pg_advisory_xact_lock(:lock)"

ENTER = "INSERT INTO {table}_relay (id, producer_id, last_frame, owner, until_ms) VALUES (1, :producer_id, 0, '', 0) ON CONFLICT DO NOTHING"
IDENTITY = "SELECT producer_id FROM {table}_relay"
STATE = "SELECT owner, until_ms FROM {table}_relay"
ANY_ADDED = "SELECT id FROM {table} WHERE frame IS NULL AND refused IS NULL{others} ORDER BY id LIMIT 1"
TAKE = (
    "UPDATE {table}_relay SET owner = :owner, until_ms = :until_ms"
    " WHERE owner = :owner OR until_ms < :now_ms OR until_ms > :far_ms"  # the last: the clock of the one that worked was ahead
)
HOLD = "UPDATE {table}_relay SET until_ms = :until_ms WHERE owner = :owner"
LEAVE = "UPDATE {table}_relay SET until_ms = 0 WHERE owner = :owner"
LAST = "SELECT last_frame FROM {table}_relay"
SET_LAST = "UPDATE {table}_relay SET last_frame = :last"
ADDED = "SELECT id, topic, key_crc, LENGTH(record) FROM {table} WHERE frame IS NULL AND refused IS NULL{others} ORDER BY id LIMIT {window}"
BUSY = "SELECT topic, broker_name, queue_id, layout FROM {table} WHERE frame IS NOT NULL GROUP BY topic, broker_name, queue_id, layout"
OF_QUEUE = "topic = :topic AND broker_name = :broker_name AND queue_id = :queue_id"
FRAME = (
    "UPDATE {table} SET frame = :frame, broker_name = :broker_name, queue_id = :queue_id, layout = :layout"
    " WHERE frame IS NULL AND refused IS NULL AND id IN ({ids})"
)
STORED = f"DELETE FROM {{table}} WHERE {OF_QUEUE} AND frame = :frame"
NEXT = (
    f"SELECT frame, id, record FROM {{table}} WHERE {OF_QUEUE} AND frame = (SELECT MIN(frame) FROM {{table}} WHERE {OF_QUEUE}) ORDER BY id"
)
IS_THERE = f"SELECT id FROM {{table}} WHERE {OF_QUEUE} AND frame = :frame LIMIT 1"
UNFRAME = f"UPDATE {{table}} SET frame = NULL, broker_name = NULL, queue_id = NULL, layout = NULL WHERE {OF_QUEUE}"
REFUSE = (
    "UPDATE {table} SET frame = NULL, broker_name = NULL, queue_id = NULL, layout = NULL, refused = :refused"
    f" WHERE {OF_QUEUE} AND frame = :frame"
)


class Holder(NamedTuple):
    """A relay and the time, in milliseconds."""

    owner: str
    now_ms: int
    lease_ms: int

    @property
    def until_ms(self) -> int:
        return self.now_ms + self.lease_ms


class Added(NamedTuple):
    """A message that is to be framed."""

    id: int
    topic: str
    key_crc: int | None
    record_bytes: int


class OutboxFrame(NamedTuple):
    """The first frame of a queue."""

    number: int
    """Rises with each frame of the outbox. It is the time at which the frame was made (wall ms), or a little more."""
    ids: list[int]
    records: list[bytes]

    def encoded(self, queue: MessageQueue) -> tuple[bytes, list[int]]:
        """Return the records, and the size of each: the same bytes at each call."""
        number, end = INT32.pack(queue.queue_id), QUEUE_ID_AT + INT32.size
        records = [record[:QUEUE_ID_AT] + number + record[end:] for record in self.records]
        return b"".join(records), [len(record) for record in records]


class Made(NamedTuple):
    """The result of framing messages."""

    queues: dict[MessageQueue, str]
    """The queues of the frames that were made, each with the layout from which it was picked."""
    missing: set[str]
    """Topics of messages that were not framed, because their layouts are not known."""
    full: bool
    """There are probably more messages to frame."""


class Outbox:
    """A table of messages that are to be sent: `add` writes one in the user's transaction, and a `Relay` sends it after the commit.

    Each message is stored once, and messages with the same sharding key in the order in which their transactions were committed, if each
    transaction adds the messages of a key after it has locked what belongs to the key. In PostgreSQL, where transactions run side by side,
    `add` makes the second transaction with a key wait for the first one; in SQLite the database does.

    Args:
        table: The table's name, with its schema if it has one. A second table has this name with `_relay` after it.
        compress_over_bytes: Bodies of at least this size are stored compressed (zlib) if that makes them smaller; None disables
            compression.

    Raises:
        ConfigError: `table` is no SQL name.
    """

    def __init__(self, table: str = "lockstep_outbox", *, compress_over_bytes: int | None = COMPRESS_OVER_BYTES) -> None:
        self.table = table_name(table)
        self._compress_over_bytes = compress_over_bytes
        host = Host.current()
        self._clock, self._random = host.clock, host.random

    def schema(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the statements that create the tables.

        Args:
            dialect: "sqlite" or "postgresql", whose numbers of rows and bytes have different types.

        Raises:
            ConfigError: It is another one.
        """
        if dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r}: expected {' or '.join(DIALECTS)}")
        table, (id_type, bytes_type) = self.table, SCHEMA[dialect]
        name = table.rpartition(".")[2]
        # SQLite wants the schema before the name of an index, PostgreSQL before the name of the table.
        place, of = (table, name) if dialect == "sqlite" else (name, table)
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (id {id_type} PRIMARY KEY, topic TEXT NOT NULL, message_id TEXT NOT NULL, key_crc BIGINT,"
            f" record {bytes_type} NOT NULL, frame BIGINT, broker_name TEXT, queue_id INTEGER, layout TEXT, refused TEXT)",
            f"CREATE INDEX IF NOT EXISTS {place}_added ON {of} (id) WHERE frame IS NULL AND refused IS NULL",
            f"CREATE INDEX IF NOT EXISTS {place}_framed ON {of} (topic, broker_name, queue_id, frame)",
            f"CREATE TABLE IF NOT EXISTS {table}_relay (id INTEGER PRIMARY KEY, producer_id TEXT NOT NULL, last_frame BIGINT NOT NULL,"
            " owner TEXT NOT NULL, until_ms BIGINT NOT NULL)",
        )

    def add(self, db: object, message: Message) -> Any:
        """Send a message when the transaction is committed, and never if it is rolled back.

        In PostgreSQL this waits while another transaction runs that has added a message with the same sharding key. Two transactions that
        add messages of several keys in different orders may wait for each other: PostgreSQL ends one of them with an error.

        Args:
            db: A connection or session, in the user's transaction, as for an `Inbox`. Where its library is asynchronous, await the result.
            message: The message, of any topic.

        Returns:
            The id of the message (UNIQ_KEY), or an awaitable of it.

        Raises:
            ConfigError: The library is not supported.
            LocalProtocolError: It is no message.
            StateError: The connection commits each statement alone.
        """
        if type(message) is not Message:
            raise LocalProtocolError(f"add got a {type(message).__name__}: expected a Message")
        database = Database(db)
        return database.perform(self._add(message, database.dialect))

    def _add(self, message: Message, dialect: Dialect) -> Steps[str]:
        born_ms, key = self._clock.wall_ms(), message.sharding_key
        message_id = UniqueKeys(self._random.token(UNIQUE_PREFIX_BYTES)).next(born_ms)
        record = encode_message(message, 0, message_id, born_ms, None, self._compress_over_bytes)
        if key is not None and dialect == "postgresql":
            bucket = crc32(f"{message.topic} {key}".encode()) % KEY_LOCKS
            lock = int.from_bytes(sha256(f"lockstep {self.table} {bucket}".encode()).digest()[:8], "big", signed=True)
            yield self._statement(LOCK, {"lock": lock}, reads=True)
        key_crc = None if key is None else crc32(key.encode())
        yield self._statement(ADD, {"topic": message.topic, "message_id": message_id, "key_crc": key_crc, "record": record})
        return message_id

    # ----------------------------------------------------------------------------------------------------------------- relay

    def enter(self, producer_id: str) -> Steps[None]:
        """Give the outbox a producer id, unless it has one."""
        yield self._statement(ENTER, {"producer_id": producer_id})

    def identity(self) -> Steps[str | None]:
        """Return the producer id; None if there is none."""
        rows = yield self._statement(IDENTITY, {}, reads=True)
        return str(rows[0][0]) if rows else None

    def take(self, holder: Holder) -> Steps[dict[MessageQueue, str] | None]:
        """Take the outbox for this relay, unless another one works. Return the queues that have frames, each with the layout from which it
        was picked."""
        far_ms = holder.now_ms + 2 * holder.lease_ms
        values = {"owner": holder.owner, "until_ms": holder.until_ms, "now_ms": holder.now_ms, "far_ms": far_ms}
        if not (yield self._statement(TAKE, values)):
            return None
        rows = yield self._statement(BUSY, {}, reads=True)
        return {MessageQueue(topic, broker_name, queue_id): layout for topic, broker_name, queue_id, layout in rows}

    def has_work(self, holder: Holder, others: Collection[str]) -> Steps[bool]:
        """Return whether `make` has something to do. It changes nothing, so that an idle relay writes little."""
        ((owner, until_ms),) = yield self._statement(STATE, {}, reads=True)
        if owner != holder.owner or until_ms - holder.now_ms < holder.lease_ms // 2:
            return True
        return bool((yield self._added(ANY_ADDED, others)))

    def make(
        self,
        holder: Holder,
        layouts: Mapping[str, TopicLayout],
        others: Collection[str],
        busy: Collection[MessageQueue],
        alone: Collection[int],
    ) -> Steps[Made | None]:
        """Divide the messages that were added into frames. Return None if this relay does not hold the outbox any more.

        Args:
            holder: The relay, and the time.
            layouts: The present layouts of the topics that are known.
            others: Topics that are left out.
            busy: Queues that have frames: messages without a key go elsewhere.
            alone: Messages that each get a frame of their own.
        """
        if not (yield self._hold(holder)):
            return None
        ((last,),) = yield self._statement(LAST, {}, reads=True)
        rows = [Added(*row) for row in (yield self._added(ADDED, others))]
        made: dict[MessageQueue, str] = {}
        number = last
        for queue, part in _parts(rows, layouts, busy, alone):
            number = max(number + 1, holder.now_ms)
            made[queue] = version_text(layouts[queue.topic])
            sql = FRAME.format(table=self.table, ids=",".join(str(row.id) for row in part))
            yield Statement(sql, _place(queue) | {"frame": number, "layout": made[queue]})
        if made:
            yield self._statement(SET_LAST, {"last": number})
        return Made(made, {row.topic for row in rows} - layouts.keys(), len(rows) == WINDOW)

    def next(self, queue: MessageQueue, stored: int | None) -> Steps[OutboxFrame | None]:
        """Delete the frame that is stored now, and return the next one of the queue, or None."""
        if stored is not None:
            yield self._statement(STORED, _place(queue) | {"frame": stored})
        rows = yield self._statement(NEXT, _place(queue), reads=True)
        return OutboxFrame(int(rows[0][0]), [int(row[1]) for row in rows], [bytes(row[2]) for row in rows]) if rows else None

    def unframe(self, holder: Holder, queue: MessageQueue, number: int) -> Steps[bool | None]:
        """Take the messages of a queue, whose first frame is certainly not stored, out of their frames. Return whether that frame was still
        there, or None if this relay does not hold the outbox any more.

        Later frames of the queue are sent only after the first one was deleted, so none of them is stored either.
        """
        if not (yield self._hold(holder)):
            return None
        there = yield self._statement(IS_THERE, _place(queue) | {"frame": number}, reads=True)
        if there:
            yield self._statement(UNFRAME, _place(queue))
        return bool(there)

    def refuse(self, queue: MessageQueue, number: int, reason: str) -> Steps[int]:
        """Set the messages of a frame aside. Return how many they are."""
        values = _place(queue) | {"frame": number, "refused": reason.replace("\0", "")[:REASON_LENGTH_MAX]}
        count: int = yield self._statement(REFUSE, values)
        return count

    def leave(self, owner: str) -> Steps[None]:
        """Let another relay work at once."""
        yield self._statement(LEAVE, {"owner": owner})

    def _hold(self, holder: Holder) -> Statement:
        return self._statement(HOLD, {"owner": holder.owner, "until_ms": holder.until_ms})

    def _added(self, sql: str, others: Collection[str]) -> Statement:
        names = {f"other{number}": topic for number, topic in enumerate(sorted(others))}
        left_out = f" AND topic NOT IN ({', '.join(f':{name}' for name in names)})" if names else ""
        return Statement(sql.format(table=self.table, others=left_out, window=WINDOW), names, reads=True)

    def _statement(self, sql: str, values: Mapping[str, object], *, reads: bool = False) -> Statement:
        return Statement(sql.format(table=self.table), values, reads)


def version_text(layout: TopicLayout) -> str:
    """Return the version of a layout as it is stored with a frame."""
    return f"{layout.version.counter}.{layout.version.writer}"


def _place(queue: MessageQueue) -> dict[str, object]:
    return {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}


def _parts(
    rows: Iterable[Added], layouts: Mapping[str, TopicLayout], busy: Collection[MessageQueue], alone: Collection[int]
) -> Iterator[tuple[MessageQueue, list[Added]]]:
    """Yield the messages of each frame, those of a queue in their order."""
    shares: dict[MessageQueue, list[Added]] = {}
    unkeyed: dict[str, MessageQueue] = {}
    for row in rows:
        layout = layouts.get(row.topic)
        if layout is None:
            continue
        if row.key_crc is not None:
            queue = layout.write_queues[row.key_crc % len(layout.write_queues)]  # as queue_of_key
        else:
            queue = unkeyed.get(row.topic) or unkeyed.setdefault(row.topic, _free_queue(layout, busy, row.id))
        shares.setdefault(queue, []).append(row)
    for queue, share in shares.items():
        part: list[Added] = []
        part_bytes = 0
        for row in share:
            full = len(part) == FRAME_COUNT_MAX or part_bytes + row.record_bytes > FRAME_BYTES_MAX
            if part and (full or row.id in alone or part[-1].id in alone):
                yield queue, part
                part, part_bytes = [], 0
            part.append(row)
            part_bytes += row.record_bytes
        yield queue, part


def _free_queue(layout: TopicLayout, busy: Collection[MessageQueue], turn: int) -> MessageQueue:
    """Return a queue for messages without a key: another one each time, and one without frames that wait, if possible."""
    queues = layout.write_queues
    in_turn = (queues[(turn + step) % len(queues)] for step in range(len(queues)))
    return next((queue for queue in in_turn if queue not in busy), queues[turn % len(queues)])
