"""Each message takes effect once: bookkeeping in the database that the effects are written to, in the same transaction (law X1).

    inbox = Inbox("booking")                                    # an ordered group: one row for each lane
    async with engine.begin() as db:
        async for message in inbox.new(db, messages, context):
            await db.execute(…)                                 # the effect of the message

    seen = Seen("mailing", keep=timedelta(days=7))              # a concurrent group: one row for each message
    with sqlite3.connect("mail.db") as db:
        for message in seen.new(db, messages):
            db.execute(…)

The databases are SQLite and PostgreSQL; database.py lists the libraries. The statements hold at READ COMMITTED, PostgreSQL's default: an
UPDATE of a row, and an INSERT with its key, wait for the other transaction that has changed it. At stricter levels the database ends one of
the two with a serialization error, which fails the call.
"""

import inspect
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Sequence
from datetime import timedelta

from lockstep.client.consumer.calls.listener import Fence, OrderlyContext
from lockstep.client.database import Database, Statement, changed_rows, stored_name, table_name
from lockstep.client.errors import FencedError
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY
from lockstep.protocol.names import check_group
from lockstep.runtime.host import Host

REMOVED_AFTER = 64
"""After so many new messages, `Seen` removes up to twice as many old rows."""
KEEP_MIN = timedelta(minutes=1)

# What a lane is named, and its owner's epoch. Each changes one row or none.
FENCE = "UPDATE {table} SET epoch = :epoch WHERE consumer_group = :consumer_group AND lane = :lane AND epoch <= :epoch"
BEGIN_LANE = (
    "INSERT INTO {table} (consumer_group, lane, epoch, generation, next_offset)"
    " VALUES (:consumer_group, :lane, :epoch, :generation, 0) ON CONFLICT DO NOTHING"
)
ADVANCE = (
    "UPDATE {table} SET generation = :generation, next_offset = :next_offset"
    " WHERE consumer_group = :consumer_group AND lane = :lane AND (generation < :generation OR next_offset <= :queue_offset)"
)
NOTE = "INSERT INTO {table} (consumer_group, message_id, seen_ms) VALUES (:consumer_group, :message_id, :seen_ms) ON CONFLICT DO NOTHING"
REMOVE = (
    "DELETE FROM {table} WHERE consumer_group = :consumer_group AND message_id IN (SELECT message_id FROM {table}"
    " WHERE consumer_group = :consumer_group AND seen_ms < :before_ms ORDER BY seen_ms LIMIT :most{lock})"
)

InboxSteps = Generator[Statement | MessageExt, int | None, None]
"""Yields the statements to execute, is sent the number of rows that each has changed, and yields the messages that are new."""


class NewMessages:
    """The messages that have not taken effect yet. Iterate once: with `for` if the database library blocks, else with `async for`.

    A message counts as handled when it is yielded, if the transaction is committed. So messages that are not reached, because the iteration
    was left, are yielded when they come again.

    Raises:
        FencedError: A later owner of the queue has written. The call has to fail and its transaction to be rolled back: leave both to
            the error.
    """

    def __init__(self, database: Database, steps: InboxSteps) -> None:
        self._database = database
        self._steps = steps

    def __iter__(self) -> Iterator[MessageExt]:
        changed: int | None = None
        while True:
            try:
                step = self._steps.send(changed)
            except StopIteration:
                return
            if isinstance(step, Statement):
                result = self._database.execute(step)
                if inspect.isawaitable(result):
                    if isinstance(result, Coroutine):
                        result.close()
                    raise TypeError("this database library is asynchronous: iterate with `async for`")
                changed = changed_rows(result)
            else:
                yield step
                changed = None

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        changed: int | None = None
        while True:
            try:
                step = self._steps.send(changed)
            except StopIteration:
                return
            if isinstance(step, Statement):
                result = self._database.execute(step)
                changed = changed_rows(await result if inspect.isawaitable(result) else result)
            else:
                yield step
                changed = None


class Inbox:
    """The bookkeeping of an ordered group. For each lane it has the epoch of the last owner, the generation and the next offset.

    A lane is a queue, or, where keys leave the order of their queue (order_by="sharding_key", on_exhausted="park"), a sharding key in a
    queue; `Fence.order_by` says which. A message is new if the generation is higher than the stored one, or if its offset is not below the
    stored one. So a repeated message takes no effect, a message that comes again after a reset does, and neither needs work by hand.

    Args:
        group: The consumer group.
        table: The table's name, with its schema if it has one. Groups can share a table.

    Raises:
        ConfigError: `table` is no SQL name.
        LocalProtocolError: The group name is invalid.
    """

    def __init__(self, group: str, *, table: str = "lockstep_inbox") -> None:
        check_group(group)
        self.group = group
        self.table = table_name(table)
        self.schema: tuple[str, ...] = (
            f"CREATE TABLE IF NOT EXISTS {table} (consumer_group TEXT NOT NULL, lane TEXT NOT NULL, epoch BIGINT NOT NULL,"
            " generation BIGINT NOT NULL, next_offset BIGINT NOT NULL, PRIMARY KEY (consumer_group, lane))",
        )
        """The statements that create the table."""

    def new(self, db: object, messages: Sequence[MessageExt], context: OrderlyContext) -> NewMessages:
        """Return an iterator over those of the messages that have not taken effect yet.

        It should be the first to use the transaction: so an older owner that waits for the row reads nothing before.

        Args:
            db: A connection or session, in the transaction in which the effects are written.
            messages: Messages of the call, or of earlier calls of the same grant.
            context: The context of the call.

        Raises:
            ConfigError: The library is not supported, the group is another one or is broadcasting, or a message has no sharding key and
                unkeyed="alone": such messages have no order. Use `Seen` for them.
            LocalProtocolError: A message is of another queue than the call.
            StateError: The connection commits each statement alone, or, while iterating, it does not tell how many rows were changed.
        """
        fence = context.fence
        if fence.group != self.group:
            raise ConfigError(f"this is the inbox of group {self.group}, and the call is of group {fence.group}")
        if not fence.generation:
            raise ConfigError(f"group {self.group} is broadcasting: each member handles every message, and has an order of its own")
        lanes = [lane_of(fence, message) for message in messages]
        return NewMessages(Database(db), self._steps(fence, messages, lanes))

    def _steps(self, fence: Fence, messages: Sequence[MessageExt], lanes: Sequence[str]) -> InboxSteps:
        for lane in sorted(dict.fromkeys(lanes)):  # two owners lock the rows of their batches in the same order
            row = {"consumer_group": self.group, "lane": lane, "epoch": fence.epoch}
            begin = {**row, "generation": fence.generation}
            # The last one is for a row that another owner has added since the first.
            for sql, values in ((FENCE, row), (BEGIN_LANE, begin), (FENCE, row)):
                if (yield Statement(sql.format(table=self.table), values)):
                    break
            else:
                raise FencedError(self.group, lane, fence.epoch)
        for lane, message in zip(lanes, messages, strict=True):
            offset = message.queue_offset
            step = {"generation": fence.generation, "next_offset": offset + 1, "queue_offset": offset}
            if (yield Statement(ADVANCE.format(table=self.table), {"consumer_group": self.group, "lane": lane, **step})):
                yield message


class Seen:
    """The ids of the messages that a concurrent group, or a pull consumer, has handled. For these no offset says what comes again.

    Args:
        group: The consumer group.
        keep: How long an id is kept at least: longer than a message can come again, through retries, moved queues and outages.
        table: The table's name, with its schema if it has one. Groups can share a table.

    Raises:
        ConfigError: `table` is no SQL name, or `keep` is less than a minute.
        LocalProtocolError: The group name is invalid.
    """

    def __init__(self, group: str, *, keep: timedelta, table: str = "lockstep_seen") -> None:
        check_group(group)
        if keep < KEEP_MIN:
            raise ConfigError(f"keep is {keep}: expected at least {KEEP_MIN}, and more than the time in which a message can come again")
        self.group = group
        self.table = table_name(table)
        self.schema: tuple[str, ...] = (
            f"CREATE TABLE IF NOT EXISTS {table} (consumer_group TEXT NOT NULL, message_id TEXT NOT NULL, seen_ms BIGINT NOT NULL,"
            # By the second index old rows are removed. It has no name, because SQLite and PostgreSQL qualify that differently.
            " PRIMARY KEY (consumer_group, message_id), UNIQUE (consumer_group, seen_ms, message_id))",
        )
        """The statements that create the table."""
        self._clock = Host.current().clock
        self._keep_ms = int(keep / timedelta(milliseconds=1))
        self._noted = 0
        """The number of messages since old rows were removed last."""

    def new(self, db: object, messages: Sequence[MessageExt]) -> NewMessages:
        """Return an iterator over those of the messages that have not taken effect yet.

        Args:
            db: A connection or session, in the transaction in which the effects are written.
            messages: Messages of the call or of the poll.

        Raises:
            ConfigError: The library is not supported.
            StateError: The connection commits each statement alone, or, while iterating, it does not tell how many rows were changed.
        """
        database = Database(db)
        return NewMessages(database, self._steps(messages, self._clock.wall_ms(), database.dialect))

    def _steps(self, messages: Sequence[MessageExt], now_ms: int, dialect: str) -> InboxSteps:
        self._noted += len(messages)
        if self._noted >= REMOVED_AFTER:
            most, self._noted = 2 * self._noted, 0
            # Of two members, neither waits for the rows that the other removes.
            sql = REMOVE.format(table=self.table, lock=" FOR UPDATE SKIP LOCKED" if dialect == "postgresql" else "")
            yield Statement(sql, {"consumer_group": self.group, "before_ms": now_ms - self._keep_ms, "most": most})
        for message in messages:
            row = {"consumer_group": self.group, "message_id": stored_name(_id_of(message)), "seen_ms": now_ms}
            if (yield Statement(NOTE.format(table=self.table), row)):
                yield message


def lane_of(fence: Fence, message: MessageExt) -> str:
    """Return the name of the message's lane. Raise ConfigError if it has none, LocalProtocolError if it is of another queue."""
    if (message.queue_id, message.broker_name, message.stored_topic) != (fence.queue, fence.broker, fence.topic):
        raise LocalProtocolError(f"{message!r} is not of the queue of the call, {fence.topic}@{fence.broker}:{fence.queue}")
    queue = f"{fence.topic}@{fence.broker}:{fence.queue}"
    if fence.order_by == "queue":
        return queue
    key = message.sharding_key
    if key is not None:
        return f"{queue} {stored_name(key)}"
    if fence.unkeyed == "alone":
        raise ConfigError(f'{message!r} has no sharding key, and unkeyed="alone": such messages have no order. Use Seen for this group')
    return f"{queue} -"


def _id_of(message: MessageExt) -> str:
    """Return the id that a message keeps through its retries."""
    stored = message.all_properties
    return stored.get(UNIQ_KEY) or stored.get(ORIGIN_MESSAGE_ID) or message.offset_message_id
