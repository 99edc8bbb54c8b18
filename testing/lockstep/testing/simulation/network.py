"""The network between the machines: streams that are late, cut, one way only, or silent, at random by the loop's seed."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable

from lockstep.testing.simulation.process import Machine
from lockstep.testing.simulation.scheduler import Scheduler
from lockstep.testing.simulation.transport import Observer, SimConnection, SimTransport

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
RETRANSMIT_MIN_S = 0.2
"""Linux' first delay before a lost segment is sent again; doubled each time."""
RETRANSMIT_MAX_S = 60.0
SYN_AGAIN_S = 1.0
EPHEMERAL_FIRST = 32_768


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "connection reset by peer")


class Network:
    """All links and connections. Machines are named by their addresses; all times are true seconds."""

    def __init__(self, loop: Scheduler) -> None:
        self.loop = loop
        self.observer: Observer | None = None
        self.latency_s = 0.0005
        """The minimum time of a segment."""
        self.jitter_s = 0.002
        """The maximum of the time in addition, evenly distributed."""
        self.late_chance = 0.001
        """The share of segments that are lost and sent again: 0.2, 0.4, … 3.2 s late."""
        self.chop = 0.2
        """The share of writes that reach the other end in several pieces, cut anywhere."""
        self.connect_timeout_s = 127.0
        """Linux: six SYNs."""
        self.send_timeout_s = 900.0
        """Linux: how long bytes are sent again before the connection is given up (tcp_retries2)."""
        self.slow: dict[tuple[str, str], float] = {}
        """(from, to) → each segment takes up to so many seconds more."""
        self.connections: dict[int, SimConnection] = {}
        """The connections with at least one open end, oldest first."""
        self.segments = 0
        """The number of segments delivered so far."""
        self._blocked: dict[tuple[str, str], float] = {}
        """(from, to) → when the block began."""
        self._stalled: dict[tuple[str, str], list[SimTransport]] = {}
        """Ends with segments that are being sent again and again."""
        self._opened = 0
        self._port = EPHEMERAL_FIRST

    # ---------------------------------------------------------------------------------------------------------------- faults

    def block(self, source: str, target: str) -> None:
        """Block all segments from `source` to `target` until `heal`, but none in the other direction."""
        self._blocked.setdefault((source, target), self.loop.now)

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Block both directions between each of `some` and each of `others`."""
        others = tuple(others)
        for one in some:
            for other in others:
                self.block(one, other)
                self.block(other, one)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """End all blocks, or those of `pairs` (from, to). Pending segments arrive when their sender retransmits them, as TCP does."""
        for pair in list(self._blocked if pairs is None else pairs):
            since = self._blocked.pop(pair, None)
            if since is None:
                continue
            again_s = min(RETRANSMIT_MAX_S, self.loop.now - since) * self.loop.random.random()
            for end in self._stalled.pop(pair, []):
                self._again(end, again_s)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    @property
    def blocked(self) -> tuple[tuple[str, str], ...]:
        """Return (from, to) of every block, oldest first."""
        return tuple(self._blocked)

    def between(self, one: str, other: str | None = None) -> list[SimConnection]:
        """Return the open connections of machine `one` (with `other`), oldest first."""
        wanted = {one} if other is None else {one, other}
        return [c for c in self.connections.values() if wanted <= {c.client.process.machine.name, c.server.process.machine.name}]

    def reset(self, connection: SimConnection) -> None:
        """Reset a connection: some of the bytes in flight still arrive (maybe half a frame), then each end is notified."""
        self.break_off(connection.client, notify=True)

    def silence(self, connection: SimConnection) -> None:
        """Let a middle box forget a connection: everything sent from now on is lost, and each end notices by its own timeout only."""
        connection.silent = True

    # ------------------------------------------------------------------------------------------------- what transports call

    def trip_s(self, source: str, target: str) -> float:
        """Return the time of the next segment."""
        random = self.loop.random.random
        trip_s = self.latency_s + random() * self.jitter_s
        if self.slow:
            trip_s += self.slow.get((source, target), 0.0) * random()
        if random() < self.late_chance:
            trip_s += RETRANSMIT_MIN_S * 2 ** self.loop.random.randrange(5)
        return trip_s

    def send(self, end: SimTransport, segment: bytes | None) -> None:
        """Send a segment (None: the end of the stream). Segments of one direction arrive in order."""
        if end.cut:
            return
        end.flight.append(segment)
        if end.connection.silent:
            self._stall(end)
            return
        end.due = max(end.due + 1e-9, self.loop.now + self.trip_s(end.here, end.there))
        self.loop.deliver_at(end.due, end.peer.process, end.deliver, end.orphaned)

    def arrive(self, end: SimTransport) -> None:
        """Deliver the next segment of `end`, in the receiver's process, unless the link is blocked."""
        if not end.flight:
            return
        if (end.here, end.there) in self._blocked or end.connection.silent:
            self._stall(end)
        elif end.peer.lost:
            self.nobody(end)
        else:
            segment = end.flight.popleft()
            self.segments += 1
            self.loop.trace(end.connection.number, end.upstream, segment)
            end.peer.take(segment)

    def nobody(self, end: SimTransport) -> None:
        """Handle segments of `end` that reach no socket: a RST comes back, or nothing if the machine is off."""
        if end.peer.process.machine.up and (end.here, end.there) not in self._blocked:
            end.flight.clear()
            self._reset_end(end)
        else:
            self._stall(end)

    def break_off(self, end: SimTransport, *, notify: bool) -> None:
        """Send a RST from `end`: both ends are lost, the far one when the RST arrives. `notify`: whether the near one is notified too."""
        connection, near, far = end.connection, end, end.peer
        for one in (near, far):
            one.cut_flight(self.loop.random)
        if notify:
            self.loop.at(self.loop.now, near.drain_and_lose, process=near.process)
        self._reset(connection, near, far)

    def _reset(self, connection: SimConnection, near: SimTransport, far: SimTransport) -> None:
        """Send the RST from `near`; a block delays it."""

        def tell() -> None:
            if far.lost:
                return
            if (near.here, near.there) in self._blocked or connection.silent:
                if self.loop.now - since < self.send_timeout_s:
                    self.loop.at(self.loop.now + 5.0, tell, process=far.process)
                return
            far.drain_and_lose()

        since = self.loop.now
        self.loop.at(since + self.trip_s(near.here, near.there), tell, process=far.process)

    def hang_up(self, end: SimTransport) -> None:
        """Close an end after its process has ended on a running machine: the kernel sends its buffer and closes, or sends a RST."""
        if not end.get_write_buffer_size() and self.loop.random.random() < 0.5:
            end.write_eof()
            end.forget(keep_flight=True)
        else:
            self.break_off(end, notify=False)
            end.forget(keep_flight=False)

    def vanished(self, end: SimTransport) -> None:
        """Drop an end after its machine lost its power: the far end is not notified, and its segments get no response."""
        end.cut = True
        end.flight.clear()
        end.forget(keep_flight=False)

    def ended(self, connection: SimConnection) -> None:
        """Forget a connection after both of its ends are closed."""
        if self.connections.pop(connection.number, None) is not None and self.observer is not None:
            self.observer.cut(connection.number)

    def booted(self, machine: str) -> None:
        """Let a booted machine respond to segments of its old connections by RST."""
        for pair in [pair for pair in self._stalled if pair[1] == machine and pair not in self._blocked]:
            for end in self._stalled.pop(pair):
                end.stalled_at = None
                end.flight.clear()
                self._reset_end(end)

    def _reset_end(self, end: SimTransport) -> None:
        self.loop.at(self.loop.now + self.trip_s(end.there, end.here), end.lose, reset_error(), process=end.process)

    def _again(self, end: SimTransport, after_s: float) -> None:
        """Retransmit the unacknowledged segments of `end`."""
        end.stalled_at = None
        end.due = max(end.due, self.loop.now + after_s)
        for _ in end.flight:
            end.due += 1e-9
            self.loop.deliver_at(end.due, end.peer.process, end.deliver, end.orphaned)

    def _stall(self, end: SimTransport) -> None:
        """Retransmit the segments of `end` until the link is open, or the connection times out."""
        if end.stalled_at is None:
            end.stalled_at = self.loop.now
            self._stalled.setdefault((end.here, end.there), []).append(end)
            self.loop.at(self.loop.now + self.send_timeout_s, self._give_up, end, self.loop.now)

    def _give_up(self, end: SimTransport, since: float) -> None:
        if end.stalled_at == since:
            self._stalled[end.here, end.there].remove(end)
            end.flight.clear()
            self.loop.at(self.loop.now, end.lose, OSError(errno.ETIMEDOUT, "connection timed out"), process=end.process)

    # --------------------------------------------------------------------------------------------------------------- dialling

    def resolve(self, name: str | None) -> Machine:
        """Return the machine of that address or name. OSError EHOSTUNREACH, or gaierror, if there is none."""
        if name is None or name in LOOPBACK:
            return self.loop.current.machine
        machine = self.loop.machines.get(name)
        if machine is None:
            if name.replace(".", "").isdigit():
                raise OSError(errno.EHOSTUNREACH, f"no machine {name} in the simulation")
            raise socket.gaierror(socket.EAI_NONAME, f"no machine {name!r} in the simulation")
        return machine

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect as `create_connection` does. OSError: EMFILE, ECONNREFUSED, or ETIMEDOUT after `connect_timeout_s` without a response."""
        loop, process = self.loop, self.loop.current
        machine = process.machine
        target = self.resolve(host)
        if machine.sockets_max is not None and machine.open_sockets() >= machine.sockets_max:
            raise OSError(errno.EMFILE, "too many open files")
        there, back = (machine.name, target.name), (target.name, machine.name)
        given_up_at = loop.now + self.connect_timeout_s
        while True:
            await asyncio.sleep(self.trip_s(*there) + self.trip_s(*back))
            if target.up and there not in self._blocked and back not in self._blocked:
                break
            if loop.now >= given_up_at:
                raise TimeoutError(errno.ETIMEDOUT, "connection timed out")
            await asyncio.sleep(SYN_AGAIN_S)
        server = target.listeners.get(port)
        if server is None or server.accepts is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connection to {host}:{port} refused")
        self._port = self._port + 1 if self._port < 60_999 else EPHEMERAL_FIRST
        self._opened += 1
        connection = SimConnection(self, self._opened, process, server.process, (machine.name, self._port), (target.name, port))
        self.connections[connection.number] = connection
        if self.observer is not None:
            self.observer.opened(connection.number, process, server.process, port)
        loop.at(loop.now, self._accept, target, connection, server.accepts, process=server.process)
        protocol = factory()
        connection.client.begin(protocol)
        return connection.client, protocol

    def _accept(self, machine: Machine, connection: SimConnection, accepts: ProtocolFactory) -> None:
        """Accept a connection, in the server's process, when it has a descriptor for it."""
        if machine.sockets_max is not None and machine.open_sockets() > machine.sockets_max:
            self.loop.at(self.loop.now + SYN_AGAIN_S, self._accept, machine, connection, accepts, process=connection.server.process)
        else:
            connection.server.begin(accepts())
