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
"""What the kernels of both ends hold of one direction."""
READ_BYTES_MAX = 256 * 1024
"""What one read of asyncio's loop brings at most."""
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
    def break_off(self, end: "SimTransport", *, told: bool) -> None: ...
    def hang_up(self, end: "SimTransport") -> None: ...
    def vanished(self, end: "SimTransport") -> None: ...
    def ended(self, connection: "Connection") -> None: ...


class Connection:
    """One TCP connection: who dialled, who was dialled."""

    __slots__ = ("client", "network", "number", "server", "silent")

    def __init__(self, network: Medium, number: int, client: Process, server: Process, client_name: Address, server_name: Address) -> None:
        self.network = network
        self.number = number
        self.silent = False
        """Whatever is sent vanishes."""
        self.client = SimTransport(self, client, client_name, server_name, upstream=True)
        self.server = SimTransport(self, server, server_name, client_name, upstream=False)
        self.client.peer, self.server.peer = self.server, self.client

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.client.here} → {self.server.here}>"


class SimTransport(asyncio.Transport):
    """One end. Its callbacks run in its own process; a killed process is told nothing."""

    peer: "SimTransport"

    def __init__(self, connection: Connection, process: Process, own: Address, other: Address, *, upstream: bool) -> None:
        super().__init__({"peername": other, "sockname": own})
        self.connection = connection
        self.process = process
        self.upstream = upstream
        """What this end sends goes from who dialled to who was dialled."""
        self.here, self.there = own[0], other[0]
        """Machines' addresses."""
        self.protocol: asyncio.BaseProtocol | None = None
        self.flight: deque[bytes | None] = deque()
        """Segments that this end has sent and the other's kernel has not taken. None: the end of the stream."""
        self.due = 0.0
        """When the last of them arrives: the next one not before."""
        self.stalled_at: float | None = None
        """Since when they don't get through; None: they do."""
        self.lost = False
        """The socket is gone."""
        self.cut = False
        """The connection is broken: nothing more goes out."""
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
        """What is unsent still goes out, then the connection is over for this end."""
        if self._closing:
            return
        self._closing = True
        if self.process.alive:
            self.write_eof()
            if not self.get_write_buffer_size():
                self._network.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        """At once: of what is on its way some may still arrive, then the peer gets a RST."""
        if self.lost or not self.process.alive:
            return
        self._closing = True
        self._network.break_off(self, told=False)
        self._network.loop.call_soon(self.lose, None)

    # ---------------------------------------------------------------------------------------------- what the network calls

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """In this end's process: the connection is there."""
        self.protocol = protocol
        protocol.connection_made(self)
        self._pump()

    def deliver(self) -> None:
        """In the peer's process: the next segment that this end has sent arrives."""
        self._network.arrive(self)

    def orphaned(self) -> None:
        """The peer's process is gone."""
        if self.flight:
            self._network.nobody(self)

    def take(self, segment: bytes | None) -> None:
        """A segment is in this end's kernel."""
        if segment is None:
            self._eof = True
        else:
            self._received += segment
        self._pump()

    def cut_flight(self, random: Random) -> None:
        """Of what this end has sent a part arrives, cut anywhere; nothing follows it."""
        self.cut = True
        data = b"".join(segment for segment in self.flight if segment)
        self.flight.clear()
        if data and not self.peer.lost and self.stalled_at is None and not self.connection.silent:
            self.peer._received += data[: random.randint(0, len(data))]

    def drain_and_lose(self) -> None:
        """A RST came: what is in the kernel is read first, if this end reads."""
        self._pump()
        self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        """The socket is gone: connection_lost, once."""
        if self.lost:
            return
        self.forget(keep_flight=error is None)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def forget(self, *, keep_flight: bool) -> None:
        """The socket is gone and nobody is told. After a close what has been sent still arrives, after an error it does not."""
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
        """Hands over what has come. A protocol that raises loses its connection, as in asyncio; the loop reports the error."""
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
                self._tell_observer(count)
                protocol.buffer_updated(count)
            else:
                assert isinstance(protocol, asyncio.Protocol)
                data = bytes(received[:READ_BYTES_MAX])
                count = len(data)
                del received[:count]
                self._tell_observer(count)
                protocol.data_received(data)
            self.peer._taken(count)
        if self._eof and not received and not self._closing and self._reading and protocol is not None:
            self._eof = False
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()

    def _tell_observer(self, count: int) -> None:
        if self._network.observer is not None:
            self._network.observer.delivered(self.connection.number, not self.upstream, count)

    def _taken(self, count: int) -> None:
        """The other end has read so much. Where this end waits for that, it hears of it a trip later."""
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
    """What asks a server for its socket wants to know."""

    __slots__ = ("_name",)

    def __init__(self, name: Address) -> None:
        self._name = name

    def getsockname(self) -> Address:
        return self._name


class SimServer(asyncio.AbstractServer):
    """A port that a process has taken, and accepts on once it serves."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: Process, factory: Callable[[], asyncio.BaseProtocol], name: Address
    ) -> None:
        self.process = process
        self.sockets: tuple[SimSocket, ...] = (SimSocket(name),)
        self.accepts: Callable[[], asyncio.BaseProtocol] | None = None
        """Makes the protocol of a new connection; None: who dials is refused."""
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
