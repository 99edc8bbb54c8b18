"""Check-back: asks the senders of half messages how their transactions have ended. RocketMQ: TransactionalMessageServiceImpl.check.

The client that has sent a half message is asked as long as it is connected, or may come back: only it knows whether the transaction still
runs. After that another one of its producer group is asked. A message that is older than `transaction_hours_max` waits for an operator.
"""

import asyncio
from collections.abc import Callable

from lockstep.broker.classic.connections import ClassicConnection, ClientConnections
from lockstep.broker.delivery.home_delivery import LOSSES
from lockstep.broker.delivery.room_copies import asked_record
from lockstep.broker.store import ReadStatus, Store
from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX, CheckSchedule
from lockstep.broker.tables.transaction_table import OpenHalf, TransactionTable
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.headers.transactions import CheckTransactionHeader
from lockstep.protocol.messages.ids import message_id_of
from lockstep.protocol.messages.properties import CHECK_IMMUNITY, TRANSACTION_ID, UNIQ_KEY, decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import RoomProperties, read_half
from lockstep.protocol.names import HALF_TOPIC
from lockstep.protocol.object_text import text_of
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

LOOK_MS = 1_000
"""The interval at which messages are looked at of which nobody could be asked."""
PER_SECOND = 1_000
"""Half messages that are looked at in a second."""
PER_CONNECTION = 100
"""Questions to a connection in a second."""
UNSENT_BYTES_MAX = 4 << 20
"""A connection with more bytes that wait to be sent is not asked now."""
HOUR_MS = 3_600_000
DIGITS_MAX = 9


class CheckBack:
    """Asks for outcomes: `run` asks until it is cancelled, `on_arrival` reports new half messages."""

    def __init__(
        self,
        host: Host,
        store: Store,
        table: TransactionTable,
        connections: ClientConnections,
        terms: Callable[[], tuple[int, float]],
        deleted_since: Callable[[str, int], bool],
    ) -> None:
        """`terms` returns after how many ms a sender is first asked, and for how many hours. `deleted_since`: GroupTopics.deleted_since."""
        self._deleted_since = deleted_since
        self._clock = host.clock
        self._random = host.random
        self._store = store
        self._table = table
        self._connections = connections
        self.terms = terms
        self._schedule = CheckSchedule()
        self._expired: set[int] = set()
        """Those that are too old. They are looked at seldom: `transaction_hours_max` may be raised, or their topic deleted."""
        self._wake = asyncio.Event()
        self._second_ms = -LOOK_MS
        """When the second began to which these belong:"""
        self._left = PER_SECOND
        self._asked: dict[int, int] = {}
        """Connection → questions."""
        self.asked_count = 0
        """Questions since the start."""

    def expires_ms(self, half: OpenHalf) -> int:
        """Return until when a half message is asked about, in ms since 1970, by the present setting."""
        return self._table.present_ms(half) + int(self.terms()[1] * HOUR_MS)

    def is_expired(self, half: OpenHalf) -> bool:
        """Return whether a half message is too old to be asked about."""
        return self._store.now_ms() > self.expires_ms(half)

    async def expired_count(self) -> int:
        """Return how many open half messages are too old to be asked about."""
        count = 0
        for part in self._table.below(self._store.end_offset(HALF_TOPIC, 0)):
            count += sum(map(self.is_expired, part))
            await asyncio.sleep(0)
        return count

    def on_arrival(self) -> None:
        """Report new half messages."""
        self._wake.set()

    def ask_soon(self, offset: int) -> None:
        """Ask about a half message in the next turn."""
        if self._table.find(offset) is not None:
            self._schedule.put(offset, self._clock.monotonic_ms())
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.look()
            if self._schedule.next_ms() is None:
                await self._wake.wait()
            else:
                await is_set_within(self._wake, LOOK_MS / 1000)
                await asyncio.sleep(0)

    async def look(self) -> None:
        """Ask about the half messages of which the time has come."""
        first_ms, _ = self.terms()
        self._schedule.put_all(self._table.take_opened(), self._clock.monotonic_ms() + first_ms)
        self._table.forget_outcomes(self._store.now_ms())
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._second_ms >= LOOK_MS:
            self._second_ms, self._left, self._asked = now_ms, PER_SECOND, {}
        taken = self._schedule.take(now_ms, self._left)
        self._left -= len(taken)
        for offset in taken:
            await self._look(offset)

    async def _look(self, offset: int) -> None:
        """Ask about a half message, if it is open."""
        half, now_ms = self._table.find(offset), self._clock.monotonic_ms()
        if half is None:
            self._forget(offset)
            return
        try:
            data = await self._read(half)
            if self._table.find(offset) is None:
                self._forget(offset)  # it has ended meanwhile, or is lost
                return
            record = RecordView(data) if data else None
            found = None if record is None else read_half(record.properties)
            if record is None or found is None:
                self._schedule.put(offset, now_ms + LOOK_MS)  # it is not confirmed yet, or was stored again meanwhile
                return
            if self._deleted_since(found.topic.decode(), found.began):
                self._forget(offset)
                log_limited(log, "warning", "transaction.rolled_back", **_facts(offset, found), why="its topic was deleted")
                self._table.roll_back(half, self._store.now_ms())
            elif self.is_expired(half):
                self._expire(offset, found)
            else:
                self._expired.discard(offset)
                self._ask(offset, half, record, found, data)
        except SystemBusyError:  # its entry is compared with the log
            self._schedule.put(offset, now_ms + LOOK_MS)
        except Exception as error:  # one message: logged, and read again later
            log_limited(log, "error", "transaction.unreadable", offset=offset, error=text_of(error), then="it is read again later")
            self._schedule.put_asked(offset, now_ms)

    async def _read(self, half: OpenHalf) -> bytes:
        """Return the record of a half message, nothing if there is none now. If there never will be, the message is lost: it is rolled
        back, because nobody can decide about it."""
        result = await self._store.read_or_wait(HALF_TOPIC, 0, half.offset, 1, 1)
        if result.status is ReadStatus.FOUND:
            return b"".join(result.parts)
        if result.status in LOSSES and result.next_offset > half.offset and self._table.find(half.offset) is half:
            then = "it is rolled back: whether its transaction was committed can't be asked"
            log_limited(log, "error", "transaction.lost", offset=half.offset, why=LOSSES[result.status], then=then)
            self._store.damage.add_lost(HALF_TOPIC, 0, half.offset, half.offset + 1)
            self._table.roll_back(half, self._store.now_ms())
        return b""

    def _ask(self, offset: int, half: OpenHalf, record: RecordView, found: RoomProperties, data: bytes) -> None:
        now_ms, age_ms = self._clock.monotonic_ms(), self._store.now_ms() - self._table.present_ms(half)
        properties = decode_properties(record.properties)
        rest_ms = immunity_ms(properties.get(CHECK_IMMUNITY, "")) - age_ms
        target = None if rest_ms > 0 else self._target(found)
        if target is None:
            self._schedule.put(offset, now_ms + max(rest_ms, LOOK_MS))
            return
        self._asked[target.endpoint.id] = self._asked.get(target.endpoint.id, 0) + 1
        unique = properties.get(UNIQ_KEY, "")
        header = CheckTransactionHeader(
            tran_state_table_offset=offset,
            commit_log_offset=record.physical_offset,
            msg_id=unique,
            transaction_id=properties.get(TRANSACTION_ID, unique),
            offset_msg_id=message_id_of(record.store_host, record.physical_offset),
        )
        fields = CODECS[target.endpoint.codec].write_fields(header)
        target.endpoint.oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, asked_record(data))
        self.asked_count += 1
        self._schedule.put_asked(offset, now_ms)

    def _forget(self, offset: int) -> None:
        self._schedule.forget(offset)
        self._expired.discard(offset)

    def _expire(self, offset: int, found: RoomProperties) -> None:
        """Ask no more, unless the limit is raised."""
        self._schedule.put(offset, self._clock.monotonic_ms() + PAUSE_MS_MAX)
        if offset not in self._expired:
            self._expired.add(offset)
            then = "nobody is asked any more: `lockstep tx ls` lists it, `lockstep tx commit` and `rollback` decide"
            log_limited(log, "warning", "transaction.expired", **_facts(offset, found), then=then)

    def _target(self, found: RoomProperties) -> ClassicConnection | None:
        """Return whom to ask about a half message; None if nobody is there, or its sender may come back."""
        group, topic, client_id = found.group.decode(), found.topic.decode(), found.client_id.decode()
        if client_id:
            sender = self._connections.producer(client_id)
            if sender is not None and sender.may_be_asked(group, topic):
                return sender if self._is_free(sender) else None
            if self._connections.may_return(client_id, self._clock.boot_ms()):
                return None
        others = [each for each in self._connections.producers(group) if each.may_be_asked(group, topic) and self._is_free(each)]
        others = [each for each in others if each.is_native or each.is_sender] or others
        return others[self._random.below(len(others))] if others else None

    def _is_free(self, client: ClassicConnection) -> bool:
        endpoint = client.endpoint
        return not endpoint.closed and endpoint.unsent_bytes <= UNSENT_BYTES_MAX and self._asked.get(endpoint.id, 0) < PER_CONNECTION


def _facts(offset: int, found: RoomProperties) -> dict[str, object]:
    return {"topic": found.topic.decode(), "group": found.group.decode(), "offset": offset}


def immunity_ms(text: str) -> int:
    """Return the value of CHECK_IMMUNITY_TIME_IN_SECONDS in ms; 0 if it is no number."""
    return int(text) * 1_000 if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else 0
