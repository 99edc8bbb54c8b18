"""Decide how a transaction has ended of which no producer has said it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.messages.halves import OpenMessage, half_json, list_halves
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, EndTransactionHeader, ListHalvesHeader

LISTED_MAX = 20
"""Messages that a plan lists."""
REASON_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd(Operation):
    """The fields and the work of both decisions."""

    outcome: ClassVar[int]
    done: ClassVar[str]
    effect: ClassVar[str]

    transaction_id: Annotated[
        str,
        Argument(
            metavar="ID",
            help="The id of the transaction, or of one of its messages, as `tx ls` prints it.",
            label="Transaction or message id",
            hint="as the list of half messages has it",
        ),
    ]
    reason: Annotated[
        str | None,
        Option(flags=("--reason",), metavar="TEXT", help="Why: the audit of the brokers has it.", label="Reason", hint="for the audit"),
    ] = None
    yes: Annotated[bool, Option(flags=("--yes",), help="Do it.")] = False

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        return cls(yes=True, **values)

    async def plan(self, admin: AdminClient) -> Plan:
        reason = self.reason
        if not reason or len(reason) > REASON_LENGTH_MAX:
            raise ConfigError(f"say why by --reason TEXT, with at most {REASON_LENGTH_MAX} characters: the audit of the brokers has it")
        listed = await list_halves(admin, ListHalvesHeader(transaction_id=self.transaction_id))
        known, halves = by_name(await admin.brokers()), listed.found
        topics = ", ".join(sorted({each.row.topic for each in halves}))
        effect = [f"{len(halves):,} messages of transaction {self.transaction_id} ({topics}) {self.effect}."] if halves else []
        found: dict[str, Any] = {"messages": [half_json(each) for each in halves], "ended": 0, "failed": dict(listed.failed)}
        nothing = f"no half message of transaction {self.transaction_id} waits: it has ended, or was never sent"
        incomplete = f"some brokers did not say which messages they have: {broker_reasons(listed.failed)}" if listed.failed else None

        async def carry_out() -> ChangeOutcome:
            if not self.yes and halves:
                refusal = f"nothing was changed: to do it, run `{replace(self, yes=True).command_line}`"
                return ChangeOutcome(effect, found, table=_table(halves), failed=refusal)
            if not halves:
                return ChangeOutcome([nothing], found, failed=incomplete)
            failed, ended = dict(listed.failed), 0
            async with admin.keep_connections():
                for each in halves:
                    header = EndTransactionHeader(each.row.producer_group, self.outcome, reason=reason)
                    try:
                        await admin.end_half(known[each.broker], header, HalfMessage(each.row.offset, each.row.message_id))
                        ended += 1
                    except (LockstepError, OSError) as error:
                        failed[each.broker] = f"message {each.row.message_id}: {error}"
            lines = [f"{ended:,} messages of transaction {self.transaction_id} were {self.done}"]
            text = f"some messages were not {self.done}: {broker_reasons(failed)}" if failed else None
            return ChangeOutcome(lines, {**found, "ended": ended, "failed": failed}, failed=text)

        agreed = tuple(f"{each.broker}:{each.row.offset}" for each in halves)
        return Plan(effect, carry_out, agreed, _table(halves), nothing=None if halves else nothing, incomplete=incomplete, json=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommit(TransactionEnd):
    """Deliver the messages of a transaction that is not decided. Without --yes it only prints which.

    A producer that says later that the transaction was rolled back gets an error.
    """

    words = ("tx", "commit")
    path = "tx-commit"
    title = "Commit a transaction"
    outcome = COMMIT
    done = "committed"
    effect = "will be delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRollback(TransactionEnd):
    """Drop the messages of a transaction that is not decided. Without --yes it only prints which. Nothing brings them back.

    A producer that says later that the transaction was committed gets an error.
    """

    words = ("tx", "rollback")
    path = "tx-rollback"
    title = "Roll a transaction back"
    outcome = ROLLBACK
    done = "rolled back"
    effect = "will never be delivered"


def _table(halves: Sequence[OpenMessage]) -> Table | None:
    """Return the first messages as a table; None without any."""
    rows = [
        (format_time(each.row.sent_ms), each.row.topic, f"{each.broker}:{each.row.queue_id}", each.row.message_id, each.row.producer_group)
        for each in halves[:LISTED_MAX]
    ]
    return Table(("sent at", "topic", "queue", "id", "producer group"), rows) if rows else None
