"""A whole broker in this process, on a free port with a store of its own, spoken to in native frames."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import LANES, Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.processors.pull import COLD_COUNT_MAX, UNSENT_BYTES_MAX
from lockstep.broker.registrar import RegistrationRefused
from lockstep.broker.store import IdentityError, Store, StoreInUse
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import (
    ConsumerGroup,
    CreateTopicReply,
    FreeQueue,
    HeartbeatBody,
    HeartbeatReply,
    LockItem,
    QueueFreeBody,
    ReconcileBody,
    ReconcileReply,
    StartPoint,
    StartPolicy,
    Subscription,
    SyncBody,
    SyncItem,
    SyncReply,
    TopicRoute,
    Verdict,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.protocol.headers.clients import UnregisterClientHeader
from lockstep.protocol.headers.offsets import QueueHeader, TopicHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import DeadLetterHeader, SendBackHeader, SendMessageHeader, SendRecordsHeader, SendRecordsReply
from lockstep.protocol.properties import decode_properties
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.protocol.record import RecordView, encode_record, split_records
from lockstep.protocol.sequence import FrameSequence, seal
from lockstep.runtime.clock import Clock
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import THREADS_MAX, Host
from lockstep.runtime.pool import connect
from support.until import until

PRODUCER = "ab" * 16
TOPIC = "orders"
LAYOUT = TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),))


def settings(path: Path, **values: Any) -> BrokerConfig:
    return BrokerConfig(**{"listen": ("127.0.0.1:0",), "store": str(path / "store"), "segment_mib": 4, "disk_reserve_mib": 1, **values})


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[Broker]:
    broker = Broker(config, Host.real())
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def dialled(broker: Broker) -> AsyncIterator["Client"]:
    inbound: asyncio.Queue[Command] = asyncio.Queue()
    endpoint = await connect(Host.real(), broker.address, handler=lambda command, _: inbound.put_nowait(command))
    try:
        yield Client(endpoint, inbound)
    finally:
        endpoint.close("done")
        await endpoint.wait_closed()


class Client:
    def __init__(self, endpoint: Endpoint, inbound: asyncio.Queue[Command]) -> None:
        self.endpoint = endpoint
        self.inbound = inbound

    def ask(self, code: RequestCode, header: object = None, body: bytes = b"") -> "asyncio.Future[Command]":
        return self.endpoint.request(code, None if header is None else to_plain(header), body, timeout_ms=10_000)

    async def done(self, code: RequestCode, header: object = None, body: bytes = b"") -> Command:
        answer = await self.ask(code, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def create(self, layout: TopicLayout = LAYOUT) -> TopicLayout:
        answer = await self.done(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(layout.topic), encode_body(layout))
        return decode_body(CreateTopicReply, answer.body).layout

    def pull(self, offset: int = 0, queue_id: int = 0, **header: Any) -> "asyncio.Future[Command]":
        known = {"sys_flag": SUBSCRIPTION, "max_msg_nums": 100, "max_msg_bytes": 1 << 20}
        return self.ask(RequestCode.PULL_MESSAGE, PullHeader("g", TOPIC, queue_id, offset, **{**known, **header}))


def frame(first: int, count: int, *, crc: int = 0, queue_id: int = 0, body: bytes = b"m") -> tuple[SendRecordsHeader, bytes, int]:
    """(header, body, running CRC) of an idempotent frame."""
    records = [encode_record(TOPIC.encode(), queue_id, body + b"%d" % (first + i), b"TAGS\x01a", born_ms=1) for i in range(count)]
    data, sealed = seal(records, FrameSequence(PRODUCER, 0, 1, first, count, first == 0, 0), crc)
    header = SendRecordsHeader(TOPIC, queue_id, count, None, None, PRODUCER, 0, 1, first, first == 0, sealed.crc)
    return header, data, sealed.crc


def bodies(answer: Command) -> list[bytes]:
    return [RecordView(answer.body, start).body for start, _ in split_records(answer.body)]


async def everything(client: Client) -> list[bytes]:
    """All messages of queue 0, in as many pulls as it takes."""
    found: list[bytes] = []
    while (answer := await client.pull(len(found))).code == ResponseCode.SUCCESS:
        found += bodies(answer)
    return found


def place(answer: Command) -> SendRecordsReply:
    return from_plain(SendRecordsReply, answer.fields)


async def test_what_is_sent_is_pulled_byte_for_byte_and_found_by_its_place(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        assert await client.create() == LAYOUT
        header, data, _ = frame(0, 3)
        stored = place(await client.done(RequestCode.SEND_RECORDS, header, data))
        assert (stored.queue_offset, stored.store_host) == (0, broker.address)
        answer = await client.pull()
        assert bodies(answer) == [b"m0", b"m1", b"m2"]
        assert from_plain(PullReply, answer.fields) == PullReply(3, 0, 3)
        view = RecordView((await client.done(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(stored.physical_offset))).body)
        assert (view.body, view.queue_offset, view.physical_offset) == (b"m0", 0, stored.physical_offset)
        assert view.store_ms == stored.store_timestamp
        assert (await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))).fields == {"offset": 3}


async def test_both_sends_share_one_queue_and_one_count(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        answer = await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("g", TOPIC, 0), b"single")
        assert answer.fields["queueOffset"] == 2
        assert bodies(await client.pull()) == [b"m0", b"m1", b"single"]


async def test_a_pull_behind_a_send_sees_it_without_waiting(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 1)
        sent, pulled = client.ask(RequestCode.SEND_RECORDS, header, data), client.pull()
        assert (await sent).code == (await pulled).code == ResponseCode.SUCCESS


async def test_who_does_not_read_costs_the_broker_one_page_and_a_bit_and_gets_everything_in_the_end(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        record = encode_record(TOPIC.encode(), 0, bytes(500_000), b"", born_ms=1)
        for _ in range(4):
            await client.done(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1), record)
        host, port = broker.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        fields = to_plain(PullHeader("g", TOPIC, 0, 0, 100, SUBSCRIPTION, max_msg_bytes=1 << 20))
        writer.write(b"".join(encode_frame(Command(RequestCode.PULL_MESSAGE, n, fields=fields)) for n in range(40)))
        assert broker._pulls is not None
        assert broker._server is not None
        pulls, endpoints = broker._pulls, broker._server.endpoints
        await until(lambda: bool(pulls._blocked))
        assert max(endpoint.unsent_bytes for endpoint in endpoints.values()) <= 2 * UNSENT_BYTES_MAX + 100_000
        assert bodies(await client.pull(3)) == [bytes(500_000)]
        frames, answered = FrameBuffer(), list[int]()
        while len(answered) < 40:
            frames.feed(await reader.read(1 << 20))
            while (answer := frames.next()) is not None:
                assert len(bodies(answer)) == 2
                answered.append(answer.opaque)
        assert answered == list(range(40))
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_long_poll_is_woken_by_the_arrival(tmp_path: Path, flush: str) -> None:
    async with running(settings(tmp_path, flush=flush)) as broker, dialled(broker) as client, dialled(broker) as other:
        await client.create()
        waiting = client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        assert not waiting.done()
        header, data, _ = frame(0, 1)
        await other.done(RequestCode.SEND_RECORDS, header, data)
        assert bodies(await waiting) == [b"m0"]


async def test_a_stop_answers_who_waits(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        waiting = client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        await broker.stop()
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND


# ------------------------------------------------------------------------------------------------------------------- restarts


async def stop(broker: Broker) -> None:
    await broker.stop()


async def kill(broker: Broker) -> None:
    """As kill −9 leaves it: nothing is flushed in order, no snapshot, no goodbye."""
    store = broker._store
    assert store is not None
    broker._fail(RuntimeError("killed"))
    await broker.stop()


@pytest.mark.parametrize("end", [stop, kill])
async def test_a_restart_remembers_messages_topics_sequences_and_locks(
    tmp_path: Path, end: Callable[[Broker], Coroutine[Any, Any, None]]
) -> None:
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    header, data, crc = frame(0, 3)
    async with dialled(broker) as client:
        await client.create()
        first = place(await client.done(RequestCode.SEND_RECORDS, header, data))
        grant = await join(client, "a@1#0", "0" * 32)
        await client.done(RequestCode.SYNC, body=encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch=grant, offset=2, attempts=1),))))
        term = broker.term
        await end(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert again.term > term
        assert place(await client.done(RequestCode.SEND_RECORDS, header, data)) == replace(first, store_host=again.address)
        following, more, _ = frame(3, 1, crc=crc)
        assert place(await client.done(RequestCode.SEND_RECORDS, following, more)).queue_offset == 3
        assert await everything(client) == [b"m0", b"m1", b"m2", b"m3"]
        assert await client.create() == LAYOUT
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        answer = await reconcile(client, LockItem("g", TOPIC, 0, epoch=grant))
        assert (answer.verdict, answer.epoch, answer.offset, answer.attempts) == (Verdict.OK, grant, 2, 1)


async def heartbeat(client: Client, client_id: str, session: str, connection: int = 1) -> HeartbeatReply:
    group = ConsumerGroup("g", (Subscription(TOPIC),), consume_from_where=StartPoint.FIRST_OFFSET, ordered=True)
    body = HeartbeatBody(client_id, (group,), session=session, connection=connection)
    return decode_body(HeartbeatReply, (await client.done(RequestCode.HEART_BEAT, body=encode_body(body))).body)


async def reconcile(client: Client, item: LockItem) -> Any:
    body = ReconcileBody((item,), (StartPolicy("g", TOPIC, StartPoint.FIRST_OFFSET),))
    reply = decode_body(ReconcileReply, (await client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))).body)
    return reply.items[0]


async def join(client: Client, client_id: str, session: str) -> int:
    """HEART_BEAT and LOCK of queue 0; the epoch."""
    reply = await heartbeat(client, client_id, session)
    assert reply.groups["g"].list.members == (client_id,)
    answer = await reconcile(client, LockItem("g", TOPIC, 0))
    assert answer.verdict is Verdict.OK
    return int(answer.epoch)


class Slept(Clock):
    """Of a machine that was suspended for a day."""

    def boot_ms(self) -> int:
        return super().boot_ms() + 86_400_000


async def test_every_lease_is_counted_on_the_clock_that_counts_suspension(tmp_path: Path) -> None:
    clock = Slept()
    broker = Broker(settings(tmp_path), replace(Host.real(), clock=clock))
    try:
        await broker.start()
        async with dialled(broker) as client:
            await client.create()
            epoch = await join(client, "a@1#0", "0" * 32)
            for request in ("heartbeat", "lock", "sync", "anything"):
                if request == "heartbeat":
                    await heartbeat(client, "a@1#0", "0" * 32)
                elif request == "lock":
                    assert (await reconcile(client, LockItem("g", TOPIC, 0, epoch))).verdict is Verdict.OK
                elif request == "sync":
                    await client.done(RequestCode.SYNC, body=encode_body(SyncBody()))
                else:
                    await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
                broker.state.coordination.tick(clock.boot_ms() + 4_000)  # the grace of the start is over
                assert broker.state.coordination.online("g"), f"{request} was heard"
    finally:
        await broker.stop()


async def test_a_deleted_topic_stays_deleted_and_its_messages_hidden_after_a_restart(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 3)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.create(TopicLayout(TOPIC, LayoutVersion(2, 7), ()))
        assert (await client.pull()).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.create()).version == LayoutVersion(3, 7)
        await kill(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert (await client.create()).version == LayoutVersion(3, 7)
        assert bodies(await client.pull()) == []


@pytest.mark.parametrize(
    ("end", "boot", "flush", "flush_now", "held"),
    [
        (kill, "other", "async", "async", True),
        (kill, "other", "async", "sync", True),
        (kill, "same", "async", "async", False),
        (kill, "other", "sync", "async", False),
        (stop, "other", "async", "async", False),
    ],
)
async def test_only_an_unclean_stop_and_another_boot_under_async_flush_count_as_loss(
    tmp_path: Path, end: Callable[[Broker], Coroutine[Any, Any, None]], boot: str, flush: str, flush_now: str, held: bool
) -> None:
    broker = Broker(settings(tmp_path, flush=flush), replace(Host.real(), boot_id=lambda: "same"))
    await broker.start()
    await end(broker)
    again = Broker(settings(tmp_path, flush=flush_now), replace(Host.real(), boot_id=lambda: boot))
    try:
        await again.start()
        assert again.state.coordination.holding is held
    finally:
        await again.stop()


async def test_a_start_that_is_given_up_before_its_term_stands_does_not_count_as_a_clean_stop(tmp_path: Path) -> None:
    """Else the start that follows would forget the crash that came before."""
    broker = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "first"))
    await broker.start()
    await kill(broker)
    blocked = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "second"))
    blocked._enter_term = refuse_term  # type: ignore[method-assign]
    with pytest.raises(ConfigError):
        await blocked.start()
    await blocked.stop()
    again = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "second"))
    try:
        await again.start()
        assert again.state.coordination.holding
    finally:
        await again.stop()


async def test_a_broker_that_never_started_does_not_say_that_it_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(settings(tmp_path / "one")) as one:
        two = Broker(settings(tmp_path / "two", listen=(one.address,)), Host.real())
        with pytest.raises(LockstepError, match="address already in use"):
            await two.start()
        await two.stop()
        assert "broker.stopped" not in caplog.text
    assert caplog.text.count("broker.stopped") == 1


async def test_the_boot_id_is_stored_when_the_new_term_is_durable_and_before_the_port_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed in between must not forget the machine's crash; no fence may be told that a crash could take back."""
    broker = Broker(settings(tmp_path), Host.real())
    seen: list[int] = []
    mark_boot = Store.mark_boot

    async def watched(store: Store, boot_id: str) -> None:
        assert broker._server is not None
        assert broker.term > 0
        assert len(broker.state.journal) == 0
        assert store._log.synced == store._log.end > 0
        assert not broker._server._open
        seen.append(broker.term)
        await mark_boot(store, boot_id)

    monkeypatch.setattr(Store, "mark_boot", watched)
    try:
        await broker.start()
        assert seen == [broker.term]
    finally:
        await broker.stop()


async def refuse_term(*_: object) -> None:
    raise ConfigError("given up")


def test_no_sync_of_the_log_waits_for_a_thread() -> None:
    others = COLD_COUNT_MAX + sum(lane.concurrency for lane in LANES.values()) + len(("a snapshot", "retention", "delayed messages"))
    assert others < THREADS_MAX


async def test_a_stamp_that_nobody_has_checked_does_not_get_into_the_log(tmp_path: Path) -> None:
    """Recovery would take its CRC for that of a torn frame, and lose everything acknowledged behind it."""
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    _, data, _ = frame(0, 1)
    plain = SendRecordsHeader(TOPIC, 0, 1)
    async with dialled(broker) as client:
        await client.create()
        refused = await client.ask(RequestCode.SEND_RECORDS, plain, data.replace(b"__LS_SEQ\x01ab", b"__LS_SEQ\x01cd"))
        assert (refused.code, "__LS_" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        await client.done(RequestCode.SEND_RECORDS, plain, encode_record(TOPIC.encode(), 0, b"behind it", b"", born_ms=1))
        await kill(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        await client.create()
        assert bodies(await client.pull()) == [b"behind it"]


async def test_numbers_beyond_an_int64_are_refused_and_the_tables_can_be_written(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        for epoch, first in ((1, (1 << 64) - 1), (1 << 63, 0), (1, (1 << 63) - 1)):
            header = SendRecordsHeader(TOPIC, 0, 1, None, None, PRODUCER, 0, epoch, first, True, 0)
            refused = await client.ask(RequestCode.SEND_RECORDS, header, encode_record(TOPIC.encode(), 0, b"x", b"", born_ms=1))
            assert (refused.code, "does not fit" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        data, sealed = seal(
            [encode_record(TOPIC.encode(), 0, b"x", b"", born_ms=1)],
            FrameSequence(PRODUCER, 0, (1 << 63) - 1, (1 << 63) - 2, 1, True, 0),
            0,
        )
        place = (1 << 63) - 1, (1 << 63) - 2
        await client.done(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1, None, None, PRODUCER, 0, *place, True, sealed.crc), data)
        assert broker._keeper is not None
        await broker._keeper.snapshot()


async def test_a_turn_whose_changes_do_not_fit_a_log_file_is_written_in_parts(tmp_path: Path) -> None:
    count = 12_000
    wide = TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry("broker-a", count, count, 1),))
    config = settings(tmp_path, segment_mib=1)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create(wide)
        await heartbeat(client, "a@1#0", "0" * 32)
        items = tuple(LockItem("g", TOPIC, queue_id) for queue_id in range(count))
        answer = await client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(ReconcileBody(items)))
        granted = decode_body(ReconcileReply, answer.body).items
        assert {item.verdict for item in granted} == {Verdict.OK}
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        answer = await client.done(
            RequestCode.LOCK_BATCH_MQ, body=encode_body(ReconcileBody(tuple(LockItem("g", TOPIC, x.queue_id, x.epoch) for x in granted)))
        )
        assert {item.verdict for item in decode_body(ReconcileReply, answer.body).items} == {Verdict.OK}


async def test_a_contract_that_no_log_file_could_take_is_refused_and_the_broker_lives(tmp_path: Path) -> None:
    async with running(settings(tmp_path, segment_mib=1)) as broker, dialled(broker) as client:
        group = ConsumerGroup("g", (Subscription(TOPIC, "x" * (2 << 20)),), ordered=True)
        refused = await client.ask(RequestCode.HEART_BEAT, body=encode_body(HeartbeatBody("a@1#0", (group,), session="0" * 32)))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == "the subscription has 2097152 characters: at most 8192"
        await heartbeat(client, "a@1#0", "0" * 32)


# ------------------------------------------------------------------------------------------------------- ordered consumption


async def test_a_released_queue_is_offered_to_whom_the_list_names(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as one, dialled(broker) as two:
        await one.create()
        epoch = await join(one, "a@1#0", "0" * 32)
        await heartbeat(two, "b@1#0", "1" * 32)
        assert (await reconcile(two, LockItem("g", TOPIC, 1))).verdict is Verdict.OK
        refused = await reconcile(two, LockItem("g", TOPIC, 0))
        assert refused.verdict is Verdict.NOT_YOURS
        await one.done(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("a@1#0", consumer_group="g"))
        held = two.pull(0, queue_id=0, epoch=epoch, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        body = encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch=epoch, offset=0, release=True),)))
        reply = decode_body(SyncReply, (await one.done(RequestCode.SYNC, body=body)).body)
        assert reply.items[0].verdict is Verdict.OK
        await offered(two, 0)
        again = await reconcile(two, LockItem("g", TOPIC, 0))
        assert again.verdict is Verdict.OK
        assert again.epoch > epoch
        assert (await held).code == ResponseCode.STALE_EPOCH


async def offered(client: Client, queue_id: int) -> None:
    """Until QUEUE_FREE names the queue."""
    while True:
        command = await client.inbound.get()
        if command.code == RequestCode.QUEUE_FREE:
            if FreeQueue("g", TOPIC, queue_id) in decode_body(QueueFreeBody, command.body).queues:
                return
        else:
            assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


# ------------------------------------------------------------------------------------------------------- names and nameservers


async def test_a_store_serves_one_broker_and_one_name(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with pytest.raises(StoreInUse):
            await started(settings(tmp_path))
    with pytest.raises(IdentityError):
        await started(settings(tmp_path, name="broker-b"))
    with pytest.raises(IdentityError):
        await started(settings(tmp_path, cluster="other"))


async def started(config: BrokerConfig) -> None:
    async with running(config):
        pass


async def test_a_broker_is_routed_once_its_nameserver_has_accepted_it(tmp_path: Path) -> None:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    try:
        config = settings(tmp_path, nameserver=nameserver.address)
        async with running(config) as broker, dialled(broker) as client:
            await client.create()
            route = await route_of(nameserver, LAYOUT.version)
            assert [(one.address, one.registered) for one in route.brokers] == [(broker.address, True)]
            second = settings(tmp_path / "second", nameserver=nameserver.address)
            with pytest.raises(RegistrationRefused, match=broker.address):
                await started(second)
        route = await route_of(nameserver, LAYOUT.version)
        assert [one.registered for one in route.brokers] == [False]
    finally:
        await nameserver.stop()


async def route_of(nameserver: Nameserver, version: LayoutVersion) -> TopicRoute:
    """The route, once the nameserver knows this version."""
    endpoint = await connect(Host.real(), nameserver.address)
    try:
        while True:
            answer = await endpoint.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, to_plain(TopicHeader(TOPIC)), timeout_ms=5_000)
            if answer.code == ResponseCode.SUCCESS:
                route = decode_body(TopicRoute, answer.body)
                assert route.layout.version == version
                return route
    finally:
        endpoint.close("done")
        await endpoint.wait_closed()


# ------------------------------------------------------------------------------------------------------------------- failure


async def test_a_failed_write_ends_everything_without_another_answer(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    broker = Broker(settings(tmp_path), Host.real())
    broker.on_fatal = fatal.append
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        assert broker._store is not None
        header, data, _ = frame(0, 1)
        failed = OSError(5, "Input/output error")

        def refuse() -> bool:
            raise failed

        broker._store._log.write = refuse  # type: ignore[method-assign]
        sent = client.ask(RequestCode.SEND_RECORDS, header, data)
        with pytest.raises(ConnectionError):
            await sent
    assert [getattr(error, "exit_code", None) for error in fatal] == [3]
    await broker.stop()
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert (await client.pull()).code == ResponseCode.PULL_NOT_FOUND


# ------------------------------------------------------------------------------------------- send back, dead letters, delays


async def stored(client: Client, topic: str, queue_id: int = 0) -> list[RecordView]:
    """What lies in a queue of any topic."""
    header = PullHeader("g", topic, queue_id, 0, 100, SUBSCRIPTION, max_msg_bytes=1 << 20)
    answer = await client.ask(RequestCode.PULL_MESSAGE, header)
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [RecordView(answer.body, start) for start, _ in split_records(answer.body)]


async def sent_message(client: Client, body: bytes = b"m0", properties: str = "TAGS\x01paid\x02UNIQ_KEY\x01k") -> int:
    """Into queue 0 of the topic; its place in the log."""
    await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=properties), body)
    return (await stored(client, TOPIC))[-1].physical_offset


async def test_what_is_sent_back_comes_again_with_one_retry_more_until_they_are_used_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path, message_delay_level="10ms")) as broker, dialled(broker) as client:
        await client.create()
        offset = await sent_message(client)
        for times in range(1, 4):
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", max_reconsume_times=2))
            if times == 3:
                break
            await arrived(client, "%RETRY%g", times)
            again = (await stored(client, "%RETRY%g"))[-1]
            assert again.reconsume_times == times
            properties = decode_properties(again.properties)
            assert (properties["RETRY_TOPIC"], properties["TAGS"], properties["UNIQ_KEY"]) == (TOPIC, "paid", "k")
            offset = again.physical_offset
        (dead,) = await stored(client, "%DLQ%g")
        assert (dead.body, dead.reconsume_times) == (b"m0", 3)
        assert len(await stored(client, "%RETRY%g")) == 2


async def arrived(client: Client, topic: str, count: int) -> None:
    """Waits by a long poll until the topic's queue 0 has so many."""
    header = PullHeader("g", topic, 0, count - 1, 1, SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000, max_msg_bytes=1 << 20)
    await client.done(RequestCode.PULL_MESSAGE, header)


async def test_a_negative_level_is_a_dead_letter_and_an_offset_without_a_message_is_told(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await sent_message(client)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1))
        assert [record.body for record in await stored(client, "%DLQ%g")] == [b"m0"]
        refused = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset + 1, "g"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "no message begins at log offset" in (refused.remark or "")
        refused = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g" * 200, -1))
        assert "at most" in (refused.remark or "")


async def test_a_send_back_that_names_another_message_than_stands_there_is_refused(tmp_path: Path) -> None:
    """Its consumer was given a message that a power cut took, and another one got its place."""
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await sent_message(client)
        refused = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1, "another"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "holds message k, not another" in (refused.remark or "")
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1, "k"))
        assert [record.body for record in await stored(client, "%DLQ%g")] == [b"m0"]


async def test_a_dead_letter_and_the_progress_behind_it_are_one_write(tmp_path: Path) -> None:
    """A broker that is killed behind the answer has both; a repeat of the request writes nothing."""
    config = settings(tmp_path)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        for number in range(3):
            await sent_message(client, b"m%d" % number)
        epoch = await join(client, "a@1#0", "0" * 32)
        letter = DeadLetterHeader("g", TOPIC, 0, epoch, 1, 4, "ValueError: no")
        await client.done(RequestCode.DEAD_LETTER, letter)
        await client.done(RequestCode.DEAD_LETTER, letter)
        stale = await client.ask(RequestCode.DEAD_LETTER, replace(letter, epoch=epoch - 1))
        assert stale.code == ResponseCode.STALE_EPOCH
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        (dead,) = await stored(client, "%DLQ%g")
        assert (dead.body, decode_properties(dead.properties)["__LS_REASON"]) == (b"m1", "ValueError: no")
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        answer = await reconcile(client, LockItem("g", TOPIC, 0, epoch))
        assert (answer.verdict, answer.offset, answer.attempts) == (Verdict.OK, 2, 0)


async def test_delayed_messages_outlive_a_kill_and_are_delivered_once(tmp_path: Path) -> None:
    config = settings(tmp_path, message_delay_level="10ms 2s")
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        for level in (1, 2, 2):
            await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=f"DELAY\x01{level}"), b"%d" % level)
        await arrived(client, TOPIC, 1)
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        await arrived(client, TOPIC, 2)
        await arrived(client, TOPIC, 3)
        found = await stored(client, TOPIC)
        assert [record.body for record in found] == [b"1", b"2", b"2"]
        assert all("DELAY" not in decode_properties(record.properties) for record in found)


async def test_a_delay_that_is_no_number_is_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        refused = await client.ask(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties="DELAY\x01soon"), b"x")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark == "property DELAY is 'soon': expected the number of a delay level"
