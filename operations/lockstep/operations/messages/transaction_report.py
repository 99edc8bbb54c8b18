"""One transaction: its messages that wait for its end, those that were committed, and what can be done.

Half messages come from the brokers' tables (LIST_HALVES). Committed ones are searched for in their logs, as far as retention has kept them.
Of messages that were rolled back nothing is left.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError, raise_if_incomplete
from lockstep.operations.messages.find import Criteria, Found, check_key, find_key, near_birth
from lockstep.operations.messages.halves import OpenMessage, half_json, list_halves
from lockstep.operations.messages.message_text import message_facts
from lockstep.operations.messages.waiting import waiting_of
from lockstep.operations.text import format_time
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import TRANSACTION_ID, WAITED
from lockstep.protocol.names import group_of_topic

BLOCK_MS_MAX = 86_400_000
"""Committed messages are searched for from this time before the oldest one that is known."""
_HALF_LETTER = "h"
"""The value of WAITED begins by it in a message that was a half message."""


@dataclass(slots=True)
class TransactionReport:
    """What is known of a transaction."""

    wanted: str
    """The id of the transaction, or of one of its messages."""
    search: Found
    """The search for its committed messages."""
    transaction_id: str | None = None
    open: list[OpenMessage] = field(default_factory=list)
    """The oldest first."""
    unread: int = 0
    """Half messages that the brokers could not read: some may belong to it."""
    failed: dict[str, str] = field(default_factory=dict)
    """Broker → why its half messages are missing."""

    @property
    def committed(self) -> list[MessageExt]:
        """Return its committed messages that were found, in the order in which they were stored."""
        found = [each for each in self.search.messages if transaction_of(each) == self.transaction_id is not None]
        return sorted(found, key=lambda each: (each.stored_ms, each.broker_name, each.queue_id, each.queue_offset))


def transaction_of(message: MessageExt) -> str | None:
    """Return the transaction of a message that was committed; None for another one, and for copies of groups."""
    if waiting_of(message) is not None or group_of_topic(message.stored_topic) is not None:
        return None
    properties = message.all_properties
    named = properties.get(TRANSACTION_ID)
    return named or (message.message_id if properties.get(WAITED, "").startswith(_HALF_LETTER) else None)


async def read_transaction(admin: AdminClient, report: TransactionReport) -> None:
    """Add what the brokers know. What was found stays in the report if it is cancelled.

    Raise TransportError if no nameserver responds, LocalProtocolError or ConfigError for a text that no message can have as its id, and
    OperationError if nothing is known of it, and all brokers have responded.
    """
    check_key("ID", report.wanted)
    async with admin.keep_connections():
        await _list(admin, report, report.wanted)
        if report.open:
            report.transaction_id = report.open[0].row.transaction_id
        else:
            await _find_message(admin, report)
        if report.transaction_id not in (None, report.wanted):  # the id is that of a message: what belongs to it?
            await _list(admin, report, report.transaction_id or "")
        if report.transaction_id is not None:
            known = [each.row.sent_ms for each in report.open] + [each.stored_ms for each in report.committed]
            begin_ms = max(0, min(known) - BLOCK_MS_MAX) if known else 0
            report.search.messages.clear()
            await find_key(admin, report.search, report.transaction_id, Criteria(begin_ms=begin_ms))
    if not report.open and not report.committed:
        raise_if_incomplete({**report.search.failed, **report.failed})
        raise OperationError(_nothing(report))


async def _list(admin: AdminClient, report: TransactionReport, name: str) -> None:
    listed = await list_halves(admin, ListHalvesHeader(transaction_id=name))
    report.open, report.unread, report.failed = listed.found, listed.unread, listed.failed


async def _find_message(admin: AdminClient, report: TransactionReport) -> None:
    """Search for the message with the wanted id, at first near the time that the id contains, and for the transaction."""
    search, wanted = report.search, report.wanted
    near = near_birth(wanted, Criteria(), admin.host.clock.wall_ms())
    if near is not None:
        await find_key(admin, search, wanted.upper(), near, unique=True)
    if not search.messages:
        search.failed.clear()
        await find_key(admin, search, wanted, Criteria())
    named = (
        transaction_of(each) for each in search.messages if wanted.upper() == each.message_id.upper() or transaction_of(each) == wanted
    )
    report.transaction_id = next((each for each in named if each is not None), None)


def _nothing(report: TransactionReport) -> str:
    if any(each.message_id.upper() == report.wanted.upper() for each in report.search.messages):
        return f"message {report.wanted} is of no transaction: `lockstep message show {shlex.quote(report.wanted)}` shows it"
    if report.search.messages:
        name = shlex.quote(report.wanted)
        return f"{report.wanted} is the key of a message, and not an id: `lockstep tx ls --key {name}` lists those that wait"
    return (
        f"nothing is known of {report.wanted} ({report.search.progress.describe()} were searched): it was rolled back, retention has "
        "removed its messages, or it was never sent"
    )


def headline(report: TransactionReport) -> str:
    """Return in one line how far the transaction is."""
    open_, committed = len(report.open), len(report.committed)
    parts = [f"{open_:,} {'message waits' if open_ == 1 else 'messages wait'} for its end"] if open_ else []
    parts += [f"{committed:,} {'was' if committed == 1 else 'were'} committed"] if committed else []
    return f"transaction {report.transaction_id}: {' and '.join(parts)}"


def next_steps(report: TransactionReport) -> list[str]:
    """Return in sentences who decides, and what can be done."""
    missing = ["brokers that did not respond may have further messages of it"] if report.failed or report.search.failed else []
    if not report.open:
        message = shlex.quote(report.committed[0].message_id)
        return [*missing, f"it was committed: `lockstep message show {message} --track` says what became of a message"]
    lines = [*_deciders(report.open), *missing]
    if report.committed:
        lines.append("a part of it was committed: if the rest is rolled back, only that part is delivered")
    name = shlex.quote(report.wanted if report.transaction_id is None else report.transaction_id)
    groups = " and ".join(sorted({each.row.producer_group for each in report.open}))
    lines.append(
        f"to decide it by hand, look into the database of {groups} first: `lockstep tx commit {name} --reason TEXT` delivers its messages, "
        f"`lockstep tx rollback {name} --reason TEXT` drops them"
    )
    return lines


def _deciders(messages: Sequence[OpenMessage]) -> Iterator[str]:
    """Yield who is asked how the transaction of half messages has ended."""
    groups: dict[tuple[bool, str, bool, str], list[OpenMessage]] = {}
    for each in messages:
        row = each.row
        groups.setdefault((row.expired, row.client_id, row.connected, row.producer_group), []).append(each)
    for (expired, client, connected, group), members in groups.items():
        brokers = " and ".join(sorted({each.broker for each in members}))
        first_ms = min(each.row.expires_ms for each in members)
        if expired:
            yield f"{brokers}: nobody is asked any more since {format_time(first_ms)}; the messages wait for a decision by hand"
            continue
        if not client:
            asked = f"a client of producer group {group} is asked"
        elif connected:
            asked = f"client {client}, which has sent the messages and is connected, is asked"
        else:
            asked = f"client {client}, which has sent the messages, is not connected: another client of producer group {group} is asked"
        yield f"{brokers}: {asked} until {format_time(first_ms)}"


def report_json(report: TransactionReport) -> dict[str, Any]:
    """Return a report as `lockstep tx show --json` prints it."""
    return {
        "transaction_id": report.transaction_id,
        "open": [half_json(each) for each in report.open],
        "committed": [message_facts(each) for each in report.committed],
        "complete": report.search.complete and not report.search.cut and not report.failed,
        "unread": report.unread,
        "next": next_steps(report) if report.open or report.committed else [],
        "failed": {**report.search.failed, **report.failed},
    }


def committed_rows(messages: Sequence[MessageExt]) -> list[tuple[object, ...]]:
    """Return the rows of a table of committed messages: COMMITTED_COLUMNS."""
    return [
        (
            *(format_time(each.stored_ms), each.stored_topic, f"{each.broker_name}:{each.queue_id}", each.queue_offset, each.message_id),
            *(" ".join(each.keys) or None, each.tags or None),
        )
        for each in messages
    ]


COMMITTED_COLUMNS = ("committed at", "topic", "queue", ">offset", "id", "keys", "tag")
