"""Request handlers of the nameserver. RocketMQ: DefaultRequestProcessor, ClientRequestProcessor. RouteTable holds the rules."""

import asyncio

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.classic_bodies import cluster_body, route_body
from lockstep.nameserver.route_table import COUNTDOWN_STEP_MS, RegistrationResult, RouteTable
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.bodies import ClusterInfo, RegisterBody, RegisterReply, TopicList, TopicRoute
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerNameTakenError,
    ConfigError,
    RemoteProtocolError,
    RouteNotReadyError,
    TopicNotExistError,
    TransportError,
)
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import (
    ForgetDeletionsHeader,
    ForgetDeletionsReply,
    RegisterBrokerHeader,
    UnregisterBrokerHeader,
)
from lockstep.protocol.names import REPLICAS_MAX, check_broker_name, check_cluster_name, how_to_create
from lockstep.protocol.topics.layouts import split_layouts
from lockstep.runtime.clock import Clock
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.limits import LAYOUTS_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import ANY_USER, SUPER_USER, inside
from lockstep.runtime.requests.request import AuditedChange, Request

log = get_logger("lockstep.nameserver")

LISTENERS_MAX = 16
"""The maximum number of listeners of one broker: internal, external, and some networks in between."""
ADDRESS_LENGTH_MAX = 255
"""The maximum number of characters of a listener's name, and of its address."""
STORE_ID_LENGTH_MAX = 64
"""The maximum number of characters of a store's id, and of its proof: brokers send 32 each. Both are kept as long as the name."""
READ_TURNS = 16
"""Turns of the loop in which all data is read that is readable at their beginning: up to 256 KiB of each connection in a turn."""


class RouteProcessor:
    """The handlers of one nameserver: its RouteTable, and the connections that registered brokers."""

    def __init__(self, table: RouteTable, clock: Clock, tasks: Tasks) -> None:
        self._table = table
        self._clock = clock
        self._tasks = tasks
        self._connections: dict[int, Endpoint] = {}
        """Connections that have registered a broker; their close unregisters it."""
        self._challenges: dict[tuple[str, int], None] = {}
        """(broker name, connection) of the challenges that wait for a response."""
        self._counting_down = False

    @handles(
        RequestCode.REGISTER_BROKER,
        RegisterBrokerHeader,
        RegisterBody,
        needs=[inside("a user with this broker")],
        body_bytes_max=LAYOUTS_BYTES_MAX,
    )
    def register(self, request: Request) -> Command:
        header: RegisterBrokerHeader = request.header
        body: RegisterBody = request.body
        _check_broker(request, header.broker_name)
        _check_registration(header, body)
        registration = Registration(
            header.broker_name,
            header.cluster_name,
            header.store_id,
            header.term,
            dict(body.listeners),
            body.layouts,
            header.proof,
            header.previous_term,
            body.part,
            body.parts,
            body.full,
            body.auto_create,
            body.replicas or (),
            header.office is True,
            body.tried or (),
        )
        try:
            change = self._table.register(registration, self._connection(request.endpoint), self._clock.monotonic_ms())
        except BrokerNameTakenError as error:
            request.change = AuditedChange(f"broker:{registration.name}")
            log_limited(log, "warning", "broker.refused", name=registration.name, peer=request.endpoint.peer, reason=error.remark)
            raise
        finally:
            for challenge in self._table.take_challenges():
                self._start_challenge(challenge)
        _log_change(registration, change, request.endpoint.peer)
        if change.joined or change.adopted or change.refused:
            counts = {"adopted": len(change.adopted), "refused": len(change.refused) + change.refused_more}
            facts = {"joined": change.joined, "term": registration.term, "listeners": registration.listeners, **counts}
            request.change = AuditedChange(f"broker:{registration.name}", after=facts)
        if change.superseded is not None and (older := self._connections.get(change.superseded)) is not None:
            older.close(f"broker {registration.name} has registered from {request.endpoint.peer}")
        self._notify_brokers(change.adopted, request.endpoint)
        return request.reply(body=RegisterReply(change.missing, change.refused, change.refused_more))

    @handles(RequestCode.UNREGISTER_BROKER, UnregisterBrokerHeader, needs=[inside("a user with this broker")])
    def unregister(self, request: Request) -> Command:
        header: UnregisterBrokerHeader = request.header
        _check_broker(request, header.broker_name)
        if self._table.unregister(header.broker_name, header.store_id, header.term, request.endpoint.id, self._clock.monotonic_ms()):
            log_limited(log, "info", "broker.unregistered", name=header.broker_name, reason="unregistered by the broker")
            request.change = AuditedChange(f"broker:{header.broker_name}")
        return request.reply()

    @handles(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader, needs=[inside("Pub, Sub or Get topic; else as if it did not exist")], classic=True
    )
    def route(self, request: Request) -> Command:
        header: TopicHeader = request.header
        hidden = not request.user.sees_topic(header.topic)
        asked = header.topic, request.endpoint.listener, self._clock.monotonic_ms()
        route = None if hidden else self._table.route(*asked, classic=not request.is_native)
        if not request.is_native and not hidden:
            route = route or self._table.own_route(header.topic, request.endpoint.listener)
        if route is not None and not request.is_native:
            quoted = header.accept_standard_json_only is True
            body = route_body(route.layout, route.brokers, request.version, quoted=quoted)
            if body is not None:
                return request.reply(body=body)
        elif route is not None:
            return request.reply(body=route)
        self._check_ready(request)
        remark = f"no topic {header.topic!r}: {how_to_create(header.topic)}"
        deleted = self._table.layouts.get(header.topic)
        if deleted is not None and request.is_native and not hidden:
            # A client that knows a lower layout learns that the topic is deleted, not that this nameserver does not know it yet.
            return request.reply(body=TopicRoute(deleted, ()), code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        raise TopicNotExistError(remark)

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO, needs=ANY_USER, classic=True)
    def cluster(self, request: Request) -> Command:
        self._check_ready(request)
        brokers = self._table.brokers(request.endpoint.listener)
        return request.reply(body=ClusterInfo(brokers) if request.is_native else cluster_body(brokers, request.version))

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, needs=[inside("topics that may be listed")], classic=True)
    def topics(self, request: Request) -> Command:
        self._check_ready(request)
        return request.reply(body=TopicList(tuple(filter(request.user.sees_topic, self._table.layouts.user_topics()))))

    @handles(RequestCode.FORGET_DELETIONS, ForgetDeletionsHeader, needs=SUPER_USER)
    def forget_deletions(self, request: Request) -> Command:
        header: ForgetDeletionsHeader = request.header
        forgotten = self._table.forget_deletions(header.counter_max)
        request.change = AuditedChange("cluster", after={"forgotten": forgotten})
        if forgotten:
            log.warning("deletions.forgotten", count=forgotten, peer=request.endpoint.peer)
        return request.reply(ForgetDeletionsReply(forgotten, self._table.layouts.deleted_count))

    def expire(self, *, pause_ms: int = 0) -> None:
        """Unregister silent brokers and close their connections: a broker that is alive registers again within a second.

        `pause_ms` is how long this process was suspended or blocked since the last call.
        """
        if pause_ms > 0:
            self._table.exclude_pause(pause_ms, self._clock.monotonic_ms())
        for name, connection in self._table.expire(self._clock.monotonic_ms()).items():
            log_limited(log, "warning", "broker.unregistered", name=name, reason="silent for too long")
            endpoint = self._connections.get(connection)
            if endpoint is not None:
                endpoint.close("the broker has not registered in time")

    def _notify_brokers(self, topics: tuple[str, ...], source: Endpoint) -> None:
        """Notify the other brokers. Routes send clients to all brokers of the new layouts now, and a broker must not reject a queue as
        unknown until its next registration."""
        layouts = tuple(layout for topic in topics if (layout := self._table.layouts.get(topic)) is not None)
        if not layouts:
            return
        for part in split_layouts(layouts):
            body = encode_body(RegisterReply(tuple(part)))
            for endpoint in self._connections.values():
                if endpoint is not source:
                    endpoint.oneway(RequestCode.LAYOUTS_CHANGED, body=body)

    def _start_challenge(self, challenge: tuple[str, int]) -> None:
        """Start the challenge, unless an earlier one on this connection has no response yet: its response counts for both."""
        if challenge not in self._challenges:
            self._challenges[challenge] = None
            self._tasks.spawn(self._challenge(*challenge), f"nameserver.challenge {challenge[0]}")
        if not self._counting_down:
            self._counting_down = True
            self._tasks.spawn(self._count_down(), "nameserver.countdown")

    async def _count_down(self) -> None:
        """Count open challenges down by COUNTDOWN_STEP_MS at a time, even if this process was suspended or blocked for longer.

        A slice counts after everything that was readable at its end has been read, so that no response that has arrived is missed.
        """
        try:
            pending = True
            while pending:
                await asyncio.sleep(COUNTDOWN_STEP_MS / 1000)
                for _ in range(READ_TURNS):
                    await asyncio.sleep(0)
                pending = self._table.count_down_challenges(COUNTDOWN_STEP_MS)
        finally:
            self._counting_down = False

    async def _challenge(self, name: str, connection: int) -> None:
        """Ask an incumbent whether it is alive. Any response counts, also a refusal."""
        try:
            endpoint = self._connections.get(connection)
            if endpoint is None:
                return
            await endpoint.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=SILENCE_MS)
        except TransportError:
            return
        finally:
            self._challenges.pop((name, connection), None)
        self._table.confirm_alive(name, connection, self._clock.monotonic_ms())

    def _check_ready(self, request: Request) -> None:
        """Raise RouteNotReadyError before the first registration. Classic clients don't know that error: they get RocketMQ's response."""
        if not self._table.ready and request.is_native:
            raise RouteNotReadyError("no broker has registered since this nameserver started: ask another one, or use the cached route")

    def _connection(self, endpoint: Endpoint) -> int:
        if endpoint.id not in self._connections:
            self._connections[endpoint.id] = endpoint
            endpoint.on_close.append(self._closed)
        return endpoint.id

    def _closed(self, endpoint: Endpoint, reason: str) -> None:
        del self._connections[endpoint.id]
        for name in self._table.connection_closed(endpoint.id, self._clock.monotonic_ms()):
            log_limited(log, "warning", "broker.unregistered", name=name, reason=f"connection closed: {reason}")


def _check_broker(request: Request, name: str) -> None:
    """Raise AccessDeniedError if the user of the request is not that of this broker."""
    if not request.user.may_be_broker(name):
        raise request.user.refusal(f"register broker {name}: its `brokers` do not name it")


def _check_registration(header: RegisterBrokerHeader, body: RegisterBody) -> None:
    """Raise LocalProtocolError or RemoteProtocolError for values that clients and commands could not use."""
    check_broker_name(header.broker_name)
    check_cluster_name(header.cluster_name)
    what = f"broker {header.broker_name!r} registers"
    if header.broker_id != 0:
        raise RemoteProtocolError(f"{what} with id {header.broker_id}: only 0 (the owner of its queues) is served")
    for label, value in (("store id", header.store_id), ("proof", header.proof)):
        if len(value) > STORE_ID_LENGTH_MAX:
            raise RemoteProtocolError(f"{what} a {label} of {len(value)} characters: at most {STORE_ID_LENGTH_MAX}")
    if len(body.listeners) > LISTENERS_MAX:
        raise RemoteProtocolError(f"{what} {len(body.listeners)} listeners: at most {LISTENERS_MAX}")
    replicas = body.replicas or ()
    if len(replicas) > REPLICAS_MAX:
        raise RemoteProtocolError(f"{what} {len(replicas)} replicas: at most {REPLICAS_MAX}")
    for name, address in (*body.listeners.items(), *(("of a replica", each) for each in replicas)):
        if len(name) > ADDRESS_LENGTH_MAX or len(address) > ADDRESS_LENGTH_MAX:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r} at {address[:40]!r}: at most {ADDRESS_LENGTH_MAX} characters each")
        try:
            _, port = parse_address(address)
        except ConfigError as error:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r}: {error}") from None
        if port == 0:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r} at {address!r}: port 0 can't be connected to")


def _log_change(registration: Registration, change: RegistrationResult, peer: str) -> None:
    if change.joined:
        log_limited(
            log,
            "info",
            "broker.registered",
            name=registration.name,
            cluster=registration.cluster,
            listeners=registration.listeners,
            term=registration.term,
            peer=peer,
            missing=len(change.missing),
        )
    for topic in change.adopted:
        log_limited(log, "info", "layout.adopted", topic=topic, broker=registration.name)
    for layout in change.refused:
        log_limited(log, "warning", "layout.refused", topic=layout.topic, broker=registration.name, reason=layout.reason)
    if change.refused_more:
        log_limited(log, "warning", "layouts.refused", broker=registration.name, count=change.refused_more + len(change.refused))
