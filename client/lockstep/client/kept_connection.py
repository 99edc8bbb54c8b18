"""A connection to one address that is kept between requests. RocketMQ: the channel table of NettyRemotingClient."""

import asyncio

from lockstep.protocol.errors import AuthenticationError, ConfigError, LockstepError, TransportError, without_frames
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity


class KeptConnection:
    """Dialled by the first request, shared by concurrent ones, and dialled again after it was lost."""

    def __init__(self, host: Host, address: str, *, security: ClientSecurity, dial_ms: int, redial_ms: int | None) -> None:
        """`redial_ms`: for how long an address that could not be dialled is not dialled again, so that requests which have waited for the
        dial do not dial in turn. None: it is never dialled again. Raise ConfigError for an invalid address.
        """
        parse_address(address)
        self._host = host
        self._address = address
        self._security = security
        self._dial_ms = dial_ms
        self._redial_ms = redial_ms
        self._endpoint: Endpoint | None = None
        self._dialling: asyncio.Task[LockstepError | None] | None = None
        """The last attempt to connect, for which all requests wait. Returns the error with which it has failed."""
        self._dialled_ms = 0
        """When that attempt ended."""
        self._left: list[Endpoint] = []
        """Connections that were dropped while requests of others were pending on them."""
        self._tasks = Tasks()

    async def open(self) -> Endpoint:
        """Return the connection, after a dial if there is none. Raise TransportError or AuthenticationError if that fails or has failed.

        The server may have closed it already: a request then fails, instead of a dial after the other.
        """
        self._close_left()
        if self._endpoint is None or self._endpoint.closed:
            if self._dialling is None or (self._dialling.done() and self._may_dial(self._dialling)):
                self._dialling = self._tasks.spawn(self._dial(), f"dial {self._address}")
            dialling = self._dialling
            await asyncio.wait([dialling])  # a request that is cancelled leaves the others their connection
            if dialling.cancelled():
                raise TransportError(f"{self._address}: the client was closed")
            failed = dialling.result()
            if isinstance(failed, AuthenticationError):
                raise AuthenticationError(failed.remark)
            if isinstance(failed, ConfigError):
                raise ConfigError(str(failed))
            if failed is not None:
                raise TransportError(str(failed))
            if self._endpoint is None:
                raise TransportError(f"{self._address}: the connection was dropped")
        return self._endpoint

    def drop(self, reason: str) -> None:
        """Let the next request dial. The connection is closed, or if other requests are pending on it, once they have ended."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None and endpoint.pending_count:
            self._left.append(endpoint)
        elif endpoint is not None:
            endpoint.abort(reason)

    def _close_left(self) -> None:
        for endpoint in [each for each in self._left if not each.pending_count]:
            self._left.remove(endpoint)
            endpoint.abort("dropped before")

    def end(self) -> None:
        """Close the connection, or end the dial. No request may follow."""
        if self._dialling is not None:
            self._dialling.cancel()
        for endpoint in self._endpoints:
            endpoint.abort("done")

    async def wait_ended(self) -> None:
        await self._tasks.cancel_all()
        for endpoint in self._endpoints:
            await endpoint.wait_closed()

    def abandon(self) -> None:
        """Close the connection of an event loop that is closed."""
        for endpoint in self._endpoints:
            endpoint.abandon()
        self._endpoint, self._left = None, []

    @property
    def _endpoints(self) -> list[Endpoint]:
        return self._left if self._endpoint is None else [*self._left, self._endpoint]

    def _may_dial(self, last: "asyncio.Task[LockstepError | None]") -> bool:
        if last.cancelled() or last.result() is None:
            return True
        return self._redial_ms is not None and self._host.clock.monotonic_ms() - self._dialled_ms >= self._redial_ms

    async def _dial(self) -> LockstepError | None:
        try:
            self._endpoint = await connect(self._host, self._address, security=self._security, timeout_ms=self._dial_ms)
        except LockstepError as error:
            return without_frames(error)
        finally:
            self._dialled_ms = self._host.clock.monotonic_ms()
        return None
