"""Answers whether a local transaction was committed: by a row that it writes itself, in the user's database.

    marks = Marks()
    with sqlite3.connect("shop.db") as db:                      # the local transaction
        db.execute(…)
        marks.set(db, transaction_id)

    with sqlite3.connect("shop.db") as db:                      # later, when the broker asks: a transaction of its own
        committed = marks.decide(db, transaction_id)

There is one row for each id, and its key decides: `set` and `decide` each insert it, and the second of them finds the row of the first. In
PostgreSQL the second one waits until the transaction of the first has ended. In SQLite it waits for the lock of the database, for as long
as its connection waits, and then raises the library's error: the answer is not known yet. The statements hold at READ COMMITTED.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lockstep.client.database import Database, Dialect, Statement, Steps, stored_name, table_name
from lockstep.client.errors import TransactionDecidedError
from lockstep.protocol.errors import ConfigError, LocalProtocolError, StateError
from lockstep.runtime.host import Host

COMMIT, ROLLBACK = "commit", "rollback"
KEEP = timedelta(days=7)
KEEP_MIN = timedelta(days=2)
"""Twice as long as brokers ask for the outcome of a transaction by default: an id whose row was removed would count as rolled back."""

INSERT = (
    "INSERT INTO {table} (transaction_id, outcome, marked_ms) VALUES (:transaction_id, :outcome, :marked_ms)"
    " ON CONFLICT (transaction_id) DO NOTHING"
)
READ = "SELECT outcome, {own} FROM {table} WHERE transaction_id = :transaction_id"
OWN: Mapping[Dialect, str] = {"sqlite": "0", "postgresql": "CAST(CAST(xmin AS TEXT) AS BIGINT) = MOD(txid_current(), 4294967296)"}
"""Whether the row was inserted by this transaction, as far as the database tells: SQLite does not, and PostgreSQL not after a savepoint."""
REMOVE = "DELETE FROM {table} WHERE marked_ms < :before_ms"


class Marks:
    """The outcomes of local transactions, by transaction id.

    The methods take a connection or session, as an `Inbox` does. Where its library is asynchronous, await their result.

    Args:
        table: The table's name, with its schema if it has one.

    Raises:
        ConfigError: `table` is no SQL name.
    """

    def __init__(self, table: str = "lockstep_marks") -> None:
        self.table = table_name(table)
        self.schema: tuple[str, ...] = (
            f"CREATE TABLE IF NOT EXISTS {table} (transaction_id TEXT PRIMARY KEY, outcome TEXT NOT NULL, marked_ms BIGINT NOT NULL)",
        )
        """The statements that create the table."""
        self._clock = Host.current().clock

    def set(self, db: object, transaction_id: str) -> Any:
        """Mark the transaction as committed, if the user's own transaction is committed.

        Args:
            db: A connection or session, in the local transaction.
            transaction_id: The id of the transaction, which is used once.

        Returns:
            None, or an awaitable of it.

        Raises:
            TransactionDecidedError: The id was decided before: the broker has asked and was told that the transaction was rolled back, or
                it was marked already. Roll the local transaction back.
            ConfigError: The library is not supported.
            LocalProtocolError: The id is no text.
            StateError: The connection commits each statement alone.
        """
        database = Database(db)
        return database.perform(self._set(_checked(transaction_id), database.dialect))

    def decide(self, db: object, transaction_id: str) -> Any:
        """Tell whether the transaction was committed. If it has not been marked, it is rolled back from now on: a later `set` fails.

        The answer counts when the transaction of `db` is committed: tell nobody before. It has to be a transaction of its own, not the
        local one: that would find its own mark, which may still be rolled back (PostgreSQL notices that, unless there is a savepoint
        between the two).

        Args:
            db: A connection or session, in a transaction of its own.
            transaction_id: The id of the transaction.

        Returns:
            True if the local transaction was committed, False if it was not and will not be; or an awaitable of that.

        Raises:
            ConfigError: The library is not supported.
            LocalProtocolError: The id is no text.
            StateError: The connection commits each statement alone, it is in the local transaction, or the row was removed meanwhile
                (`purge`): the answer is not known.
        """
        database = Database(db)
        return database.perform(self._decide(_checked(transaction_id), database.dialect))

    def purge(self, db: object, keep: timedelta = KEEP) -> Any:
        """Remove old rows.

        Args:
            db: A connection or session, in a transaction.
            keep: How old a row is at least when it is removed: longer than brokers ask for the outcome of a transaction (24 hours, unless
                they are configured otherwise). At least 2 days.

        Returns:
            The number of the removed rows, or an awaitable of it.

        Raises:
            ConfigError: `keep` is too short, or the library is not supported.
            StateError: The connection commits each statement alone.
        """
        if keep < KEEP_MIN:
            raise ConfigError(f"keep is {keep}: expected at least {KEEP_MIN}, because a broker may ask for an id that long")
        return Database(db).perform(self._purge(self._clock.wall_ms() - keep // timedelta(milliseconds=1)))

    def _insert(self, transaction_id: str, outcome: str) -> Statement:
        row = {"transaction_id": stored_name(transaction_id), "outcome": outcome, "marked_ms": self._clock.wall_ms()}
        return Statement(INSERT.format(table=self.table), row)

    def _read(self, transaction_id: str, dialect: Dialect) -> Statement:
        sql = READ.format(table=self.table, own=OWN[dialect])
        return Statement(sql, {"transaction_id": stored_name(transaction_id)}, reads=True)

    def _set(self, transaction_id: str, dialect: Dialect) -> Steps[None]:
        if not (yield self._insert(transaction_id, COMMIT)):
            rows = yield self._read(transaction_id, dialect)
            raise TransactionDecidedError(transaction_id, rolled_back=[outcome for outcome, _ in rows] != [COMMIT])

    def _decide(self, transaction_id: str, dialect: Dialect) -> Steps[bool]:
        if (yield self._insert(transaction_id, ROLLBACK)):
            return False
        for outcome, own in (yield self._read(transaction_id, dialect)):
            if own and outcome == COMMIT:
                raise StateError(
                    f"transaction {transaction_id} was marked in this transaction, which may be rolled back: ask in another one"
                )
            return bool(outcome == COMMIT)
        raise StateError(f"transaction {transaction_id}: its row in {self.table} was removed while it was read: ask again")

    def _purge(self, before_ms: int) -> Steps[int]:
        removed: int = yield Statement(REMOVE.format(table=self.table), {"before_ms": before_ms})
        return removed


def _checked(transaction_id: str) -> str:
    if type(transaction_id) is not str or not transaction_id:
        raise LocalProtocolError(f"transaction id {transaction_id!r}: expected a text that is not empty")
    return transaction_id
