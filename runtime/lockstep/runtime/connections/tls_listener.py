"""A port on which connections begin with TLS or without. The first byte decides, and is not consumed: 0x16 begins TLS.

    accepted ──first byte──▶ TLS: handshake ──▶ the protocol of a connection
        │                    any other: what `plain` returns for it, a protocol or None, which refuses the connection
        └─ 5 s in total, at most half_open_max at a time

A connection is *half open* until its first byte has arrived and its handshake is complete. It costs a descriptor and no work while its peer
is silent, so nobody waits for it. One too many closes the oldest half-open connection of the address that has the most, which is not that
of an honest peer while somebody keeps many open. Few connections are accepted in one turn of the loop, so that handshakes go on meanwhile
and the others wait in the kernel's queue.

`asyncio.start_tls` is not used: data that has been read before the upgrade is lost (cpython 142352, uvloop 707).
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from ssl import SSLContext
from typing import Any

from lockstep.protocol.errors import without_frames
from lockstep.runtime.connections.address import format_address, os_reason
from lockstep.runtime.daemon import ACCEPT_PAUSE_S, Tasks
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.tls import HANDSHAKE_S, SHUTDOWN_S

log = get_logger("runtime.server")

HALF_OPEN_MAX = 1_024
ACCEPTS_PER_TURN = 16
"""A handshake costs the server about a millisecond, half of it when the ClientHello is read."""
TLS_FIRST = 0x16
"""The first byte of TLS: a handshake record (RFC 8446, 5.1)."""


class TlsListener:
    """One listening address, with the methods of asyncio.Server that Server calls."""

    def __init__(
        self,
        name: str,
        make: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], SSLContext],
        plain: Callable[[int], Callable[[], asyncio.BaseProtocol] | None],
        refusal: Callable[[], str | None] = lambda: None,
        half_open_max: int = HALF_OPEN_MAX,
    ) -> None:
        """`make` makes the protocol of a connection with TLS; `plain` returns what makes that of one that begins with another byte;
        `refusal` returns why no connection may be added now."""
        self._name = name
        self._make = make
        self._context = context
        self._plain = plain
        self._refusal = refusal
        self._half_open_max = half_open_max
        self._half_open: dict[_HalfOpen, None] = {}
        """The oldest first."""
        self._by_peer: Counter[str] = Counter()
        self._tasks = Tasks()
        self.sockets: list[socket.socket] = []
        self.refused_count = 0
        """Handshakes that failed, and connections that were refused or cut before their end."""

    # ------------------------------------------------------------------------------------------------------------------ port

    async def bind(self, host: str, port: int) -> None:
        """Bind each address of the host, as `create_server` does. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self.sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
        except OSError:
            self._close_sockets()
            raise

    async def start_serving(self, backlog: int) -> None:
        """Accept connections from now on."""
        for listening in self.sockets:
            listening.listen(backlog)
            self._watch(listening)

    def close(self) -> None:
        """Close the port and the half-open connections."""
        loop = asyncio.get_running_loop()
        for listening in self.sockets:
            loop.remove_reader(listening)
        self._close_sockets()
        for half_open in list(self._half_open):
            half_open.end("the server is closing")

    async def wait_closed(self) -> None:
        await self._tasks.cancel_all()

    @property
    def half_open_count(self) -> int:
        return len(self._half_open)

    def _close_sockets(self) -> None:
        sockets, self.sockets = self.sockets, []
        for listening in sockets:
            listening.close()

    def _watch(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE_S, self._watch, listening)
                log_limited(log, "warning", "accept.paused", reason=os_reason(error), for_ms=int(ACCEPT_PAUSE_S * 1000))
                return
            self._add(accepted, format_address(address))

    # ------------------------------------------------------------------------------------------------------------- half open

    def _add(self, accepted: socket.socket, peer: str) -> None:
        if self._half_open and (len(self._half_open) >= self._half_open_max or self._refusal() is not None):
            most = max(self._by_peer.values())
            oldest = next(each for each in self._half_open if self._by_peer[each.host] == most)
            oldest.end(f"{len(self._half_open)} connections are half open, {most} of this address")
        elif (reason := self._refusal()) is not None:
            self.refuse(peer, reason)
            accepted.close()
            return
        half_open = _HalfOpen(self, accepted, peer)
        self._half_open[half_open] = None
        self._by_peer[half_open.host] += 1

    def forget(self, half_open: "_HalfOpen") -> None:
        """The connection is open, or has ended."""
        if half_open in self._half_open:
            del self._half_open[half_open]
            self._by_peer[half_open.host] -= 1
            if not self._by_peer[half_open.host]:
                del self._by_peer[half_open.host]

    def refuse(self, peer: str, reason: str) -> None:
        """Log that a connection was not opened, and count it."""
        self.refused_count += 1
        log_limited(log, "warning", "connection.refused", peer=peer, listener=self._name, reason=reason)

    def open(self, half_open: "_HalfOpen", first: int) -> None:
        """Make the connection that begins with this byte."""
        tls = {"ssl": self._context(), "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        make = self._make if first == TLS_FIRST else self._plain(first)
        if make is None:
            letter = f" ({chr(first)}, as a request of HTTP without TLS)" if chr(first) in "GHPO" else ""
            half_open.end(f"it begins with byte 0x{first:02X}{letter}, which is neither TLS nor what is accepted without it")
            return
        opening = self._open(half_open, make, tls if first == TLS_FIRST else {})
        half_open.handshake = self._tasks.spawn(opening, f"handshake with {half_open.peer}")

    async def _open(self, half_open: "_HalfOpen", make: Callable[[], asyncio.BaseProtocol], tls: dict[str, Any]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, half_open.take(), **tls)
        except OSError as error:
            self.refuse(half_open.peer, os_reason(without_frames(error)))  # asyncio's frames refer to a future that has the error
        finally:
            half_open.done()


class _HalfOpen:
    """A connection whose first byte or handshake is awaited."""

    def __init__(self, listener: TlsListener, accepted: socket.socket, peer: str) -> None:
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.handshake: asyncio.Task[None] | None = None
        self._listener = listener
        self._accepted: socket.socket | None = accepted
        """None once a transport has it."""
        accepted.setblocking(False)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_S, self.end, f"no complete handshake within {HANDSHAKE_S:.0f} s")
        loop.add_reader(accepted, self._readable)

    def _readable(self) -> None:
        accepted = self._accepted
        assert accepted is not None
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(os_reason(error))
            return
        if not first:
            self.end(None)  # a probe of the port
            return
        asyncio.get_running_loop().remove_reader(accepted)
        self._listener.open(self, first[0])

    def take(self) -> socket.socket:
        """Return the connection, for the transport that closes it from now on."""
        accepted, self._accepted = self._accepted, None
        assert accepted is not None
        return accepted

    def done(self) -> None:
        """The handshake has ended, well or not."""
        self._deadline.cancel()
        self._listener.forget(self)

    def end(self, reason: str | None) -> None:
        """Close the connection, which is not open yet. Without a reason nothing is logged."""
        self.done()
        if reason is not None:
            self._listener.refuse(self.peer, reason)
        if self.handshake is not None:
            self.handshake.cancel()
        if self._accepted is not None:
            asyncio.get_running_loop().remove_reader(self._accepted)
            self.take().close()
