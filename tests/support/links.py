"""A TCP link that can be slowed down, or cut in one direction, as while packets are lost there.

What is sent in that direction waits, the end of a connection too. A new connection is accepted, and is forwarded when neither direction is
cut.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum

CHUNK_BYTES = 1 << 16


class Direction(StrEnum):
    THERE = "there"
    """From whoever connects to the link."""
    BACK = "back"


class Link:
    """Forwards connections to one address. Change `delay_s` and call `cut` and `mend` at any time."""

    def __init__(self, target: str, marker: bytes = b"") -> None:
        """`marker`: only connections on which it is sent, from whoever connects, are cut, from that piece of data on."""
        self.delay_s = 0.0
        """How long each piece of data waits, in each direction."""
        self.address = ""
        self._target = target
        self._marker = marker
        self._open = {direction: asyncio.Event() for direction in Direction}
        self.mend()

    def cut(self, *directions: Direction) -> None:
        for direction in directions or Direction:
            self._open[direction].clear()

    def mend(self) -> None:
        for each in self._open.values():
            each.set()

    async def _until_whole(self) -> None:
        for each in self._open.values():
            await each.wait()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._marker:
                await self._until_whole()
            host, _, port = self._target.rpartition(":")
            with suppress(OSError):
                await self._forward(reader, writer, *await asyncio.open_connection(host, int(port)))
        finally:
            writer.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        their_reader: asyncio.StreamReader,
        their_writer: asyncio.StreamWriter,
    ) -> None:
        marked = asyncio.Event()
        pumps = [
            asyncio.ensure_future(self._pump(Direction.THERE, reader, their_writer, marked)),
            asyncio.ensure_future(self._pump(Direction.BACK, their_reader, writer, marked)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            their_writer.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, marked: asyncio.Event) -> None:
        while data := await received(reader):
            if direction is Direction.THERE and not marked.is_set() and self._marker in data:
                marked.set()
                await self._until_whole()
            if marked.is_set():
                await self._open[direction].wait()
            await asyncio.sleep(self.delay_s)
            if not writer.is_closing():  # else the other pump tells that
                writer.write(data)
                with suppress(OSError):
                    await writer.drain()
        if marked.is_set():
            await self._open[direction].wait()


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return what is received next; nothing at the end, whatever it is."""
    with suppress(OSError):
        return await reader.read(CHUNK_BYTES)
    return b""


@asynccontextmanager
async def link_to(target: str, marker: bytes = b"") -> AsyncIterator[Link]:
    """Yield a link to an address, with an address of its own."""
    link = Link(target, marker)
    connections = set[asyncio.Task[None]]()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await link.forward(reader, writer)
        except asyncio.CancelledError:
            pass  # at the end; asyncio reports a cancelled task of a server as an error
        finally:
            connections.discard(task)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    link.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        if connections:
            await asyncio.wait(connections)
