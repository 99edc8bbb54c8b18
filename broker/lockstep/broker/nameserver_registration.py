"""Registers this broker with every nameserver: its identity, addresses and stored layouts. RocketMQ: BrokerOuterAPI.registerBrokerAll.

Each nameserver has its own link, and all work at once: the broker registers on connect, every 30 s, and at once after a change. Many
layouts go in parts, one request after the other: the registration takes effect with the last one, and starts again if the connection is
lost. The response carries layouts that this broker lacks; it adopts them and registers again. Only a response without layouts is an
*acceptance*: a broker to which clients are sent knows every topic that its nameserver knows. Layouts that other brokers register later
arrive at once (LAYOUTS_CHANGED).

A registration, for whatever reason, is sent when the log has confirmed all that it tells: nameservers and, through them, other brokers
adopt it, deletions too, and a layout that the log then loses would remain there (ordering.md 8.9). Only a start does not wait before it is
accepted: it tells what the log had when it was read, and the port at which copies of the log confirm it is not open yet.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from lockstep.protocol.bodies import DataVersion, NameserverStanding, RefusedLayout, RegisterBody, RegisterReply, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, LockstepError, RemoteProtocolError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import RegisterBrokerHeader, UnregisterBrokerHeader
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.protocol.responses import responsible
from lockstep.protocol.topics.layouts import split_layouts
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.link import Link
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.waiting import is_set_within

log = get_logger("lockstep.broker")

PERIOD_MS = 30_000
"""RocketMQ's registerNameServerPeriod. A nameserver unregisters a broker after four missing registrations."""
TIMEOUT_MS = 6_000
"""RocketMQ's registerBrokerTimeoutMills."""
SETTLE_MS = 1_000
"""How long the other nameservers have after the first acceptance to reject the broker, before the data port opens."""
KNOWN_MS = 1_000
"""How long a response to a client of RocketMQ waits for the nameservers: it asks for the route of a new topic only once."""
UNREGISTER_MS = 1_000
PENDING_FIRST_MS = 50
PENDING_MAX_MS = 1_000
"""A pending registration is retried after 50 ms, then after twice as long each time up to 1 s: a connection that the incumbent's machine
no longer knows is reset as soon as the nameserver uses it, so that most challenges are decided at once."""
ROUNDS_MAX = 10
"""The maximum number of rounds in a row in which the broker adopts nothing new and registers again. More rounds mean that an adopted
layout does not stay adopted."""


class RegistrationRefusedError(LockstepError):
    """A nameserver gave the name to another broker, or this store is a copy. The message is the nameserver's reason."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity of the broker, which stays the same from start to stop."""

    name: str
    cluster: str
    store_id: str
    term: int
    listeners: dict[str, str]
    """Listener name → address to connect to. `internal` is always included."""
    proof: str = field(repr=False)
    """The store's secret."""
    previous_term: int
    """The term of the store's last start that was certainly accepted."""
    tried: tuple[int, ...] = ()
    """The terms of the starts since then."""
    office: bool = False
    """The term stands in a register, and the start before was the one that the register had."""

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL_LISTENER]


class RegistrationState(Enum):
    """The state of this broker's registration with one nameserver."""

    PENDING = "pending"
    """No response yet."""
    UNREACHABLE = "unreachable"
    CONTESTED = "contested"
    """The name is registered: the nameserver checks whether that broker is alive, and decides within seconds."""
    LEARNING = "learning"
    """The response carried layouts: they are adopted, and the next registration is due."""
    ACCEPTED = "accepted"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    """Another start of this log was accepted, with a term that is not lower, and this one is in office: the register decides."""


class NameserverRegistration:
    """Registers with every nameserver while the broker runs.

    `identity()` returns the same from `start` on. `layouts()` returns every layout that the broker stores. `adopt(layouts)` stores those
    that it lacked and returns how many were new (the caller makes them durable). `when_confirmed(callback)` calls back when the log is
    confirmed up to its present end, at once if it is. `full()` returns whether the broker accepts no more topics, `auto_create()` whether
    it creates topics with their first sends, `replicas()` the addresses of the other copies of its log. `superseded(term)` is called when a
    nameserver refuses a start in office because of another start of its log, which had this term. `wait_until_accepted` raises any other
    refusal that arrives before it returns; a later one is logged as an error and never stops the broker.
    """

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        identity: Callable[[], BrokerIdentity],
        nameservers: Sequence[str],
        *,
        security: ClientSecurity = NO_SECURITY,
        when_confirmed: Callable[[Callable[[], None]], None],
        layouts: Callable[[], Iterable[TopicLayout]],
        adopt: Callable[[Sequence[TopicLayout]], int],
        full: Callable[[], bool] = lambda: False,
        auto_create: Callable[[], bool] = lambda: False,
        replicas: Callable[[], Sequence[str]] = tuple,
        superseded: Callable[[int], None] = lambda _: None,
        period_ms: int = PERIOD_MS,
    ) -> None:
        """Raise ConfigError for an invalid address."""
        self.identity = identity
        self._when_confirmed = when_confirmed
        self.layouts = layouts
        self.adopt = adopt
        self.full = full
        self.auto_create = auto_create
        self.replicas = replicas
        self.superseded = superseded
        self.period_ms = period_ms
        self._host = host
        self._tasks = tasks
        self._born_ms = host.clock.wall_ms()
        self._changes = 0
        self._waits = False
        """Registrations wait for the log: the start has been accepted."""
        self._state_changed = asyncio.Event()
        """Set when the state of a nameserver has changed, or it knows more changes."""
        for address in nameservers:
            parse_address(address)
        self._peers = tuple(_Nameserver(self, host, address, security) for address in dict.fromkeys(nameservers))

    def start(self) -> None:
        for peer in self._peers:
            self._tasks.spawn(peer.run(), f"registration {peer.address}")

    def register_soon(self) -> None:
        """Register with every nameserver at once, because a layout or an address has changed."""
        self._changes += 1
        for peer in self._peers:
            peer.wake.set()

    async def confirmed(self) -> None:
        """Return when the log has confirmed the present layouts, or at once before the start is accepted."""
        event = asyncio.Event()
        if self._waits:
            self._when_confirmed(event.set)
            await event.wait()

    def states(self) -> dict[str, RegistrationState]:
        """Return nameserver address → the state of the registration there."""
        return {peer.address: peer.state for peer in self._peers}

    @property
    def changes(self) -> int:
        """Return the number of changes of layouts and addresses so far."""
        return self._changes

    def statuses(self) -> tuple[NameserverStanding, ...]:
        """Return the same as `states`, with the reason of a refusal."""
        return tuple(NameserverStanding(peer.address, peer.state.value, peer.remark) for peer in self._peers)

    async def wait_until_accepted(self) -> None:
        """Return when one nameserver has accepted this broker and none has refused it. Raise RegistrationRefusedError.

        Wait while none can be reached: no client finds a broker that no nameserver knows.
        """
        try:
            await self._wait_until_accepted()
        finally:
            self._waits = True

    async def _wait_until_accepted(self) -> None:
        settle_at: float | None = None
        is_logged = False
        loop = asyncio.get_running_loop()
        while True:
            self._state_changed.clear()
            self._raise_refusal()
            states = set(self.states().values())
            if not self._peers or {RegistrationState.ACCEPTED} <= states <= {RegistrationState.ACCEPTED, RegistrationState.UNREACHABLE}:
                return
            if states == {RegistrationState.UNREACHABLE} and not is_logged:
                is_logged = True
                then = "the data port opens when one of them has accepted this broker"
                log.warning("registration.awaited", nameservers=list(self.states()), then=then)
            if settle_at is None and RegistrationState.ACCEPTED in states:
                settle_at = loop.time() + SETTLE_MS / 1000
            try:
                async with asyncio.timeout_at(settle_at):
                    await self._state_changed.wait()
            except TimeoutError:
                self._raise_refusal()
                if RegistrationState.CONTESTED not in self.states().values():
                    return
                settle_at = loop.time() + SETTLE_MS / 1000

    async def wait_until_known(self) -> None:
        """Return when every nameserver that has accepted this broker knows its present layouts, or after KNOWN_MS."""
        changes = self._changes
        try:
            async with asyncio.timeout(KNOWN_MS / 1000):
                while any(peer.state is RegistrationState.ACCEPTED and peer.known_changes < changes for peer in self._peers):
                    self._state_changed.clear()
                    await self._state_changed.wait()
        except TimeoutError:
            pass

    async def learn(self) -> None:
        """Register at once, and adopt the layouts that other brokers have registered before. Return then, or after KNOWN_MS."""
        self.register_soon()
        await self.wait_until_known()

    async def route(self, topic: str) -> TopicRoute | None:
        """Return a topic's route as one of the nameservers knows it, or None if the topic does not exist there.

        Raise TransportError if none of them responds, RemoteProtocolError for a response that is no route.
        """
        fields = to_plain(TopicHeader(topic))
        failure = TransportError("no nameserver is connected" if self._peers else "this broker has no nameserver")
        for peer in self._peers:
            if peer.endpoint is None:
                continue
            try:
                response = await peer.endpoint.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, timeout_ms=KNOWN_MS)
            except TransportError as error:
                failure = error
                continue
            if response.code == ResponseCode.SUCCESS:
                return decode_body(TopicRoute, response.body)
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            failure = TransportError(f"nameserver {peer.address} responded with {response.code}: {response.remark}")
        raise failure

    async def stop(self, *, unregisters: bool = True) -> None:
        """Unregister from the nameservers that know this broker (at most 1 s), then close. The caller's Tasks end the loops."""
        requests = [
            self._unregister(endpoint)
            for peer in self._peers
            if unregisters
            and (endpoint := peer.endpoint) is not None
            and peer.state in (RegistrationState.ACCEPTED, RegistrationState.LEARNING)
        ]
        await asyncio.gather(*requests, return_exceptions=True)
        for peer in self._peers:
            await peer.link.close()

    async def _unregister(self, endpoint: Endpoint) -> None:
        identity = self.identity()
        header = UnregisterBrokerHeader(identity.name, identity.cluster, identity.address, identity.store_id, identity.term)
        await endpoint.request(RequestCode.UNREGISTER_BROKER, to_plain(header), timeout_ms=UNREGISTER_MS)

    def registration_part(self, layouts: Sequence[TopicLayout] = (), part: int = 0, parts: int = 1) -> tuple[dict[str, Any], bytes]:
        """Return fields and body of one part of REGISTER_BROKER."""
        identity = self.identity()
        header = RegisterBrokerHeader(
            identity.name,
            identity.cluster,
            identity.address,
            identity.store_id,
            identity.term,
            proof=identity.proof,
            previous_term=identity.previous_term,
            office=identity.office or None,
        )
        version, replicas = DataVersion(self._born_ms, self._changes), tuple(self.replicas()) or None
        tried = identity.tried or None
        body = RegisterBody(identity.listeners, tuple(layouts), version, part, parts, self.full(), self.auto_create(), replicas, tried)
        return to_plain(header), encode_body(body)

    def adopt_soon(self, layouts: Sequence[TopicLayout]) -> None:
        """Adopt layouts in a separate task: if the store has failed, that ends the broker, as any write does, and not the connection's
        callback."""
        self._tasks.spawn(self._adopt(layouts), "registration layouts")

    async def _adopt(self, layouts: Sequence[TopicLayout]) -> None:
        self.adopt(layouts)

    def state_changed(self) -> None:
        self._state_changed.set()

    def _raise_refusal(self) -> None:
        for peer in self._peers:
            if peer.state is RegistrationState.REFUSED:
                raise RegistrationRefusedError(f"nameserver {peer.address} refused this broker: {peer.remark}")


class _Nameserver:
    """One nameserver: its link, its state, and the only loop that registers, so that one registration is in flight."""

    def __init__(self, registration: NameserverRegistration, host: Host, address: str, security: ClientSecurity) -> None:
        self.address = address
        self.state = RegistrationState.PENDING
        self.remark = ""
        self.wake = asyncio.Event()
        self.endpoint: Endpoint | None = None
        self.known_changes = 0
        """The `changes` that were made before its last complete registration."""
        self._registration = registration
        self._rounds = 0
        self._pending_count = 0
        """Registrations in a row that the nameserver left pending."""
        self._refused: frozenset[RefusedLayout] = frozenset()
        """Layouts that were left out of the last registration."""
        self._refused_more = 0
        """How many more were left out."""
        self.link = Link(
            host,
            lambda: (address,),
            security=security,
            handler=self._handle,
            on_connected=self._connected,
            on_refused=self._unreachable,
            on_lost=self._lost,
        )

    async def run(self) -> None:
        self.link.start()
        try:
            while True:
                await self._wait_until_due()
                if self.endpoint is not None:
                    await self._register(self.endpoint)
        finally:
            await self.link.close()

    async def _wait_until_due(self) -> None:
        """Wait until something has changed or the period is over. A pending registration is retried soon."""
        await is_set_within(self.wake, self._pause_ms() / 1000)
        self.wake.clear()

    def _pause_ms(self) -> int:
        """Return the time until the next registration, in ms."""
        if not self._pending_count:
            return self._registration.period_ms
        return min(PENDING_MAX_MS, PENDING_FIRST_MS << min(self._pending_count - 1, 10))

    async def _register(self, endpoint: Endpoint) -> None:
        """Send all parts, each after the response to the one before."""
        pending_count, self._pending_count = self._pending_count, 0
        changes = self._registration.changes
        try:
            parts = split_layouts(self._registration.layouts())
            await self._registration.confirmed()
            refused: list[RefusedLayout] = []
            refused_more = 0
            missing: Sequence[TopicLayout] = ()
            for number, part in enumerate(parts):
                fields, body = self._registration.registration_part(part, number, len(parts))
                response = await endpoint.request(RequestCode.REGISTER_BROKER, fields, body, timeout_ms=TIMEOUT_MS)
                reply = self._accept_response(response, pending_count)
                if reply is None:
                    return
                refused += reply.refused
                refused_more += reply.refused_more
                missing = reply.layouts
            self._log_refused(refused, refused_more)
            self._adopt_missing(missing)
            self.known_changes = changes
            self._registration.state_changed()
        except LocalProtocolError as error:
            # A layout that exceeds the size of a frame: the broker continues with its earlier registrations.
            log_limited(log, "error", "registration.failed", nameserver=self.address, reason=str(error))
        except (TransportError, RemoteProtocolError) as error:
            # If a nameserver does not respond, reconnect: the link does so within 1 s, and connecting registers.
            log_limited(log, "warning", "nameserver.failed", nameserver=self.address, reason=str(error))
            endpoint.close("registration failed")

    def _accept_response(self, response: Command, pending_count: int) -> RegisterReply | None:
        """Return the body of a response that accepts the part, or None if the registration ends here.

        `pending_count` is the number of registrations in a row before this one that were left pending.
        """
        if response.code == ResponseCode.SUCCESS:
            return decode_body(RegisterReply, response.body)
        if response.code == ResponseCode.BROKER_NAME_TAKEN:
            _, term = responsible(response)
            state = RegistrationState.REFUSED if term is None else RegistrationState.SUPERSEDED
            self._set_state(state, response.remark or "name taken")
            if term is not None:
                self._registration.superseded(term)
        elif response.code == ResponseCode.REGISTRATION_PENDING:
            self._pending_count = pending_count + 1
            self._set_state(RegistrationState.CONTESTED, response.remark or "")
        else:
            self._pending_count = pending_count + 1 if response.code == ResponseCode.SERVICE_NOT_AVAILABLE else 0
            if response.remark != self.remark:
                log_limited(log, "error", "registration.failed", nameserver=self.address, code=response.code, reason=response.remark)
            self.remark = response.remark or ""
        return None

    def _log_refused(self, refused: Sequence[RefusedLayout], more: int) -> None:
        """Log each layout that the nameserver leaves out, once, and their number if it does not name them all."""
        for layout in refused:
            if layout not in self._refused:
                log_limited(log, "error", "layout.refused", nameserver=self.address, topic=layout.topic, reason=layout.reason)
        self._refused = frozenset(refused)
        if more and more != self._refused_more:
            then = "no client is sent here for them; see `limits of topics and nameservers` in docs/operations.md"
            log_limited(log, "error", "layouts.refused", nameserver=self.address, count=more + len(refused), then=then)
        self._refused_more = more

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        """Handle a request of the nameserver. Adopting a layout of another broker that is new here registers again (`layouts` have
        changed)."""
        try:
            if command.code == RequestCode.LAYOUTS_CHANGED:
                self._registration.adopt_soon(decode_body(RegisterReply, command.body).layouts)
            elif not command.is_oneway:
                remark = f"a broker handles no request of code {command.code} on its registration"
                endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        except RemoteProtocolError as error:
            endpoint.abort(f"nameserver {self.address} sent an invalid request: {error}")

    def _adopt_missing(self, missing: Sequence[TopicLayout]) -> None:
        if not missing:
            self._rounds = 0
            self._set_state(RegistrationState.ACCEPTED)
            return
        self._rounds = 0 if self._registration.adopt(missing) else self._rounds + 1
        if self.state is not RegistrationState.ACCEPTED:
            self._set_state(RegistrationState.LEARNING)
        if self._rounds <= ROUNDS_MAX:
            self._registration.register_soon()
        else:
            log_limited(log, "error", "layouts.not_adopted", nameserver=self.address, topics=[layout.topic for layout in missing][:10])

    def _set_state(self, state: RegistrationState, remark: str = "") -> None:
        changed = (state, remark) != (self.state, self.remark)
        self.state, self.remark = state, remark
        if changed and state in (RegistrationState.REFUSED, RegistrationState.SUPERSEDED):
            log_limited(log, "error", "registration.refused", nameserver=self.address, reason=remark)
        elif changed and state is RegistrationState.UNREACHABLE:
            reason = str(self.link.last_error or "not responding")
            log_limited(
                log,
                "warning",
                "registration.changed",
                nameserver=self.address,
                standing=state.value,
                reason=reason,
                then="reconnecting every second",
            )
        elif changed:
            log_limited(log, "info", "registration.changed", nameserver=self.address, standing=state.value)
        if changed:
            self._registration.state_changed()

    async def _connected(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.wake.set()

    def _unreachable(self) -> None:
        if self.state is not RegistrationState.UNREACHABLE:
            self._set_state(RegistrationState.UNREACHABLE)

    def _lost(self, _endpoint: Endpoint, _reason: str) -> None:
        self.endpoint = None
        if self.state is not RegistrationState.PENDING:
            self._set_state(RegistrationState.PENDING)
