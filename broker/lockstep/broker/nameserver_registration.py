"""The broker's word at every nameserver: who it is, where it listens, which layouts it stores. RocketMQ: BrokerOuterAPI.registerBrokerAll.

One link per nameserver, all at once: registered on connect, every 30 s, and at once when something changed. Many layouts go in parts, one
request after the other: the registration counts with the last, and begins again where the connection is lost. The answer carries layouts
that this broker lacks; it adopts them and registers again, and only an answer that carries none is an *acceptance*: a broker that clients
are sent to knows every topic that its nameserver knows. What other brokers bring later is told to it at once (LAYOUTS_CHANGED).
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
"""RocketMQ's registerNameServerPeriod; a nameserver gives up after four of them."""
TIMEOUT_MS = 6_000
"""RocketMQ's registerBrokerTimeoutMills."""
SETTLE_MS = 1_000
"""After the first acceptance the other nameservers have this long to object before the data port opens."""
GOODBYE_MS = 1_000
PENDING_FIRST_MS = 50
PENDING_MAX_MS = 1_000
"""A pending registration is tried again after 50 ms, then after twice as long each time up to 1 s: a connection that the incumbent's
machine no longer knows is reset as soon as the nameserver uses it, so that most challenges are decided at once."""
ROUNDS_MAX = 10
"""Adopt-and-register-again rounds in a row in which nothing new was adopted: more means that an adopted layout does not stay adopted."""


class RegistrationRefusedError(LockstepError):
    """A nameserver gave the name to somebody else, or this store is a copy; its words are the message."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class BrokerCard:
    """What stays the same from start to stop."""

    name: str
    cluster: str
    store_id: str
    term: int
    listeners: dict[str, str]
    """Listener name → address to dial; `internal` is always there."""
    proof: str | None = field(default=None, repr=False)
    """The store's secret."""
    previous_term: int | None = None
    """Of the store's start before this one."""

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL]


class RegistrationState(Enum):
    """How one nameserver stands to this broker."""

    PENDING = "pending"
    """Not answered yet."""
    UNREACHABLE = "unreachable"
    CONTESTED = "contested"
    """The name is registered: the nameserver asks that broker whether it is still there, and decides within seconds."""
    LEARNING = "learning"
    """Its answer carried layouts: adopted, not yet registered again."""
    ACCEPTED = "accepted"
    REFUSED = "refused"


class NameserverRegistration:
    """Registers with every nameserver for as long as the broker lives.

    `layouts()` gives every layout that the broker stores, `adopt(layouts)` takes those that it lacked and returns how many were new (the
    caller makes them durable). `full()` says whether it takes no more topics.
    A refusal before `accepted()` has returned is raised by it; a later one is an error in the log and never stops the broker.
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
        """ConfigError for an address that is none."""
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
        """Some nameserver's standing changed."""
        for address in nameservers:
            parse_address(address)
        self._peers = tuple(_Nameserver(self, host, address) for address in dict.fromkeys(nameservers))

    def start(self) -> None:
        for peer in self._peers:
            self._tasks.spawn(peer.run(), f"registrar {peer.address}")

    def changed(self) -> None:
        """A layout or an address changed: tell every nameserver now."""
        self._changes += 1
        for peer in self._peers:
            peer.wake.set()

    def standings(self) -> dict[str, RegistrationState]:
        """Nameserver address → how it stands to this broker."""
        return {peer.address: peer.standing for peer in self._peers}

    @property
    def known_nowhere(self) -> bool:
        """Whether no nameserver can have accepted this start's term: each refused it, left it pending or was never reached."""
        return {peer.standing for peer in self._peers} <= {
            RegistrationState.REFUSED,
            RegistrationState.CONTESTED,
            RegistrationState.UNREACHABLE,
        }

    def told(self) -> tuple[NameserverStanding, ...]:
        """As `standings`, with the words of a refusal."""
        return tuple(NameserverStanding(peer.address, peer.standing.value, peer.remark) for peer in self._peers)

    async def accepted(self) -> None:
        """Return when one nameserver has accepted this broker and none has refused it; raises RegistrationRefusedError.

        Waits for as long as none can be reached: a broker without a nameserver serves nobody.
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
        """Say goodbye where this broker is known (at most 1 s), then close. The caller's Tasks end the loops."""
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
        """REGISTER_BROKER's fields and body: one part of it."""
        card = self.card
        header = RegisterBrokerHeader(
            card.name, card.cluster, card.address, card.store_id, card.term, proof=card.proof, previous_term=card.previous_term
        )
        body = RegisterBody(card.listeners, tuple(layouts), DataVersion(self._born_ms, self._changes), part, parts, self.full())
        return to_plain(header), encode_body(body)

    def adopt_soon(self, layouts: Sequence[TopicLayout]) -> None:
        """In a task of its own: where the store has failed that ends the broker, as any write does, and not whoever reads the socket."""
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
    """One nameserver: its link, its standing, and the one loop that registers (so that one registration is in flight)."""

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
        """Layouts that the last registration was told are left out."""
        self._refused_more = 0
        """How many more were."""
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
        """Returns when something changed, or the period is over; a pending registration is tried again soon."""
        try:
            async with asyncio.timeout(self._pause_ms() / 1000):
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()

    def _pause_ms(self) -> int:
        """Milliseconds until the next registration is due."""
        if not self._pending_count:
            return self._registrar.period_ms
        return min(PENDING_MAX_MS, PENDING_FIRST_MS << min(self._pending_count - 1, 10))

    async def _register(self, endpoint: Endpoint) -> None:
        """All parts, each when the one before it was taken."""
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
            # A layout that does not fit a frame: the broker serves on, under what the nameservers knew before.
            log_limited(log, "error", "registration.failed", nameserver=self.address, reason=str(error))
        except (TransportError, RemoteProtocolError) as error:
            # A nameserver that does not answer is dialled anew: the link reconnects within 1 s, and connecting registers.
            log_limited(log, "warning", "nameserver.failed", nameserver=self.address, reason=str(error))
            endpoint.close("registration failed")

    def _take(self, answer: Command, pending_count: int) -> RegisterReply | None:
        """Returns the body of an answer that takes the part, None if the registration ends here.

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
        """Logs each layout that the nameserver leaves out, once, and how many there are when it does not name them all."""
        for layout in refused:
            if layout not in self._refused:
                log_limited(log, "error", "layout.refused", nameserver=self.address, topic=layout.topic, reason=layout.reason)
        self._refused = frozenset(refused)
        if more and more != self._refused_more:
            then = "no client is sent here for them; see `limits of topics and nameservers` in docs/operations.md"
            log_limited(log, "error", "layouts.refused", nameserver=self.address, count=more + len(refused), then=then)
        self._refused_more = more

    def _told(self, command: Command, endpoint: Endpoint) -> None:
        """Another broker has brought layouts: adopting one that is new here registers again (`layouts` have changed)."""
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
