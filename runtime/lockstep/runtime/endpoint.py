"""One connection: frames in, frames out, requests paired with their answers, back-pressure both ways. RocketMQ: NettyRemotingAbstract.

    OPEN ──close(reason)──▶ CLOSING ──written or linger over──▶ CLOSED      what is outstanding fails when OPEN ends
      └──abort(reason), lost, peer broke the protocol─────────▶ CLOSED      on_close is called once, in a loop turn of its own

- Everything runs in the protocol's callbacks: a burst of frames is decoded and handled without a task or a timer per request. The
  time-outs of all requests share one heap and one timer.
- Frames that are sent within one loop turn leave in one write. Who knows when the last one is sent says so: `hold` and `flush`.
- The end that was dialled stops reading (and stops handling what it has read) while the peer does not take its answers. The end that
  dialled always reads: so the two can never wait for each other.
- At most `turn_bytes_max` and `turn_frames_max` are handled before other connections have their turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from lockstep.protocol.command import MSGPACK, ONEWAY_FLAG, RESPONSE_FLAG, Command
from lockstep.protocol.errors import RemoteProtocolError, TransportError
from lockstep.protocol.frame import FrameBuffer, encode_frame, encode_frame_parts
from lockstep.runtime.address import format_address, os_reason
from lockstep.runtime.daemon import call_apart
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited
from lockstep.runtime.pending_requests import CLOCK_STEP_S, PendingRequests, ResponseReceiver
from lockstep.runtime.safe_text import printable
from lockstep.runtime.timer import Timer
from lockstep.runtime.turn import Turn

log = get_logger("runtime.endpoint")

Handler = Callable[[Command, "Endpoint"], None]
"""Takes a request that came in. Runs in the protocol callback: it must not raise and must not block."""

OPAQUE_LIMIT = 1 << 31


class Endpoint(asyncio.Protocol):
    """One connection. Made by Server for who dials in, by `pool.connect` and `pool.Link` for dialling out."""

    __slots__ = (
        "_blocked",
        "_drainers",
        "_ended",
        "_flush_turn",
        "_frames",
        "_handler",
        "_heard_at",
        "_held",
        "_idle",
        "_inbox",
        "_limits",
        "_linger_timer",
        "_loop",
        "_lost",
        "_opaque",
        "_out",
        "_out_bytes",
        "_outstanding",
        "_partial",
        "_partial_at",
        "_resume_turn",
        "_transport",
        "_turn_bytes",
        "_turn_frames",
        "_undone",
        "_write_paused",
        "closed",
        "codec",
        "connected_ms",
        "id",
        "listener",
        "local",
        "on_close",
        "on_open",
        "on_partial",
        "owner",
        "partial_bytes",
        "peer",
        "reason",
    )

    def __init__(
        self, host: Host, handler: Handler | None, limits: EndpointLimits = DEFAULT_LIMITS, listener: str = "", id: int = 0
    ) -> None:
        """`listener` names the listener on which the peer dialled in; empty on the end that dialled. `id` is its server's number for it."""
        self.id = id
        self.listener = listener
        self.peer = "unknown"
        """The other end, "ip:port"."""
        self.local = "unknown"
        self.codec = MSGPACK
        """Serialize type of the frames that this end starts."""
        self.closed = False
        """Nothing more will be sent or handled."""
        self.reason = ""
        """Why it was closed."""
        self.owner: object | None = None
        """Whom the layer above has bound to the connection."""
        self.on_open: Callable[[Endpoint], None] | None = None
        self.partial_bytes = 0
        """What has come of a frame that is not complete yet."""
        self.on_partial: Callable[[int], None] | None = None
        """Called with the number of bytes by which `partial_bytes` has just changed."""
        self.on_close: list[Callable[[Endpoint, str], None]] = []
        """Called once with the reason, after every outstanding request has failed."""
        self.connected_ms = host.clock.wall_ms()
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._limits = limits
        self._frames = FrameBuffer(limits.frame_bytes_max, limits.header_bytes_max)
        self._inbox: deque[bytes | memoryview] = deque()
        self._turn_bytes = 0
        self._turn_frames = 0
        self._undone = False
        """This turn's share of frames is used up: whole ones may be left in the buffer."""
        self._resume_turn = Turn("connection", self._resume, self._failed)
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_turn = Turn("connection.flush", self._flush, self._failed)
        self._held = False
        """`flush` is called in this loop turn."""
        self._write_paused = False
        self._blocked = False
        """The peer does not take our answers: nothing of its is read or handled."""
        self._drainers: list[asyncio.Future[None]] = []
        self._outstanding = PendingRequests(self._loop, lambda: self.peer, limits.late_ms)
        self._opaque = 0
        self._partial = Timer(self._loop, self._check_partial, limits.late_ms)
        self._partial_at = 0.0
        """When the frame that is not complete yet began; 0.0: there is none."""
        self._idle = Timer(self._loop, self._check_idle, limits.late_ms)
        self._heard_at = 0.0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None

    def __repr__(self) -> str:
        way = f"from {self.peer} on {self.listener}" if self.listener else f"to {self.peer}"
        return f"<Endpoint {way}{', closed' if self.closed else ''}>"

    # ------------------------------------------------------------------------------------------------------------- sending

    def request(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes | bytearray | memoryview = b"", *, timeout_ms: int
    ) -> "asyncio.Future[Command]":
        """Sends a request; the future gives the response, whatever its code.

        The future fails with TransportError when the connection is closed or lost, RequestTimeoutError after `timeout_ms`. What is too
        large for a frame raises LocalProtocolError here, before anything is sent. Cancelling the future drops the answer, not the request.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self.ask(code, fields, body, timeout_ms=timeout_ms, answer=future)
        return future

    def ask(
        self, code: int, fields: dict[str, Any] | None, body: bytes | bytearray | memoryview, *, timeout_ms: int, answer: ResponseReceiver
    ) -> None:
        """As `request`, settling `answer`."""
        if self.closed:
            answer.set_exception(self._gone())
            return
        if len(self._outstanding) >= self._limits.requests_max:
            reason = f"{len(self._outstanding)} requests are outstanding, the limit of one connection"
            answer.set_exception(TransportError(f"{self.peer}: {reason}"))
            return
        self._opaque = opaque = (self._opaque + 1) % OPAQUE_LIMIT
        frame = encode_frame(Command(code, opaque, fields={} if fields is None else fields, body=body, codec=self.codec))
        self._outstanding.add(opaque, code, timeout_ms, answer)
        self._write(frame)

    def oneway(self, code: int, fields: dict[str, Any] | None = None, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a request that nobody answers. Does nothing on a closed connection."""
        if not self.closed:
            self._opaque = (self._opaque + 1) % OPAQUE_LIMIT
            self._write(
                encode_frame(Command(code, self._opaque, ONEWAY_FLAG, fields={} if fields is None else fields, body=body, codec=self.codec))
            )

    def send(self, command: Command) -> None:
        """Sends a frame as it is, usually a response. Does nothing on a closed connection. LocalProtocolError where it is too large."""
        if not self.closed:
            self._write(encode_frame(command))

    def send_frame(self, frame: bytes) -> None:
        """Sends a frame that is encoded already."""
        if not self.closed:
            self._write(frame)

    def send_parts(self, command: Command, parts: Sequence[bytes | memoryview]) -> None:
        """Sends a frame whose body is `parts`, without copying them here: they must not change until they are sent."""
        if self.closed:
            return
        buffers = encode_frame_parts(command, parts)
        last = buffers.pop()
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        self._write(last)

    def hold(self) -> None:
        """What is sent from here on waits for `flush`, which must follow in this loop turn."""
        self._held = True

    def flush(self) -> None:
        """Writes what has been sent and not written."""
        self._held = False
        self._flush()

    def flush_soon(self) -> None:
        """`flush`, behind the callbacks that the loop has been given already: what those send leaves without another loop turn."""
        self._flush_turn.soon()

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted for sending that the operating system has not taken yet; 0 once closed."""
        waiting = 0 if self.closed or self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + waiting

    @property
    def backlog_bytes(self) -> int:
        """Of the unsent bytes those that were written to the socket and not taken: the peer does not read as fast. 0 once closed."""
        return 0 if self.closed or self._transport is None else self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Waits while more than `unsent_bytes_high` are unsent, until at most `unsent_bytes_low` are.

        TransportError when the connection ends.
        """
        if self._out_bytes > self._limits.unsent_bytes_high:
            self._flush()
        if self._write_paused and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drainers.append(waiter)
            await waiter
        if self.closed:
            raise self._gone()

    def _write(self, frame: bytes | memoryview) -> None:
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes >= self._limits.join_bytes:
            self._flush()
        elif not self._held:
            self.flush_soon()

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

    def close(self, reason: str) -> None:
        """Sends what is unsent (within `linger_ms`), then closes. Outstanding requests fail now."""
        if self.closed:
            return
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()
            self._linger_timer = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Closes at once; what is unsent is dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Waits until the connection is gone, however that came."""
        await asyncio.shield(self._lost)

    def _end(self, reason: str) -> None:
        """The end of OPEN: nothing is sent or handled from here on."""
        if self.closed:
            return
        self.closed = True
        self.reason = reason
        self._inbox.clear()
        self._out.clear()
        self._out_bytes = 0
        self._partial.cancel()
        self._idle.cancel()
        self._outstanding.fail_all(self._gone)
        drainers, self._drainers = self._drainers, []
        for waiter in drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._loop.call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        if not self._ended:
            self._ended = True
            for callback in list(self.on_close):
                call_apart("close.failed", callback, self, self.reason)

    def _failed(self, error: Exception) -> None:
        """How far reading or writing has come is not known: the peer sees the end of the connection and asks again."""
        self.abort(f"an error at this end: {type(error).__name__}")

    def _gone(self) -> TransportError:
        return TransportError(f"{self.peer}: connection closed: {self.reason}")

    # ---------------------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = format_address(transport.get_extra_info("peername"))
        self.local = format_address(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(self._limits.unsent_bytes_high, self._limits.unsent_bytes_low)
        self._heard_at = self._loop.time()
        if self.closed:
            self._transport.abort()
            return
        if self.listener and self._limits.idle_ms:
            self._idle.set(self._heard_at + self._limits.idle_ms / 1000)
        if self.on_open is not None:
            self.on_open(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._end("closed by the peer" if exc is None else os_reason(exc) if isinstance(exc, OSError) else repr(exc))
        self._tell_closed()
        if not self._lost.done():
            self._lost.set_result(None)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        limits = self._limits
        if self._inbox or self._blocked or self._undone or self._turn_bytes + len(data) > limits.turn_bytes_max:
            self._put_off(data)
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
        self._heard_at = self._loop.time()
        drainers, self._drainers = self._drainers, []
        for waiter in drainers:
            if not waiter.done():
                waiter.set_result(None)
        self._resume_soon()

    # ----------------------------------------------------------------------------------------------------------- receiving

    def _put_off(self, data: bytes) -> None:
        """This turn's share is used up, or the peer does not take our answers: the rest waits, and reading stops."""
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
        self._resume_turn.soon()

    def _resume(self) -> None:
        """A new turn: handles what was put off, one share a turn, then reads again."""
        if self.closed or self._blocked:
            return
        self._turn_bytes = self._turn_frames = 0
        undone, self._undone = self._undone, False
        if self._inbox and not undone:
            data = self._inbox.popleft()
            self._turn_bytes = len(data)
            self._frames.feed(data)
        self._handle_frames()
        if self.closed or self._blocked or self._transport is None:
            return
        if self._inbox or self._undone:
            self._resume_soon()
        else:
            self._transport.resume_reading()

    def _handle_frames(self) -> None:
        """The whole frames in the buffer, in order, as many as are left of this turn's share, and one write for what they are answered."""
        frames, answers, handler = self._frames, self._outstanding.answers, self._handler
        left = self._limits.turn_frames_max - self._turn_frames
        self.hold()
        try:
            while left > 0 and (command := frames.next()) is not None:
                left -= 1
                self._partial_at = 0.0
                if command.flag & RESPONSE_FLAG:
                    answer = answers.pop(command.opaque, None)
                    if answer is not None and not answer.done():
                        if command.remark is not None:
                            command.remark = printable(command.remark)
                        answer.set_result(command)
                elif handler is not None:
                    handler(command, self)
                if self.closed or self._blocked:
                    break
        except RemoteProtocolError as error:
            self.refuse(str(error))
        finally:
            self.flush()
        self._turn_frames = self._limits.turn_frames_max - left
        if left <= 0 and not (self.closed or self._blocked) and self._transport is not None:
            self._undone = True
            self._transport.pause_reading()
            self._resume_soon()
        if not self.closed:
            self._watch_partial()

    def refuse(self, reason: str) -> None:
        """The peer did what it must not: says so in the log, sends what is unsent, and closes."""
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
            self._partial_at = self._heard_at
            if not self._partial.armed:
                self._partial.set(self._partial_at + self._limits.partial_frame_ms / 1000)

    def _check_partial(self) -> None:
        if not self._partial_at:
            return
        if self._blocked or self._inbox or self._undone:
            self._partial_at = self._loop.time()
        due = self._partial_at + self._limits.partial_frame_ms / 1000
        if due > self._loop.time() + CLOCK_STEP_S:
            self._partial.set(due)
        else:
            self.refuse(f"{self._frames.pending_bytes} bytes of a frame came, the rest did not within {self._limits.partial_frame_ms} ms")

    def _check_idle(self) -> None:
        due = self._heard_at + self._limits.idle_ms / 1000
        if due > self._loop.time() + CLOCK_STEP_S:
            self._idle.set(due)
        else:
            self.close(f"nothing heard for {self._limits.idle_ms} ms")
