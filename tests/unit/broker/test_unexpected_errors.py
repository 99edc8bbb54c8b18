"""An unexpected error ends one request with SYSTEM_ERROR and one logged traceback; other requests of the same turn get their responses.

This holds for every request code of broker and nameserver, and for each stage at which a request may wait.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.store import StoreDiskError
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, HeartbeatBody, LockItem, SessionLockBody, StartPolicy, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader, QueueHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log_limit import EventLimit
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import Lane
from lockstep.runtime.requests.request import PendingResponse, Request, RunInLane
from support.until import until
from support.whole_broker import LAYOUT, TOPIC, Client, dialled, frame, kill, running, settings

OTHER = 12_345
"""A code without a handler: the request sent with the failing one."""


@pytest.fixture(autouse=True)
def check_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if more than ten requests fail in a second."""
    monkeypatch.setattr(EventLimit, "allows", lambda *_: True)


def raise_missing(*_: object, **__: object) -> Any:
    return {}["missing"]


async def raise_missing_later(*_: object, **__: object) -> Any:
    return {}["missing"]


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events that were logged with a traceback."""
    return [record.getMessage().split()[0] for record in caplog.records if record.exc_info]


async def check_one_fails(
    send_request: Callable[[], "asyncio.Future[Command]"], endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the request of `ask` fails alone: it has one response, and the request that is sent with it has its own."""
    caplog.clear()
    received = endpoint._pending.callbacks = PendingRequests()
    failing = send_request()
    beside = endpoint.request(OTHER, timeout_ms=5_000)
    response = await failing
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'missing'")
    assert (await beside).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    await endpoint.request(OTHER, timeout_ms=5_000)
    assert len(received.opaques) == len(set(received.opaques)) == 3
    assert tracebacks(caplog) == ["request.failed"]


class PendingRequests(dict[int, Any]):
    """Stores the requests of a connection that wait for a response, and the opaques of all responses, expected or not."""

    def __init__(self) -> None:
        self.opaques: list[int] = []

    def pop(self, opaque: int, *default: Any) -> Any:
        self.opaques.append(opaque)
        return super().pop(opaque, *default)


def replace_handler(dispatcher: Dispatcher, code: int, handler: Callable[[Request], object], lane: Lane | None = None) -> None:
    """Install `handler` for the code, for any header and body."""
    spec = dataclasses.replace(dispatcher._routes[code].spec, header=None, body=None)
    dispatcher._routes[code] = dataclasses.replace(dispatcher._routes[code], handler=handler, spec=spec, lane=lane)


async def check_stages(
    dispatcher: Dispatcher, code: int, endpoint: Endpoint, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Let the handler, its lane if it has one, its continuation in a lane, and its response after the log is confirmed fail in turn."""

    def send_request() -> "asyncio.Future[Command]":
        return endpoint.request(code, timeout_ms=5_000)

    lane = dispatcher._routes[code].lane
    if lane is not None:
        replace_handler(dispatcher, code, raise_missing_later, lane)
        await check_one_fails(send_request, endpoint, caplog)
    replace_handler(dispatcher, code, raise_missing)
    await check_one_fails(send_request, endpoint, caplog)
    for lane in dispatcher._lanes:
        replace_handler(dispatcher, code, lambda _, lane=lane: RunInLane(lane, raise_missing_later))  # type: ignore[misc]
        await check_one_fails(send_request, endpoint, caplog)
    replace_handler(dispatcher, code, lambda request: PendingResponse(request.reply()))
    with patch.context() as sending:
        sending.setattr(Endpoint, "send_frame", raise_missing)
        await check_one_fails(send_request, endpoint, caplog)


async def test_every_broker_request_fails_alone_at_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        for code in broker.running.dispatcher.codes:
            await check_stages(broker.running.dispatcher, code, client.endpoint, monkeypatch, caplog)
        assert not broker._gate.has_failed


async def test_every_nameserver_request_fails_alone_at_each_stage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_routes() as (nameserver, endpoint):
        dispatcher = nameserver._server._handler
        assert isinstance(dispatcher, Dispatcher)
        for code in dispatcher.codes:
            await check_stages(dispatcher, code, endpoint, monkeypatch, caplog)


@asynccontextmanager
async def serving_routes() -> AsyncIterator[tuple[Nameserver, Endpoint]]:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    endpoint = await connect(Host.real(), nameserver.address)
    try:
        yield nameserver, endpoint
    finally:
        endpoint.abort("done")
        await nameserver.stop()


async def test_error_in_the_session_table_fails_only_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        with monkeypatch.context() as patch:
            patch.setattr(broker.state.coordination.state.sessions, "touch", raise_missing)
            response = await client.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'missing'")
        assert (await client.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))).code == ResponseCode.SUCCESS


# ------------------------------------------------------------------------------------------------------------------- pulls


async def fill_topic(client: Client) -> None:
    await client.create()
    header, data, _ = frame(0, 3)
    await client.done(RequestCode.SEND_RECORDS, header, data)


def fail_once(broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store's next call of `name` raise; later calls succeed."""
    store = broker._store
    assert store is not None
    own, calls = getattr(store, name), list[int]()

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return {}["missing"] if len(calls) == 1 else own(*arguments, **named)

    monkeypatch.setattr(store, name, call)


@pytest.mark.parametrize("stage", ["read", "read_cold"])
async def test_failing_pull_does_not_affect_others_of_its_turn(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await fill_topic(client)
        if stage == "read_cold":
            monkeypatch.setattr(broker._store, "read", lambda *_, **__: None)
        fail_once(broker, stage, monkeypatch)
        responses = [await requested for requested in [client.pull(), client.pull(1), client.pull(2)]]
        assert [response.code for response in responses] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS, ResponseCode.SUCCESS]
        assert tracebacks(caplog) == ["request.failed"]
        assert not broker._gate.has_failed


async def test_failing_woken_pull_does_not_affect_others_woken_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        requested = [client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000) for _ in range(3)]
        pulls = broker.running.pulls
        assert pulls is not None
        await until(lambda: pulls.held_count == 3)
        fail_once(broker, "read", monkeypatch)
        header, data, _ = frame(0, 1)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        responses = [await each for each in requested]
        assert sorted(response.code for response in responses) == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
        assert tracebacks(caplog) == ["request.failed"]


async def test_failing_arrival_callback_delays_no_response_and_no_other_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        pulls, store = broker.running.pulls, broker._store
        assert pulls is not None
        assert store is not None
        waiting = client.pull(0, 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000)
        await until(lambda: pulls.held_count == 1)
        store.writer.on_arrival, own = (
            lambda topic, queue_id: raise_missing() if queue_id == 0 else own(topic, queue_id),
            store.writer.on_arrival,
        )  # type: ignore[misc]
        sent = []
        for queue_id in (0, 1):
            header, data, _ = frame(0, 1, queue_id=queue_id)
            sent.append(client.send_request(RequestCode.SEND_RECORDS, header, data))
        assert [(await each).code for each in sent] == [ResponseCode.SUCCESS] * 2
        assert (await waiting).code == ResponseCode.SUCCESS
        assert tracebacks(caplog) == ["arrival.failed"]


# --------------------------------------------------------------------------------------------------------- starts by time


@pytest.mark.parametrize("ordered", [True, False])
async def test_failing_start_by_time_is_rejected_and_the_broker_continues(
    ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        begin = {"consume_from_where": ConsumeFromWhere.TIMESTAMP, "consume_timestamp_ms": 77}
        group = ConsumerGroup("g", (Subscription(TOPIC),), ordered=ordered, **begin)  # type: ignore[arg-type]
        body = HeartbeatBody("client-1", (group,), session="a" * 32, connection=1)
        await client.done(RequestCode.HEART_BEAT, body=encode_body(body))
        monkeypatch.setattr(broker._store, "offset_by_time", raise_missing_later)

        def send_request() -> "asyncio.Future[Command]":
            if ordered:
                lock = SessionLockBody((LockItem("g", TOPIC, 0),), (StartPolicy("g", TOPIC, ConsumeFromWhere.TIMESTAMP, 77),))
                return client.send_request(RequestCode.LOCK_BATCH_MQ, body=encode_body(lock))
            header = QueryConsumerOffsetHeader("g", TOPIC, 0, where=ConsumeFromWhere.TIMESTAMP, timestamp_ms=77)
            return client.send_request(RequestCode.QUERY_CONSUMER_OFFSET, header)

        await check_one_fails(send_request, client.endpoint, caplog)
        assert not broker._gate.has_failed


# ----------------------------------------------------------------------------------------- inconsistent tables are fatal


@pytest.mark.parametrize("half", ["the queue after the log", "the sequence after the frame", "a change that is not applied"])
async def test_partially_applied_change_ends_the_broker_without_a_response(
    half: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException] = []
    broker = Broker(settings(tmp_path), Host.real())
    broker.on_fatal = ended.append
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        store = broker._store
        assert store is not None
        if half == "the queue after the log":
            monkeypatch.setattr(store._queues, "entries_added", raise_missing)
        elif half == "the sequence after the frame":
            monkeypatch.setattr(broker.state.sequences, "record_frame", raise_missing)
        else:
            monkeypatch.setattr(broker.state.topics, "_adopt", raise_missing)
        if half == "a change that is not applied":
            other = dataclasses.replace(LAYOUT, topic="other")
            requested = client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("other"), encode_body(other))
        else:
            header, data, _ = frame(0, 1)
            requested = client.send_request(RequestCode.SEND_RECORDS, header, data)
        with pytest.raises(TransportError, match="closed"):
            await requested
        assert [type(error) for error in ended] == [StoreDiskError]
    await kill(broker)
