"""LIST_HALVES: the half messages whose transactions are not decided, in the order in which they were sent."""

from collections.abc import Callable

from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.rooms.room_records import RoomRecords
from lockstep.broker.processors.rooms.waiting import HEADER_BYTES_MAX, LIMIT_MAX, READ_BYTES_MAX, SLICE_RECORDS
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.transaction_table import OpenHalf, TransactionTable
from lockstep.protocol.bodies import HalfPage, HalfRow
from lockstep.protocol.codec.plain import pack_around
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError, SystemBusyError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.messages.properties import KEYS, SHARDING_KEY, TAGS, TRANSACTION_ID, UNIQ_KEY, check_text, decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import read_half
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.metrics import Slices
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, PUB, inside
from lockstep.runtime.requests.packed_rows import packed_rows
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.rights import Kind
from lockstep.runtime.turn import TurnBudget

LOOKED_MAX = 1_000
"""Half messages that one request looks at."""


class ListHalvesProcessor:
    """Lists half messages."""

    def __init__(
        self,
        store: Store,
        table: TransactionTable,
        expires_ms: Callable[[OpenHalf], int],
        is_connected: Callable[[str], bool],
        budget: TurnBudget,
    ) -> None:
        """`expires_ms` returns until when a half message is asked about, `is_connected` whether a client with this id is there."""
        self._store = store
        self._table = table
        self._expires_ms = expires_ms
        self._is_connected = is_connected
        self._budget = budget
        self._records = RoomRecords(store, HALF_TOPIC)

    @handles(
        RequestCode.LIST_HALVES,
        ListHalvesHeader,
        needs=[inside("Pub or Get topic; without one, those of which the user may")],
        lane=QUERY_LANE,
        header_bytes_max=HEADER_BYTES_MAX,
    )
    async def list_halves(self, request: Request) -> HandlerResult:
        """Return the next half messages. What ends or is sent between two pages may be in one of them or not."""
        header: ListHalvesHeader = request.header
        if header.topic:
            request.user.check_topic(header.topic, PUB, GET)
        if not 1 <= header.limit <= LIMIT_MAX:
            raise LocalProtocolError(f"limit {header.limit}: expected 1 to {LIMIT_MAX}")
        if header.key is not None:
            check_text("key", header.key)
        rows: list[HalfRow] = []
        unread = size = 0
        slices = Slices(SLICE_RECORDS)
        halves = self._table.from_offset(header.cursor, LOOKED_MAX)
        cursor = halves[-1].offset + 1 if len(halves) == LOOKED_MAX else None
        for half in halves:
            if len(rows) == header.limit or size >= READ_BYTES_MAX:
                cursor = half.offset
                break
            if header.expired and not self._is_expired(half):
                continue
            await slices.step()
            data = await self._read(half.offset)
            size += len(data)
            row = self._row(half, data)
            if row is not None:
                if _is_wanted(header, row) and request.user.may((PUB, GET), Kind.TOPIC, row.topic):
                    rows.append(row)
            elif self._table.find(half.offset) == half and half.offset < self._store.bounds(HALF_TOPIC, 0)[1]:
                unread += 1  # others have ended meanwhile, or are not confirmed yet
        page = HalfPage((), cursor, len(self._table), unread)
        return request.reply(body=pack_around(to_plain(page) | {"rows": await packed_rows(rows, self._budget)}))

    def _is_expired(self, half: OpenHalf) -> bool:
        return self._store.now_ms() > self._expires_ms(half)

    async def _read(self, offset: int) -> bytes:
        """Return the record of a half message; nothing if it can't be read."""
        try:
            return await self._records.read(offset)
        except (OSError, StoreCorruptError, SystemBusyError):
            return b""

    def _row(self, half: OpenHalf, data: bytes) -> HalfRow | None:
        """Return the row of a half message with this record; None if it has none that can be read."""
        try:
            record = RecordView(data) if data else None
            found = None if record is None else read_half(record.properties)
            if record is None or found is None:
                return None
            properties = decode_properties(record.properties[found.end :])
        except RemoteProtocolError:
            return None
        unique, client_id = properties.get(UNIQ_KEY, ""), found.client_id.decode()
        return HalfRow(
            topic=found.topic.decode(),
            queue_id=found.queue_id,
            message_id=unique,
            transaction_id=properties.get(TRANSACTION_ID, unique),
            keys=properties.get(KEYS, ""),
            tag=properties.get(TAGS),
            sharding_key=properties.get(SHARDING_KEY),
            producer_group=found.group.decode(),
            client_id=client_id,
            connected=self._is_connected(client_id),
            sent_ms=self._table.present_ms(half),
            expired=self._is_expired(half),
            expires_ms=self._expires_ms(half),
            offset=half.offset if found.first is None else found.first,
            record_bytes=len(data),
        )


def _is_wanted(header: ListHalvesHeader, row: HalfRow) -> bool:
    return (
        (not header.topic or header.topic == row.topic)
        and header.producer_group in (None, row.producer_group)
        and header.transaction_id in (None, row.transaction_id, row.message_id)
        and (header.key is None or header.key in row.keys.split())
    )
