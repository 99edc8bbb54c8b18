"""Requests of tools that the broker passes on to a member, and its response. RocketMQ: AdminBrokerProcessor.callConsumer.

A member has at most one such request of a code at a time, so that a member which does not respond holds back no one but those who ask it.
"""

from functools import partial
from typing import Any

from lockstep.broker.classic.connections import ClassicConnection, ClientConnections
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.store import Store
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.fastjson import read_fastjson, write_fastjson
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerSystemError,
    ConsumerNotOnlineError,
    LocalProtocolError,
    MemberTimeoutError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    SystemBusyError,
    TransportError,
)
from lockstep.protocol.headers.tools import ConsumeDirectlyHeader, ConsumerStatusHeader, RunningInfoHeader
from lockstep.protocol.messages.ids import parse_offset_message_id
from lockstep.protocol.messages.record import RecordView
from lockstep.runtime.connections.pending_requests import code_name
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, UPDATE, inside, on_group, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request, RunInLane

RELAY_LANE = "relay"
"""The lane of requests that wait for a member. They use no thread of the host."""
MEMBER_MS = 10_000
"""How long a member may take to respond. RocketMQ: the same."""
NATIVE_MEMBER_MS = 3_000
"""How long a member of lockstep's SDK may take. Its event loop responds at once, unless something blocks it, which is then the answer."""
UNKNOWN_TO = {"CPP": (RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)}
"""Language → requests that its client never responds to."""


class RelayProcessor:
    """Passes requests on to members: those of RocketMQ's tools to members of its clients, and GET_CONSUMER_RUNNING_INFO of lockstep's own
    tools to members of its SDK."""

    def __init__(self, coordination: Coordination, connections: ClientConnections, store: Store) -> None:
        self._coordination = coordination
        self._connections = connections
        self._store = store
        self._outstanding: set[tuple[int, int]] = set()
        """(connection, code) of the requests without a response."""

    @handles(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RunningInfoHeader,
        needs=[inside("Get group; Update group for the stacks of running calls")],
        lane=RELAY_LANE,
        classic=True,
    )
    async def running_info(self, request: Request) -> HandlerResult:
        """Return what a member reports of itself. RocketMQ's clients and the SDK have bodies, and tools, of their own."""
        header: RunningInfoHeader = request.header
        request.user.check_group(header.consumer_group, *((UPDATE,) if header.jstack_enable else (GET,)))
        member, code = self._member(header.consumer_group, header.client_id), RequestCode.GET_CONSUMER_RUNNING_INFO
        if not request.is_native:
            _check_knows(member, code)
        elif not member.is_native:
            raise RequestCodeNotSupportedError(
                f"client {member.client_id} is one of RocketMQ's: ask it by `mqadmin consumerStatus -g {header.consumer_group}`"
            )
        return _relayed(request, await self._ask(member, code, header, timeout_ms=NATIVE_MEMBER_MS if member.is_native else MEMBER_MS))

    @handles(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeDirectlyHeader,
        needs=[on_group(UPDATE), inside("Sub the topic of the message")],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def consume_directly(self, request: Request) -> HandlerResult:
        """Have a member call its listener with a stored message."""
        header: ConsumeDirectlyHeader = request.header
        if not header.client_id or not header.msg_id:
            raise LocalProtocolError("CONSUME_MESSAGE_DIRECTLY names no clientId or no msgId: it needs both")
        member = self._member(header.consumer_group, header.client_id)
        _, offset = parse_offset_message_id(header.msg_id)
        record = await self._store.record_at(offset)
        if record is None:
            raise BrokerSystemError(f"no message {header.msg_id} is stored here: ask the broker that its id names")
        _check_rights(request, record)
        passed_on = ConsumeDirectlyHeader(
            header.consumer_group,
            header.client_id,
            header.msg_id,
            self._coordination.state.config.broker_name,
            header.topic,
            header.topic_sys_flag,
            header.group_sys_flag,
        )
        return RunInLane(RELAY_LANE, partial(self._consume, request, member, passed_on, record))

    async def _consume(self, request: Request, member: ClassicConnection, header: ConsumeDirectlyHeader, record: bytes) -> HandlerResult:
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        _check_rights(request, record)  # again, because it has waited
        _check_knows(member, code)
        return _relayed(request, await self._ask(member, code, header, record))

    @handles(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        ConsumerStatusHeader,
        needs=[on_group(GET, name="group"), on_topic(GET)],
        lane=RELAY_LANE,
        native=False,
        classic=True,
    )
    async def consumer_status(self, request: Request) -> HandlerResult:
        """Return the offsets that each member has in memory, one member after the other."""
        header: ConsumerStatusHeader = request.header
        members = self._connections.members(header.group)
        if not members:
            raise ConsumerNotOnlineError(f"group {header.group} has no member that is connected to this broker")
        if header.client_addr:
            members = [(header.client_addr, self._member(header.group, header.client_addr))]
        table: dict[str, Any] = {}
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        for client_id, member in members:
            _check_knows(member, code)
            answer = await self._ask(member, code, ConsumerStatusHeader(header.topic, header.group))
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerSystemError(f"member {client_id} responded with {answer.code}: {answer.remark}")
            table[client_id] = _offsets_of(answer, client_id)
        return request.reply(body=write_fastjson({"consumerTable": table, "messageQueueTable": {}}))

    def _member(self, group: str, client_id: str) -> ClassicConnection:
        if not self._coordination.status.member_ids(group):
            raise ConsumerNotOnlineError(f"group {group} has no member at this broker")
        member = self._connections.member(group, client_id)
        if member is None:
            raise BrokerSystemError(f"group {group} has no member {client_id} that is connected to this broker")
        return member

    async def _ask(
        self, member: ClassicConnection, code: RequestCode, header: object, body: bytes = b"", timeout_ms: int = MEMBER_MS
    ) -> Command:
        """Send a request to a member and return its response. Raise BrokerError if there is none."""
        key = member.endpoint.id, int(code)
        if key in self._outstanding:
            raise SystemBusyError(f"client {member.client_id} has not responded to another {code_name(code)} yet: repeat it later")
        self._outstanding.add(key)
        try:
            fields = CODECS[member.endpoint.codec].write_fields(header)
            return await member.endpoint.request(code, fields, body, timeout_ms=timeout_ms)
        except RequestTimeoutError:
            raise MemberTimeoutError(
                f"client {member.client_id} did not respond to {code_name(code)} within {timeout_ms // 1000} s"
            ) from None
        except TransportError as error:
            raise BrokerSystemError(f"client {member.client_id} did not respond to {code_name(code)}: {error}") from None
        finally:
            self._outstanding.discard(key)


def _check_knows(member: ClassicConnection, code: RequestCode) -> None:
    """Raise RequestCodeNotSupportedError if the client has no response to a request."""
    if member.is_native:
        raise RequestCodeNotSupportedError(
            f"client {member.client_id} is one of lockstep's SDK, which does not handle {code_name(code)}: use `lockstep why GROUP`"
        )
    if code in UNKNOWN_TO.get(member.language, ()):
        raise RequestCodeNotSupportedError(
            f"client {member.client_id} is one of language {member.language}, which does not handle {code_name(code)}"
        )


def _check_rights(request: Request, record: bytes) -> None:
    """Raise AccessDeniedError unless the user may have a member of the group consume the message."""
    header: ConsumeDirectlyHeader = request.header
    request.user.check_group(header.consumer_group, UPDATE)
    request.user.check_message(RecordView(record).topic.decode(), SUB)


def _relayed(request: Request, answer: Command) -> Command:
    """Return a member's response as it came."""
    return request.reply(body=answer.body, code=answer.code, remark=answer.remark)


def _offsets_of(answer: Command, client_id: str) -> dict[Any, Any]:
    found = read_fastjson(answer.body, what=f"the response of member {client_id}")
    table = found.get("messageQueueTable") if isinstance(found, dict) else None
    if not isinstance(table, dict):
        raise RemoteProtocolError(f"the response of member {client_id} has no messageQueueTable")
    return table
