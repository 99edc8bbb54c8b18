"""The two ends of a connection, and listening ports, as asyncio's protocols see them."""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from lockstep.testing.simulation.process import Process
from lockstep.testing.simulation.scheduler import Scheduler

SOCKET_BYTES = 256 * 1024
"""The buffer of the kernels of both ends, for one direction."""
READ_BYTES_MAX = 256 * 1024
"""The most that one read of asyncio's loop returns."""
WRITE_HIGH_BYTES = 64 * 1024
"""asyncio's default for the high-water mark."""

Address = tuple[str, int]


class Observer(Protocol):
    """Is notified of everything on the network. `connection` counts from 1; `upstream` is from the client to the server."""

    def opened(self, connection: int, client: Process, server: Process, port: int) -> None:
        """`client` has reached `port` of `server`, which may not have noticed yet."""
        ...

    def sent(self, connection: int, upstream: bool, data: bytes) -> None:
        """An end has written `data`; it need not arrive."""
        ...

    def delivered(self, connection: int, upstream: bool, count: int) -> None:
        """The next `count` bytes that were sent in this direction are passed to the other end's protocol now."""
        ...

    def cut(self, connection: int) -> None:
        """Both ends are gone: nothing more is delivered in either direction."""
        ...


class Medium(Protocol):
    """The network, as the ends of connections use it."""

    loop: Scheduler
    observer: Observer | None
    latency_s: float
    chop: float

    def is_blocked(self, source: str, target: str) -> bool: ...
    def send(self, end: "SimTransport", segment: bytes | None) -> None: ...
    def arrive(self, end: "SimTransport") -> None: ...
    def nobody(self, end: "SimTransport") -> None: ...
    def break_off(self, end: "SimTransport", *, notify: bool) -> None: ...
    def hang_up(self, end: "SimTransport") -> None: ...
    def vanished(self, end: "SimTransport") -> None: ...
    def ended(self, connection: "SimConnection") -> None: ...


class SimConnection:
    """One TCP connection from a client to a server."""

    __slots__ = ("client", "network", "number", "server", "silent")

    def __init__(self, network: Medium, number: int, client: Process, server: Process, client_name: Address, server_name: Address) -> None:
        self.network = network
        self.number = number
        self.silent = False
        """Everything that is sent is lost."""
        self.client = SimTransport(self, client, client_name, server_name, upstream=True)
        self.server = SimTransport(self, server, server_name, client_name, upstream=False)
        self.client.peer, self.server.peer = self.server, self.client

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.client.here} → {self.server.here}>"


class SimTransport(asyncio.Transport):
    """One end of a connection. Its callbacks run in its own process; a killed process gets none."""

    peer: "SimTransport"

    def __init__(self, connection: SimConnection, process: Process, own: Address, other: Address, *, upstream: bool) -> None:
        super().__init__({"peername": other, "sockname": own})
        self.connection = connection
        self.process = process
        self.upstream = upstream
        """Whether this end is the client's."""
        self.here, self.there = own[0], other[0]
        """The addresses of this machine and of the other one."""
        self.protocol: asyncio.BaseProtocol | None = None
        self.flight: deque[bytes | None] = deque()
        """Segments that this end has sent and the other's kernel has not taken. None: the end of the stream."""
        self.due = 0.0
        """When the last of them arrives; the next one does not arrive before."""
        self.stalled_at: float | None = None
        """Since when they have been blocked; None if they are not."""
        self.lost = False
        """The socket is closed."""
        self.cut = False
        """The connection is reset: nothing more is sent."""
        self._network = connection.network
        self._received = bytearray()
        self._eof = False
        self._reading = True
        self._unacked = 0
        self._write_paused = False
        self._closing = False
        self._ending = False
        self._high, self._low = WRITE_HIGH_BYTES, WRITE_HIGH_BYTES // 4
        process.transports[self] = None

    # ------------------------------------------------------------------------------------------------------ asyncio.Transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if self._received or self._eof:
                self._network.loop.call_soon(self._pump)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (WRITE_HIGH_BYTES if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self._unacked - SOCKET_BYTES)

    def can_write_eof(self) -> bool:
        return True

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.lost or not data or not self.process.alive:
            return
        data = bytes(data)
        network = self._network
        if network.observer is not None:
            network.observer.sent(self.connection.number, self.upstream, data)
        self._unacked += len(data)
        if network.chop and len(data) > 1 and network.loop.random.random() < network.chop:
            at = 0
            while at < len(data):
                end = network.loop.random.randint(at + 1, len(data))
                network.send(self, data[at:end])
                at = end
        else:
            network.send(self, data)
        if not self._write_paused and self._unacked - SOCKET_BYTES > self._high:
            self._write_paused = True
            assert isinstance(self.protocol, asyncio.BaseProtocol)
            self.protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._ending:
            self._ending = True
            self._network.send(self, None)

    def close(self) -> None:
        """Send the buffer, then close this end."""
        if self._closing:
            return
        self._closing = True
        if self.process.alive:
            self.write_eof()
            if not self.get_write_buffer_size():
                self._network.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        """Close at once: some of the bytes in flight may still arrive, then the peer gets a RST."""
        if self.lost or not self.process.alive:
            return
        self._closing = True
        self._network.break_off(self, notify=False)
        self._network.loop.call_soon(self.lose, None)

    # ---------------------------------------------------------------------------------------------- what the network calls

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect the protocol, in this end's process."""
        self.protocol = protocol
        protocol.connection_made(self)
        self._pump()

    def deliver(self) -> None:
        """Deliver the next segment of this end, in the peer's process."""
        self._network.arrive(self)

    def orphaned(self) -> None:
        """Handle a segment after its receiving process has ended."""
        if self.flight:
            self._network.nobody(self)

    def take(self, segment: bytes | None) -> None:
        """Put a segment into this end's buffer."""
        if segment is None:
            self._eof = True
        else:
            self._received += segment
        self._pump()

    def cut_flight(self, random: Random) -> None:
        """Deliver a part of the bytes in flight, cut anywhere, and nothing after it."""
        self.cut = True
        data = b"".join(segment for segment in self.flight if segment)
        self.flight.clear()
        if data and not self.peer.lost and self.stalled_at is None and not self.connection.silent:
            self.peer._received += data[: random.randint(0, len(data))]

    def drain_and_lose(self) -> None:
        """Handle a RST: the buffer is read first, if this end reads."""
        self._pump()
        self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        """Close the socket and call connection_lost, once."""
        if self.lost:
            return
        self.forget(keep_flight=error is None)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def forget(self, *, keep_flight: bool) -> None:
        """Close the socket without a callback. After a close the bytes in flight still arrive, after an error they do not."""
        self.lost = self._closing = True
        if not keep_flight:
            self.flight.clear()
        self.process.transports.pop(self, None)
        if self.peer.lost:
            self._network.ended(self.connection)

    def abandon(self, *, power: bool) -> None:
        if power:
            self._network.vanished(self)
        else:
            self._network.hang_up(self)

    # -------------------------------------------------------------------------------------------------------------- reading

    def _pump(self) -> None:
        """Pass received bytes to the protocol. If it raises, its connection is lost, as in asyncio, and the loop reports the error."""
        done = False
        try:
            self._hand_over()
            done = True
        finally:
            if not done:
                self.abort()

    def _hand_over(self) -> None:
        protocol, received = self.protocol, self._received
        while received and self._reading and not self._closing and protocol is not None:
            if isinstance(protocol, asyncio.BufferedProtocol):
                view: Any = memoryview(protocol.get_buffer(-1))
                count = min(len(view), len(received))
                view[:count] = received[:count]
                del received[:count]
                self._notify_observer(count)
                protocol.buffer_updated(count)
            else:
                assert isinstance(protocol, asyncio.Protocol)
                data = bytes(received[:READ_BYTES_MAX])
                count = len(data)
                del received[:count]
                self._notify_observer(count)
                protocol.data_received(data)
            self.peer._taken(count)
        if self._eof and not received and not self._closing and self._reading and protocol is not None:
            self._eof = False
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()

    def _notify_observer(self, count: int) -> None:
        if self._network.observer is not None:
            self._network.observer.delivered(self.connection.number, not self.upstream, count)

    def _taken(self, count: int) -> None:
        """Note that the other end has read `count` bytes. If this end waits for that, it is notified one trip later."""
        if self._write_paused or self._closing:
            network = self._network
            network.loop.at(network.loop.now + network.latency_s, self._acknowledge, count, process=self.process)
        else:
            self._unacked -= count

    def _acknowledge(self, count: int) -> None:
        if self._network.is_blocked(self.there, self.here):
            self._network.loop.at(self._network.loop.now + 1.0, self._acknowledge, count, process=self.process)
            return
        self._unacked -= count
        if self.lost:
            return
        if self._closing and not self.get_write_buffer_size():
            self.lose(None)
        elif self._write_paused and self.get_write_buffer_size() <= self._low:
            self._write_paused = False
            assert self.protocol is not None
            self.protocol.resume_writing()


class SimSocket:
    """The part of a server's socket that callers use."""

    __slots__ = ("_name",)

    def __init__(self, name: Address) -> None:
        self._name = name

    def getsockname(self) -> Address:
        return self._name


class SimListener(asyncio.AbstractServer):
    """A port of a process, which accepts connections when it serves."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: Process, factory: Callable[[], asyncio.BaseProtocol], name: Address
    ) -> None:
        self.process = process
        self.sockets: tuple[SimSocket, ...] = (SimSocket(name),)
        self.accepts: Callable[[], asyncio.BaseProtocol] | None = None
        """Makes the protocol of a new connection; None: connections are refused."""
        self._loop = loop
        self._factory = factory
        self._port = name[1]
        self._forever: asyncio.Future[None] | None = None
        process.machine.listeners[self._port] = self

    def close(self) -> None:
        self.accepts = None
        self.sockets = ()
        listeners = self.process.machine.listeners
        if listeners.get(self._port) is self:
            del listeners[self._port]
        if self._forever is not None:
            self._forever.cancel()

    def is_serving(self) -> bool:
        return self.accepts is not None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def start_serving(self) -> None:
        if self.sockets:
            self.accepts = self._factory

    async def serve_forever(self) -> None:
        await self.start_serving()
        self._forever = self.get_loop().create_future()
        try:
            await self._forever
        finally:
            self.close()

    async def wait_closed(self) -> None:
        pass
