"""A whole broker in this process, on a free port with its own store; clients send native frames."""

import asyncio
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.nameserver_registration import RegistrationRefusedError
from lockstep.broker.processors.pull import UNSENT_BYTES_MAX
from lockstep.broker.store import IdentityError, StoreInUseError
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import (
    FreeQueue,
    LockItem,
    LockVerdict,
    QueueFreeBody,
    SyncBody,
    SyncItem,
    SyncReply,
    TopicRoute,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.protocol.headers.clients import UnregisterClientHeader
from lockstep.protocol.headers.offsets import QueueHeader, TopicHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader
from lockstep.protocol.messages.record import RecordView, encode_record
from lockstep.protocol.topics.queue import LayoutVersion
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from support.native import bodies
from support.until import until
from support.whole_broker import (
    LAYOUT,
    TOPIC,
    Client,
    dialled,
    frame,
    heartbeat,
    join,
    place,
    reconcile,
    running,
    settings,
)


async def test_sent_records_are_pulled_unchanged_and_found_by_position(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        assert await client.create() == LAYOUT
        header, data, _ = frame(0, 3)
        stored = place(await client.done(RequestCode.SEND_RECORDS, header, data))
        assert (stored.queue_offset, stored.store_host) == (0, broker.address)
        response = await client.pull()
        assert bodies(response) == [b"m0", b"m1", b"m2"]
        assert from_plain(PullReply, response.fields) == PullReply(3, 0, 3)
        view = RecordView((await client.done(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(stored.physical_offset))).body)
        assert (view.body, view.queue_offset, view.physical_offset) == (b"m0", 0, stored.physical_offset)
        assert view.store_ms == stored.store_timestamp
        assert (await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))).fields == {"offset": 3}


async def test_both_send_requests_share_the_offsets_of_a_queue(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        response = await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("g", TOPIC, 0), b"single")
        assert response.fields["queueOffset"] == 2
        assert bodies(await client.pull()) == [b"m0", b"m1", b"single"]


async def test_pull_after_a_send_in_the_same_turn_returns_its_records(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 1)
        sent, pulled = client.send_request(RequestCode.SEND_RECORDS, header, data), client.pull()
        assert (await sent).code == (await pulled).code == ResponseCode.SUCCESS


async def test_slow_reader_gets_bounded_buffering_and_every_response(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        record = encode_record(TOPIC.encode(), 0, bytes(500_000), b"", born_ms=1)
        for _ in range(4):
            await client.done(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1), record)
        host, port = broker.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        fields = to_plain(PullHeader("g", TOPIC, 0, 0, 100, SUBSCRIPTION, max_msg_bytes=1 << 20))
        writer.write(b"".join(encode_frame(Command(RequestCode.PULL_MESSAGE, n, fields=fields)) for n in range(40)))
        pulls, endpoints = broker.running.pulls, broker.running.server.endpoints
        await until(lambda: bool(pulls._blocked))
        assert max(endpoint.unsent_bytes for endpoint in endpoints.values()) <= 2 * UNSENT_BYTES_MAX + 100_000
        assert bodies(await client.pull(3)) == [bytes(500_000)]
        frames, responded = FrameBuffer(), list[int]()
        while len(responded) < 40:
            frames.feed(await reader.read(1 << 20))
            while (response := frames.next()) is not None:
                assert len(bodies(response)) == 2
                responded.append(response.opaque)
        assert responded == list(range(40))
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_long_poll_is_woken_by_an_arrival(tmp_path: Path, flush: str) -> None:
    async with running(settings(tmp_path, flush=flush)) as broker, dialled(broker) as client, dialled(broker) as other:
        await client.create()
        waiting = client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        assert not waiting.done()
        header, data, _ = frame(0, 1)
        await other.done(RequestCode.SEND_RECORDS, header, data)
        assert bodies(await waiting) == [b"m0"]


async def test_stop_responds_to_held_pulls(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        waiting = client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        await broker.stop()
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND


# ---------------------------------------------------------------------------------------------------------------------- ordered consumption


async def test_released_queue_is_offered_to_its_owner_by_the_member_list(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as one, dialled(broker) as two:
        await one.create()
        epoch = await join(one, "a@1#0", "0" * 32)
        await heartbeat(two, "b@1#0", "1" * 32)
        assert (await reconcile(two, LockItem("g", TOPIC, 1))).verdict is LockVerdict.OK
        refused = await reconcile(two, LockItem("g", TOPIC, 0))
        assert refused.verdict is LockVerdict.NOT_YOURS
        await one.done(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("a@1#0", consumer_group="g"))
        held = two.pull(0, queue_id=0, epoch=epoch, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        body = encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch=epoch, offset=0, release=True),)))
        reply = decode_body(SyncReply, (await one.done(RequestCode.SYNC, body=body)).body)
        assert reply.items[0].verdict is LockVerdict.OK
        await wait_until_offered(two, 0)
        again = await reconcile(two, LockItem("g", TOPIC, 0))
        assert again.verdict is LockVerdict.OK
        assert again.epoch > epoch
        assert (await held).code == ResponseCode.STALE_EPOCH


async def wait_until_offered(client: Client, queue_id: int) -> None:
    """Wait until QUEUE_FREE names the queue."""
    while True:
        command = await client.inbound.get()
        if command.code == RequestCode.QUEUE_FREE:
            if FreeQueue("g", TOPIC, queue_id) in decode_body(QueueFreeBody, command.body).queues:
                return
        else:
            assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


# -------------------------------------------------------------------------------------------------------------------- names and nameservers


async def test_store_rejects_a_second_broker_and_another_name(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with pytest.raises(StoreInUseError):
            await start_broker(settings(tmp_path))
    with pytest.raises(IdentityError):
        await start_broker(settings(tmp_path, name="broker-b"))
    with pytest.raises(IdentityError):
        await start_broker(settings(tmp_path, cluster="other"))


async def start_broker(config: BrokerConfig) -> None:
    async with running(config):
        pass


async def test_broker_is_in_routes_after_its_nameserver_accepted_it(tmp_path: Path) -> None:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    try:
        config = settings(tmp_path, nameserver=nameserver.address)
        async with running(config) as broker, dialled(broker) as client:
            await client.create()
            route = await route_of(nameserver, LAYOUT.version)
            assert [(one.address, one.registered) for one in route.brokers] == [(broker.address, True)]
            second = settings(tmp_path / "second", nameserver=nameserver.address)
            with pytest.raises(RegistrationRefusedError, match=broker.address):
                await start_broker(second)
        route = await route_of(nameserver, LAYOUT.version)
        assert [one.registered for one in route.brokers] == [False]
    finally:
        await nameserver.stop()


async def route_of(nameserver: Nameserver, version: LayoutVersion) -> TopicRoute:
    """Return the route as soon as the nameserver has this version."""
    endpoint = await connect(Host.real(), nameserver.address)
    try:
        while True:
            response = await endpoint.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, to_plain(TopicHeader(TOPIC)), timeout_ms=5_000)
            if response.code == ResponseCode.SUCCESS:
                route = decode_body(TopicRoute, response.body)
                assert route.layout.version == version
                return route
    finally:
        endpoint.close("done")
        await endpoint.wait_closed()


# ---------------------------------------------------------------------------------------------------------------------------------- failure


async def test_failed_write_ends_the_broker_without_another_response(tmp_path: Path) -> None:
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
        sent = client.send_request(RequestCode.SEND_RECORDS, header, data)
        with pytest.raises(ConnectionError):
            await sent
    assert [getattr(error, "exit_code", None) for error in fatal] == [3]
    await broker.stop()
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert (await client.pull()).code == ResponseCode.PULL_NOT_FOUND
