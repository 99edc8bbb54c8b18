"""Half messages of transactions that are not decided (LIST_HALVES): those of all brokers, in the order in which they were sent."""

from dataclasses import dataclass, replace
from typing import Any

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.messages.find import check_key
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import BrokerAddress, HalfRow
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.names import check_topic

PAGE_MAX = 1_000
"""Rows that a broker returns at once."""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A half message at a broker."""

    broker: str
    row: HalfRow


@dataclass(frozen=True, slots=True)
class HalfList:
    """Half messages, the oldest first."""

    found: list[OpenMessage]
    open: int
    """How many half messages of all topics the brokers that responded have."""
    unread: int
    """Messages that were left out because their brokers could not read them."""
    failed: dict[str, str]
    """Broker → why its messages are missing."""


async def list_halves(admin: AdminClient, wanted: ListHalvesHeader) -> HalfList:
    """Return the half messages that a header asks for, of all brokers. Its cursor and limit are not used.

    Raise TransportError if no nameserver responds, LocalProtocolError or ConfigError for a topic or a key that no message can have, and
    TopicNotExistError if there is no such topic.
    """
    async with admin.keep_connections():
        if wanted.key is not None:
            check_key("key", wanted.key)
        if wanted.topic is not None:
            check_topic(wanted.topic)
            await admin.route(wanted.topic)  # a misspelt name is reported
        brokers = await admin.brokers()
        pages = await gather_results({each.name: _of_broker(admin, each, wanted) for each in brokers})
    found = [message for messages, _, _ in pages.values.values() for message in messages]
    found.sort(key=lambda each: (each.row.sent_ms, each.broker, each.row.offset))
    totals = list(pages.values.values())
    return HalfList(found, sum(count for _, count, _ in totals), sum(unread for _, _, unread in totals), dict(pages.failed))


async def _of_broker(admin: AdminClient, broker: BrokerAddress, wanted: ListHalvesHeader) -> tuple[list[OpenMessage], int, int]:
    """Return the half messages of one broker, how many it has of all, and how many it could not read."""
    found: list[OpenMessage] = []
    cursor: int | None = 0
    count = unread = 0
    while cursor is not None:
        page = await admin.list_halves(broker, replace(wanted, cursor=cursor, limit=PAGE_MAX))
        found += [OpenMessage(broker.name, row) for row in page.rows]
        cursor, count, unread = page.cursor, page.open, unread + page.unread
    return found, count, unread


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
        "expired": row.expired,
        "record_bytes": row.record_bytes,
    }
