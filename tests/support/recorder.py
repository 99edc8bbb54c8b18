"""An endpoint without a network whose transport keeps the written bytes."""

import asyncio
from dataclasses import replace
from typing import Any, cast

from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS


class Recorder:
    """A transport in memory. Bytes count as unsent while `stuck`, as with a peer that does not read."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ended = ""
        self.reading = True
        self.stuck = False
        self.unsent_bytes = 0
        self._high = self._low = 0
        self._paused = False
        self._endpoint: Endpoint | None = None

    def attach(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.connection_made(cast(asyncio.BaseTransport, self))

    def unstick(self, unsent_bytes: int = 0) -> None:
        """Let the peer read until `unsent_bytes` bytes are unsent."""
        self.unsent_bytes = unsent_bytes
        self.stuck = unsent_bytes > 0
        if self._paused and unsent_bytes <= self._low and self._endpoint is not None:
            self._paused = False
            self._endpoint.resume_writing()

    # --- asyncio.Transport

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1000 if name == "peername" else 2000)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))
        if self.stuck:
            self.unsent_bytes += len(data)
            if self.unsent_bytes > self._high and not self._paused and self._endpoint is not None:
                self._paused = True
                self._endpoint.pause_writing()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def record(handler: Handler | None, *, listener: str = "internal", **limits: Any) -> tuple[Endpoint, Recorder]:
    """Return a connected endpoint and its transport. `listener=""` is the client end, `limits` as in EndpointLimits."""
    endpoint = Endpoint(Host.real(), handler, replace(DEFAULT_LIMITS, **limits), listener=listener, id=1)
    recorder = Recorder()
    recorder.attach(endpoint)
    return endpoint, recorder
