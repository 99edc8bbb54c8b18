"""Makes connections: one that is kept, or one for a single request. RocketMQ: NettyRemotingClient."""

import asyncio
from typing import Any

from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.runtime.connections.address import os_reason, parse_address
from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits

CONNECT_MS = 3_000
"""RocketMQ: connectTimeoutMillis."""


async def connect(
    host: Host, address: str, *, handler: Handler | None = None, limits: EndpointLimits = DEFAULT_LIMITS, timeout_ms: int = CONNECT_MS
) -> Endpoint:
    """Connect. Raise TransportError if the connection is refused or not established within `timeout_ms`."""
    name, port = parse_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, endpoint = await loop.create_connection(lambda: Endpoint(host, handler, limits), name, port)
    except TimeoutError as error:
        raise TransportError(f"{address}: no connection within {timeout_ms} ms") from error
    except OSError as error:
        raise TransportError(f"{address}: {os_reason(error)}") from error
    except UnicodeError as error:  # of the name's IDNA form: an empty label, or one of more than 63 characters
        raise TransportError(f"{address}: {name} is not a host name") from error
    return endpoint


async def call(
    host: Host,
    address: str,
    code: int,
    fields: dict[str, Any] | None = None,
    body: bytes | bytearray | memoryview = b"",
    *,
    timeout_ms: int,
) -> Command:
    """Send one request over its own connection and return the response, whatever its code. Raise TransportError or RequestTimeoutError."""
    deadline = host.clock.monotonic_ms() + timeout_ms
    endpoint = await connect(host, address, timeout_ms=min(timeout_ms, CONNECT_MS))
    try:
        return await endpoint.request(code, fields, body, timeout_ms=max(1, deadline - host.clock.monotonic_ms()))
    finally:
        endpoint.abort("done")
        await endpoint.wait_closed()
