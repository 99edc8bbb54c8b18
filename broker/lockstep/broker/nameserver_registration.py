"""Registers the broker with every nameserver: its name, listeners and layouts. RocketMQ: BrokerOuterAPI.registerBrokerAll.

There is one link for each nameserver, and all register at the same time: on connect, every 30 s, and at once when something changed. Many
layouts are sent in parts, one request after the other: the registration counts with the last one, and begins again if the connection is
lost. The response carries layouts that this broker lacks; it adopts them and registers again, and only a response that carries none is an
*acceptance*: a broker to which clients are sent has every topic that its nameserver has. Layouts that other brokers bring later are pushed
to it at once (LAYOUTS_CHANGED).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from lockstep.protocol.bodies import DataVersion, NameserverStanding, RefusedLayout, RegisterBody, RegisterReply
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, LockstepError, RemoteProtocolError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import RegisterBrokerHeader, UnregisterBrokerHeader
from lockstep.protocol.layouts import split_layouts
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.link import Link, parse_address
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited

log = get_logger("lockstep.broker")

INTERNAL = "internal"
PERIOD_MS = 30_000
"""RocketMQ's registerNameServerPeriod; a nameserver removes a broker that has missed four of them."""
TIMEOUT_MS = 6_000
"""RocketMQ's registerBrokerTimeoutMills."""
SETTLE_MS = 1_000
"""After the first acceptance the other nameservers have this long to refuse before the data port opens."""
GOODBYE_MS = 1_000
PENDING_FIRST_MS = 50
PENDING_MAX_MS = 1_000
"""A pending registration is tried again after 50 ms, and each time after twice as long, up to 1 s: a connection that the incumbent's
machine no longer has is reset as soon as the nameserver uses it, so that most challenges are decided at once.
"""
ROUNDS_MAX = 10
"""Rounds of adopting and registering again in which nothing new was adopted: more mean that an adopted layout does not stay adopted."""


class RegistrationRefusedError(LockstepError):
    """A nameserver gave the name to another broker, or this store is a copy. The nameserver's remark is the message."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class BrokerCard:
    """The identity of the broker, which stays the same from start to stop."""

    name: str
    cluster: str
    store_id: str
    term: int
    listeners: dict[str, str]
    """Listener name → address to dial; `internal` always exists."""
    proof: str | None = field(default=None, repr=False)
    """The store's secret."""
    previous_term: int | None = None
    """The term of the store's previous start."""

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL]


class RegistrationState(Enum):
    """The state of this broker's registration at one nameserver."""

    PENDING = "pending"
    """There is no response yet."""
    UNREACHABLE = "unreachable"
    CONTESTED = "contested"
    """The name is registered by another broker: the nameserver asks that one whether it is alive, and decides within seconds."""
    LEARNING = "learning"
    """The response carried layouts: they are adopted, and not yet registered again."""
    ACCEPTED = "accepted"
    REFUSED = "refused"


class NameserverRegistration:
    """Registers with every nameserver for as long as the broker runs.

    `layouts()` returns every layout that the broker stores, `adopt(layouts)` takes those that it lacked and returns how many were new (the
    caller makes them durable). `full()` returns whether it takes no more topics. A refusal before `accepted()` has returned is raised by
    it; a later one is an error in the log and never stops the broker.
    """

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        card: BrokerCard,
        nameservers: Sequence[str],
        *,
        layouts: Callable[[], Iterable[TopicLayout]],
        adopt: Callable[[Sequence[TopicLayout]], int],
        full: Callable[[], bool] = lambda: False,
        period_ms: int = PERIOD_MS,
    ) -> None:
        """Raises ConfigError for an invalid address."""
        self.card = card
        self.layouts = layouts
        self.adopt = adopt
        self.full = full
        self.period_ms = period_ms
        self._host = host
        self._tasks = tasks
        self._born_ms = host.clock.wall_ms()
        self._changes = 0
        self._moved = asyncio.Event()
        """Set when the registration at some nameserver changed."""
        for address in nameservers:
            parse_address(address)
        self._peers = tuple(_Nameserver(self, host, address) for address in dict.fromkeys(nameservers))

    def start(self) -> None:
        for peer in self._peers:
            self._tasks.spawn(peer.run(), f"registrar {peer.address}")

    def changed(self) -> None:
        """Register with every nameserver now: a layout or an address changed."""
        self._changes += 1
        for peer in self._peers:
            peer.wake.set()

    def standings(self) -> dict[str, RegistrationState]:
        """Return nameserver address → the state of the registration there."""
        return {peer.address: peer.standing for peer in self._peers}

    @property
    def known_nowhere(self) -> bool:
        """Return whether no nameserver can have accepted this start's term: each refused it, left it pending or was never reached."""
        return {peer.standing for peer in self._peers} <= {
            RegistrationState.REFUSED,
            RegistrationState.CONTESTED,
            RegistrationState.UNREACHABLE,
        }

    def told(self) -> tuple[NameserverStanding, ...]:
        """Return `standings` as text, with the remarks of refusals."""
        return tuple(NameserverStanding(peer.address, peer.standing.value, peer.remark) for peer in self._peers)

    async def accepted(self) -> None:
        """Return when one nameserver has accepted this broker and none has refused it. Raise RegistrationRefusedError.

        This waits as long as none can be reached: a broker without a nameserver serves no clients.
        """
        settle_at: float | None = None
        told = False
        loop = asyncio.get_running_loop()
        while True:
            self._moved.clear()
            self._raise_refusal()
            standings = set(self.standings().values())
            if not self._peers or {RegistrationState.ACCEPTED} <= standings <= {RegistrationState.ACCEPTED, RegistrationState.UNREACHABLE}:
                return
            if standings == {RegistrationState.UNREACHABLE} and not told:
                told = True
                then = "the data port opens when one of them has accepted this broker"
                log.warning("registration.awaited", nameservers=list(self.standings()), then=then)
            if settle_at is None and RegistrationState.ACCEPTED in standings:
                settle_at = loop.time() + SETTLE_MS / 1000
            try:
                async with asyncio.timeout_at(settle_at):
                    await self._moved.wait()
            except TimeoutError:
                self._raise_refusal()
                if RegistrationState.CONTESTED not in self.standings().values():
                    return
                settle_at = loop.time() + SETTLE_MS / 1000

    async def stop(self) -> None:
        """Unregister from the nameservers (at most 1 s), then close. The caller's Tasks end the loops."""
        header = UnregisterBrokerHeader(self.card.name, self.card.cluster, self.card.address, self.card.store_id, self.card.term)
        goodbyes = [
            endpoint.request(RequestCode.UNREGISTER_BROKER, to_plain(header), timeout_ms=GOODBYE_MS)
            for peer in self._peers
            if (endpoint := peer.endpoint) is not None and peer.standing in (RegistrationState.ACCEPTED, RegistrationState.LEARNING)
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        for peer in self._peers:
            await peer.link.close()

    def word(self, layouts: Sequence[TopicLayout] = (), part: int = 0, parts: int = 1) -> tuple[dict[str, Any], bytes]:
        """Return header fields and body of one part of REGISTER_BROKER."""
        card = self.card
        header = RegisterBrokerHeader(
            card.name, card.cluster, card.address, card.store_id, card.term, proof=card.proof, previous_term=card.previous_term
        )
        body = RegisterBody(card.listeners, tuple(layouts), DataVersion(self._born_ms, self._changes), part, parts, self.full())
        return to_plain(header), encode_body(body)

    def adopt_soon(self, layouts: Sequence[TopicLayout]) -> None:
        """Adopt layouts in a task of its own: if the store has failed, that ends the broker, as any write does, and not the reader of the
        socket.
        """
        self._tasks.spawn(self._adopt(layouts), "registrar layouts")

    async def _adopt(self, layouts: Sequence[TopicLayout]) -> None:
        self.adopt(layouts)

    def standing_changed(self) -> None:
        self._moved.set()

    def _raise_refusal(self) -> None:
        for peer in self._peers:
            if peer.standing is RegistrationState.REFUSED:
                raise RegistrationRefusedError(f"nameserver {peer.address} refused this broker: {peer.remark}")


class _Nameserver:
    """The registration at one nameserver: its link, its state, and the one loop that registers, so that one registration is in flight."""

    def __init__(self, registrar: NameserverRegistration, host: Host, address: str) -> None:
        self.address = address
        self.standing = RegistrationState.PENDING
        self.remark = ""
        self.wake = asyncio.Event()
        self.endpoint: Endpoint | None = None
        self._registrar = registrar
        self._rounds = 0
        self._pending_count = 0
        """Registrations in a row that the nameserver left pending."""
        self._refused: frozenset[RefusedLayout] = frozenset()
        """Layouts that the last registration has left out."""
        self._refused_more = 0
        """How many more were left out."""
        self.link = Link(
            host, lambda: address, handler=self._told, on_connected=self._connected, on_refused=self._unreachable, on_lost=self._lost
        )

    async def run(self) -> None:
        self.link.start()
        try:
            while True:
                await self._due()
                if self.endpoint is not None:
                    await self._register(self.endpoint)
        finally:
            await self.link.close()

    async def _due(self) -> None:
        """Return when something changed or the period is over; a pending registration is tried again soon."""
        try:
            async with asyncio.timeout(self._pause_ms() / 1000):
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()

    def _pause_ms(self) -> int:
        """Return the milliseconds until the next registration is due."""
        if not self._pending_count:
            return self._registrar.period_ms
        return min(PENDING_MAX_MS, PENDING_FIRST_MS << min(self._pending_count - 1, 10))

    async def _register(self, endpoint: Endpoint) -> None:
        """Send all parts, each after the one before it was accepted."""
        pending_count, self._pending_count = self._pending_count, 0
        try:
            parts = split_layouts(self._registrar.layouts())
            refused: list[RefusedLayout] = []
            refused_more = 0
            missing: Sequence[TopicLayout] = ()
            for number, part in enumerate(parts):
                fields, body = self._registrar.word(part, number, len(parts))
                answer = await endpoint.request(RequestCode.REGISTER_BROKER, fields, body, timeout_ms=TIMEOUT_MS)
                reply = self._take(answer, pending_count)
                if reply is None:
                    return
                refused += reply.refused
                refused_more += reply.refused_more
                missing = reply.layouts
            self._log_refused(refused, refused_more)
            self._learn(missing)
        except LocalProtocolError as error:
            # A layout does not fit a frame: the broker goes on serving under its last registration.
            log_limited(log, "error", "registration.failed", nameserver=self.address, reason=str(error))
        except (TransportError, RemoteProtocolError) as error:
            # The nameserver does not respond: the link reconnects within 1 s, and connecting registers.
            log_limited(log, "warning", "nameserver.failed", nameserver=self.address, reason=str(error))
            endpoint.close("registration failed")

    def _take(self, answer: Command, pending_count: int) -> RegisterReply | None:
        """Return the body of a response that accepts the part; None if the registration ends here.

        `pending_count` is the number of registrations in a row before this one that were left pending.
        """
        if answer.code == ResponseCode.SUCCESS:
            return decode_body(RegisterReply, answer.body)
        if answer.code == ResponseCode.BROKER_NAME_TAKEN:
            self._stand(RegistrationState.REFUSED, answer.remark or "name taken")
        elif answer.code == ResponseCode.REGISTRATION_PENDING:
            self._pending_count = pending_count + 1
            self._stand(RegistrationState.CONTESTED, answer.remark or "")
        else:
            self._pending_count = pending_count + 1 if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE else 0
            if answer.remark != self.remark:
                log_limited(log, "error", "registration.failed", nameserver=self.address, code=answer.code, reason=answer.remark)
            self.remark = answer.remark or ""
        return None

    def _log_refused(self, refused: Sequence[RefusedLayout], more: int) -> None:
        """Log each layout that the nameserver leaves out, once, and how many there are if it does not name them all."""
        for layout in refused:
            if layout not in self._refused:
                log_limited(log, "error", "layout.refused", nameserver=self.address, topic=layout.topic, reason=layout.reason)
        self._refused = frozenset(refused)
        if more and more != self._refused_more:
            then = "no client is sent here for them; see `limits of topics and nameservers` in docs/operations.md"
            log_limited(log, "error", "layouts.refused", nameserver=self.address, count=more + len(refused), then=then)
        self._refused_more = more

    def _told(self, command: Command, endpoint: Endpoint) -> None:
        """Adopt layouts that another broker has brought; a new one registers again (`layouts` have changed)."""
        try:
            if command.code == RequestCode.LAYOUTS_CHANGED:
                self._registrar.adopt_soon(decode_body(RegisterReply, command.body).layouts)
            elif not command.is_oneway:
                remark = f"a broker answers no request of code {command.code} on its registration"
                endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        except RemoteProtocolError as error:
            endpoint.abort(f"nameserver {self.address} sent what can't be read: {error}")

    def _learn(self, missing: Sequence[TopicLayout]) -> None:
        if not missing:
            self._rounds = 0
            self._stand(RegistrationState.ACCEPTED)
            return
        self._rounds = 0 if self._registrar.adopt(missing) else self._rounds + 1
        if self.standing is not RegistrationState.ACCEPTED:
            self._stand(RegistrationState.LEARNING)
        if self._rounds <= ROUNDS_MAX:
            self._registrar.changed()
        else:
            log_limited(log, "error", "layouts.not_adopted", nameserver=self.address, topics=[layout.topic for layout in missing][:10])

    def _stand(self, standing: RegistrationState, remark: str = "") -> None:
        changed = (standing, remark) != (self.standing, self.remark)
        self.standing, self.remark = standing, remark
        if changed and standing is RegistrationState.REFUSED:
            log_limited(log, "error", "registration.refused", nameserver=self.address, reason=remark)
        elif changed and standing is RegistrationState.UNREACHABLE:
            reason = str(self.link.last_error or "not answering")
            log_limited(
                log,
                "warning",
                "registration.changed",
                nameserver=self.address,
                standing=standing.value,
                reason=reason,
                then="dialled again every second",
            )
        elif changed:
            log_limited(log, "info", "registration.changed", nameserver=self.address, standing=standing.value)
        if changed:
            self._registrar.standing_changed()

    async def _connected(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.wake.set()

    def _unreachable(self) -> None:
        if self.standing is not RegistrationState.UNREACHABLE:
            self._stand(RegistrationState.UNREACHABLE)

    def _lost(self, _endpoint: Endpoint, _reason: str) -> None:
        self.endpoint = None
        if self.standing is not RegistrationState.PENDING:
            self._stand(RegistrationState.PENDING)
