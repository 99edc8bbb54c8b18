"""Links: connections that are made again whenever they are lost. RocketMQ: NettyRemotingClient.

WAITING ─addresses()─▶ CONNECTING ──connected──▶ HANDSHAKE ──on_connected() returned──▶ UP ──lost──▶ CONNECTING (at once)
   ▲                      │ refused, timed out      │ failed                                        WAITING if it was up for less than 1 s
   └──────on_refused()────┴─────────────────────────┘

If the peer has several addresses, several may be in CONNECTING and HANDSHAKE at a time (dial_order.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError, LockstepError, TransportError, without_frames
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.dial_order import ConnectionRank, DialOrder
from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.waiting import is_set_within

log = get_logger("runtime.link")

HANDSHAKE_MS = 5_000
BACKOFF_FIRST_MS = 50
BACKOFF_MAX_MS = 1_000
"""A link reaches a peer that is up again within a second (wire.md)."""
ELECTION_TRIES = 12
"""So many attempts to reach a peer with several addresses are at most 100 ms apart: some 0.9 s, in which another copy can be elected."""
LOGIN_PAUSE_S = 5
"""Pause after a login that was refused: the client logs in again with its password as it is by then."""
STABLE_MS = 1_000
"""Minimum duration of a connection for an immediate reconnect, so that a peer that accepts and closes is not called in a tight loop."""
STABLE_COPIES_MS = 300
"""The same for a peer with several addresses: one copy may be elected soon after another."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A connection whose handshake has succeeded, and which may be kept."""

    rank: ConnectionRank = ()
    """Of several the highest one is kept."""
    keep: Callable[[str], None] = lambda _: None
    """Called with the dialed address when the connection is kept."""


def backoff_ms(failures: int, addresses: int) -> int:
    """Return the longest pause after so many failed attempts to reach a peer with so many addresses, in ms.

    It is 50 ms, then doubled with each attempt up to 1 s; with several addresses only from the attempt ELECTION_TRIES on.
    """
    if addresses > 1:
        failures = min(failures, 2) + max(0, failures - ELECTION_TRIES)
    return min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << min(failures - 1, 10))


class Link:
    """One connection to one peer, re-established whenever it is lost.

    `addresses` returns where the peer may be, the likeliest address first; none if that is unknown. `on_connected` is the handshake: the
    connection may be kept when it returns; if it raises a LockstepError, the connection is closed and established again. `on_refused` is
    called for each attempt that failed or found no address, so that the caller can refresh the route. `on_lost(endpoint, reason)` is called
    once for each connection that was kept.
    """

    def __init__(
        self,
        host: Host,
        addresses: Callable[[], Sequence[str]],
        *,
        security: ClientSecurity = NO_SECURITY,
        on_connected: Callable[[Endpoint], Awaitable[Offer | None]] | None = None,
        on_refused: Callable[[], None] | None = None,
        on_lost: Callable[[Endpoint, str], None] | None = None,
        handler: Handler | None = None,
        limits: EndpointLimits = DEFAULT_LIMITS,
        name: str = "",
    ) -> None:
        self._host = host
        self._addresses = addresses
        self._security = security
        self._on_connected = on_connected
        self._on_refused = on_refused
        self._on_lost = on_lost
        self._handler = handler
        self._limits = limits
        self._name = name
        self._tasks = Tasks()
        self._retry = asyncio.Event()
        self._waiters: list[asyncio.Future[Endpoint]] = []
        self._closed = False
        self._order: DialOrder | None = None
        """The order of the attempt that is under way."""
        self._stepped = asyncio.Event()
        """Set when something has changed in the attempt that is under way."""
        self._dialed: dict[str, Endpoint] = {}
        """Connections in their handshakes, or which may be kept, by address."""
        self._offers: dict[str, Offer] = {}
        self._reported = False
        """A refused login was logged, and none has succeeded since."""
        self._endpoint: Endpoint | None = None
        """The last connection that was kept."""
        self.current: Endpoint | None = None
        """The connection while the link is up."""
        self.last_error: LockstepError | None = None
        """The error of the last attempt, at the address that was dialed first."""

    def __repr__(self) -> str:
        return f"Link({self._label()}, {'up' if self.current else 'down'})"

    def start(self) -> None:
        """Start to connect. Further calls do nothing."""
        if not self._closed and not len(self._tasks):
            self._tasks.spawn(self._run(), f"link {self._label()}")

    def retry(self) -> None:
        """Connect now: end the backoff, and dial the likeliest address also while another one is tried."""
        self._retry.set()
        for address in self._addresses()[:1]:
            self.dial_too(address, again=True)

    def dial_too(self, address: str, *, again: bool = False) -> None:
        """Dial this address at once, if an attempt is under way that has not dialed it before, or is to dial it `again`."""
        if self._order is not None:
            self._order.name(address, self._now_ms(), again=again)
            self._stepped.set()

    async def endpoint(self, timeout_ms: int) -> Endpoint:
        """Return the connection, waiting up to `timeout_ms` for it. Raise TransportError with the reason if it is not established."""
        if self.current is not None and not self.current.closed:
            return self.current
        if self._closed:
            raise TransportError(f"{self._label()}: the link is closed")
        self.start()
        waiter: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError as error:
            why = f": {self.last_error}" if self.last_error is not None else ""
            raise TransportError(f"{self._label()}: not connected within {timeout_ms} ms{why}") from error
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            del waiter  # a future that fails holds the error, whose traceback holds this frame

    async def request(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes | bytearray | memoryview = b"", *, timeout_ms: int
    ) -> Command:
        """Connect if necessary, send a request and return the response, whatever its code, all within `timeout_ms`.

        Raises TransportError or RequestTimeoutError.
        """
        deadline = self._host.clock.monotonic_ms() + timeout_ms
        endpoint = await self.endpoint(timeout_ms)
        return await endpoint.request(code, fields, body, timeout_ms=max(1, deadline - self._host.clock.monotonic_ms()))

    async def close(self, reason: str = "link closed") -> None:
        """Send the unsent bytes, close, and don't reconnect."""
        self._closed = True
        if self.current is not None:
            self.current.close(reason)
        ending = self._endpoints()
        await self._tasks.cancel_all()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(TransportError(f"{self._label()}: the link is closed"))
        for endpoint in ending:
            endpoint.close(reason)  # it was kept, and the link was not up yet
            await endpoint.wait_closed()

    def abandon(self) -> None:
        """Close the connection of a link whose event loop is closed."""
        self._closed = True
        for endpoint in self._endpoints():
            endpoint.abandon()
        self._endpoint, self.current, self._dialed = None, None, {}

    def _endpoints(self) -> list[Endpoint]:
        return [*self._dialed.values(), *(() if self._endpoint is None else (self._endpoint,))]

    def _label(self) -> str:
        return self._name or next(iter(self._addresses()), "unknown address")

    async def _run(self) -> None:
        failures = 0
        while not self._closed:
            self._retry.clear()
            endpoint = await self._attempt()
            if endpoint is None:
                if self._on_refused is not None:
                    self._on_refused()
            else:
                up_since = self._host.clock.monotonic_ms()
                await self._stay_up(endpoint)
                stable_ms = STABLE_MS if len(self._addresses()) < 2 else min(STABLE_MS, STABLE_COPIES_MS)
                if self._host.clock.monotonic_ms() - up_since >= stable_ms:
                    failures = 0
                    continue
            failures += 1
            await self._back_off(failures)
            if isinstance(self.last_error, AuthenticationError) and endpoint is None:
                await asyncio.sleep(LOGIN_PAUSE_S)  # the password has to be corrected at one end, so haste is of no use

    async def _attempt(self) -> Endpoint | None:
        """Dial, and do the handshakes. Return the connection that is kept, or None if all failed (`last_error`)."""
        addresses = self._addresses()
        if not addresses:
            self.last_error = TransportError(f"{self._label()}: no address is known")
            return None
        order = self._order = DialOrder(addresses, self._now_ms())
        self._endpoint = None
        dials, errors = Tasks(), dict[str, LockstepError]()
        try:
            while self._endpoint is None and not order.is_over:
                now_ms = self._now_ms()
                while (address := order.next(now_ms)) is not None:
                    dials.spawn(self._dial(order, address, errors), f"dial {address}")
                self._stepped.clear()
                await self._wait_step(order.wake_ms)
                self._keep(order)
        finally:
            self._order = None
            await dials.cancel_all()
            for endpoint in self._dialed.values():
                endpoint.close("another connection is kept")
            self._dialed, self._offers = {}, {}
        if self._endpoint is not None:
            self._reported = False
            return self._endpoint
        self.last_error = errors.get(addresses[0], self.last_error)
        if isinstance(self.last_error, AuthenticationError) and not self._reported:
            self._reported = True
            log_limited(log, "error", "login.refused", error=str(self.last_error), then=f"tried again every {LOGIN_PAUSE_S} s")
        return None

    @staticmethod
    def _now_ms() -> int:
        """Return the time of the loop, which also ends the waits."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def _wait_step(self, until_ms: int | None) -> None:
        wait_ms = None if until_ms is None else max(1, until_ms - self._now_ms())
        await is_set_within(self._stepped, None if wait_ms is None else wait_ms / 1000)

    def _keep(self, order: DialOrder) -> None:
        """Keep a connection if one is to be kept now."""
        address = None if self._endpoint is not None else order.kept(self._now_ms())
        if address is not None:
            self._endpoint = self._dialed.pop(address)
            self._offers[address].keep(address)

    async def _dial(self, order: DialOrder, address: str, errors: dict[str, LockstepError]) -> None:
        endpoint: Endpoint | None = None
        try:
            endpoint = await connect(self._host, address, security=self._security, handler=self._handler, limits=self._limits)
            self._dialed[address] = endpoint
            async with asyncio.timeout(HANDSHAKE_MS / 1000):
                offer = None if self._on_connected is None else await self._on_connected(endpoint)
            self._offers[address] = offer = offer or Offer()
            endpoint = None
            order.answered(address, offer.rank, self._now_ms())
            self._keep(order)
        except LockstepError as error:
            errors[address] = without_frames(error)
        except TimeoutError:
            errors[address] = TransportError(f"{address}: no handshake within {HANDSHAKE_MS} ms")
        finally:
            if address not in self._offers:
                order.failed(address, self._now_ms())
                log.debug("link.refused", peer=address, name=self._name or None, error=str(errors.get(address)))
            if endpoint is not None:
                del self._dialed[address]
                endpoint.close("handshake failed")
            self._stepped.set()

    async def _stay_up(self, endpoint: Endpoint) -> None:
        """Keep the link up until the connection ends."""
        ended = asyncio.Event()

        def lost(_: Endpoint, reason: str) -> None:
            self.current = None
            log.debug("link.lost", peer=endpoint.peer, name=self._name or None, reason=reason)
            if self._on_lost is not None:
                self._on_lost(endpoint, reason)
            ended.set()

        if endpoint.closed:
            lost(endpoint, endpoint.reason)
            return
        self.current = endpoint
        endpoint.on_close.append(lost)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(endpoint)
        await ended.wait()

    async def _back_off(self, failures: int) -> None:
        """Wait for the backoff, half of it jitter, or until `retry`."""
        ceiling_ms = backoff_ms(failures, len(self._addresses()))
        await is_set_within(self._retry, self._host.random.uniform(ceiling_ms / 2, ceiling_ms) / 1000)
