"""Requests to handlers, outcomes to answers. RocketMQ: NettyRemotingAbstract.processRequestCommand and its table of processors.

A handler is a method marked with `@handles`. It decodes nothing itself, calls a table and says what becomes of the request:

| outcome           | the answer                                                                        |
|-------------------|-----------------------------------------------------------------------------------|
| Command           | is sent now                                                                       |
| Pending(Command)  | is sent once the log is confirmed up to its end as of now (or as `until` says)    |
| HELD              | comes later from somebody else through request.endpoint.send, or never            |
| BrokerError       | its code and remark                                                               |
| protocol error    | SYSTEM_ERROR with the text                                                        |
| any other error   | SYSTEM_ERROR with its type and text; logged with its traceback                    |

A one-way request is answered with nothing. A handler that is `async def` names a lane: a bounded queue with a limit on how many run at once
(RocketMQ: one executor per code); a full lane answers SYSTEM_BUSY with a hint when to try again.
"""

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, cast

from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import ONEWAY_FLAG, Command
from lockstep.protocol.errors import BrokerError, ConfigError, LocalProtocolError, RemoteProtocolError, RequestCodeNotSupported, SystemBusy
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.log import get_logger
from lockstep.runtime.outstanding import code_name

log = get_logger("runtime.dispatch")

RETRY_AFTER_FIELD = "retryAfterMs"
"""Field of a SYSTEM_BUSY answer: when to try again."""


class BusyFor(SystemBusy):
    """SYSTEM_BUSY with the hint when to try again, in words and as a field of the answer."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(f"{reason}; retry after {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Request:
    """One request in a handler's hands."""

    __slots__ = ("body", "command", "endpoint", "header")

    def __init__(self, command: Command, endpoint: Endpoint, header: Any, body: Any) -> None:
        self.command = command
        self.endpoint = endpoint
        """Where it came from and where a HELD answer goes."""
        self.header: Any = header
        """The decoded header dataclass; None where the handler names none."""
        self.body: Any = body
        """The decoded body dataclass; the raw bytes where the handler names none."""

    def reply(
        self, header: object | None = None, body: object | None = None, code: int = ResponseCode.SUCCESS, remark: str | None = None
    ) -> Command:
        """The response: `header` a header dataclass, `body` bytes or a body dataclass."""
        raw = b"" if body is None else body if isinstance(body, bytes | bytearray | memoryview) else encode_body(body)
        return self.command.reply(code, remark, None if header is None else to_plain(header), raw)


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

Outcome = Command | Pending | Held


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What a lane may hold."""

    concurrency: int
    """Requests that run at once."""
    queue_max: int
    """Requests that wait beside them; one more is answered SYSTEM_BUSY."""
    retry_after_ms: int = 200


@dataclass(frozen=True, slots=True)
class Mark:
    """What `@handles` says of a method."""

    code: int
    header: type | None
    body: type | None
    lane: str | None


def handles(code: int, header: type | None = None, body: type | None = None, *, lane: str | None = None) -> Callable[[Any], Any]:
    """Marks a method `def f(self, request: Request) -> Outcome` as the handler of a request code."""

    def mark(method: Any) -> Any:
        method.__handles__ = (*getattr(method, "__handles__", ()), Mark(int(code), header, body, lane))
        return method

    return mark


@dataclass(slots=True)
class _Lane:
    name: str
    limits: LaneLimits
    waiting: deque[tuple["_Route", Request]] = field(default_factory=deque)
    workers: int = 0


@dataclass(frozen=True, slots=True)
class _Route:
    handler: Callable[[Request], Any]
    name: str
    header: type | None
    body: type | None
    lane: _Lane | None


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
    ) -> None:
        """`log`: what Pending answers wait for; None: nothing.

        ConfigError where a code has two handlers, or a lane and its handler do not fit.
        """
        self._when: Mapping[Until, Callable[[Callable[[], None]], None]] = {
            "written": _at_once if log is None else log.when_written,
            "confirmed": _at_once if log is None else log.when_confirmed,
            "synced": _at_once if log is None else log.when_synced,
        }
        self._lanes = {name: _Lane(name, limits) for name, limits in (lanes or {}).items()}
        self._tasks = Tasks()
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
        self._routes[mark.code] = _Route(handler, name, mark.header, mark.body, lane)

    @property
    def codes(self) -> tuple[int, ...]:
        """The request codes that have a handler, sorted."""
        return tuple(sorted(self._routes))

    def __call__(self, command: Command, endpoint: Endpoint) -> None:
        route = self._routes.get(command.code)
        try:
            if route is None:
                raise RequestCodeNotSupported(f"{code_name(command.code)} is not supported here")
            header = None if route.header is None else from_plain(route.header, command.fields)
            body: Any = command.body if route.body is None else decode_body(route.body, command.body)
            request = Request(command, endpoint, header, body)
            if route.lane is None:
                self._settle(request, route.handler(request))
            else:
                self._enqueue(route.lane, route, request)
        except Exception as error:
            self._failed(command, endpoint, error)

    async def close(self) -> None:
        """Stops what runs in lanes. What waits there stays unanswered."""
        for lane in self._lanes.values():
            lane.waiting.clear()
        await self._tasks.cancel_all()

    def _settle(self, request: Request, outcome: Outcome) -> None:
        if request.command.flag & ONEWAY_FLAG:
            return
        if type(outcome) is Command:
            request.endpoint.send(outcome)
        elif type(outcome) is Pending:
            # Encoded now, so that what can't be encoded is answered as an error here, not raised in the log's callback.
            self._when[outcome.until](partial(request.endpoint.send_frame, encode_frame(outcome.command)))
            # The log is mostly confirmed at the end of this loop turn.
            request.endpoint.flush_soon()
        elif outcome is not HELD:
            raise TypeError(f"a handler returned {type(outcome).__name__}, not an Outcome")

    def _failed(self, command: Command, endpoint: Endpoint, error: Exception) -> None:
        fields: dict[str, Any] | None = None
        if isinstance(error, BrokerError):
            code, remark = error.wire_code, error.remark
            fields = {RETRY_AFTER_FIELD: error.retry_after_ms} if isinstance(error, BusyFor) else None
        elif isinstance(error, RemoteProtocolError | LocalProtocolError):
            code, remark = ResponseCode.SYSTEM_ERROR, str(error)
        else:
            code, remark = ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
            log.error("request.failed", code=code_name(command.code), peer=endpoint.peer, error=repr(error), exc_info=error)
        if not command.flag & ONEWAY_FLAG:
            endpoint.send(command.reply(code, remark, fields))

    # --------------------------------------------------------------------------------------------------------------- lanes

    def _enqueue(self, lane: _Lane, route: _Route, request: Request) -> None:
        if lane.workers < lane.limits.concurrency:
            lane.workers += 1
            self._tasks.spawn(self._work(lane, route, request), f"lane {lane.name}")
        elif len(lane.waiting) < lane.limits.queue_max:
            lane.waiting.append((route, request))
        else:
            raise BusyFor(f"lane {lane.name!r} is full: {len(lane.waiting)} requests wait", lane.limits.retry_after_ms)

    async def _work(self, lane: _Lane, route: _Route, request: Request) -> None:
        """One request, then those that wait. Who has gone meanwhile is passed over."""
        try:
            await self._run(route, request)
            while lane.waiting:
                route, request = lane.waiting.popleft()
                if not request.endpoint.closed:
                    await self._run(route, request)
        finally:
            lane.workers -= 1

    async def _run(self, route: _Route, request: Request) -> None:
        try:
            handler = cast(Callable[[Request], Coroutine[Any, Any, Outcome]], route.handler)
            self._settle(request, await handler(request))
        except Exception as error:
            self._failed(request.command, request.endpoint, error)
