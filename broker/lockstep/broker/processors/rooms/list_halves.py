"""LIST_HALVES: the half messages whose transactions are not decided, in the order in which they were sent."""

from collections.abc import Callable

from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.rooms.room_records import RoomRecords
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.transaction_table import OpenHalf, TransactionTable
from lockstep.protocol.bodies import HalfPage, HalfRow
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError, SystemBusyError
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.messages.properties import KEYS, SHARDING_KEY, TAGS, TRANSACTION_ID, UNIQ_KEY, decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import read_half
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, PUB, inside
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.rights import Kind

LIMIT_MAX = 1_000
"""Rows of a response, and half messages that one request looks at."""


class ListHalvesProcessor:
    """Lists half messages."""

    def __init__(self, store: Store, table: TransactionTable, is_expired: Callable[[OpenHalf], bool]) -> None:
        """`is_expired` returns whether a half message is too old to be asked about."""
        self._table = table
        self._is_expired = is_expired
        self._records = RoomRecords(store, HALF_TOPIC)

    @handles(
        RequestCode.LIST_HALVES,
        ListHalvesHeader,
        needs=[inside("Pub or Get topic; without one, those of which the user may")],
        lane=QUERY_LANE,
    )
    async def list_halves(self, request: Request) -> HandlerResult:
        """Return the next half messages. What ends or is sent between two pages may be in one of them or not."""
        header: ListHalvesHeader = request.header
        if header.topic:
            request.user.check_topic(header.topic, PUB, GET)
        if not 1 <= header.limit <= LIMIT_MAX:
            raise LocalProtocolError(f"limit {header.limit}: expected 1 to {LIMIT_MAX}")
        rows: list[HalfRow] = []
        unread, halves = 0, self._table.from_offset(header.cursor, LIMIT_MAX)
        cursor = halves[-1].offset + 1 if len(halves) == LIMIT_MAX else None
        for half in halves:
            if len(rows) == header.limit:
                cursor = half.offset
                break
            if header.expired and not self._is_expired(half):
                continue
            row = await self._row(half)
            if row is None:
                unread += 1
            elif _is_wanted(header, row) and request.user.may((PUB, GET), Kind.TOPIC, row.topic):
                rows.append(row)
        return request.reply(body=HalfPage(tuple(rows), cursor, len(self._table), unread))

    async def _row(self, half: OpenHalf) -> HalfRow | None:
        """Return the row of a half message; None if its record can't be read."""
        try:
            data = await self._records.read(half.offset)
            record = RecordView(data) if data else None
            found = None if record is None else read_half(record.properties)
            if record is None or found is None:
                return None
            properties = decode_properties(record.properties[found.end :])
        except (OSError, StoreCorruptError, SystemBusyError, RemoteProtocolError):
            return None
        unique = properties.get(UNIQ_KEY, "")
        return HalfRow(
            topic=found.topic.decode(),
            queue_id=found.queue_id,
            message_id=unique,
            transaction_id=properties.get(TRANSACTION_ID, unique),
            keys=properties.get(KEYS, ""),
            tag=properties.get(TAGS),
            sharding_key=properties.get(SHARDING_KEY),
            producer_group=found.group.decode(),
            client_id=found.client_id.decode(),
            sent_ms=self._table.present_ms(half),
            expired=self._is_expired(half),
            offset=half.offset if found.first is None else found.first,
            record_bytes=len(data),
        )


def _is_wanted(header: ListHalvesHeader, row: HalfRow) -> bool:
    return (
        header.topic in (None, row.topic)
        and header.producer_group in (None, row.producer_group)
        and header.transaction_id in (None, row.transaction_id, row.message_id)
    )
