"""A connection of a browser: closed when it keeps the dashboard waiting for a request or with a response, or makes way for others."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 256
REQUEST_S = 5
"""How long a connection may take until the whole header of a request is there."""

READ_S = 30
"""How long a client may leave a response unread that fills the buffers."""


class LimitedConnection(H11Protocol):
    """uvicorn's connection, with limits: it waits without any for a request that was begun, and for a client that reads nothing. Those that
    wait for a request cost none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_since: float | None = None
        """When it began to wait for a request, by the loop's clock; None while a request is served."""
        self._limit: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._serve()
        elif self._limit is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Go on to the next request, for which uvicorn waits `timeout_keep_alive`: from its first byte on the time is limited here."""
        self._serve()
        super().on_response_complete()
        if self.cycle.response_complete:
            self.waits_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._serve()
        self._read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._read()
        super().resume_writing()

    def _wait(self) -> None:
        self.waits_since = self.loop.time()
        self._limit = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _serve(self) -> None:
        """End the time that is limited."""
        self.waits_since = None
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _read(self) -> None:
        """End the time in which the client has to read."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request. If all others have one, that is this one."""
        waiting = [each for each in self.connections if isinstance(each, LimitedConnection) and each.waits_since is not None]
        longest = min(waiting, key=lambda each: each.waits_since or 0.0)
        self.connections.discard(longest)  # its end is reported later
        longest.transport.abort()
