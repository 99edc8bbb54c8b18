"""Requests that the broker passes on to members: the time limit, which a broker process would take 10 s to reach."""

import asyncio
from typing import Any, cast

import pytest

from lockstep.broker.classic.connections import ClassicConnection
from lockstep.broker.classic.relay import MEMBER_MS, NATIVE_MEMBER_MS, RelayProcessor
from lockstep.broker.classic.replies import PRODUCER_MS, RETURN_MS, ReplyProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import JSON, MSGPACK, Command
from lockstep.protocol.errors import (
    BrokerSystemError,
    MemberTimeoutError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    SystemBusyError,
    TransportError,
)
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.headers.tools import RunningInfoHeader
from lockstep.protocol.responses import retry_after_ms
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.request import Request


class SilentEndpoint:
    """A connection to a client that does not respond. The test ends its requests."""

    id = 7
    codec = JSON
    peer = local = "127.0.0.1:1"
    unsent_bytes = 0

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, asyncio.Future[Command]]] = []
        self.on_results: list[Any] = []
        self.sent: list[Command] = []

    def request(self, code: int, fields: object, body: bytes, *, timeout_ms: int) -> "asyncio.Future[Command]":
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.requests.append((code, timeout_ms, future))
        return future

    def send_request(self, code: int, fields: object, body: bytes, *, timeout_ms: int, on_result: Any) -> None:
        assert (code, timeout_ms) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, PRODUCER_MS)
        self.on_results.append(on_result)

    def send(self, command: Command) -> None:
        self.sent.append(command)


class Connections:
    """The only client, which is a member and a producer."""

    def __init__(self, client: ClassicConnection) -> None:
        self._client = client

    def member(self, group: str, client_id: str) -> ClassicConnection:
        return self._client

    def producer(self, client_id: str) -> ClassicConnection:
        return self._client


class Groups:
    """What RelayProcessor asks of the coordination."""

    @property
    def status(self) -> "Groups":
        return self

    def member_ids(self, group: str) -> tuple[str, ...]:
        return ("m",)


def client_on(endpoint: SilentEndpoint) -> Connections:
    return Connections(ClassicConnection(cast(Any, endpoint), "m", False, "JAVA", 409, 0, ("asking",)))


async def test_member_that_does_not_respond_is_reported_and_can_be_asked_again() -> None:
    endpoint = SilentEndpoint()
    relay = RelayProcessor(cast(Any, Groups()), cast(Any, client_on(endpoint)), cast(Any, None))
    request = Request(Command(307, codec=JSON), cast(Any, endpoint), RunningInfoHeader("g", "m"))
    for number in (1, 2):
        asking = asyncio.create_task(relay.running_info(request))
        await asyncio.sleep(0)
        assert len(endpoint.requests) == number
        code, timeout_ms, future = endpoint.requests[-1]
        assert (code, timeout_ms) == (RequestCode.GET_CONSUMER_RUNNING_INFO, MEMBER_MS)
        with pytest.raises(SystemBusyError, match="has not responded to another GET_CONSUMER_RUNNING_INFO"):
            await relay.running_info(request)
        future.set_exception(RequestTimeoutError("silence"))
        with pytest.raises(MemberTimeoutError, match=r"client m did not respond to GET_CONSUMER_RUNNING_INFO \(307\) within 10 s"):
            await asking


async def test_producer_that_does_not_accept_a_reply_is_reported() -> None:
    endpoint = SilentEndpoint()
    replies = ReplyProcessor(cast(Any, client_on(endpoint)), Clock(), UserQuotas(None, Clock()))
    header = SendMessageHeader("repliers", "DefaultCluster_REPLY_TOPIC", 0, properties="REPLY_TO_CLIENT\x01m")
    replies.send_reply(Request(Command(324, 5, codec=JSON), cast(Any, endpoint), header, b"answer"))
    assert endpoint.sent == []
    endpoint.on_results[0](RequestTimeoutError("silence"))
    (response,) = endpoint.sent
    assert (response.opaque, response.code) == (5, ResponseCode.SYSTEM_ERROR)
    assert "client m did not accept the reply within 10 s" in (response.remark or "")


async def test_reply_to_a_producer_that_reads_too_slowly_is_refused() -> None:
    endpoint = SilentEndpoint()
    endpoint.unsent_bytes = 17 << 20
    replies = ReplyProcessor(cast(Any, client_on(endpoint)), Clock(), UserQuotas(None, Clock()))
    header = SendMessageHeader("repliers", "DefaultCluster_REPLY_TOPIC", 0, properties="REPLY_TO_CLIENT\x01m")
    with pytest.raises(SystemBusyError, match="client m reads too slowly"):
        replies.send_reply(Request(Command(324, 5, codec=JSON), cast(Any, endpoint), header, b"answer"))


@pytest.mark.parametrize(
    ("codec", "may_return", "code"),
    [
        (MSGPACK, True, ResponseCode.SYSTEM_BUSY),
        (MSGPACK, False, ResponseCode.SYSTEM_ERROR),
        (JSON, True, ResponseCode.SYSTEM_ERROR),
    ],
)
@pytest.mark.parametrize("lost", [False, True], ids=["not connected", "lost meanwhile"])
async def test_consumer_of_the_sdk_sends_its_reply_again_to_a_producer_that_may_return(
    codec: int, may_return: bool, code: ResponseCode, lost: bool
) -> None:
    endpoint = SilentEndpoint()
    connections: Any = client_on(endpoint)
    connections.may_return = lambda client_id, boot_ms: may_return
    replies = ReplyProcessor(connections, Clock(), UserQuotas(None, Clock()))
    header = SendMessageHeader("repliers", "DefaultCluster_REPLY_TOPIC", 0, properties="REPLY_TO_CLIENT\x01m")
    request = Request(Command(324, 5, codec=codec), cast(Any, endpoint), header, b"answer")
    if lost:
        replies.send_reply(request)
        endpoint.on_results[0](TransportError("reset"))
        assert "client m did not accept the reply: reset" in (endpoint.sent[0].remark or "")
    else:
        connections.producer = lambda client_id: None
        with pytest.raises((BrokerSystemError, SystemBusyError), match="no producer with the client id m") as refused:
            replies.send_reply(request)
        request.fail(refused.value)
    assert endpoint.sent[0].code == code
    assert (retry_after_ms(endpoint.sent[0]) == RETURN_MS) is (code == ResponseCode.SYSTEM_BUSY)


def native_client_on(endpoint: SilentEndpoint) -> Connections:
    return Connections(ClassicConnection(cast(Any, endpoint), "m", True, "PYTHON", 1, 0, ("asking",)))


async def test_native_member_is_given_three_seconds_and_answers_native_tools_only() -> None:
    endpoint = SilentEndpoint()
    relay = RelayProcessor(cast(Any, Groups()), cast(Any, native_client_on(endpoint)), cast(Any, None))
    header = RunningInfoHeader("g", "m", True, "orders", 0)
    asking = asyncio.create_task(relay.running_info(Request(Command(307), cast(Any, endpoint), header)))
    await asyncio.sleep(0)
    code, timeout_ms, future = endpoint.requests[-1]
    assert (code, timeout_ms) == (RequestCode.GET_CONSUMER_RUNNING_INFO, NATIVE_MEMBER_MS)
    future.set_exception(RequestTimeoutError("silence"))
    with pytest.raises(MemberTimeoutError, match="within 3 s"):
        await asking
    with pytest.raises(RequestCodeNotSupportedError, match="use `lockstep why GROUP`"):
        await relay.running_info(Request(Command(307, codec=JSON), cast(Any, endpoint), header))


async def test_native_tool_is_sent_to_the_tools_of_a_classic_member() -> None:
    endpoint = SilentEndpoint()
    relay = RelayProcessor(cast(Any, Groups()), cast(Any, client_on(endpoint)), cast(Any, None))
    with pytest.raises(RequestCodeNotSupportedError, match="ask it by `mqadmin consumerStatus -g g`"):
        await relay.running_info(Request(Command(307), cast(Any, endpoint), RunningInfoHeader("g", "m")))
    assert endpoint.requests == []
