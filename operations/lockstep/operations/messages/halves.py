"""Half messages of transactions that are not decided (LIST_HALVES): those of all brokers, in the order in which they were sent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.messages.find import check_key
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import BrokerAddress, HalfPage, HalfRow
from lockstep.protocol.errors import RequestCodeNotSupportedError
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.names import check_topic

PAGE_MAX = 1_000
"""Rows that a broker returns at once."""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A half message at a broker."""

    broker: str
    row: HalfRow


class HalfList:
    """A list of half messages. `read` adds the next ones, as far as the brokers respond."""

    def __init__(self, admin: AdminClient, wanted: ListHalvesHeader, positions: Mapping[str, int | None] | None = None) -> None:
        """The header's cursor and limit are not used. `positions`: `positions` of a list that this one continues, at the brokers that it
        names."""
        self._admin = admin
        self._wanted = wanted
        self._given = positions
        self._brokers: list[BrokerAddress] | None = None
        self._open: dict[str, int] = {}
        self.positions: dict[str, int | None] = {}
        """Where the list goes on, by broker; nothing if it is complete at those that responded."""
        self.found: list[OpenMessage] = []
        """The oldest first, of those that were read."""
        self.unread = 0
        """Messages that were left out because their brokers could not read them."""
        self.failed: dict[str, str] = {}
        """Broker → why its messages are missing, or the later ones."""

    @property
    def open(self) -> int:
        """Return how many half messages of all topics the brokers that responded have."""
        return sum(self._open.values())

    async def read(self, limit: int | None = None) -> None:
        """Add the next messages: all, or at most `limit`, of each broker as many.

        Raise TransportError if no nameserver responds, LocalProtocolError or ConfigError for a topic or a key that no message can have, and
        TopicNotExistError if there is no such topic.
        """
        async with self._admin.keep_connections():
            brokers = await self._begin() if self._brokers is None else self._brokers
            share = PAGE_MAX if limit is None else max(1, limit // max(1, len(self.positions)))
            wanted = {each.name: self._read(each, share, limit is None) for each in brokers if each.name in self.positions}
            try:
                self.failed |= (await gather_results(wanted)).failed
            finally:
                self.found.sort(key=lambda each: (each.row.sent_ms, each.broker, each.row.offset))
        for name in self.failed:
            self.positions.pop(name, None)

    async def _begin(self) -> list[BrokerAddress]:
        if self._wanted.key is not None:
            check_key("key", self._wanted.key)
        if self._wanted.topic is not None:
            check_topic(self._wanted.topic)
            await self._admin.route(self._wanted.topic)  # a misspelt name is reported
        self._brokers = list(await self._admin.brokers())
        given = self._given
        self.positions = {each.name: (given or {}).get(each.name) for each in self._brokers if given is None or each.name in given}
        return self._brokers

    async def _read(self, broker: BrokerAddress, count: int, every: bool) -> None:
        """Add the next `count` messages of one broker, or every one."""
        while count > 0:
            cursor = self.positions[broker.name] or 0
            page = await _page(self._admin, broker, replace(self._wanted, cursor=cursor, limit=min(PAGE_MAX, count)))
            self.found += [OpenMessage(broker.name, row) for row in page.rows]
            self._open[broker.name] = page.open
            self.unread += page.unread
            if page.cursor is None:
                del self.positions[broker.name]
                return
            self.positions[broker.name] = page.cursor
            count -= 0 if every else len(page.rows)


async def list_halves(admin: AdminClient, wanted: ListHalvesHeader) -> HalfList:
    """Return the half messages that a header asks for, of all brokers. Its cursor and limit are not used. Raises the errors of
    `HalfList.read`."""
    found = HalfList(admin, wanted)
    await found.read()
    return found


async def list_halves_at(admin: AdminClient, broker: BrokerAddress, wanted: ListHalvesHeader) -> tuple[list[OpenMessage], int, int]:
    """Return the half messages of one broker, how many it has of all, and how many it could not read."""
    found: list[OpenMessage] = []
    cursor: int | None = 0
    count = unread = 0
    while cursor is not None:
        page = await _page(admin, broker, replace(wanted, cursor=cursor, limit=PAGE_MAX))
        found += [OpenMessage(broker.name, row) for row in page.rows]
        cursor, count, unread = page.cursor, page.open, unread + page.unread
    return found, count, unread


async def _page(admin: AdminClient, broker: BrokerAddress, header: ListHalvesHeader) -> HalfPage:
    try:
        return await admin.list_halves(broker, header)
    except RequestCodeNotSupportedError:  # an earlier version, which has none
        return HalfPage((), None, 0)


def half_json(message: OpenMessage) -> dict[str, Any]:
    """Return a half message as the commands print it in JSON."""
    row = message.row
    return {
        "topic": row.topic,
        "broker": message.broker,
        "queue_id": row.queue_id,
        "message_id": row.message_id or None,
        "transaction_id": row.transaction_id or None,
        "tags": row.tag,
        "keys": row.keys.split(),
        "sharding_key": row.sharding_key,
        "producer_group": row.producer_group,
        "client_id": row.client_id or None,
        "client_connected": row.connected,
        "sent_at": format_time(row.sent_ms),
        "asked_until": format_time(row.expires_ms),
        "expired": row.expired,
        "record_bytes": row.record_bytes,
    }
