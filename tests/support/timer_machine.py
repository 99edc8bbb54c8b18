"""A real store with timers and the handlers of their requests, on a machine whose clocks and disk the test sets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.room_bytes import RoomBytes
from lockstep.broker.delivery.room_carry import RoomCarry
from lockstep.broker.delivery.timer_delivery import TimerDelivery
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.rooms.end_transaction import TRANSACTION_LANE, EndTransactionProcessor
from lockstep.broker.processors.rooms.recall import RecallProcessor
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.processors.send_message import SendMessageProcessor
from lockstep.broker.processors.sent_frames import SentFrames, WaitingLimits
from lockstep.broker.processors.topic import ROUTE_LANE, TopicProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.state import BrokerState
from lockstep.broker.store import ReadResult, Store
from lockstep.broker.tables.send_gate import SendGate
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import EndTransactionBody, EndTransactionReply, HalfMessage
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.send import RecallMessageHeader, SendRecordsHeader, SendRecordsReply
from lockstep.protocol.headers.transactions import EndTransactionHeader
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.messages.rooms import half_properties, home_properties
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.testing.simulation.disk import SimFiles
from support.broker_fakes import FakeEndpoint
from support.clocks import SetClock
from support.coordination_kit import BROKER, CONFIG
from support.store_kit import IDENTITY, STARTED_MS, append, config, confirmed, host_of, kill

DAY_MS = 86_400_000
TURNS_MAX = 200_000
"""Turns of the loop after which what is waited for counts as never coming."""


def delay(ms: int) -> bytes:
    """Return the property of a timer that waits for so long."""
    return b"TIMER_DELAY_MS\x01%d" % ms


def until(ms: int) -> bytes:
    """Return the property of a timer that waits until a time of day."""
    return b"TIMER_DELIVER_MS\x01%d" % ms


class RestingDelivery(TimerDelivery):
    """A delivery that shows when it waits."""

    is_resting = False

    async def _wait_until_due(self) -> None:
        self.is_resting = True
        try:
            await super()._wait_until_due()
        finally:
            self.is_resting = False


class ReadGate:
    """Holds the next read of the room: it has its result, and returns it when `go` is set. Other reads go on."""

    def __init__(self, store: Store, *, after: int = 0, room: str = TIMER_TOPIC, before: bool = False) -> None:
        """`after`: the number of reads that are not held. `before`: the one that is held reads the log when `go` is set."""
        self._read = store.read_or_wait
        self._room = room
        self._left = after
        self._before = before
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        store.read_or_wait = self  # type: ignore[method-assign, assignment]

    async def __call__(self, topic: str, *page: Any) -> ReadResult:
        self._left -= topic == self._room
        is_held = topic == self._room and self._left == -1
        if is_held and self._before:
            await self._hold()
        result = await self._read(topic, *page)
        if is_held and not self._before:
            await self._hold()
        return result

    async def _hold(self) -> None:
        self.reached.set()
        await self.go.wait()


class TimerMachine:
    """A machine whose wall clock is `clock.ahead_ms` ahead of the boot clock. Time passes only where a test says so."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        """`settings` are those of the store."""
        self.settings = {"segment_bytes": 1 << 20, "flush_interval_ms": 3_600_000, **settings}
        self.clock = SetClock(STARTED_MS)
        self.boots = 1
        self.files = SimFiles(seed)
        self.host = host_of(self.files)
        object.__setattr__(self.host, "clock", self.clock)
        object.__setattr__(self.host, "boot_id", lambda: f"boot-{self.boots}")
        self.holds = WriteHolds()
        self.sequences: dict[tuple[str, str, int], FrameSequence] = {}
        """(Producer id, topic, queue id) → its last frame."""
        self.sent = 0
        self.client_id = ""
        """That of the connection which sends half messages."""
        self.bytes_max = 1 << 40
        """The largest number of bytes of pending timers (`timer_mib_max`), from the next start on."""
        self.halves_max = 100_000
        """The largest number of open half messages (`transactions_open_max`), from the next start on."""
        self.known: Callable[[], Awaitable[None]] | None = None
        """Returns when the nameservers know the topics; None: they always do, and sends create none. From the next start on."""
        self.asked_soon: list[int] = []
        """Offsets of half messages whose senders do not know the outcome."""

    # -- starts and ends -------------------------------------------------------------------------

    async def start(self) -> "TimerMachine":
        self.store = store = await Store.open(config(**self.settings), self.host, IDENTITY)
        self.state = state = BrokerState(CONFIG, store, self.host.random)
        self.recovery = await store.recover(state)
        self.fatal: list[BaseException] = []
        store.writer.on_fatal = self.fatal.append
        store.record_clock()
        coordination = state.coordination
        coordination.enter_term(coordination.state.term + 1, assumed_loss=False, now_ms=0)
        coordination.port_opened(0)
        if coordination.state.term == 1:
            self.create_topic("orders")
            self.create_topic("bills")
        await store.sync()
        self._connect()
        self.delivery = asyncio.ensure_future(self.timers.run())
        return self

    def _connect(self) -> None:
        store, state, clock = self.store, self.state, self.clock
        self.topics = topics = GroupTopics(state.topics, store.check_new_state, lambda topic: self.holds.holds(topic, clock.boot_ms()))
        self.home = HomeDelivery(store, topics)
        self.timers = RestingDelivery(store, state.timers, self.home, clock)
        self.carry = RoomCarry(store, TIMER_TOPIC, state.timers)
        self.half_carry = RoomCarry(store, HALF_TOPIC, state.transactions)
        delays = DelayedDelivery(store, state.delays, topics, self.home, LEVELS_MS)
        failed = FailedMessages(store, state.coordination, delays, topics)
        creator = TopicProcessor(state.topics, self.holds, clock, auto_create=self.known is not None, wait_until_known=self.known)
        rooms = state.timers, state.transactions, WaitingLimits(100_000, 40 * DAY_MS, self.halves_max)
        self.bytes = RoomBytes(store, TIMER_TOPIC, state.timers, lambda: self.bytes_max)
        frames = SentFrames(store, state.topics, SendGate(), self.holds, clock, UserQuotas(None, clock), *rooms, self.bytes)
        connections = ClientConnections(state.coordination)
        self.ends = EndTransactionProcessor(store, state.transactions, self.home, self.asked_soon.append)
        processors = [
            SendProcessor(state.sequences, frames, lambda _: self.client_id),
            SendMessageProcessor(frames, creator, failed, self.host.random, connections, broker_name=BROKER, cluster="DefaultCluster"),
            RecallProcessor(store, state.timers, BROKER),
            self.ends,
        ]
        lanes = {name: LaneLimits(concurrency=2, queue_max=256) for name in (QUERY_LANE, TRANSACTION_LANE, ROUTE_LANE)}
        self.dispatcher = Dispatcher(processors, store.writer, lanes)
        store.writer.on_arrival = lambda topic, _queue_id: self.timers.on_arrival() if topic == TIMER_TOPIC else None

    async def stop(self) -> None:
        """Stop in order."""
        self.delivery.cancel()
        await self.dispatcher.close()
        await self.store.close()

    async def kill(self, *, power: bool = False) -> None:
        """End the process, or cut the power of the machine: unsynced writes are kept, lost or torn."""
        self.delivery.cancel()
        await kill(self.store, self.files, power=power)
        self.boots += power

    async def lose_power(self) -> None:
        """Cut the power of the machine, so that all that was not synced is lost."""
        await self.kill()
        self.files.crash(power=True, keep=lambda *_: False)
        self.boots += 1

    async def restart(self, *, power: bool = False, snapshot: bool = False) -> None:
        if snapshot:
            await self.snapshot()
        await self.kill(power=power)
        await self.start()

    async def snapshot(self) -> None:
        await self.store.write_snapshot(self.state.take_snapshot())

    # -- topics ----------------------------------------------------------------------------------

    def create_topic(self, topic: str, counter: int = 1, queues: int = 4) -> None:
        """Create a topic or, with a higher counter than it has and `queues` 0, delete it."""
        entries = (LayoutEntry(BROKER, queues, queues, counter),) if queues else ()
        self.state.topics.create(TopicLayout(topic, LayoutVersion(counter, 7), entries))

    # -- requests --------------------------------------------------------------------------------

    async def ask(
        self, code: RequestCode, header: object, body: bytes = b"", *, codec: int = MSGPACK, version: int = 455, peer: str = "10.0.0.7:5000"
    ) -> Command:
        """Return the response to a request."""
        endpoint = FakeEndpoint(peer=peer)
        command = Command(int(code), 1, version=version, fields=CODECS[codec].write_fields(header), body=body, codec=codec)
        self.dispatcher(command, cast(Any, endpoint))
        await self.turns_until(lambda: bool(endpoint.sent))
        (response,) = endpoint.take()
        return response

    async def send(
        self,
        *messages: tuple[bytes, bytes],
        topic: str = "orders",
        queue_id: int = 2,
        producer: str | None = None,
        properties: bytes = b"",
        named: bool = True,
        peer: str = "10.0.0.7:5000",
        **fields: int,
    ) -> list[str]:
        """Send a frame of (body, property of the timer) as lockstep's clients do. Return the recall handles.

        `properties` follow the id of each message, which it has if it is `named`. Without a `producer` it is the first frame of a new one.
        """
        layout = self.state.topics.require_layout(topic)
        home, ids, records = home_properties(topic, queue_id, layout.began), list[str](), list[bytes]()
        for body, timer in messages:
            ids.append(f"ID{self.sent:06}")
            self.sent += 1
            text = b"\x02".join(filter(None, (home + timer, b"UNIQ_KEY\x01" + ids[-1].encode() if named else b"", properties)))
            records.append(encode_record(TIMER_TOPIC.encode(), 0, body, text, **{"born_ms": 1, **fields}))
        producer = f"{self.sent:032x}" if producer is None else producer
        scope = producer, topic, queue_id
        last = self.sequences.get(scope)
        place = (0, True) if last is None else (last.next, False)
        wanted = FrameSequence(producer, queue_id * 2 + (topic == "bills"), 1, place[0], len(records), place[1], 0)
        frame, sealed = seal_frame(records, wanted, 0 if last is None else last.crc)
        sequence = sealed.producer_id, sealed.partition, sealed.epoch, sealed.first, sealed.first_known, sealed.crc
        header = SendRecordsHeader(topic, queue_id, len(records), None, None, *sequence, room=TIMER_TOPIC, began=layout.began)
        response = await self.ask(RequestCode.SEND_RECORDS, header, frame, peer=peer)
        assert response.code == ResponseCode.SUCCESS, response.remark
        self.sequences[scope] = sealed
        stored = from_plain(SendRecordsReply, response.fields)
        return [
            RecallHandle(topic, BROKER, due_ms(timer, stored.store_timestamp), ids[number], stored.queue_offset + number).encode()
            for number, (_, timer) in enumerate(messages)
        ]

    async def put(self, body: bytes, timer: bytes, **how: Any) -> str:
        """Send one timer. Return its recall handle."""
        return (await self.send((body, timer), **how))[0]

    async def send_halves(
        self,
        *bodies: bytes,
        topic: str = "orders",
        queue_id: int = 2,
        group: str = "shop",
        client_id: str = "",
        told_id: str | None = None,
        producer: str | None = None,
        properties: bytes = b"",
    ) -> tuple[Command, list[str]]:
        """Send one frame of half messages as lockstep's clients do. Return the response and the ids of the messages.

        `told_id`: the client id in the records, if it is not that of the connection. `properties` follow the id of each message. Without a
        `producer` it is the first frame of a new one.
        """
        layout, records, ids = self.state.topics.require_layout(topic), list[bytes](), list[str]()
        sender = half_properties(group, client_id if told_id is None else told_id)
        for body in bodies:
            ids.append(f"ID{self.sent:06}")
            self.sent += 1
            text = b"\x02".join(filter(None, (f"UNIQ_KEY\x01{ids[-1]}".encode(), properties)))
            text = home_properties(topic, queue_id, layout.began) + sender + text
            records.append(encode_record(HALF_TOPIC.encode(), 0, body, text, born_ms=1))
        scope = f"{self.sent:032x}" if producer is None else producer, HALF_TOPIC, 0
        last = self.sequences.get(scope)
        first, crc = (0, 0) if last is None else (last.next, last.crc)
        frame, sealed = seal_frame(records, FrameSequence(scope[0], 0, 1, first, len(records), last is None, 0), crc)
        sequence = sealed.producer_id, sealed.partition, sealed.epoch, sealed.first, sealed.first_known, sealed.crc
        self.client_id = client_id
        room: dict[str, Any] = {"room": HALF_TOPIC, "began": layout.began, "producer_group": group, "durable": True}
        header = SendRecordsHeader(topic, queue_id, len(records), None, None, *sequence, **room)
        response = await self.ask(RequestCode.SEND_RECORDS, header, frame)
        if response.code == ResponseCode.SUCCESS:
            self.sequences[scope] = sealed
        return response, ids

    async def halves(self, *bodies: bytes, **how: Any) -> list[HalfMessage]:
        """Send one frame of half messages. Return how END_TRANSACTION names them."""
        response, ids = await self.send_halves(*bodies, **how)
        assert response.code == ResponseCode.SUCCESS, response.remark
        first = from_plain(SendRecordsReply, response.fields).queue_offset
        return [HalfMessage(first + number, unique) for number, unique in enumerate(ids)]

    async def half(self, body: bytes, **how: Any) -> HalfMessage:
        """Send one half message. Return how END_TRANSACTION names it."""
        return (await self.halves(body, **how))[0]

    async def end(
        self, outcome: int, *halves: HalfMessage, group: str = "shop", reason: str | None = None
    ) -> tuple[int, list[tuple[int, int]]]:
        """End half messages, with a `reason` as an operator. Return the code of the response, and the places that it has."""
        body = encode_body(EndTransactionBody(halves))
        response = await self.ask(RequestCode.END_TRANSACTION, EndTransactionHeader(group, outcome, reason=reason), body)
        if response.code != ResponseCode.SUCCESS:
            return response.code, []
        places = decode_body(EndTransactionReply, response.body).places
        return response.code, [(each.queue_id, each.offset) for each in places]

    async def recall(self, handle: str, topic: str = "orders") -> Command:
        return await self.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic, handle))

    # -- time ------------------------------------------------------------------------------------

    async def turns_until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop turn until `is_so` returns True. Raise the error that has ended the delivery."""
        for _ in range(TURNS_MAX):
            if is_so():
                return
            if self.delivery.done() and not self.delivery.cancelled():
                self.delivery.result()
            await asyncio.sleep(0)
        raise AssertionError("it never happens")

    async def rest(self) -> None:
        """Wake the delivery, and wait until it has done all that it can do now."""
        self.timers.is_resting = False
        self.timers.on_arrival()
        await self.turns_until(lambda: self.timers.is_resting)

    async def look(self) -> None:
        """Do what a broker does in a second, the delivery included, while the clocks stand."""
        self.store.follow_clock()
        await self.rest()
        await confirmed(self.store)

    async def pass_ms(self, ms: int, step_ms: int = 1_000) -> None:
        end = self.clock.now_ms + ms
        while self.clock.now_ms < end:
            self.clock.now_ms = min(end, self.clock.now_ms + step_ms)
            await self.look()

    # -- what is there ---------------------------------------------------------------------------

    async def records(self, topic: str = "orders", queue_id: int = 2) -> list[RecordView]:
        """Return the messages of a queue."""
        first, end = self.store.bounds(topic, queue_id)
        found: list[RecordView] = []
        while first + len(found) < end:
            result = await self.store.read_or_wait(topic, queue_id, first + len(found), 1_000, 1 << 22)
            data = b"".join(result.parts)
            found += [RecordView(data, begin) for begin, _ in split_records(data)]
        return found

    async def arrived(self, topic: str = "orders", queue_id: int = 2) -> list[bytes]:
        """Return the bodies in the order of arrival."""
        return [record.body for record in await self.records(topic, queue_id)]

    async def stored_timer(self, offset: int) -> RecordView:
        """Return the record in the room at this offset."""
        result = await self.store.read_or_wait(TIMER_TOPIC, 0, offset, 1, 1)
        return RecordView(b"".join(result.parts))

    # -- retention -------------------------------------------------------------------------------

    async def fill(self, files: int) -> None:
        """Append messages of other senders until the log has so many more files."""
        end = self.store.log_bounds[1] // self.segment_bytes + files
        while self.store.log_bounds[1] // self.segment_bytes < end:
            append(self.store, b"f" * 1_000, topic="filler")
        await confirmed(self.store)

    @property
    def segment_bytes(self) -> int:
        return int(self.settings["segment_bytes"])

    async def two_snapshots(self) -> None:
        """Write two snapshots, each at another end of the log."""
        for _ in range(2):
            self.state.record_store_id()
            await self.snapshot()

    async def remove_old(self) -> None:
        """Run a round of retention, after two snapshots: it keeps what the older one needs."""
        await self.two_snapshots()

        async def carry_before(position: int) -> int:
            return await self.half_carry.carry_before(await self.carry.carry_before(position))

        await self.store.retention(self.store.safe_now_ms(), carry_before)


def due_ms(timer: bytes, store_ms: int) -> int:
    """Return when a timer is due by the clock of the store that stored it."""
    name, _, value = timer.partition(b"\x01")
    return store_ms + int(value) if name == b"TIMER_DELAY_MS" else int(value)
