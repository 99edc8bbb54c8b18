"""Makes connections, with TLS or without: one that is kept, or one for a single request. RocketMQ: NettyRemotingClient."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError, BrokerError, ConfigError, RemoteProtocolError, TransportError, without_frames
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import AuthenticateHeader
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.address import os_reason, parse_address
from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.credentials import Credentials
from lockstep.runtime.security.scram import MECHANISM, ClientLogin
from lockstep.runtime.security.tls import CLIENT_HANDSHAKE_S, SHUTDOWN_S, ClientTls, certificate_reason

CONNECT_MS = 3_000
"""RocketMQ: connectTimeoutMillis."""
LOGIN_MS = 5_000
NO_CERTIFICATE = "it may require a certificate of this client, which shows none"
REFUSED_CERTIFICATE = "it may not accept the certificate of this client"
"""In TLS 1.3 a server refuses a certificate when the client has ended its handshake."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(
    host: Host,
    address: str,
    *,
    security: ClientSecurity = NO_SECURITY,
    handler: Handler | None = None,
    limits: EndpointLimits = DEFAULT_LIMITS,
    timeout_ms: int = CONNECT_MS,
) -> Endpoint:
    """Connect, shake hands if there is TLS, and log in if there are credentials.

    Raises:
        AuthenticationError: The login is refused, or the server can't be trusted with it.
        TransportError: The connection is refused or not established within `timeout_ms`, or the handshake fails or is not complete
            CLIENT_HANDSHAKE_S later.
    """
    tls = security.tls
    endpoint = await dial(host, address, lambda: Endpoint(host, handler, limits), tls=tls, timeout_ms=timeout_ms)
    if tls is not None:
        endpoint.hint = NO_CERTIFICATE if tls.settings.cert is None else REFUSED_CERTIFICATE
    if security.credentials is not None:
        try:
            await _log_in(host, endpoint, address, security.credentials)
        except BaseException:  # re-raised
            endpoint.abort("the login failed")
            raise
    return endpoint


async def dial(host: Host, address: str, make: Callable[[], P], *, tls: ClientTls | None, timeout_ms: int) -> P:
    """Return the protocol of a new connection, when its handshake is complete if there is TLS. Raise TransportError as `connect` does."""
    name, port = parse_address(address)
    context, server_name = None, None
    if tls is not None:
        context = await host.threads.run(tls.context, host.clock.monotonic_ms())
        server_name = tls.settings.server_name or name
    try:
        return await _open(name, port, timeout_ms, make, context, server_name)
    except OSError as error:
        if tls is None or not isinstance(error, ssl.SSLCertVerificationError):
            reason = os_reason(error)
        else:
            reason = await _why_refused(host, error, tls, name, port, server_name or name)
        raise TransportError(f"{address}: {reason}") from without_frames(error)
    except UnicodeError as error:  # of the name's IDNA form: an empty label, or one of more than 63 characters
        raise TransportError(f"{address}: {name} is not a host name") from error


async def _log_in(host: Host, endpoint: Endpoint, address: str, credentials: Credentials) -> None:
    """Log in on a new connection. Raise AuthenticationError, TransportError, or RequestTimeoutError."""
    login = ClientLogin(credentials.user, host.random.token(18).hex())
    who = f"{address}, user {credentials.user}"
    try:
        response = await _exchange(endpoint, login.first())
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if credentials.optional:
                return
            raise AuthenticationError("the server asks for no login, so a password protects nothing there (login_optional: go on without)")
        challenge = login.challenge(bytes(checked(response).body))
        salted = await host.threads.run(credentials.answer, challenge)
        login.check(bytes(checked(await _exchange(endpoint, login.final(salted))).body))
    except (RemoteProtocolError, BrokerError) as error:
        raise AuthenticationError(f"{who}: {error.remark if isinstance(error, BrokerError) else error}") from None


def _exchange(endpoint: Endpoint, message: bytes) -> "asyncio.Future[Command]":
    fields = to_plain(AuthenticateHeader(MECHANISM))
    return endpoint.request(RequestCode.AUTHENTICATE, fields, message, timeout_ms=LOGIN_MS)


async def _open(
    name: str, port: int, timeout_ms: int, make: Callable[[], P], context: ssl.SSLContext | None = None, server_name: str | None = None
) -> P:
    """Return the protocol of a new connection. Raise OSError or UnicodeError."""
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {}
    if context is not None:
        times = {"ssl_handshake_timeout": CLIENT_HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        tls = {"ssl": context, "server_hostname": server_name, **times}
    shakes_hands = False

    def make_connected() -> P:
        nonlocal shakes_hands
        if context is not None:
            shakes_hands = True
            deadline.reschedule(None)  # from here on ssl_handshake_timeout is the limit
        return make()

    try:
        async with asyncio.timeout(timeout_ms / 1000) as deadline:
            return (await loop.create_connection(make_connected, name, port, **tls))[1]
    except TimeoutError as error:
        raise OSError(f"no connection within {timeout_ms} ms") from error
    except ConnectionError as error:
        if not shakes_hands:
            raise
        if isinstance(error, ConnectionAbortedError):  # asyncio's, after ssl_handshake_timeout
            raise OSError(f"no handshake of TLS within {CLIENT_HANDSHAKE_S:.0f} s") from error
        raise OSError("the server ended the handshake of TLS: it may have no TLS on this port") from error


async def peer_certificate(host: Host, address: str, tls: ClientTls) -> Mapping[str, Any]:
    """Shake hands as `connect` does, and close the connection. Return what the server's certificate says, as `getpeercert` does.

    Raise TransportError if that fails.
    """
    name, port = parse_address(address)
    context = await host.threads.run(tls.context, host.clock.monotonic_ms())
    try:
        return (await _open(name, port, CONNECT_MS, _Sight, context, tls.settings.server_name or name)).certificate
    except (OSError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else f"{name} is not a host name"
        raise TransportError(f"{address}: {reason}") from without_frames(error)


async def _why_refused(host: Host, error: ssl.SSLCertVerificationError, tls: ClientTls, name: str, port: int, server_name: str) -> str:
    """Return why a server's certificate was refused, and what it says: connect once more to see it."""
    says: Mapping[str, Any] = {}
    try:
        context = await host.threads.run(tls.lenient_context)
        says = (await _open(name, port, CONNECT_MS, _Sight, context, server_name)).certificate
    except (OSError, ConfigError) as seen:
        without_frames(seen)  # another fault, which `error` has already
    now = f"{datetime.fromtimestamp(host.clock.wall_ms() // 1000, UTC):%b %d %H:%M:%S %Y} GMT"
    return certificate_reason(error.verify_code, error.verify_message, says, now)


class _Sight(asyncio.Protocol):
    """Sees the certificate of a server and closes the connection."""

    certificate: Mapping[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.certificate = transport.get_extra_info("peercert") or {}
        cast(asyncio.Transport, transport).abort()


async def call(
    host: Host,
    address: str,
    code: int,
    fields: dict[str, Any] | None = None,
    body: bytes | bytearray | memoryview = b"",
    *,
    security: ClientSecurity = NO_SECURITY,
    timeout_ms: int,
) -> Command:
    """Send one request over its own connection and return the response, whatever its code. Raise TransportError or RequestTimeoutError."""
    deadline = host.clock.monotonic_ms() + timeout_ms
    endpoint = await connect(host, address, security=security, timeout_ms=min(timeout_ms, CONNECT_MS))
    try:
        return await endpoint.request(code, fields, body, timeout_ms=max(1, deadline - host.clock.monotonic_ms()))
    finally:
        endpoint.abort("done")
        await endpoint.wait_closed()
