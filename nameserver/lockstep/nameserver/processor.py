"""Answers of the nameserver. RocketMQ: DefaultRequestProcessor, ClientRequestProcessor. The rules are RouteTable's."""

import asyncio

from lockstep.nameserver.route_table import LISTEN_MS, Registration, RouteChange, RouteTable
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.bodies import ClusterInfo, RegisterBody, RegisterReply, TopicList, TopicRoute
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import MSGPACK, Command
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
from lockstep.protocol.layouts import split_layouts
from lockstep.protocol.names import check_broker_name, check_cluster_name
from lockstep.runtime.clock import Clock
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.dispatch import handles
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.limits import LAYOUTS_BYTES_MAX
from lockstep.runtime.link import parse_address
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited
from lockstep.runtime.request import Request

log = get_logger("lockstep.nameserver")

LISTENERS_MAX = 16
"""Of one broker: inside, outside, and some networks between."""
ADDRESS_LENGTH_MAX = 255
"""Characters of a listener's name, and of its address."""
STORE_WORD_LENGTH_MAX = 64
"""Characters of a store's id, and of its proof: brokers send 32 each. Both are kept for as long as the name."""
READING_TURNS = 16
"""Of the loop, in which what is readable at their beginning is read: up to 256 KiB of each connection in a turn."""


class RouteProcessor:
    """One instance a nameserver: its RouteTable, and which endpoint speaks for which brokers."""

    def __init__(self, table: RouteTable, clock: Clock, tasks: Tasks) -> None:
        self._table = table
        self._clock = clock
        self._tasks = tasks
        self._speakers: dict[int, Endpoint] = {}
        """Connections that have registered a broker; on_close unregisters."""
        self._challenges: dict[tuple[str, int], None] = {}
        """(broker name, connection) that an answer is awaited of."""
        self._listening = False

    @handles(RequestCode.REGISTER_BROKER, RegisterBrokerHeader, RegisterBody, body_bytes_max=LAYOUTS_BYTES_MAX)
    def register(self, request: Request) -> Command:
        header: RegisterBrokerHeader = request.header
        body: RegisterBody = request.body
        _check_registration(header, body)
        said = Registration(
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
        )
        try:
            change = self._table.register(said, self._speaker(request.endpoint), self._clock.monotonic_ms())
        except BrokerNameTakenError as error:
            log_limited(log, "warning", "broker.refused", name=said.name, peer=request.endpoint.peer, reason=error.remark)
            raise
        finally:
            for challenge in self._table.take_challenges():
                self._challenge_soon(challenge)
        _log_change(said, change, request.endpoint.peer)
        if change.superseded is not None and (older := self._speakers.get(change.superseded)) is not None:
            older.close(f"broker {said.name} has registered from {request.endpoint.peer}")
        self._tell_others(change.adopted, request.endpoint)
        return request.reply(body=RegisterReply(change.missing, change.refused, change.refused_more))

    @handles(RequestCode.UNREGISTER_BROKER, UnregisterBrokerHeader)
    def unregister(self, request: Request) -> Command:
        header: UnregisterBrokerHeader = request.header
        if self._table.unregister(header.broker_name, header.store_id, header.term, request.endpoint.id):
            log_limited(log, "info", "broker.unregistered", name=header.broker_name, reason="said goodbye")
        return request.reply()

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader)
    def route(self, request: Request) -> Command:
        header: TopicHeader = request.header
        route = self._table.route(header.topic, request.endpoint.listener, self._clock.monotonic_ms())
        if route is not None:
            return request.reply(body=route)
        self._check_ready(request)
        remark = f"no topic {header.topic!r}: create it with `lockstep topic create {header.topic}`"
        deleted = self._table.layouts.get(header.topic)
        if deleted is not None and request.codec == MSGPACK:
            # Who knows a lower layout learns that it is over, not that this nameserver has not heard of it yet.
            return request.reply(body=TopicRoute(deleted, ()), code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        raise TopicNotExistError(remark)

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster(self, request: Request) -> Command:
        self._check_ready(request)
        return request.reply(body=ClusterInfo(self._table.brokers(request.endpoint.listener)))

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topics(self, request: Request) -> Command:
        self._check_ready(request)
        return request.reply(body=TopicList(self._table.layouts.user_topics()))

    @handles(RequestCode.FORGET_DELETIONS, ForgetDeletionsHeader)
    def forget_deletions(self, request: Request) -> Command:
        header: ForgetDeletionsHeader = request.header
        forgotten = self._table.forget_deletions(header.counter_max)
        if forgotten:
            log.warning("deletions.forgotten", count=forgotten, peer=request.endpoint.peer)
        return request.reply(ForgetDeletionsReply(forgotten, self._table.layouts.deleted_count))

    def expire(self, *, stood_still_ms: int = 0) -> None:
        """Unregister whoever is silent, and close its connection: if the broker lives, it comes back within a second.

        `stood_still_ms`: how long this process has stood still since the last call.
        """
        if stood_still_ms > 0:
            self._table.stood_still(stood_still_ms, self._clock.monotonic_ms())
        for name, connection in self._table.expire(self._clock.monotonic_ms()).items():
            log_limited(log, "warning", "broker.unregistered", name=name, reason="silent for too long")
            speaker = self._speakers.get(connection)
            if speaker is not None:
                speaker.close("the broker has not registered in time")

    def _tell_others(self, topics: tuple[str, ...], source: Endpoint) -> None:
        """Clients are sent to all brokers by the new layouts now: none of them should call a queue unknown until its next registration."""
        layouts = tuple(layout for topic in topics if (layout := self._table.layouts.get(topic)) is not None)
        if not layouts:
            return
        for part in split_layouts(layouts):
            body = encode_body(RegisterReply(tuple(part)))
            for speaker in self._speakers.values():
                if speaker is not source:
                    speaker.oneway(RequestCode.LAYOUTS_CHANGED, body=body)

    def _challenge_soon(self, challenge: tuple[str, int]) -> None:
        """Unless this connection has not answered the challenge before: that answer counts for both."""
        if challenge not in self._challenges:
            self._challenges[challenge] = None
            self._tasks.spawn(self._challenge(*challenge), f"nameserver.challenge {challenge[0]}")
        if not self._listening:
            self._listening = True
            self._tasks.spawn(self._listen(), "nameserver.listen")

    async def _listen(self) -> None:
        """Counts open challenges down in slices of LISTEN_MS, however long one lasts because this process stood still.

        A slice counts after everything that was readable at its end has been read, so that no answer that has arrived is missed.
        """
        try:
            awaited = True
            while awaited:
                await asyncio.sleep(LISTEN_MS / 1000)
                for _ in range(READING_TURNS):
                    await asyncio.sleep(0)
                awaited = self._table.listened(LISTEN_MS)
        finally:
            self._listening = False

    async def _challenge(self, name: str, connection: int) -> None:
        """Asks an incumbent whether it is still there. Any answer counts: earlier versions answer that they know no such request."""
        try:
            speaker = self._speakers.get(connection)
            if speaker is None:
                return
            await speaker.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=SILENCE_MS)
        except TransportError:
            return
        finally:
            self._challenges.pop((name, connection), None)
        self._table.answered(name, connection, self._clock.monotonic_ms())

    def _check_ready(self, request: Request) -> None:
        """A classic client does not know this refusal: it gets what RocketMQ answers, and keeps what it has."""
        if not self._table.ready and request.codec == MSGPACK:
            raise RouteNotReadyError("no broker has registered since this nameserver started: ask another one, or use what you know")

    def _speaker(self, endpoint: Endpoint) -> int:
        if endpoint.id not in self._speakers:
            self._speakers[endpoint.id] = endpoint
            endpoint.on_close.append(self._closed)
        return endpoint.id

    def _closed(self, endpoint: Endpoint, reason: str) -> None:
        del self._speakers[endpoint.id]
        for name in self._table.connection_closed(endpoint.id):
            log_limited(log, "warning", "broker.unregistered", name=name, reason=f"connection closed: {reason}")


def _check_registration(header: RegisterBrokerHeader, body: RegisterBody) -> None:
    """What every client and command would be told of the broker. Raises LocalProtocolError and RemoteProtocolError."""
    check_broker_name(header.broker_name)
    check_cluster_name(header.cluster_name)
    what = f"broker {header.broker_name!r} registers"
    if header.broker_id != 0:
        raise RemoteProtocolError(f"{what} with id {header.broker_id}: only 0 (the owner of its queues) is served")
    for word, value in (("store id", header.store_id), ("proof", header.proof or "")):
        if len(value) > STORE_WORD_LENGTH_MAX:
            raise RemoteProtocolError(f"{what} a {word} of {len(value)} characters: at most {STORE_WORD_LENGTH_MAX}")
    if len(body.listeners) > LISTENERS_MAX:
        raise RemoteProtocolError(f"{what} {len(body.listeners)} listeners: at most {LISTENERS_MAX}")
    for name, address in body.listeners.items():
        if len(name) > ADDRESS_LENGTH_MAX or len(address) > ADDRESS_LENGTH_MAX:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r} at {address[:40]!r}: at most {ADDRESS_LENGTH_MAX} characters each")
        try:
            _, port = parse_address(address)
        except ConfigError as error:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r}: {error}") from None
        if port == 0:
            raise RemoteProtocolError(f"{what} listener {name[:40]!r} at {address!r}: nobody can dial port 0")


def _log_change(said: Registration, change: RouteChange, peer: str) -> None:
    if change.joined:
        log_limited(
            log,
            "info",
            "broker.registered",
            name=said.name,
            cluster=said.cluster,
            listeners=said.listeners,
            term=said.term,
            peer=peer,
            missing=len(change.missing),
        )
    for topic in change.adopted:
        log_limited(log, "info", "layout.adopted", topic=topic, broker=said.name)
    for layout in change.refused:
        log_limited(log, "warning", "layout.refused", topic=layout.topic, broker=said.name, reason=layout.reason)
    if change.refused_more:
        log_limited(log, "warning", "layouts.refused", broker=said.name, count=change.refused_more + len(change.refused))
