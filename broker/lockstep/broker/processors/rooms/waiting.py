"""LIST_WAITING: the messages that wait for any delay or until a time of day, in the order in which they are due."""

import asyncio
from collections.abc import Callable
from contextlib import closing

from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.rooms.timer_lookup import TimerLookup
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.timer_table import TIMES_OF_DAY, PendingTimer, TimerTable
from lockstep.broker.tables.timer_walk import SELECT_COUNT, Place, TimerWalk
from lockstep.protocol.bodies import WaitingPage, WaitingRow
from lockstep.protocol.codec.plain import pack_around
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError, SystemBusyError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import ListWaitingHeader
from lockstep.protocol.messages.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY, check_text, decode_properties
from lockstep.protocol.messages.recall import HANDLE_LENGTH_MAX, RecallHandle
from lockstep.protocol.messages.record import INT64, STORE_TIMESTAMP_AT, record_bounds
from lockstep.protocol.messages.rooms import RoomProperties, read_timer
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.runtime.metrics import Slices
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, PUB, inside
from lockstep.runtime.requests.packed_rows import packed_rows
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from lockstep.runtime.security.rights import Kind
from lockstep.runtime.turn import TurnBudget

LIMIT_MAX = 1_000
"""Rows of a response."""
LOOKED_MAX = 10_000
READ_BYTES_MAX = 4 << 20
"""One request looks at so many timers at most, and reads so many bytes of their records before the last one."""
HEADER_BYTES_MAX = 36 * 1024
"""The longest keys, and a cursor with all steps of the clock that a store remembers."""
SLICE_RECORDS = 40
"""Records that are read in one turn of the loop: about a millisecond."""


class WaitingProcessor:
    """Lists timers."""

    def __init__(
        self, store: Store, timers: TimerTable, deleted_since: Callable[[str, int], bool], budget: TurnBudget, broker_name: str
    ) -> None:
        """`deleted_since(topic, began)` returns whether the topic to which a message was sent is gone: it will not be delivered."""
        self._store = store
        self._timers = timers
        self._deleted_since = deleted_since
        self._budget = budget
        self._lookup = TimerLookup(store, timers, broker_name)

    @handles(
        RequestCode.LIST_WAITING,
        ListWaitingHeader,
        needs=[inside("Pub or Get topic; without one, those of which the user may")],
        lane=QUERY_LANE,
        header_bytes_max=HEADER_BYTES_MAX,
    )
    async def list_waiting(self, request: Request) -> HandlerResult:
        """Return the next timers that are due. What is delivered or recalled between two pages may be in one of them or not."""
        header: ListWaitingHeader = request.header
        if header.topic:
            request.user.check_topic(header.topic, PUB, GET)
        if not 1 <= header.limit <= LIMIT_MAX:
            raise LocalProtocolError(f"limit {header.limit}: expected 1 to {LIMIT_MAX}")
        for name, text in (("key", header.key), ("sharding key", header.sharding_key)):
            if text is not None:
                check_text(name, text)
        listing = _Listing(header, request.user, self._deleted_since, self._lookup.broker_name)
        cursor = await (self._page(header, listing) if header.recall_handle is None else self._named(header.recall_handle, listing))
        page = WaitingPage((), cursor, len(self._timers), listing.unread)
        return request.reply(body=pack_around(to_plain(page) | {"rows": await packed_rows(listing.rows, self._budget)}))

    async def _page(self, header: ListWaitingHeader, listing: "_Listing") -> str | None:
        """Add the rows of a page. Return the cursor of the next one."""
        after = Place() if header.cursor is None else Place.parse(header.cursor)
        walk = TimerWalk(self._timers, after, SELECT_COUNT if listing.is_filtered else header.limit + 1)
        slices = Slices(SLICE_RECORDS)
        last: PendingTimer | None = None
        looked = size = 0
        with closing(iter(walk)) as timers:
            for timer in timers:
                if timer is None:
                    await asyncio.sleep(0)
                    continue
                due_ms = walk.due_ms(timer)
                if header.due_before_ms is not None and due_ms >= header.due_before_ms:
                    return None
                if last is not None and (len(listing.rows) >= header.limit or looked >= LOOKED_MAX or size >= READ_BYTES_MAX):
                    return str(walk.place_after(last))
                last = timer
                looked += 1
                await slices.step()
                data = await self._read(timer.offset)
                size += len(data)
                if data or timer.offset < self._store.bounds(TIMER_TOPIC, 0)[1]:  # others are not confirmed yet
                    listing.add(timer, due_ms, data)
        return None

    async def _named(self, text: str, listing: "_Listing") -> None:
        """Add the row of the message of a recall handle, if it waits."""
        handle = RecallHandle.decode(text)
        self._lookup.check_broker(handle)
        for offset in sorted(self._lookup.offsets_of(handle)):
            data = await self._read(offset)
            found = read_timer(_properties(data)) if data else None
            timer = None if found is None else self._timers.find(offset, found.code(_store_ms(data)))
            if timer is not None:
                listing.add(timer, self._timers.present_ms(timer), data, handle)

    async def _read(self, offset: int) -> bytes:
        """Return the record of a timer; nothing if it can't be read."""
        try:
            return await self._lookup.records.read(offset)
        except (OSError, StoreCorruptError, SystemBusyError):
            return b""  # the delivery logs why


class _Listing:
    """The rows of one response: of messages that are wanted, and of which the user may know."""

    def __init__(self, header: ListWaitingHeader, user: RequestUser, deleted_since: Callable[[str, int], bool], broker_name: str) -> None:
        self.rows: list[WaitingRow] = []
        self.unread = 0
        self._header = header
        self._user = user
        self._deleted_since = deleted_since
        self._broker_name = broker_name
        self._shown: dict[tuple[bytes, int], bool] = {}
        """(topic, began) → whether its messages are shown."""

    @property
    def is_filtered(self) -> bool:
        """Return whether many timers may have no row."""
        header = self._header
        return bool(header.topic) or header.key is not None or header.sharding_key is not None or self._user is not ANYBODY

    def add(self, timer: PendingTimer, due_ms: int, data: bytes, named: RecallHandle | None = None) -> None:
        """Add the row of a timer with this record. `named`: only if it is that message."""
        try:
            properties = _properties(data) if data else b""
            found = read_timer(properties)
            if found is None:
                self.unread += 1
            elif self._shows(found):
                self._add(timer, due_ms, data, found, decode_properties(properties[found.end :]), named)
        except RemoteProtocolError:
            self.unread += 1

    def _shows(self, found: RoomProperties) -> bool:
        key = found.topic, found.began
        if key not in self._shown:
            topic, wanted = found.topic.decode(), self._header.topic
            self._shown[key] = (
                (not wanted or topic == wanted)
                and self._user.may((PUB, GET), Kind.TOPIC, topic)
                and not self._deleted_since(topic, found.began)
            )
        return self._shown[key]

    def _add(
        self, timer: PendingTimer, due_ms: int, data: bytes, found: RoomProperties, properties: dict[str, str], named: RecallHandle | None
    ) -> None:
        header, topic = self._header, found.topic.decode()
        message_id, keys, sharding_key = properties.get(UNIQ_KEY, ""), properties.get(KEYS, ""), properties.get(SHARDING_KEY)
        if named is not None and (named.message_id != message_id or named.topic != topic):
            return
        if header.key is not None and header.key not in keys.split():
            return
        if header.sharding_key is not None and header.sharding_key != sharding_key:
            return
        handle = RecallHandle(topic, self._broker_name, timer.due_ms, message_id, timer.offset if found.first is None else found.first)
        text = handle.encode() if message_id and " " not in message_id else ""
        self.rows.append(
            WaitingRow(
                topic,
                found.queue_id,
                message_id,
                keys,
                properties.get(TAGS),
                sharding_key,
                _store_ms(data),
                due_ms,
                timer.era == TIMES_OF_DAY,
                timer.offset,
                text if len(text) <= HANDLE_LENGTH_MAX else "",
                len(data),
            )
        )


def _properties(data: bytes) -> bytes:
    _, begin, end = record_bounds(data)
    return data[begin:end]


def _store_ms(data: bytes) -> int:
    return int(INT64.unpack_from(data, STORE_TIMESTAMP_AT)[0])
