"""One request: its response, now or later, and the only mapping of errors to responses.

A handler returns a `HandlerResult`, which the Dispatcher carries out:

| HandlerResult            | the response                                                                            |
|--------------------------|-----------------------------------------------------------------------------------------|
| Command                  | is sent now                                                                             |
| PendingResponse(Command) | is sent when the log is confirmed up to its present end (or as far as `until` requires) |
| RunInLane(lane, work)    | is the HandlerResult of a coroutine that runs in a lane                                 |
| NO_RESPONSE              | is sent later by the processor with `Request.respond`, or never                         |

All code that works on a request, in its handler, its lane or a later callback, passes an Exception to `Request.fail`, which alone maps
errors to responses. So an error ends this request and nothing else:

| exception             | the response                                                                            |
|-----------------------|-----------------------------------------------------------------------------------------|
| BrokerError           | its code and remark                                                                     |
| protocol error        | SYSTEM_ERROR with the text                                                              |
| any other             | SYSTEM_ERROR with its type and text; logged with its traceback                          |
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from lockstep.protocol.codec import CODECS
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import MSGPACK, ONEWAY_FLAG, VERSION_5_0, Command, response
from lockstep.protocol.errors import AuthenticationError, BrokerError, LocalProtocolError, RemoteProtocolError, SystemBusyError
from lockstep.protocol.frame import encode_frame, encode_frame_parts
from lockstep.protocol.object_text import text_of
from lockstep.protocol.responses import error_fields
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.pending_requests import code_name
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.logs.safe_text import printable
from lockstep.runtime.security.authenticated_user import ANYBODY, AccessDeniedError, RequestUser

log = get_logger("runtime.dispatch")


RETRIES_BUSY_VERSION = VERSION_5_0
"""The version from which RocketMQ's producers repeat a send that was answered SYSTEM_BUSY. Older ones repeat SERVICE_NOT_AVAILABLE."""
ACL_PREFIX = "org.apache.rocketmq.acl.common.AclException: "
"""How the remark begins with which RocketMQ refuses a client before 5.0 what its user may not do; the code is SYSTEM_ERROR."""
OWN_CODES_FROM = 30_001
"""The codes of requests and responses from here on are lockstep's own."""


class RetryLaterError(SystemBusyError):
    """SYSTEM_BUSY with a hint when to retry, in the remark and as a field of the response."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(f"{reason}; retry after {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


@dataclass(slots=True)
class AuditedChange:
    """What a request changes, for the audit. It has no bodies of messages and no secrets."""

    resource: str = ""
    """As rights name it: topic:NAME, group:NAME, cluster."""
    before: object = None
    """What was there, if the handler knows it; anything that JSON can have."""
    after: object = None


class FailureAudit(Protocol):
    """Notes requests that failed."""

    def failed(self, request: "Request", error: Exception) -> None:
        """Note the error of a request."""
        ...


class Request:
    """One request and its only response.

    A request may be kept for long: of its frame it keeps what its handler declares, and nothing else.
    """

    __slots__ = (
        "audit",
        "body",
        "change",
        "code",
        "codec",
        "endpoint",
        "flag",
        "header",
        "in_office",
        "is_done",
        "language",
        "opaque",
        "size",
        "user",
        "version",
    )

    def __init__(self, command: Command, endpoint: Endpoint, header: Any = None, body: Any = b"") -> None:
        self.code = command.code
        self.opaque = command.opaque
        self.flag = command.flag
        self.codec = command.codec
        self.language = command.language
        """As in Command."""
        self.version = command.version
        self.size = command.header_bytes + len(command.body)
        """Bytes of the frame's header and body."""
        self.endpoint = endpoint
        """The connection that sent the request."""
        self.header = header
        """The decoded header dataclass; None if the handler declares none."""
        self.body = body
        """The decoded body dataclass, or the raw bytes if the handler declares `bytes`; empty if it declares none."""
        self.is_done = False
        """Whether the response was sent, or will be when this server is known to have been the master."""
        self.user: RequestUser = ANYBODY
        """Who sends it."""
        self.audit: FailureAudit | None = None
        self.change: AuditedChange | None = None
        """What the audit says of the request when it ends; None: it changes nothing, and is not audited unless it is denied."""
        self.in_office: Callable[[Callable[[], None]], None] | None = None
        """Calls back when this server is known to have been the master after the call; None: a response needs no such proof."""

    @property
    def is_native(self) -> bool:
        """Return whether a client of lockstep sent it, not one of RocketMQ."""
        return self.codec == MSGPACK

    @property
    def is_oneway(self) -> bool:
        """Return whether the client expects no response."""
        return bool(self.flag & ONEWAY_FLAG)

    def reply(
        self, header: object | None = None, body: object | None = None, code: int = ResponseCode.SUCCESS, remark: str | None = None
    ) -> Command:
        """Return the response for this request without sending it: `header` is a header dataclass, `body` bytes or a body dataclass."""
        codec = CODECS[self.codec]
        raw = b"" if body is None else body if isinstance(body, bytes | bytearray | memoryview) else codec.write_body(body)
        return response(self.opaque, self.codec, code, remark, None if header is None else codec.write_fields(header), raw)

    def respond(self, command: Command, parts: Sequence[bytes | memoryview] = (), *, is_fact: bool = False) -> None:
        """Send the response; `parts` are a body that is not copied. Send nothing to a one-way request, a closed connection, or
        after another response. It waits for proof of office where that is needed, unless it `is_fact`: true whoever is the master."""
        if self.is_done or self.flag & ONEWAY_FLAG:
            return
        if self.in_office is not None and not is_fact:
            # Encoded now, so that an error fails the request here. Many may wait: the request is not kept.
            self.in_office(self.endpoint.owe(encode_frame_parts(command, parts) if parts else (encode_frame(command),)))
        elif parts:
            self.endpoint.send_parts(command, parts)
        else:
            self.endpoint.send(command)
        self.is_done = True

    def respond_encoded(self, frame: bytes) -> None:
        """Send a response that is encoded already, and so known to fit a frame, unless one was sent. It waits as in `respond`."""
        if self.in_office is None:
            self.send_proven(frame)
        elif not self.is_done:
            self.in_office(self.endpoint.owe((frame,)))
            self.is_done = True

    def send_proven(self, frame: bytes) -> None:
        """Send an encoded response that needs no proof of office any more, unless there was one."""
        if not self.is_done:
            self.endpoint.send_frame(frame)
            self.is_done = True

    def fail(self, error: Exception) -> None:
        """Send the response for `error` by the table above. Log any unforeseen error with the connection, the request and the traceback.

        After the response nothing more is sent.
        """
        if not isinstance(error, BrokerError | RemoteProtocolError | LocalProtocolError):
            facts = {"code": code_name(self.code), "peer": self.endpoint.peer, "error": text_of(error)}
            log_limited(log, "error", "request.failed", **facts, exc_info=error)
        self.note_refusal(error)
        if not self.is_done:
            self.respond(self._error_response(error))

    def refusal(self, error: BrokerError) -> Command:
        """Return the response for `error` without sending it: for a refusal that says what the log will have, and so waits for it."""
        self.note_refusal(error)
        return self._error_response(error)

    def note_refusal(self, error: Exception) -> None:
        """Tell the audit of an error, also of one that only a part of the response has."""
        if self.audit is not None:
            self.audit.failed(self, error)

    def _error_response(self, error: Exception) -> Command:
        if isinstance(error, BrokerError) and not self.is_native:
            code, remark = _classic_form(error, self)
            return response(self.opaque, self.codec, code, printable(remark), None, b"")
        if isinstance(error, BrokerError):
            return response(self.opaque, self.codec, error.wire_code, printable(error.remark), error_fields(error), b"")
        foreseen = isinstance(error, RemoteProtocolError | LocalProtocolError)
        remark = printable(str(error) if foreseen else f"{type(error).__name__}: {error}")
        return response(self.opaque, self.codec, ResponseCode.SYSTEM_ERROR, remark, None, b"")


def _classic_form(error: BrokerError, request: Request) -> tuple[int, str]:
    """Return the code by which a client of RocketMQ does the right thing: repeats, asks again, or reports it; and the remark."""
    code, remark = error.wire_code, error.remark
    if isinstance(error, AccessDeniedError | AuthenticationError):
        if isinstance(error, AccessDeniedError):
            remark = f"{remark}, from {request.endpoint.peer.rpartition(':')[0]}"
        return (ResponseCode.NO_PERMISSION, remark) if request.version >= VERSION_5_0 else (ResponseCode.SYSTEM_ERROR, ACL_PREFIX + remark)
    if code == ResponseCode.SYSTEM_BUSY and request.version < RETRIES_BUSY_VERSION:
        return ResponseCode.SERVICE_NOT_AVAILABLE, remark
    if code in (ResponseCode.NOT_LEADER, ResponseCode.NOT_ENOUGH_REPLICAS):
        return ResponseCode.SERVICE_NOT_AVAILABLE, remark  # they repeat it elsewhere, and ask for the route again
    return ResponseCode.SYSTEM_ERROR if code >= OWN_CODES_FROM else code, remark


Until = Literal["written", "confirmed", "synced"]
"""How far the log must be: with the operating system, as durable as the broker's flush mode requires, or on the disk."""


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """A response that waits for the log."""

    command: Command
    until: Until = "confirmed"


class NoResponse:
    """The type of NO_RESPONSE."""

    __slots__ = ()


NO_RESPONSE: Final = NoResponse()
"""The Dispatcher sends nothing: the processor keeps the request and responds later, or the connection is being closed."""


@dataclass(frozen=True, slots=True)
class RunInLane:
    """The rest of a handler that has to wait: it runs in a lane, and its HandlerResult is that of the request."""

    lane: str
    work: "Work"
    """Called when a worker of the lane is free; not at all if the connection is closed by then."""


HandlerResult = Command | PendingResponse | RunInLane | NoResponse
Work = Callable[[], Coroutine[Any, Any, HandlerResult]]
