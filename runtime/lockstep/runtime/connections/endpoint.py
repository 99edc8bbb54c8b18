"""One connection: frames in and out, requests matched with their responses, back-pressure in both directions. RocketMQ:
NettyRemotingAbstract.

    OPEN ──close(reason)──▶ CLOSING ──written or linger over──▶ CLOSED      pending requests fail when OPEN ends
      └──abort(reason), lost, peer broke the protocol─────────▶ CLOSED      on_close is called once, in its own turn of the loop

- Everything runs in the protocol's callbacks: a burst of frames is decoded and handled without a task or a timer per request. The
  time-outs of all requests share one heap and one timer.
- Frames that are sent within one turn of the loop leave in one write. A caller that sends many frames in a turn calls `hold` before the
  first and `flush` after the last.
- The accepting end stops reading (and stops handling what it has read) while the peer does not read its responses. The connecting end
  always reads, so that the two can never wait for each other.
- At most `turn_bytes_max` and `turn_frames_max` are handled before other connections have their turn.
- The bytes that a connection has received and not handled, and those that it has not sent or owes, go when OPEN ends. The rest goes with
  the last reference to the connection, not when the garbage collector runs (ADR 14): its turns and timers, which refer back to it, exist
  only from `connection_made` to `connection_lost`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import MSGPACK, ONEWAY_FLAG, RESPONSE_FLAG, Command
from lockstep.protocol.errors import RemoteProtocolError, TransportError
from lockstep.protocol.frame import FrameBuffer, encode_frame, encode_frame_parts
from lockstep.protocol.object_text import text_of
from lockstep.runtime.connections.address import format_address, os_reason
from lockstep.runtime.connections.pending_requests import CLOCK_STEP_S, OnResult, PendingRequests, complete
from lockstep.runtime.daemon import call_isolated
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.logs.safe_text import printable
from lockstep.runtime.security.authenticated_user import AuthenticatedUser
from lockstep.runtime.timer import Timer
from lockstep.runtime.turn import Turn

log = get_logger("runtime.endpoint")

Handler = Callable[[Command, "Endpoint"], None]
"""Handles a received request. It runs in the protocol's callback: it must not raise and must not block."""

OPAQUE_LIMIT = 1 << 31
_NOT_LEADER = int(ResponseCode.NOT_LEADER)


class Endpoint(asyncio.Protocol):
    """One connection. Server creates those that it accepts, `dial.connect` the outgoing ones."""

    __slots__ = (
        "_blocked",
        "_closed_future",
        "_drainers",
        "_flush_turn",
        "_frames",
        "_handler",
        "_has_more",
        "_held",
        "_idle",
        "_inbox",
        "_last_activity_at",
        "_limits",
        "_linger_timer",
        "_loop",
        "_made_at",
        "_notified",
        "_opaque",
        "_out",
        "_out_bytes",
        "_owed",
        "_owed_count",
        "_partial",
        "_partial_at",
        "_pending",
        "_resume_turn",
        "_transport",
        "_turn_bytes",
        "_turn_frames",
        "_write_paused",
        "closed",
        "codec",
        "connected_ms",
        "hint",
        "id",
        "identity",
        "is_anonymous",
        "listener",
        "local",
        "on_close",
        "on_not_leader",
        "on_open",
        "on_partial",
        "partial_bytes",
        "peer",
        "reason",
    )

    _resume_turn: Turn
    _flush_turn: Turn
    _partial: Timer
    _idle: Timer

    def __init__(
        self, host: Host, handler: Handler | None, limits: EndpointLimits = DEFAULT_LIMITS, listener: str = "", id: int = 0
    ) -> None:
        """`listener` is the name of the listener that accepted the connection, empty on the connecting end. `id` is the server's number
        for it."""
        self.id = id
        self.listener = listener
        self.peer = "unknown"
        """The other end, "ip:port"."""
        self.local = "unknown"
        self.codec = MSGPACK
        """The serialize type of the requests that this end sends."""
        self.closed = False
        """Whether the connection sends and handles nothing more."""
        self.reason = ""
        """Why it was closed."""
        self.identity: AuthenticatedUser | None = None
        """Who has logged in on this connection, at the accepting end."""
        self.is_anonymous = True
        """Whether nobody has logged in on it, or signed a request."""
        self.hint = ""
        """What may be the cause if the peer closes the connection before it has sent anything."""
        self.on_open: Callable[[Endpoint], None] | None = None
        self.partial_bytes = 0
        """The number of received bytes of an incomplete frame."""
        self.on_partial: Callable[[int], None] | None = None
        """Called with the number of bytes by which `partial_bytes` has just changed."""
        self.on_not_leader: Callable[[Command], None] | None = None
        """Called after each response NOT_LEADER, whose request has got it: the address of the peer is not that of the leader."""
        self.on_close: list[Callable[[Endpoint, str], None]] = []
        """Called once with the reason, after every pending request has failed."""
        self.connected_ms = host.clock.wall_ms()
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._limits = limits
        self._frames = FrameBuffer(limits.frame_bytes_max, limits.header_bytes_max)
        self._inbox: deque[bytes | memoryview] = deque()
        self._turn_bytes = 0
        self._turn_frames = 0
        self._has_more = False
        """This turn's limit of frames is reached: complete frames may be left in the buffer."""
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._owed: dict[int, Sequence[bytes | memoryview]] = {}
        """Encoded frames that may not be sent yet, by their number."""
        self._owed_count = 0
        self._held = True
        """`flush` is called later in this turn of the loop, or by `connection_made`."""
        self._write_paused = False
        self._blocked = False
        """The peer does not read the responses: nothing is read from it or handled."""
        self._drainers: list[asyncio.Future[None]] = []
        self._pending = PendingRequests(self._loop, limits.late_ms)
        self._opaque = 0
        self._partial_at = 0.0
        """When the incomplete frame began, or 0.0 if there is none."""
        self._last_activity_at = self._made_at = 0.0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._notified = False
        self._closed_future: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None

    def __repr__(self) -> str:
        direction = f"from {self.peer} on {self.listener}" if self.listener else f"to {self.peer}"
        return f"<Endpoint {direction}{', closed' if self.closed else ''}>"

    # ------------------------------------------------------------------------------------------------------------- sending

    def request(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes | bytearray | memoryview = b"", *, timeout_ms: int
    ) -> "asyncio.Future[Command]":
        """Send a request and return a future of the response, whatever its code.

        The future fails with TransportError when the connection is closed or lost, and with RequestTimeoutError after `timeout_ms`. A
        request that exceeds the size of a frame raises LocalProtocolError here, before anything is sent. Cancelling the future drops the
        response, not the request.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self.send_request(code, fields, body, timeout_ms=timeout_ms, on_result=partial(complete, future))
        return future

    def send_request(
        self, code: int, fields: dict[str, Any] | None, body: bytes | bytearray | memoryview, *, timeout_ms: int, on_result: OnResult
    ) -> None:
        """Do the same as `request`, and pass the result to `on_result`."""
        if self.closed:
            on_result(self._closed_error())
            return
        if len(self._pending) >= self._limits.requests_max:
            reason = f"{len(self._pending)} requests are pending, the maximum of one connection"
            on_result(TransportError(f"{self.peer}: {reason}"))
            return
        self._opaque = opaque = (self._opaque + 1) % OPAQUE_LIMIT
        frame = encode_frame(Command(code, opaque, fields={} if fields is None else fields, body=body, codec=self.codec))
        self._pending.add(opaque, code, timeout_ms, on_result)
        self._write(frame)

    def oneway(self, code: int, fields: dict[str, Any] | None = None, body: bytes | bytearray | memoryview = b"") -> None:
        """Send a request without a response. Do nothing on a closed connection."""
        if not self.closed:
            self._opaque = (self._opaque + 1) % OPAQUE_LIMIT
            self._write(
                encode_frame(Command(code, self._opaque, ONEWAY_FLAG, fields={} if fields is None else fields, body=body, codec=self.codec))
            )

    def send(self, command: Command) -> None:
        """Send a frame, usually a response. Do nothing on a closed connection. Raise LocalProtocolError if it is too large."""
        if not self.closed:
            self._write(encode_frame(command))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame."""
        if not self.closed:
            self._write(frame)

    def send_parts(self, command: Command, parts: Sequence[bytes | memoryview]) -> None:
        """Send a frame whose body is `parts`, without copying them here: they must not change until they are sent."""
        if self.closed:
            return
        buffers = encode_frame_parts(command, parts)
        last = buffers.pop()
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        self._write(last)

    def owe(self, frame: Sequence[bytes | memoryview]) -> Callable[[], None]:
        """Keep an encoded frame, in one or several parts, until what is returned is called, which sends it, or the connection ends."""
        self._owed_count = number = self._owed_count + 1
        if not self.closed:
            self._owed[number] = frame
        return partial(self._pay, number)

    def _pay(self, number: int) -> None:
        for part in self._owed.pop(number, ()):
            self._write(part)

    def hold(self) -> None:
        """Defer all writes to `flush`, which must follow in this turn of the loop."""
        self._held = True

    def flush(self) -> None:
        """Write the frames that were sent but not written."""
        self._held = False
        self._flush()

    def flush_soon(self) -> None:
        """Call `flush` after the callbacks that are already scheduled: frames that those send need no other turn of the loop."""
        if not self.closed:
            self._flush_turn.schedule()

    @property
    def unsent_bytes(self) -> int:
        """Return the number of accepted bytes that the operating system has not taken yet; 0 once closed."""
        waiting = 0 if self.closed or self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + waiting

    def limit_frames(self, bytes_max: int | None, reads_long: Callable[[Command, int], bool] | None = None) -> None:
        """Accept only frames of at most `bytes_max` bytes from now on, or those that `reads_long` lets pass. None: the connection's own
        limit."""
        self._frames.frame_bytes_max = self._limits.frame_bytes_max if bytes_max is None else bytes_max
        self._frames.reads_long = reads_long

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection has TLS. False once it is lost."""
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    @property
    def backlog_bytes(self) -> int:
        """Return the number of unsent bytes that were written to the socket but not taken: the peer reads too slowly. 0 once closed."""
        return 0 if self.closed or self._transport is None else self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """While more than `unsent_bytes_high` are unsent, wait until at most `unsent_bytes_low` are.

        Raises TransportError when the connection ends.
        """
        if self._out_bytes > self._limits.unsent_bytes_high:
            self._flush()
        if self._write_paused and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drainers.append(waiter)
            await waiter
        if self.closed:
            raise self._closed_error()

    def _write(self, frame: bytes | memoryview) -> None:
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes >= self._limits.join_bytes:
            self._flush()
        elif not self._held:
            self._flush_turn.schedule()

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        joined = self._out_bytes < 2 * self._limits.join_bytes
        self._out = []
        self._out_bytes = 0
        if len(out) == 1:
            self._transport.write(out[0])
        elif joined:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    # ------------------------------------------------------------------------------------------------------------- closing

    @property
    def pending_count(self) -> int:
        """Return the number of requests that wait for their response."""
        return len(self._pending)

    def close(self, reason: str) -> None:
        """Send the unsent bytes (within `linger_ms`), then close. Pending requests fail now."""
        if self.closed:
            return
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()
            self._linger_timer = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close at once and drop the unsent bytes."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Close the socket of a connection whose event loop is closed. No callback is called: none could run any more."""
        self.closed = True
        transport: Any = self._transport
        self._transport = None
        # asyncio's transports can't be closed without their loop, and leave the socket to the garbage collector. uvloop's end with it.
        below: Any = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        sock = getattr(below, "_sock", None)
        if sock is not None:
            sock.close()
            below._sock = None  # there is nothing left that it should warn of
            if below is not transport:
                transport._closed = True

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, whatever the cause."""
        await asyncio.shield(self._closed_future)

    def _end(self, reason: str) -> None:
        """End OPEN: nothing is sent or handled from here on."""
        if self.closed:
            return
        self.closed = True
        self.reason = reason
        self._inbox.clear()
        self._frames.clear()
        self._out.clear()
        self._out_bytes = 0
        self._owed.clear()
        if self._transport is not None:
            self._partial.cancel()
            self._idle.cancel()
        self._pending.fail_all(self._closed_error)
        drainers, self._drainers = self._drainers, []
        for waiter in drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._loop.call_soon(self._notify_closed)

    def _notify_closed(self) -> None:
        if not self._notified:
            self._notified = True
            callbacks, self.on_close = self.on_close, []
            for callback in callbacks:
                call_isolated("close.failed", callback, self, self.reason)

    def _failed(self, error: Exception) -> None:
        """Close after an error whose effect on reading or writing is unknown: the peer sees the end of the connection and retries."""
        self.abort(f"an error at this end: {text_of(error)}")

    def _closed_error(self) -> TransportError:
        return TransportError(f"{self.peer}: connection closed: {self.reason}")

    # ---------------------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._resume_turn = Turn("connection", self._resume, self._failed)
        self._flush_turn = Turn("connection.flush", self._flush, self._failed)
        self._partial = Timer(self._loop, self._check_partial, self._limits.late_ms)
        self._idle = Timer(self._loop, self._check_idle, self._limits.late_ms)
        self.peer = self._pending.peer = format_address(transport.get_extra_info("peername"))
        self.local = format_address(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(self._limits.unsent_bytes_high, self._limits.unsent_bytes_low)
        self._last_activity_at = self._made_at = self._loop.time()
        if self.closed:
            self._transport.abort()
            return
        if self.listener and self._limits.idle_ms:
            self._idle.set(self._last_activity_at + self._limits.idle_ms / 1000)
        if self.on_open is not None:
            self.on_open(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        reason = "closed by the peer" if exc is None else os_reason(exc) if isinstance(exc, OSError) else text_of(exc)
        self._end(f"{reason}: {self.hint}" if self.hint and self._last_activity_at == self._made_at else reason)
        self._notify_closed()
        if not self._closed_future.done():
            self._closed_future.set_result(None)
        del self._resume_turn, self._flush_turn, self._partial, self._idle
        self._handler = self.on_not_leader = self._linger_timer = self._transport = None

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._last_activity_at = self._loop.time()
        limits = self._limits
        if self._inbox or self._blocked or self._has_more or self._turn_bytes + len(data) > limits.turn_bytes_max:
            self._defer(data)
        else:
            self._turn_bytes += len(data)
            self._frames.feed(data)
            self._handle_frames()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self.listener and self._transport is not None:
            self._blocked = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = self._blocked = False
        self._last_activity_at = self._loop.time()
        drainers, self._drainers = self._drainers, []
        for waiter in drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._resume_soon()

    # ----------------------------------------------------------------------------------------------------------- receiving

    def _defer(self, data: bytes) -> None:
        """Defer data because this turn's limit is reached or the peer does not read the responses, and stop reading."""
        assert self._transport is not None
        step = self._limits.turn_bytes_max
        if len(data) <= step:
            self._inbox.append(data)
        else:
            view = memoryview(data)
            self._inbox.extend(view[at : at + step] for at in range(0, len(data), step))
        self._transport.pause_reading()
        if not self._blocked:
            self._resume_soon()

    def _resume_soon(self) -> None:
        self._resume_turn.schedule()

    def _resume(self) -> None:
        """Handle deferred data in another loop turn, up to the limit of one turn, and resume reading when none is left."""
        if self.closed or self._blocked:
            return
        self._turn_bytes = self._turn_frames = 0
        had_more, self._has_more = self._has_more, False
        if self._inbox and not had_more:
            data = self._inbox.popleft()
            self._turn_bytes = len(data)
            self._frames.feed(data)
        self._handle_frames()
        if self.closed or self._blocked or self._transport is None:
            return
        if self._inbox or self._has_more:
            self._resume_soon()
        else:
            self._transport.resume_reading()

    def _handle_frames(self) -> None:
        """Handle the complete frames of the buffer in order, up to this turn's limit, and write all their responses at once."""
        frames, callbacks, handler = self._frames, self._pending.callbacks, self._handler
        left = self._limits.turn_frames_max - self._turn_frames
        self.hold()
        try:
            while left > 0 and (command := frames.next()) is not None:
                left -= 1
                self._partial_at = 0.0
                if command.flag & RESPONSE_FLAG:
                    on_result = callbacks.pop(command.opaque, None)
                    if on_result is not None:
                        if command.remark is not None:
                            command.remark = printable(command.remark)
                        on_result(command)
                        if command.code == _NOT_LEADER and self.on_not_leader is not None:
                            self.on_not_leader(command)
                elif handler is not None:
                    handler(command, self)
                if self.closed or self._blocked:
                    break
        except RemoteProtocolError as error:
            self.reject(str(error))
        finally:
            self.flush()
        self._turn_frames = self._limits.turn_frames_max - left
        if left <= 0 and not (self.closed or self._blocked) and self._transport is not None:
            self._has_more = True
            self._transport.pause_reading()
            self._resume_soon()
        if not self.closed:
            self._watch_partial()

    def reject(self, reason: str) -> None:
        """Log the peer's violation, send the unsent bytes, and close."""
        log_limited(log, "warning", "connection.refused", peer=self.peer, listener=self.listener or None, reason=reason)
        if self._transport is not None:
            self._transport.pause_reading()
        self.close(f"protocol broken by the peer: {reason}")

    # -------------------------------------------------------------------------------------------------------------- timers

    def _watch_partial(self) -> None:
        pending_bytes = self._frames.pending_bytes
        if pending_bytes != self.partial_bytes:
            change, self.partial_bytes = pending_bytes - self.partial_bytes, pending_bytes
            if self.on_partial is not None:
                self.on_partial(change)
            if self.closed:
                return
        if not pending_bytes:
            self._partial_at = 0.0
        elif not self._partial_at:
            self._partial_at = self._last_activity_at
            if not self._partial.armed:
                self._partial.set(self._partial_at + self._limits.partial_frame_ms / 1000)

    def _check_partial(self) -> None:
        if not self._partial_at:
            return
        if self._blocked or self._inbox or self._has_more:
            self._partial_at = self._loop.time()
        due = self._partial_at + self._limits.partial_frame_ms / 1000
        if due > self._loop.time() + CLOCK_STEP_S:
            self._partial.set(due)
        else:
            self.reject(
                f"{self._frames.pending_bytes} bytes of a frame arrived, the rest did not within {self._limits.partial_frame_ms} ms"
            )

    def _check_idle(self) -> None:
        due = self._last_activity_at + self._limits.idle_ms / 1000
        if due > self._loop.time() + CLOCK_STEP_S:
            self._idle.set(due)
        else:
            self.close(f"nothing received for {self._limits.idle_ms} ms")
