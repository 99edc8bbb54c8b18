"""The dispatcher passes requests to handlers and turns outcomes into responses."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from lockstep.protocol import errors
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codec.native import NativeCodec
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import JSON, MSGPACK, ONEWAY_FLAG, RETRY_AFTER_FIELD, Command
from lockstep.protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from lockstep.protocol.frame import FrameBuffer
from lockstep.protocol.headers.offsets import OffsetReply, QueueHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.needs import ANY_USER, SUB, on_topic
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request, RetryLaterError, RunInLane
from lockstep.runtime.security.rights import NO_RIGHTS
from lockstep.runtime.turn import TurnBudget
from support.access import user_of
from support.loops import turns
from support.peers import dialled, serving
from support.recorder import Recorder, record


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: str


class Log:
    """A log that confirms, in order, everything registered so far when the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.written: list[Callable[[], None]] = []
        self.synced: list[Callable[[], None]] = []

    def when_written(self, callback: Callable[[], None]) -> None:
        self.written.append(callback)

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def when_synced(self, callback: Callable[[], None]) -> None:
        self.synced.append(callback)

    def confirm(self, count: int | None = None) -> None:
        ready, self.waiting = self.waiting[:count], self.waiting[len(self.waiting) if count is None else count :]
        for callback in ready:
            callback()


class Processor:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.held: list[Request] = []
        self.gate = asyncio.Event()
        self.running = 0
        self.running_most = 0

    @handles(RequestCode.GET_MAX_OFFSET, QueueHeader, needs=ANY_USER)
    def now(self, request: Request) -> HandlerResult:
        return request.reply(OffsetReply(request.header.queue_id + 1))

    @handles(RequestCode.SYNC, None, Pair, needs=ANY_USER)
    def structured(self, request: Request) -> HandlerResult:
        return request.reply(body=Pair(request.body.left + 1, request.body.right))

    @handles(RequestCode.SEND_MESSAGE, None, bytes, needs=ANY_USER, body_bytes_max=20 << 20)
    @handles(RequestCode.SEND_RECORDS, None, bytes, needs=ANY_USER)
    def logged(self, request: Request) -> HandlerResult:
        return PendingResponse(request.reply(body=request.body))

    @handles(RequestCode.PUT_KV_CONFIG, needs=ANY_USER)
    def only_written(self, request: Request) -> HandlerResult:
        return PendingResponse(request.reply(), until="written")

    @handles(RequestCode.PULL_MESSAGE, needs=ANY_USER)
    def kept(self, request: Request) -> HandlerResult:
        self.held.append(request)
        return NO_RESPONSE

    @handles(RequestCode.LOCK_BATCH_MQ, needs=ANY_USER)
    def fails(self, request: Request) -> HandlerResult:
        assert self.error is not None
        raise self.error

    @handles(RequestCode.VIEW_MESSAGE_BY_ID, needs=ANY_USER, lane="cold")
    async def slow(self, request: Request) -> HandlerResult:
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return request.reply(remark="slow")

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QueueHeader, needs=[on_topic(SUB)], lane="narrow")
    async def asked(self, request: Request) -> HandlerResult:
        await self.gate.wait()
        return request.reply(remark="asked")

    @handles(RequestCode.UNREGISTER_CLIENT, needs=ANY_USER)
    def sometimes_slow(self, request: Request) -> HandlerResult:
        return RunInLane("cold", partial(self.slow, request))

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=ANY_USER, at_once=True)
    def health(self, request: Request) -> Command:
        return request.reply(remark="health")

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, needs=ANY_USER)
    def fact(self, request: Request) -> HandlerResult:
        request.respond(request.reply(remark="fact"), is_fact=True)
        return NO_RESPONSE

    @handles(RequestCode.GET_MIN_OFFSET, needs=ANY_USER)
    def wrong(self, request: Request) -> Any:
        return None


LANES = {"cold": LaneLimits(concurrency=2, queue_max=3, retry_after_ms=250), "narrow": LaneLimits(concurrency=1, queue_max=3)}


class DispatcherUnderTest:
    """A dispatcher with an endpoint whose responses are read back."""

    def __init__(self, budget: TurnBudget | None = None, **office: Callable[..., None]) -> None:
        self.log = Log()
        self.processor = Processor()
        self.dispatcher = Dispatcher([self.processor], self.log, LANES, budget=budget, **office)
        self.endpoint: Endpoint
        self.transport: Recorder
        self.endpoint, self.transport = record(self.dispatcher)
        self._opaque = 0

    def send_request(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", flag: int = 0) -> int:
        self._opaque += 1
        self.dispatcher(Command(code, self._opaque, flag, fields=fields or {}, body=body), self.endpoint)
        return self._opaque

    async def responses(self) -> list[Command]:
        """Return the responses since the last call."""
        await turns(6)
        frames = FrameBuffer()
        frames.feed(b"".join(self.transport.writes))
        self.transport.writes.clear()
        found = []
        while (command := frames.next()) is not None:
            found.append(command)
        return found

    async def response(self) -> Command:
        (only,) = await self.responses()
        return only


async def test_handler_gets_a_decoded_header_and_its_reply_header_is_encoded() -> None:
    bench = DispatcherUnderTest()
    opaque = bench.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": 4})
    response = await bench.response()
    assert (response.code, response.opaque, response.fields) == (0, opaque, {"offset": 5})


async def test_structured_bodies_are_decoded_and_encoded() -> None:
    bench = DispatcherUnderTest()
    bench.send_request(RequestCode.SYNC, body=encode_body(Pair(1, "x")))
    assert (await bench.response()).body == encode_body(Pair(2, "x"))


async def test_pending_response_is_sent_on_confirmation_and_in_order() -> None:
    bench = DispatcherUnderTest()
    requested = [bench.send_request(RequestCode.SEND_MESSAGE, body=b"%d" % n) for n in range(3)]
    assert await bench.responses() == []
    bench.log.confirm(2)
    assert [response.opaque for response in await bench.responses()] == requested[:2]
    bench.log.confirm()
    last = await bench.response()
    assert (last.opaque, last.body) == (requested[2], b"2")


async def test_every_response_waits_for_proof_of_office_but_facts_and_what_is_confirmed() -> None:
    proofs: list[Callable[[], None]] = []
    bench = DispatcherUnderTest(in_office=proofs.append)
    at_once = [bench.send_request(code) for code in (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.QUERY_CONSUMER_OFFSET, 9_999)]
    assert [response.opaque for response in await bench.responses()] == at_once
    confirmed = bench.send_request(RequestCode.SEND_MESSAGE, body=b"1")
    bench.log.confirm()
    assert (await bench.response()).opaque == confirmed, "what is confirmed has its proof from the log"
    bench.processor.gate.set()
    waiting = [
        bench.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": 4}),
        bench.send_request(RequestCode.SYNC, body=encode_body(Pair(1, "x"))),
        bench.send_request(RequestCode.UNREGISTER_CLIENT),
        bench.send_request(RequestCode.GET_MIN_OFFSET),
        bench.send_request(RequestCode.PUT_KV_CONFIG),
    ]
    bench.log.written.pop()()
    assert (await bench.responses(), len(proofs)) == ([], len(waiting))
    for prove in proofs:
        prove()
    assert {response.opaque for response in await bench.responses()} == set(waiting)


async def test_what_would_wait_for_proof_in_vain_is_refused_before_it_is_handled() -> None:
    suspended = errors.NotLeaderError("nobody can say who the master is")

    def check_office() -> None:
        raise suspended

    bench = DispatcherUnderTest(in_office=lambda _: pytest.fail("it would wait"), check_office=check_office)
    bench.processor.error = KeyError("handled")
    bench.send_request(RequestCode.LOCK_BATCH_MQ)
    answer = await bench.response()
    assert (answer.code, answer.remark) == (ResponseCode.NOT_LEADER, suspended.remark)
    bench.send_request(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert (await bench.response()).remark == "health"


async def test_what_waits_for_proof_goes_with_its_connection_and_keeps_no_request() -> None:
    proofs: list[Callable[[], None]] = []
    bench = DispatcherUnderTest(in_office=proofs.append)
    routes, page = bench.dispatcher._routes, Body(b"large")

    def paged(request: Request, page: Body) -> HandlerResult:
        request.respond(request.reply(), [memoryview(page)])
        raise errors.SystemBusyError("too late")

    routes[RequestCode.SEND_RECORDS] = replace(routes[RequestCode.SEND_RECORDS], handler=partial(paged, page=page))
    kept = weakref.ref(body := Body(b"large"))
    sent = Command(RequestCode.SEND_RECORDS, 7, body=body)
    for _ in range(2):
        bench.dispatcher(sent, bench.endpoint)
    del sent, body
    assert kept() is None
    proofs[0]()
    assert (await bench.response()).body == b"large"
    kept = weakref.ref(page)
    routes.clear()
    del page
    gc.collect()
    assert kept() is not None
    bench.endpoint.abort("the client is gone")
    gc.collect()
    assert kept() is None
    proofs[1]()


async def test_responses_confirmed_at_the_end_of_a_turn_are_sent_in_one_write() -> None:
    bench = DispatcherUnderTest()
    asyncio.get_running_loop().call_soon(bench.log.confirm)
    for n in range(3):
        bench.send_request(RequestCode.SEND_MESSAGE, body=b"%d" % n)
    await turns(1)
    assert len(bench.transport.writes) == 1
    assert [response.body for response in await bench.responses()] == [b"0", b"1", b"2"]


async def test_pending_response_without_a_log_is_sent_immediately() -> None:
    dispatcher = Dispatcher([Processor()], lanes=LANES)
    endpoint, transport = record(dispatcher)
    dispatcher(Command(RequestCode.SEND_RECORDS, 1), endpoint)
    await turns(2)
    assert len(transport.writes) == 1


async def test_held_request_can_be_responded_to_later() -> None:
    bench = DispatcherUnderTest()
    opaque = bench.send_request(RequestCode.PULL_MESSAGE)
    assert await bench.responses() == []
    (request,) = bench.processor.held
    request.respond(request.reply(code=ResponseCode.PULL_NOT_FOUND))
    response = await bench.response()
    assert (response.opaque, response.code) == (opaque, ResponseCode.PULL_NOT_FOUND)


async def test_a_request_has_one_response_whatever_is_sent_after_it() -> None:
    bench = DispatcherUnderTest()
    opaque = bench.send_request(RequestCode.PULL_MESSAGE)
    (request,) = bench.processor.held
    request.respond(request.reply(code=ResponseCode.PULL_NOT_FOUND))
    request.respond(request.reply())
    request.respond_encoded(b"a second one")
    request.fail(KeyError("later"))
    response = await bench.response()
    assert (response.opaque, response.code) == (opaque, ResponseCode.PULL_NOT_FOUND)


async def test_an_error_after_a_response_waits_for_the_log_is_the_only_response(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DispatcherUnderTest()

    def fails(endpoint: Endpoint) -> None:
        patch.undo()
        raise KeyError("flush")

    with monkeypatch.context() as patch:
        patch.setattr(Endpoint, "flush_soon", fails)
        bench.send_request(RequestCode.SEND_MESSAGE, body=b"x")
    bench.log.confirm()
    response = await bench.response()
    assert response.code == ResponseCode.SYSTEM_ERROR


async def test_error_for_an_unknown_request_code_names_it() -> None:
    bench = DispatcherUnderTest()
    bench.send_request(7777)
    response = await bench.response()
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "7777" in (response.remark or "")


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (errors.StaleEpochError("epoch 3, not 2"), ResponseCode.STALE_EPOCH, "epoch 3, not 2"),
        (errors.BrokerError("odd", wire_code=4711), 4711, "odd"),
        (RemoteProtocolError("field topic: missing"), ResponseCode.SYSTEM_ERROR, "field topic: missing"),
        (LocalProtocolError("topic name too long"), ResponseCode.SYSTEM_ERROR, "topic name too long"),
        (KeyError("x"), ResponseCode.SYSTEM_ERROR, "KeyError: 'x'"),
        (errors.StateError("closed"), ResponseCode.SYSTEM_ERROR, "StateError: closed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("code_asked", [RequestCode.LOCK_BATCH_MQ, RequestCode.VIEW_MESSAGE_BY_ID], ids=["plain", "lane"])
async def test_handler_error_becomes_an_error_response(code_asked: int, error: Exception, code: int, remark: str) -> None:
    bench = DispatcherUnderTest()
    bench.processor.error = error
    bench.processor.gate.set()
    bench.send_request(code_asked)
    response = await bench.response()
    assert (response.code, response.remark) == (code, remark)


async def test_long_error_text_is_truncated_to_fit_the_header() -> None:
    """A topic of 200 KB fits a request's header; a remark that names it twice fits no header."""
    bench = DispatcherUnderTest()
    bench.processor.error = LocalProtocolError("x" * 400_000)
    bench.send_request(RequestCode.LOCK_BATCH_MQ)
    response = await bench.response()
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == "x" * 4_095 + "…"


async def test_only_unexpected_errors_are_logged_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = DispatcherUnderTest()
    for error in (errors.StaleEpochError("x"), RemoteProtocolError("x"), ZeroDivisionError("x")):
        bench.processor.error = error
        bench.send_request(RequestCode.LOCK_BATCH_MQ)
    (record_,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record_.message.startswith("request.failed code=LOCK_BATCH_MQ (41)")
    assert record_.exc_info is not None
    assert record_.exc_info[0] is ZeroDivisionError


async def test_error_for_an_invalid_header_or_body_states_what_was_expected() -> None:
    bench = DispatcherUnderTest()
    bench.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "t"})
    bench.send_request(RequestCode.SYNC, body=b"\xc1")
    header, body = await bench.responses()
    assert header.code == body.code == ResponseCode.SYSTEM_ERROR
    assert "QueueHeader.queueId" in (header.remark or "")
    assert body.remark


async def test_handler_result_of_a_wrong_type_is_an_error() -> None:
    bench = DispatcherUnderTest()
    bench.send_request(RequestCode.GET_MIN_OFFSET)
    assert "NoneType" in ((await bench.response()).remark or "")


async def test_response_too_large_for_a_frame_becomes_an_error_response() -> None:
    bench = DispatcherUnderTest()
    bench.send_request(RequestCode.SEND_MESSAGE, body=bytes(17 * 1024 * 1024))
    bench.log.confirm()
    response = await bench.response()
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "16777216" in (response.remark or "")


@pytest.mark.parametrize(("code", "body_bytes_max"), [(RequestCode.SEND_MESSAGE, 20 << 20), (RequestCode.SEND_RECORDS, 64 << 10)])
async def test_body_larger_than_its_handlers_limit_is_rejected(code: RequestCode, body_bytes_max: int) -> None:
    bench = DispatcherUnderTest()
    bench.dispatcher._routes[code] = replace(bench.dispatcher._routes[code], handler=lambda request: request.reply())
    bench.send_request(code, body=bytes(body_bytes_max))
    assert (await bench.response()).code == ResponseCode.SUCCESS
    bench.send_request(code, body=bytes(body_bytes_max + 1))
    response = await bench.response()
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert response.remark == f"{code.name} ({int(code)}) has a body of {body_bytes_max + 1} bytes: at most {body_bytes_max}"
    assert not bench.endpoint.closed


async def test_body_beyond_its_limit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DispatcherUnderTest()
    monkeypatch.setattr(NativeCodec, "read_body", lambda *_: pytest.fail("decoded"))
    bench.send_request(RequestCode.SYNC, body=bytes((64 << 10) + 1))
    assert (await bench.response()).code == ResponseCode.MESSAGE_ILLEGAL


class Body(bytearray):
    """Bytes to which weak references are possible."""


async def test_pending_response_does_not_keep_its_request_body() -> None:
    """100,000 requests may wait for the disk, and their frames had up to 16 MiB each."""
    bench = DispatcherUnderTest()
    bench.dispatcher._routes[RequestCode.SEND_RECORDS] = replace(
        bench.dispatcher._routes[RequestCode.SEND_RECORDS], handler=lambda request: PendingResponse(request.reply())
    )
    body = Body(b"large")
    kept = weakref.ref(body)
    bench.dispatcher(Command(RequestCode.SEND_RECORDS, 7, body=body), bench.endpoint)
    del body
    gc.collect()
    assert kept() is None
    bench.log.confirm()
    assert (await bench.response()).opaque == 7


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.SEND_MESSAGE, RequestCode.LOCK_BATCH_MQ, 7777])
async def test_oneway_request_gets_no_response(code: int) -> None:
    bench = DispatcherUnderTest()
    bench.processor.error = errors.SystemBusyError("x")
    bench.send_request(code, {"topic": "t", "queueId": 0}, flag=ONEWAY_FLAG)
    bench.log.confirm()
    assert await bench.responses() == []


async def test_lane_limits_concurrency_and_queue_and_refuses_the_rest() -> None:
    bench = DispatcherUnderTest()
    requested = [bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID) for _ in range(6)]
    await turns(3)
    refused = await bench.response()
    assert refused.opaque == requested[5]
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.fields == {RETRY_AFTER_FIELD: 250}
    assert "lane 'cold' is full: 3 requests wait; retry after 250 ms" in (refused.remark or "")
    bench.processor.gate.set()
    assert sorted(response.opaque for response in await bench.responses()) == requested[:5]
    assert bench.processor.running_most == 2
    assert bench.processor.running == 0


async def test_request_that_waited_in_a_lane_is_asked_again_for_its_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, user = DispatcherUnderTest(), user_of("Sub topic:t")
    monkeypatch.setattr(bench.dispatcher, "_admit", lambda *_: user)
    allowed, waiting = [bench.send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "t", "queueId": 0}) for _ in range(2)]
    await turns(3)
    user.rights = NO_RIGHTS
    bench.processor.gate.set()
    found = {response.opaque: (response.code, response.remark) for response in await bench.responses()}
    assert found == {
        allowed: (ResponseCode.SUCCESS, "asked"),
        waiting: (ResponseCode.NO_PERMISSION, "user tester may not Sub topic:t"),
    }


async def test_full_lane_accepts_requests_again() -> None:
    bench = DispatcherUnderTest()
    for _ in range(5):
        bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID)
    bench.processor.gate.set()
    assert len(await bench.responses()) == 5
    opaque = bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID)
    assert (await bench.response()).opaque == opaque


async def test_lane_workers_waiting_for_the_budget_take_no_request_twice(caplog: pytest.LogCaptureFixture) -> None:
    """Two workers saw the last request pending and waited for a turn. One of them then found it taken."""
    bench = DispatcherUnderTest(TurnBudget(1))
    requested = [bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID) for _ in range(5)]
    bench.processor.gate.set()
    responses = [response for _ in range(5) for response in await bench.responses()]
    assert sorted(response.opaque for response in responses) == requested
    assert not [record.getMessage() for record in caplog.records if "task.failed" in record.getMessage()]


async def test_full_lane_does_not_block_plain_handlers() -> None:
    bench = DispatcherUnderTest()
    for _ in range(5):
        bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID)
    bench.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": 0})
    assert (await bench.response()).fields == {"offset": 1}
    await bench.dispatcher.close()


async def test_pending_lane_requests_of_a_closed_connection_are_not_run() -> None:
    bench = DispatcherUnderTest()
    for _ in range(5):
        bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID)
    await turns(2)
    bench.endpoint.abort("gone")
    bench.processor.running_most = 0
    bench.processor.gate.set()
    await turns(6)
    assert bench.processor.running_most == 0


async def test_run_in_lane_obeys_the_limits_of_the_lane() -> None:
    bench = DispatcherUnderTest()
    requested = [bench.send_request(RequestCode.UNREGISTER_CLIENT) for _ in range(6)]
    await turns(3)
    refused = await bench.response()
    assert (refused.opaque, refused.code) == (requested[5], ResponseCode.SYSTEM_BUSY)
    assert refused.fields == {RETRY_AFTER_FIELD: 250}
    bench.processor.gate.set()
    responses = await bench.responses()
    assert sorted(response.opaque for response in responses) == requested[:5]
    assert {response.remark for response in responses} == {"slow"}
    assert bench.processor.running_most == 2


async def test_close_stops_running_lane_requests() -> None:
    bench = DispatcherUnderTest()
    for _ in range(4):
        bench.send_request(RequestCode.VIEW_MESSAGE_BY_ID)
    await turns(2)
    await bench.dispatcher.close()
    assert bench.processor.running == 0


async def test_handler_can_refuse_with_its_own_retry_hint() -> None:
    bench = DispatcherUnderTest()
    bench.processor.error = RetryLaterError("the log is behind", 40)
    bench.send_request(RequestCode.LOCK_BATCH_MQ)
    response = await bench.response()
    assert (response.code, response.fields) == (ResponseCode.SYSTEM_BUSY, {RETRY_AFTER_FIELD: 40})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotLeaderError("a replica"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.NotEnoughReplicasError("alone"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.StaleEpochError("old"), ResponseCode.SYSTEM_ERROR),
        (errors.TopicNotExistError("none"), ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_rocketmqs_clients_get_a_code_that_they_know(error: errors.BrokerError, code: int) -> None:
    bench = DispatcherUnderTest()
    Request(Command(RequestCode.PULL_MESSAGE, codec=JSON), bench.endpoint).fail(error)
    response = await bench.response()
    assert (response.code, response.remark) == (code, error.remark)


def test_error_for_two_handlers_of_one_code_names_them() -> None:
    class Other:
        @handles(RequestCode.GET_MAX_OFFSET, needs=ANY_USER)
        def again(self, request: Request) -> HandlerResult:
            return NO_RESPONSE

    with pytest.raises(ConfigError, match=r"GET_MAX_OFFSET \(30\) has two handlers: .*(Processor\.now|Other\.again)"):
        Dispatcher([Processor(), Other()], lanes=LANES)


def test_mismatched_lane_and_handler_are_rejected() -> None:
    class PlainInLane:
        @handles(1, needs=ANY_USER, lane="cold")
        def f(self, request: Request) -> HandlerResult:
            return NO_RESPONSE

    class AsyncWithout:
        @handles(1, needs=ANY_USER)
        async def f(self, request: Request) -> HandlerResult:
            return NO_RESPONSE

    class UnknownLane:
        @handles(1, needs=ANY_USER, lane="warm")
        async def f(self, request: Request) -> HandlerResult:
            return NO_RESPONSE

    for wrong in (PlainInLane(), AsyncWithout(), UnknownLane()):
        with pytest.raises(ConfigError, match=r"\.f"):
            Dispatcher([wrong], lanes=LANES)


class ForBoth:
    @handles(1, needs=ANY_USER)
    def native(self, request: Request) -> HandlerResult:
        return request.reply(remark="native")

    @handles(1, needs=ANY_USER, native=False, classic=True)
    def classic(self, request: Request) -> HandlerResult:
        return request.reply(remark="classic")

    @handles(2, needs=ANY_USER, classic=True)
    def both(self, request: Request) -> HandlerResult:
        return request.reply(remark="both")

    @handles(3, needs=ANY_USER, native=False, classic=True)
    def tool(self, request: Request) -> HandlerResult:
        return request.reply(remark="tool")


@pytest.mark.parametrize(
    ("codec", "said"), [(MSGPACK, ["native", "both", "not supported"]), (JSON, ["classic", "both", "tool"])], ids=["native", "classic"]
)
async def test_handler_serves_the_kind_of_clients_that_it_names(codec: int, said: list[str]) -> None:
    dispatcher = Dispatcher([ForBoth()])
    assert dispatcher.codes == (1, 2)
    endpoint, transport = record(dispatcher)
    for code, expected in zip((1, 2, 3), said, strict=True):
        dispatcher(Command(code, codec=codec), endpoint)
        await turns(2)
        assert expected.encode() in transport.writes[-1]


def test_two_handlers_of_one_kind_of_clients_are_an_error() -> None:
    class Again:
        @handles(2, needs=ANY_USER, native=False, classic=True)
        def again(self, request: Request) -> HandlerResult:
            return NO_RESPONSE

    with pytest.raises(ConfigError, match="two handlers"):
        Dispatcher([ForBoth(), Again()])


def test_dispatchers_of_one_process_are_independent() -> None:
    assert Dispatcher([Processor()], lanes=LANES).codes == Dispatcher([Processor()], lanes=LANES).codes
    assert RequestCode.SEND_RECORDS in Dispatcher([Processor()], lanes=LANES).codes


@pytest.mark.both_loops
async def test_dispatcher_serves_a_real_connection() -> None:
    dispatcher = Dispatcher([Processor()], lanes=LANES)
    async with serving(dispatcher) as server, dialled(server) as endpoint:
        response = await endpoint.request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": 1}, timeout_ms=5000)
        assert response.fields == {"offset": 2}
