"""Requests to handlers, outcomes to answers. RocketMQ: NettyRemotingAbstract.processRequestCommand and its table of processors.

A handler is a method marked with `@handles`. It decodes nothing itself, calls a table and says what becomes of the request:

| outcome           | the answer                                                                        |
|-------------------|-----------------------------------------------------------------------------------|
| Command           | is sent now                                                                       |
| Pending(Command)  | is sent once the log is confirmed up to its end as of now (or as `until` says)    |
| Later             | is the outcome of its coroutine, which runs in a lane                             |
| HELD              | comes later through request.endpoint.send, or never                               |
| BrokerError       | its code and remark                                                               |
| protocol error    | SYSTEM_ERROR with the text                                                        |
| any other error   | SYSTEM_ERROR with its type and text; logged with its traceback                    |

A one-way request is answered with nothing. A handler that is `async def` names a lane: a bounded queue with a limit on how many run at once
(RocketMQ: one executor per code); a full lane answers SYSTEM_BUSY with a hint when to try again.

An error ends one request, wherever it is raised: in the handler, in its lane, while the answer is sent. Work on a HELD request is done in
the context `Request.answering`. `refusal` is the only place that turns an error into an answer.
"""

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol

from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import ONEWAY_FLAG, RETRY_AFTER_FIELD, Command, response
from lockstep.protocol.errors import (
    BrokerError,
    ConfigError,
    LocalProtocolError,
    MessageIllegalError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    SystemBusyError,
)
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.limits import LANE_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited
from lockstep.runtime.pending_requests import code_name
from lockstep.runtime.safe_text import printable
from lockstep.runtime.turn import TurnBudget

log = get_logger("runtime.dispatch")


LANE_ITEMS_PER_TURN = 100
"""Of all lanes together: some 10 µs an item."""
LANE_ITEMS = 10
"""For a request that is looked up, or sent back."""


class RetryLaterError(SystemBusyError):
    """SYSTEM_BUSY with the hint when to try again, in words and as a field of the answer."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(f"{reason}; retry after {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Request:
    """One request in a handler's hands. It may wait for long: of its frame it keeps what its handler has declared, and nothing else."""

    __slots__ = ("body", "code", "codec", "endpoint", "flag", "header", "opaque", "size")

    def __init__(self, command: Command, endpoint: Endpoint, header: Any, body: Any) -> None:
        self.code = command.code
        self.opaque = command.opaque
        self.flag = command.flag
        self.codec = command.codec
        self.size = command.header_bytes + len(command.body)
        """Bytes of the frame's header and body."""
        self.endpoint = endpoint
        """Where it came from and where a HELD answer goes."""
        self.header: Any = header
        """The decoded header dataclass; None where the handler names none."""
        self.body: Any = body
        """The decoded body dataclass, or the raw bytes where the handler names `bytes`; empty where it names none."""

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def reply(
        self, header: object | None = None, body: object | None = None, code: int = ResponseCode.SUCCESS, remark: str | None = None
    ) -> Command:
        """The response: `header` a header dataclass, `body` bytes or a body dataclass."""
        raw = b"" if body is None else body if isinstance(body, bytes | bytearray | memoryview) else encode_body(body)
        return response(self.opaque, self.codec, code, remark, None if header is None else to_plain(header), raw)

    def fail(self, error: Exception) -> None:
        """Answers the request with what `error` means, and logs it where no rule foresees it."""
        _fail(self, self.endpoint, error)

    def answering(self) -> "Answering":
        """A context for work on a HELD request: an Exception that leaves it is the request's answer, and ends there."""
        return Answering(self)


class Answering:
    """See `Request.answering`."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        _fail(self._request, self._request.endpoint, error)
        return True


def _fail(command: Command | Request, endpoint: Endpoint, error: Exception) -> None:
    """Answers with what `error` means; an error that no rule foresees is logged with its traceback."""
    if not isinstance(error, BrokerError | RemoteProtocolError | LocalProtocolError):
        log_limited(log, "error", "request.failed", code=code_name(command.code), peer=endpoint.peer, error=repr(error), exc_info=error)
    if not command.flag & ONEWAY_FLAG:
        endpoint.send(refusal(command, error))


def refusal(command: Command | Request, error: Exception) -> Command:
    """The answer to a request that ended with `error`."""
    if isinstance(error, BrokerError):
        fields = {RETRY_AFTER_FIELD: error.retry_after_ms} if isinstance(error, RetryLaterError) else None
        return response(command.opaque, command.codec, error.wire_code, printable(error.remark), fields, b"")
    foreseen = isinstance(error, RemoteProtocolError | LocalProtocolError)
    remark = printable(str(error) if foreseen else f"{type(error).__name__}: {error}")
    return response(command.opaque, command.codec, ResponseCode.SYSTEM_ERROR, remark, None, b"")


Until = Literal["written", "confirmed", "synced"]
"""How far the log must be: with the operating system, as durable as the broker's flush says, or on the disk."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer that waits for the log."""

    command: Command
    until: Until = "confirmed"


class Held:
    """The type of HELD."""

    __slots__ = ()


HELD: Final = Held()
"""The request is kept; its answer does not come from the handler's return."""


@dataclass(frozen=True, slots=True)
class Later:
    """The rest of the handler has to wait for something: it runs in a lane, and its outcome is the request's."""

    lane: str
    work: Callable[[], Coroutine[Any, Any, "Outcome"]]
    """Called when its turn has come; not at all if the connection is closed by then."""


Outcome = Command | Pending | Later | Held


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What a lane may hold."""

    concurrency: int
    """Requests that run at once."""
    queue_max: int
    """Requests that wait beside them; one more is answered SYSTEM_BUSY."""
    retry_after_ms: int = 200
    bytes_max: int = LANE_BYTES_MAX
    """Bytes of the frames of all that wait; one more than that is answered SYSTEM_BUSY."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What `@handles` says of a method."""

    code: int
    header: type | None
    body: type | None
    lane: str | None
    body_bytes_max: int
    header_bytes_max: int


def handles(
    code: int,
    header: type | None = None,
    body: type | None = None,
    *,
    lane: str | None = None,
    body_bytes_max: int = REQUEST_BYTES_MAX,
    header_bytes_max: int = REQUEST_HEADER_BYTES_MAX,
) -> Callable[[Any], Any]:
    """Marks a method `def f(self, request: Request) -> Outcome` as the handler of a request code.

    `body` is the dataclass to which the body is decoded, or `bytes`: the body as it is. Without one the body of a request is dropped.
    A request with a header of more than `header_bytes_max` or a body of more than `body_bytes_max` bytes is refused before it is decoded.
    """

    def mark(method: Any) -> Any:
        limits = lane, body_bytes_max, header_bytes_max
        method.__handles__ = (*getattr(method, "__handles__", ()), Mark(int(code), header, body, *limits))
        return method

    return mark


@dataclass(slots=True)
class _Lane:
    name: str
    limits: LaneLimits
    waiting: deque[tuple[Request, Callable[[], Coroutine[Any, Any, Outcome]]]] = field(default_factory=deque)
    waiting_bytes: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class _Route:
    handler: Callable[[Request], Any]
    name: str
    header: type | None
    body: type | None
    lane: _Lane | None
    body_bytes_max: int
    header_bytes_max: int


class Log(Protocol):
    """Calls back once the log is so far up to its end as of now."""

    def when_written(self, callback: Callable[[], None]) -> None: ...

    def when_confirmed(self, callback: Callable[[], None]) -> None: ...

    def when_synced(self, callback: Callable[[], None]) -> None: ...


def _at_once(callback: Callable[[], None]) -> None:
    callback()


class Dispatcher:
    """Built from processor instances. Is an Endpoint's handler: `dispatcher(command, endpoint)` never raises."""

    def __init__(
        self,
        processors: Sequence[object],
        log: Log | None = None,
        lanes: Mapping[str, LaneLimits] | None = None,
        on_request: Callable[[Endpoint], None] | None = None,
        budget: TurnBudget | None = None,
    ) -> None:
        """`log`: what Pending answers wait for; None: nothing. `on_request` is called before each request is handled. `budget`: of what all
        lanes do in one turn of the loop; a request takes LANE_ITEMS of it, and handlers take more where they do more.

        ConfigError where a code has two handlers, or a lane and its handler do not fit.
        """
        self._when: Mapping[Until, Callable[[Callable[[], None]], None]] = {
            "written": _at_once if log is None else log.when_written,
            "confirmed": _at_once if log is None else log.when_confirmed,
            "synced": _at_once if log is None else log.when_synced,
        }
        self._lanes = {name: _Lane(name, limits) for name, limits in (lanes or {}).items()}
        self._tasks = Tasks()
        self._budget = TurnBudget(LANE_ITEMS_PER_TURN) if budget is None else budget
        self._on_request = on_request
        self._routes: dict[int, _Route] = {}
        for processor in processors:
            for name in dir(type(processor)):
                for mark in getattr(getattr(type(processor), name), "__handles__", ()):
                    self._add(mark, getattr(processor, name), f"{type(processor).__name__}.{name}")

    def _add(self, mark: Mark, handler: Callable[[Request], Any], name: str) -> None:
        if mark.code in self._routes:
            raise ConfigError(f"{code_name(mark.code)} has two handlers: {self._routes[mark.code].name} and {name}")
        if inspect.iscoroutinefunction(handler) != (mark.lane is not None):
            raise ConfigError(f"{name}: an async handler names a lane, a plain one does not")
        if mark.lane is not None and mark.lane not in self._lanes:
            raise ConfigError(f"{name}: lane {mark.lane!r} is not one of {sorted(self._lanes)}")
        lane = None if mark.lane is None else self._lanes[mark.lane]
        self._routes[mark.code] = _Route(handler, name, mark.header, mark.body, lane, mark.body_bytes_max, mark.header_bytes_max)

    @property
    def codes(self) -> tuple[int, ...]:
        """The request codes that have a handler, sorted."""
        return tuple(sorted(self._routes))

    def __call__(self, command: Command, endpoint: Endpoint) -> None:
        route = self._routes.get(command.code)
        try:
            if self._on_request is not None:
                self._on_request(endpoint)
            if route is None:
                raise RequestCodeNotSupportedError(f"{code_name(command.code)} is not supported here")
            if len(command.body) > route.body_bytes_max:
                size = len(command.body)
                raise MessageIllegalError(f"{code_name(command.code)} has a body of {size} bytes: at most {route.body_bytes_max}")
            if command.header_bytes > route.header_bytes_max:
                size = command.header_bytes
                raise MessageIllegalError(f"{code_name(command.code)} has a header of {size} bytes: at most {route.header_bytes_max}")
            header = None if route.header is None else from_plain(route.header, command.fields)
            body: Any = b"" if route.body is None else command.body if route.body is bytes else decode_body(route.body, command.body)
            request = Request(command, endpoint, header, body)
            if route.lane is None:
                self._settle(request, route.handler(request))
            else:
                self._enqueue(route.lane, request, partial(route.handler, request))
        except Exception as error:
            _fail(command, endpoint, error)

    async def close(self) -> None:
        """Stops what runs in lanes. What waits there stays unanswered."""
        for lane in self._lanes.values():
            lane.waiting.clear()
            lane.waiting_bytes = 0
        await self._tasks.cancel_all()

    def _settle(self, request: Request, outcome: Outcome) -> None:
        if type(outcome) is Later:
            self._enqueue(self._lanes[outcome.lane], request, outcome.work)
        elif request.flag & ONEWAY_FLAG:
            return
        elif type(outcome) is Command:
            request.endpoint.send(outcome)
        elif type(outcome) is Pending:
            # Encoded now, so that what can't be encoded is answered as an error here, not raised in the log's callback.
            deliver = partial(_deliver, request.endpoint, request.code, request.opaque, request.codec, encode_frame(outcome.command))
            self._when[outcome.until](deliver)
            # The log is mostly confirmed at the end of this loop turn.
            request.endpoint.flush_soon()
        elif outcome is not HELD:
            raise TypeError(f"a handler returned {type(outcome).__name__}, not an Outcome")

    # --------------------------------------------------------------------------------------------------------------- lanes

    def _enqueue(self, lane: _Lane, request: Request, work: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        if lane.workers < lane.limits.concurrency:
            lane.workers += 1
            self._tasks.spawn(self._work(lane, request, work), f"lane {lane.name}")
        elif len(lane.waiting) >= lane.limits.queue_max:
            raise RetryLaterError(f"lane {lane.name!r} is full: {len(lane.waiting)} requests wait", lane.limits.retry_after_ms)
        elif lane.waiting_bytes + request.size > lane.limits.bytes_max:
            full = f"lane {lane.name!r} is full: requests of {lane.waiting_bytes} bytes wait, at most {lane.limits.bytes_max} may"
            raise RetryLaterError(full, lane.limits.retry_after_ms)
        else:
            lane.waiting.append((request, work))
            lane.waiting_bytes += request.size

    async def _work(self, lane: _Lane, request: Request, work: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        """One request, then those that wait, as the budget of each turn allows. A request is dropped when its connection has closed."""
        try:
            while True:
                await self._budget.item(LANE_ITEMS)
                if not request.endpoint.closed:
                    await self._run(request, work)
                if not lane.waiting:
                    return
                # Taken before the next wait for the budget: meanwhile another worker may take what waits.
                request, work = lane.waiting.popleft()
                lane.waiting_bytes -= request.size
        finally:
            lane.workers -= 1

    async def _run(self, request: Request, work: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        try:
            self._settle(request, await work())
        except Exception as error:
            _fail(request, request.endpoint, error)


def _deliver(endpoint: Endpoint, code: int, opaque: int, codec: int, frame: bytes) -> None:
    """Sends an answer that has waited. It is not handed the request: that one's body is not kept for so long."""
    try:
        endpoint.send_frame(frame)
    except Exception as error:
        _fail(Command(code, opaque, codec=codec), endpoint, error)
