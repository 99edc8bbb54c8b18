"""The pages of the messages that a group could not process: its dead letters, and the keys that it has parked. Both are as the commands
list them."""

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from lockstep.dashboard.messages import Messages
from lockstep.operations.admin_client import AdminClient, BrokerResults
from lockstep.operations.groups.group_query import UnknownGroupError, read_group, unknown_group
from lockstep.operations.groups.parked import Parked, WaitingCount, count_waiting, list_parked
from lockstep.operations.messages.dead_letters import DeadLetter, DeadLetterQueue, find_dead_letter_queues, read_newest
from lockstep.operations.watch.cache import CachedResult
from lockstep.protocol.errors import LocalProtocolError, TopicNotExistError
from lockstep.protocol.names import check_group

NEWEST = 20
"""Dead letters of each broker that are shown."""
KEYS_SHOWN = 200
"""Parked keys that are shown, and of which the waiting messages are counted."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A dead letter without its body."""

    message_id: str
    broker: str
    given_up_ms: int
    origin_topic: str | None
    attempts: int
    replayed: bool
    reason: str | None
    line: str
    """The beginning of the body."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a group, at the brokers that could be read."""

    rows: tuple[DeadRow, ...]
    """The newest first."""
    stored: int
    pending: int
    """How many have not been replayed."""
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ParkedRows:
    """The parked keys of a group, at the brokers that responded."""

    rows: tuple[Parked, ...]
    left: int
    """How many more keys there are, at least."""
    waiting: Mapping[Parked, WaitingCount] | None
    """How many messages wait; None if they were not counted."""
    counted_ms: int
    failed: Mapping[str, str]


async def read_dead(admin: AdminClient, messages: Messages, group: str) -> DeadLetters:
    """Return the newest dead letters. Raise UnknownGroupError, or TransportError if no nameserver responds."""
    _check_name(group)
    async with admin.keep_connections():
        try:
            found = await find_dead_letter_queues(admin, group)
        except TopicNotExistError:
            found = await _none_of(admin, group)
        newest = await read_newest(admin, group, found, NEWEST)
    rows = [_dead_row(messages, each, replayed) for each, replayed in newest.letters]
    rows.sort(key=lambda row: -row.given_up_ms)
    return DeadLetters(tuple(rows), newest.stored_count, newest.pending_count, newest.failed)


async def read_parked(admin: AdminClient, group: str, *, count: bool) -> ParkedRows:
    """Return the parked keys, and with `count` how many messages wait, which the brokers read their logs for.

    Raise UnknownGroupError, or TransportError if no nameserver responds.
    """
    _check_name(group)
    async with admin.keep_connections():
        listed = await list_parked(admin, group)
        if not listed.keys and not listed.failed:
            await _none_of(admin, group)
        rows = listed.keys[:KEYS_SHOWN]
        waiting, unread = await count_waiting(admin, rows) if count else (None, {})
    left = len(listed.keys) - len(rows)
    return ParkedRows(rows, left, waiting, admin.host.clock.wall_ms(), {**unread, **listed.failed})


def _check_name(group: str) -> None:
    """Raise UnknownGroupError for a name that no group can have."""
    try:
        check_group(group)
    except LocalProtocolError as error:
        raise UnknownGroupError(str(error)) from None


async def _none_of(admin: AdminClient, group: str) -> BrokerResults[list[DeadLetterQueue]]:
    """Return that a group has nothing. Raise UnknownGroupError if all brokers have responded and none knows the group."""
    report, results = await read_group(admin, group)
    if report is None and not results.failed:
        raise unknown_group(group, {})
    return BrokerResults({}, results.failed)


def _dead_row(messages: Messages, dead_letter: DeadLetter, replayed: bool) -> DeadRow:
    message = dead_letter.message
    return DeadRow(
        message.offset_message_id,
        dead_letter.broker.name,
        message.stored_ms,
        dead_letter.origin_topic,
        message.reconsume_times,
        replayed,
        dead_letter.reason,
        messages.line(message),
    )


def dead(group: str, answer: CachedResult[DeadLetters]) -> dict[str, Any]:
    """Return what the page of dead letters shows."""
    return {"group": group, "found": answer.value, "error": _error(answer), "replay": f"lockstep dlq replay {quote(group)}"}


def parked(group: str, answer: CachedResult[ParkedRows], *, count: bool) -> dict[str, Any]:
    """Return what the page of parked keys shows."""
    return {
        "group": group,
        "found": answer.value,
        "error": _error(answer),
        "counting": count,
        "replay": f"lockstep park replay {quote(group)}",
        "drop": f"lockstep park drop {quote(group)}",
    }


def _error(answer: CachedResult[Any]) -> str | None:
    return None if answer.error is None else str(answer.error)
