"""A server on loopback, and a peer that sends and receives raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lockstep.protocol.command import Command
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.runtime.security.server_security import OPEN


class Wire:
    """How the servers and peers of this file are secured. A fixture sets it, to repeat the tests of a file with TLS."""

    def __init__(self) -> None:
        self.server = OPEN
        self.client = NO_SECURITY


WIRE = Wire()


@asynccontextmanager
async def serving(
    handler: Handler,
    limits: EndpointLimits = DEFAULT_LIMITS,
    *,
    on_connect: Callable[[Endpoint], None] | None = None,
    on_close: Callable[[Endpoint, str], None] | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """Run a server with one listener on a free port of loopback."""
    settings = {"security": WIRE.server} | settings
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, handler, limits, on_connect=on_connect, on_close=on_close, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def dialled(server: Server, handler: Handler | None = None, limits: EndpointLimits = DEFAULT_LIMITS) -> AsyncIterator[Endpoint]:
    """Yield an endpoint connected to a server's internal listener."""
    endpoint = await connect(Host.real(), server.addresses["internal"], security=WIRE.client, handler=handler, limits=limits)
    try:
        yield endpoint
    finally:
        endpoint.abort("test over")
        await endpoint.wait_closed()


class RawPeer:
    """The other end of a connection, at the level of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameBuffer()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_command(self, command: Command) -> None:
        await self.send(encode_frame(command))

    async def next(self) -> Command:
        """Return the next frame. Raise EOFError if the connection ends before."""
        while (command := self._frames.next()) is None:
            data = await self.reader.read(65_536)
            if not data:
                raise EOFError
            self._frames.feed(data)
        return command

    async def ended(self) -> bytes:
        """Wait until the other end closes; return the bytes before that."""
        data = b""
        try:
            while more := await self.reader.read(65_536):
                data += more
        except ConnectionError:
            pass
        return data

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


@asynccontextmanager
async def raw_peer(server: Server) -> AsyncIterator[RawPeer]:
    """Yield a raw connection to a server's internal listener."""
    host, _, port = server.addresses["internal"].rpartition(":")
    context = None if WIRE.client.tls is None else WIRE.client.tls.context(0)
    peer = RawPeer(*await asyncio.open_connection(host, int(port), ssl=context))
    try:
        yield peer
    finally:
        await peer.close()
