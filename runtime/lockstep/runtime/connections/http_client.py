"""A client of one HTTP/1.1 server, for small requests: a connection that is kept, limits for responses, and TLS.

A request has two steps, so that its caller knows what may have happened: while `connection` fails, nothing was sent; when `request` fails,
the server may have got the request.

It needs h11, of the extra [ha]: import it only where it is used.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import h11

from lockstep.protocol.errors import TransportError, without_frames
from lockstep.runtime.connections.address import os_reason
from lockstep.runtime.connections.dial import CONNECT_MS, dial
from lockstep.runtime.host import Host
from lockstep.runtime.security.tls import ClientTls

HEADER_BYTES_MAX = 16 * 1024
"""The maximum of a response's status line and fields."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes


class HttpConnection(asyncio.Protocol):
    """One connection, for one request at a time. Made by HttpClient."""

    def __init__(self, address: str, response_bytes_max: int) -> None:
        self.address = address
        self._response_bytes_max = response_bytes_max
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[HttpAnswer] | None = None
        self._status = 0
        self._body = bytearray()
        self._has_heard = False
        self._has_begun = False

    @property
    def is_idle(self) -> bool:
        """Return whether another request may be sent."""
        return self._transport is not None and self._response is None

    async def request(self, method: str, path: str, fields: Mapping[str, str], body: bytes = b"") -> HttpAnswer:
        """Send a request and return its response, whatever its status. The body of a longer response than the limit is an error.

        `fields`: further fields of the header. Raise TransportError if there is no response, or none of HTTP; a caller that no longer waits
        cancels, and the connection is closed.
        """
        if not self.is_idle or self._transport is None:
            raise TransportError(f"{self.address}: closed by the peer")
        response: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        self._response = response
        self._body.clear()
        self._has_begun = False
        more = [("Host", self.address), ("Content-Length", str(len(body))), *fields.items()]
        events = h11.Request(method=method, target=path, headers=more), h11.Data(body), h11.EndOfMessage()
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        try:
            return await response
        except BaseException:  # re-raised
            self.close()
            raise

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # ---------------------------------------------------------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(os_reason(error) if isinstance(error, OSError) else self._closed_reason, error)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._has_heard = self._has_begun = True
        self._http_received(data)

    def eof_received(self) -> None:
        if self._has_begun:
            self._http_received(b"")
        # else the transport closes itself

    @property
    def _closed_reason(self) -> str:
        """Return why there is no response if the peer has closed the connection."""
        is_plain = self._transport is None or self._transport.get_extra_info("ssl_object") is None
        hint = "; it may require TLS on this port" if is_plain and not self._has_heard else ""
        return f"closed by the peer before its response{hint}"

    def _http_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._response is None:  # nothing was asked, or the connection is not used any more
            self.close()
            return
        try:
            self._http.receive_data(data)
            while self._response is not None:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            self._fail(f"its response is not one of HTTP/1.1: {error}", error)
            self.close()

    def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.Response):
            self._status = event.status_code
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > self._response_bytes_max:
                self._fail(f"its response has more than {self._response_bytes_max} bytes, the limit")
                self.close()
        elif isinstance(event, h11.EndOfMessage):
            response, self._response = self._response, None
            if self._http.their_state is h11.DONE and not self._http.trailing_data[0]:
                self._http.start_next_cycle()
            else:
                self.close()
            if response is not None and not response.done():
                response.set_result(HttpAnswer(self._status, bytes(self._body)))

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        response, self._response = self._response, None
        if response is not None and not response.done():
            error = TransportError(f"{self.address}: {reason}")
            error.__cause__ = None if cause is None else without_frames(cause)
            response.set_exception(error)


class HttpClient:
    """A client of the server at one address. It keeps the connection of the last response."""

    def __init__(self, host: Host, address: str, *, tls: ClientTls | None = None, response_bytes_max: int) -> None:
        self.address = address
        self._host = host
        self._tls = tls
        self._response_bytes_max = response_bytes_max
        self._kept: HttpConnection | None = None

    async def connection(self, timeout_ms: int = CONNECT_MS) -> HttpConnection:
        """Return the connection that is kept, or a new one. Give it back by `keep`. Raise TransportError as `dial` does."""
        kept, self._kept = self._kept, None
        if kept is not None and kept.is_idle:
            return kept
        make = partial(HttpConnection, self.address, self._response_bytes_max)
        return await dial(self._host, self.address, make, tls=self._tls, timeout_ms=timeout_ms)

    def keep(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request, unless it is closed or there is one."""
        if self._kept is None and connection.is_idle:
            self._kept = connection
        else:
            connection.close()

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
