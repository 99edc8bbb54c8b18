"""Passes each request to the handler of its code. RocketMQ: NettyRemotingAbstract.processRequestCommand and its table of processors.

A handler is a method marked with `@handles`. It decodes nothing itself, calls a table and returns a HandlerResult (request.py).
A handler that is `async def` names a lane (lanes.py), in which it runs. What the user of a request has to be allowed is declared with the
handler (needs.py).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lockstep.protocol.codec import CODECS
from lockstep.protocol.command import MSGPACK, ONEWAY_FLAG, Command
from lockstep.protocol.errors import ConfigError, MessageIllegalError, RequestCodeNotSupportedError
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.pending_requests import code_name
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.limits import REQUEST_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.lanes import LANE_ITEMS_PER_TURN, Lane, LaneLimits
from lockstep.runtime.requests.needs import RequestNeeds
from lockstep.runtime.requests.request import NO_RESPONSE, AuditedChange, HandlerResult, PendingResponse, Request, RunInLane, Until
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from lockstep.runtime.turn import TurnBudget

CODES_OF_USERS = frozenset((*range(50, 55), *range(3001, 3011)))
"""The codes by which RocketMQ's tools change and list users and their rights (ACL of 4.x and ACL 2.0)."""
OF_USERS = ": users and what they may do are in the file of --security; `lockstep user` and `lockstep acl` change and list them"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """The arguments of `@handles` for one method."""

    code: int
    header: type | None
    body: type | None
    needs: RequestNeeds
    lane: str | None
    body_bytes_max: int
    header_bytes_max: int
    native: bool
    classic: bool
    at_once: bool


def handles(
    code: int,
    header: type | None = None,
    body: type | None = None,
    *,
    needs: RequestNeeds,
    lane: str | None = None,
    body_bytes_max: int = REQUEST_BYTES_MAX,
    header_bytes_max: int = REQUEST_HEADER_BYTES_MAX,
    native: bool = True,
    classic: bool = False,
    at_once: bool = False,
) -> Callable[[Any], Any]:
    """Mark a method `def f(self, request: Request) -> HandlerResult` as the handler of a request code.

    `needs` is what the user has to be allowed (needs.py). `body` is the dataclass to which the body is decoded, or `bytes` for the body as
    it is; without it the body of a request is dropped.
    A request with a header of more than `header_bytes_max` or a body of more than `body_bytes_max` bytes is refused before it is decoded.
    `classic`: the handler also serves RocketMQ's clients. Without it the code is not supported for them. `native=False`: it serves them
    alone, and another handler may serve native clients. `at_once`: its responses need no proof of office, because they say nothing that
    clients act on as from the only master.
    """

    def mark(method: Any) -> Any:
        rest = needs, lane, body_bytes_max, header_bytes_max, native, classic, at_once
        method.__handles__ = (*getattr(method, "__handles__", ()), HandlerSpec(int(code), header, body, *rest))
        return method

    return mark


@dataclass(frozen=True, slots=True)
class _Route:
    """The handler of a request code."""

    handler: Callable[[Request], Any]
    name: str
    spec: HandlerSpec
    lane: Lane | None
    changes: bool
    """Whether the audit has each request."""

    def decode(self, command: Command) -> tuple[Any, Any]:
        """Return the header and the body that the handler declares. Raise MessageIllegalError if one is too long, else protocol errors."""
        spec = self.spec
        if len(command.body) > spec.body_bytes_max:
            size = len(command.body)
            raise MessageIllegalError(f"{code_name(command.code)} has a body of {size} bytes: at most {spec.body_bytes_max}")
        if command.header_bytes > spec.header_bytes_max:
            size = command.header_bytes
            raise MessageIllegalError(f"{code_name(command.code)} has a header of {size} bytes: at most {spec.header_bytes_max}")
        codec = CODECS[command.codec]
        header = None if spec.header is None else codec.read_fields(spec.header, command.fields)
        body: Any = b"" if spec.body is None else command.body if spec.body is bytes else codec.read_body(spec.body, command.body)
        return header, body

    def change(self, request: Request) -> AuditedChange:
        """Return what the audit knows of a request before its handler is called."""
        return AuditedChange(", ".join(filter(None, (need.resource(request) for need in self.spec.needs))))

    def check(self, request: Request) -> None:
        """Raise AccessDeniedError unless the user of the request may do what it asks for."""
        for need in self.spec.needs:
            need.check(request)

    async def check_and_handle(self, request: Request) -> HandlerResult:
        """Handle a request that has waited: its user's rights may have changed."""
        self.check(request)
        return await self.handler(request)  # type: ignore[no-any-return]


class ResponseLog(Protocol):
    """Calls back when everything that is in the log now is written, confirmed or synced."""

    def when_written(self, callback: Callable[[], None]) -> None: ...

    def when_confirmed(self, callback: Callable[[], None]) -> None: ...

    def when_synced(self, callback: Callable[[], None]) -> None: ...


def _at_once(callback: Callable[[], None]) -> None:
    callback()


class Dispatcher:
    """Finds the handler of each request and carries out its HandlerResult.

    A Dispatcher is the handler of endpoints: `dispatcher(command, endpoint)` never raises.
    """

    def __init__(
        self,
        processors: Sequence[object],
        log: ResponseLog | None = None,
        lanes: Mapping[str, LaneLimits] | None = None,
        on_request: Callable[[Endpoint], None] | None = None,
        budget: TurnBudget | None = None,
        admit: Callable[[Command, Endpoint], RequestUser] | None = None,
        audit: RequestAudit | None = None,
        refuse: Callable[[Endpoint], Exception] | None = None,
        in_office: Callable[[Callable[[], None]], None] | None = None,
        check_office: Callable[[], None] | None = None,
    ) -> None:
        """Build the table of handlers from processor instances.

        `log` is what a PendingResponse waits for; without it they are sent at once. `admit` returns the user of a request, or raises the
        error of one that is not served. `on_request` is called before each request is handled. `budget` limits what all lanes do in one
        turn of the loop; a request takes LANE_ITEMS of it, and handlers that do more take more. `audit` notes what is denied, and what
        is changed. `refuse` returns the error for a code without a handler, on this connection. `in_office` calls back when this
        server is known to have been the master after the call: every response waits for it but those of handlers `at_once`, and facts.
        `check_office` raises the error of requests that would wait for it in vain: they are not handled.
        Raise ConfigError if a code has two handlers, or a lane and its handler do not fit.
        """
        self._when: Mapping[Until, Callable[[Callable[[], None]], None]] = {
            "written": _at_once if log is None else log.when_written,
            "confirmed": _at_once if log is None else log.when_confirmed,
            "synced": _at_once if log is None else log.when_synced,
        }
        self._tasks = Tasks()
        budget = TurnBudget(LANE_ITEMS_PER_TURN) if budget is None else budget
        self._lanes = {name: Lane(name, limits, self._tasks, budget, self._carry_out) for name, limits in (lanes or {}).items()}
        self._on_request = on_request
        self._admit = admit
        self._audit = audit
        self._refuse = refuse
        self._in_office = in_office
        self._check_office = check_office
        self._notes_changes = audit is not None and audit.is_written
        self._routes: dict[int, _Route] = {}
        self._classic_routes: dict[int, _Route] = {}
        for processor in processors:
            for name in dir(type(processor)):
                for spec in getattr(getattr(type(processor), name), "__handles__", ()):
                    self._add(spec, getattr(processor, name), f"{type(processor).__name__}.{name}")

    def _add(self, spec: HandlerSpec, handler: Callable[[Request], Any], name: str) -> None:
        tables = [table for table, serves in ((self._routes, spec.native), (self._classic_routes, spec.classic)) if serves]
        for table in tables:
            if spec.code in table:
                raise ConfigError(f"{code_name(spec.code)} has two handlers: {table[spec.code].name} and {name}")
        if inspect.iscoroutinefunction(handler) != (spec.lane is not None):
            raise ConfigError(f"{name}: an async handler names a lane, a plain one does not")
        if spec.lane is not None and spec.lane not in self._lanes:
            raise ConfigError(f"{name}: lane {spec.lane!r} is not one of {sorted(self._lanes)}")
        lane = None if spec.lane is None else self._lanes[spec.lane]
        route = _Route(handler, name, spec, lane, any(need.changes for need in spec.needs))
        for table in tables:
            table[spec.code] = route

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the request codes that have a handler for native clients, sorted."""
        return tuple(sorted(self._routes))

    def specs(self, *, native: bool) -> dict[int, HandlerSpec]:
        """Return the declaration of each handler, by its code."""
        return {code: route.spec for code, route in sorted((self._routes if native else self._classic_routes).items())}

    def __call__(self, command: Command, endpoint: Endpoint) -> None:
        """Handle one request."""
        request = Request(command, endpoint)
        request.audit = self._audit
        try:
            if self._admit is not None:
                request.user = self._admit(command, endpoint)
            if self._on_request is not None:
                self._on_request(endpoint)
            route = (self._routes if command.codec == MSGPACK else self._classic_routes).get(command.code)
            if route is None and self._refuse is not None:
                raise self._refuse(endpoint)
            if route is None:
                hint = OF_USERS if command.code in CODES_OF_USERS else ""
                raise RequestCodeNotSupportedError(f"{code_name(command.code)} is not supported by this server{hint}")
            request.header, request.body = route.decode(command)
            if self._in_office is not None and not route.spec.at_once:
                if self._check_office is not None:
                    self._check_office()
                request.in_office = self._in_office
            if route.changes and self._notes_changes:
                request.change = route.change(request)
            if request.user is not ANYBODY:
                route.check(request)
            if route.lane is None:
                self._carry_out(request, route.handler(request))
            else:
                route.lane.add(request, partial(route.handler if request.user is ANYBODY else route.check_and_handle, request))
        except Exception as error:
            request.fail(error)

    async def close(self) -> None:
        """Stop the requests that run in lanes and drop those that wait there, without responses."""
        for lane in self._lanes.values():
            lane.clear()
        await self._tasks.cancel_all()

    def _carry_out(self, request: Request, result: HandlerResult) -> None:
        """Carry out the result of a request's handler."""
        if request.change is not None and self._audit is not None and isinstance(result, Command | PendingResponse):
            self._audit.done(request, result if isinstance(result, Command) else result.command)
        if type(result) is Command:
            request.respond(result)
        elif type(result) is RunInLane:
            self._lanes[result.lane].add(request, result.work)
        elif type(result) is PendingResponse:
            if request.flag & ONEWAY_FLAG:
                return
            # Encoded now, so that a response that can't be encoded fails the request here, not in the log's callback.
            frame = encode_frame(result.command)
            request.header = request.body = None  # many requests wait for the disk: only the frame is still needed
            # Of these, only what is confirmed was in office after it was handled (LogWriter.when_confirmed).
            deliver = request.send_proven if result.until == "confirmed" else request.respond_encoded
            self._when[result.until](partial(_deliver, request, deliver, frame))
            # The log is mostly confirmed at the end of this loop turn.
            request.endpoint.flush_soon()
        elif result is not NO_RESPONSE:
            raise TypeError(f"a handler returned {type(result).__name__}, not a HandlerResult")


def _deliver(request: Request, deliver: Callable[[bytes], None], frame: bytes) -> None:
    try:
        deliver(frame)
    except Exception as error:
        request.fail(error)
