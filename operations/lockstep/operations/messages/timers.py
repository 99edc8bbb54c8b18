"""Messages that wait for any delay or until a time of day (LIST_WAITING): those of all brokers, in the order in which they are due."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.messages.find import check_key
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import BrokerAddress, WaitingRow
from lockstep.protocol.errors import ConfigError, RequestCodeNotSupportedError
from lockstep.protocol.headers.offsets import ListWaitingHeader
from lockstep.protocol.messages.properties import check_text
from lockstep.protocol.names import check_topic

PAGE_MAX = 1_000
"""Rows that a broker returns at once."""
_POSITION = re.compile(r"([a-zA-Z0-9._@-]{1,127}):([a-zA-Z0-9%_.~-]*):(-?\d{1,18}):(-?\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimerCriteria:
    """The conditions that a message must meet to be listed."""

    topic: str | None = None
    before_ms: int | None = None
    """It is due before this time."""
    key: str | None = None
    """One of its keys."""
    sharding_key: str | None = None

    def check(self) -> None:
        """Raise LocalProtocolError or ConfigError for conditions that no message can meet."""
        if self.topic is not None:
            check_topic(self.topic)
        if self.key is not None:
            check_key("key", self.key)
        if self.sharding_key is not None:
            check_text("sharding key", self.sharding_key)

    def header(self, cursor: str | None, limit: int) -> ListWaitingHeader:
        return ListWaitingHeader(self.topic, self.before_ms, self.key, self.sharding_key, None, cursor, limit)


@dataclass(frozen=True, slots=True)
class WaitingTimer:
    """A message that waits at a broker."""

    broker: str
    row: WaitingRow

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.row.keys.split())

    @property
    def place(self) -> tuple[int, str, int]:
        """Return what compares as the messages of all brokers are listed."""
        return self.row.due_ms, self.broker, self.row.offset


class Position(NamedTuple):
    """Where a list goes on at one broker: in the page of a cursor, after a row."""

    cursor: str | None = None
    due_ms: int = -1
    offset: int = -1


class TimerList:
    """A list of messages that wait. `read` adds the next ones, as far as the brokers respond."""

    def __init__(self, admin: AdminClient, criteria: TimerCriteria, positions: Mapping[str, Position] | None = None) -> None:
        """`positions`: `positions` of a list that this one continues, at the brokers that it names."""
        self._admin = admin
        self._criteria = criteria
        self._positions = positions
        self._pages: dict[str, _Pages] | None = None
        self.found: list[WaitingTimer] = []
        self.failed: dict[str, str] = {}
        """Broker → why its messages are missing, or those from some time on."""

    async def read(self, limit: int | None = None) -> None:
        """Add messages until there are `limit`, or all.

        Raise TransportError if no nameserver responds, TopicNotExistError if there is no such topic, and errors of the criteria.
        """
        self._criteria.check()
        async with self._admin.keep_connections():
            if self._pages is None:
                if self._criteria.topic is not None:
                    await self._admin.route(self._criteria.topic)  # a misspelt name is reported
                count = PAGE_MAX if limit is None else min(PAGE_MAX, limit + 1)
                self._pages = {each.name: self._pages_of(each, count) for each in await self._admin.brokers() if self._continues(each)}
            while limit is None or len(self.found) < limit:
                await self._fill(self._pages)
                first = min((pages.rows[0] for pages in self._pages.values() if pages.rows), key=lambda each: each.place, default=None)
                if first is None:
                    return
                self.found.append(self._pages[first.broker].take())

    def _continues(self, broker: BrokerAddress) -> bool:
        return self._positions is None or broker.name in self._positions

    def _pages_of(self, broker: BrokerAddress, count: int) -> "_Pages":
        return _Pages(self._admin, broker, self._criteria, count, None if self._positions is None else self._positions[broker.name])

    async def _fill(self, every: Mapping[str, "_Pages"]) -> None:
        """Read the next pages of those that have no rows left."""
        wanted = {name: pages.fill() for name, pages in every.items() if name not in self.failed and not pages.rows and not pages.ended}
        if wanted:
            self.failed |= (await gather_results(wanted)).failed

    @property
    def pending(self) -> int:
        """Return how many messages of all topics wait at the brokers that responded."""
        return sum(pages.pending for pages in (self._pages or {}).values())

    @property
    def unread(self) -> int:
        """Return how many messages were left out because the brokers could not read them."""
        return sum(pages.unread for pages in (self._pages or {}).values())

    @property
    def positions(self) -> dict[str, Position]:
        """Return where the list goes on, by broker; nothing if it is complete at those that responded."""
        return {
            name: pages.position
            for name, pages in (self._pages or {}).items()
            if name not in self.failed and (pages.rows or not pages.ended)
        }


class _Pages:
    """The rows of one broker that were read and not taken."""

    def __init__(self, admin: AdminClient, broker: BrokerAddress, criteria: TimerCriteria, count: int, after: Position | None) -> None:
        self._admin = admin
        self._broker = broker
        self._criteria = criteria
        self._count = count
        self._after = after
        self.position = after or Position()
        self._next = self.position.cursor
        self.rows: deque[WaitingTimer] = deque()
        self.ended = False
        self.pending = self.unread = 0

    async def fill(self) -> None:
        """Read pages until one has rows, or there are no more."""
        while not self.rows and not self.ended:
            cursor = self._next
            try:
                page = await self._admin.list_waiting(self._broker, self._criteria.header(cursor, self._count))
            except RequestCodeNotSupportedError:  # an earlier version, at which none waits
                self.ended = True
                return
            self.rows.extend(WaitingTimer(self._broker.name, row) for row in page.rows)
            self._leave_out()
            self.pending = page.pending
            self.unread += page.unread
            self._next = page.cursor
            self.ended = page.cursor is None
            if not self.rows or self.position.cursor != cursor:
                self.position = Position(cursor if self.rows else self._next)

    def _leave_out(self) -> None:
        """Leave out what the list that is continued has."""
        if self._after is None:
            return
        _, *after = self._after
        places = [[each.row.due_ms, each.row.offset] for each in self.rows]
        count = next((at + 1 for at, place in enumerate(places) if place[1] == after[1]), sum(place <= after for place in places))
        for _ in range(count):
            self.rows.popleft()
        self._after = None

    def take(self) -> WaitingTimer:
        found = self.rows.popleft()
        self.position = Position(self.position.cursor, found.row.due_ms, found.row.offset)
        return found


async def list_timers(admin: AdminClient, criteria: TimerCriteria, limit: int | None = None) -> TimerList:
    """Return the messages that wait and are due first, at most `limit`. Raises the errors of `TimerList.read`."""
    found = TimerList(admin, criteria)
    await found.read(limit)
    return found


def format_positions(positions: Mapping[str, Position]) -> str:
    """Return positions as text."""
    return ";".join(f"{name}:{quote(at.cursor or '', safe='')}:{at.due_ms}:{at.offset}" for name, at in sorted(positions.items()))


def parse_positions(text: str) -> dict[str, Position]:
    """Return what `format_positions` has made a text of. Raise ConfigError for any other text."""
    found: dict[str, Position] = {}
    for part in text.split(";"):
        match = _POSITION.fullmatch(part)
        if match is None:
            raise ConfigError(f"{text[:80]!r} is no place to go on from: use the link to later messages")
        found[match[1]] = Position(unquote(match[2]) or None, int(match[3]), int(match[4]))
    return found


def timers_json(found: TimerList) -> dict[str, Any]:
    """Return a list as the commands print it in JSON."""
    return {
        "messages": [timer_json(each) for each in found.found],
        "complete": not found.positions and not found.failed,
        "pending": found.pending,
        "unread": found.unread,
        "failed": found.failed,
    }


def timer_json(timer: WaitingTimer) -> dict[str, Any]:
    row = timer.row
    return {
        "topic": row.topic,
        "broker": timer.broker,
        "queue_id": row.queue_id,
        "message_id": row.message_id or None,
        "tags": row.tag,
        "keys": list(timer.keys),
        "sharding_key": row.sharding_key,
        "stored_at": format_time(row.stored_ms),
        "due_at": format_time(row.due_ms),
        "time_of_day": row.absolute,
        "record_bytes": row.record_bytes,
        "recall_handle": row.handle or None,
    }
