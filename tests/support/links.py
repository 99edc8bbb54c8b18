"""A TCP link that can be slowed down, or cut in one direction: what is sent over it waits then, as while packets are lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            their_reader, their_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        marked = asyncio.Event()
        pumps = [
            asyncio.ensure_future(self._pump(Direction.THERE, reader, their_writer, marked)),
            asyncio.ensure_future(self._pump(Direction.BACK, their_reader, writer, marked)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            their_writer.close()
            writer.close()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, marked: asyncio.Event) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if direction is Direction.THERE and self._marker in data:
                    marked.set()
                if marked.is_set():
                    await self._open[direction].wait()
                await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass


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
