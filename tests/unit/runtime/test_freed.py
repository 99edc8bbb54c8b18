"""What a peer makes this end allocate goes with its last reference, not when the garbage collector runs, which it does rarely (ADR 26)."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import LockstepError, RequestTimeoutError, SystemBusyError, TransportError, without_frames
from lockstep.runtime.admin_port import AdminPages, AdminPort, Health
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.link import Link
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.loop_thread import LoopThread
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.needs import ANY_USER
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request, RunInLane
from lockstep.runtime.security.security_watch import Reloaded
from support import peers
from support.certificates import requiring, server_tls, trusting
from support.cycles import collector_off
from support.http import raw
from support.loops import turns, until
from support.recorder import record

pytestmark = pytest.mark.both_loops

GOOD, BAD, BAD_LATER, BAD_LANE, BUSY, SILENT = range(1, 7)
NOWHERE = "127.0.0.1:1"
PARTIAL = struct.pack(">iI", (1 << 24) - 8, 0x4D << 24 | 100)
"""The beginning of the longest frame."""


class Processor:
    @handles(GOOD, needs=ANY_USER)
    def good(self, request: Request) -> HandlerResult:
        return request.reply()

    @handles(BAD, needs=ANY_USER)
    def bad(self, request: Request) -> HandlerResult:
        raise KeyError(request)

    @handles(BAD_LATER, needs=ANY_USER, lane="slow")
    async def bad_later(self, request: Request) -> HandlerResult:
        raise KeyError(request)

    @handles(BAD_LANE, needs=ANY_USER)
    def bad_lane(self, request: Request) -> HandlerResult:
        return RunInLane("slow", lambda: self.bad_later(request))

    @handles(BUSY, needs=ANY_USER)
    def busy(self, request: Request) -> HandlerResult:
        raise SystemBusyError("later")

    @handles(SILENT, needs=ANY_USER)
    def silent(self, request: Request) -> HandlerResult:
        return NO_RESPONSE


class World:
    """A server of Processor."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.addresses["main"]

    async def send(self, *data: bytes, end: Callable[[asyncio.StreamWriter], None] = lambda writer: writer.close()) -> None:
        """Send bytes on a connection of its own, wait until the server has read them or has closed it, and end it."""
        host, _, port = self.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: bool(self.server.endpoints))
        (endpoint,) = self.server.endpoints.values()
        for each in data:
            writer.write(each)
        await writer.drain()
        await until(lambda: endpoint.partial_bytes >= sum(map(len, data[:1])) or endpoint.closed)
        end(writer)

    async def request(self, code: int, body: bytes = b"") -> None:
        endpoint = await connect(Host.real(), self.address)
        await endpoint.request(code, body=body, timeout_ms=10_000)
        endpoint.close("done")

    async def timed_out(self) -> None:
        with pytest.raises(RequestTimeoutError):
            await call(Host.real(), self.address, SILENT, timeout_ms=20)

    async def lost(self) -> None:
        """Lose the connection with requests pending."""
        endpoint = await connect(Host.real(), self.address)
        errors: list[str] = []
        for _ in range(3):
            endpoint.send_request(SILENT, None, b"", timeout_ms=10_000, on_result=lambda error: errors.append(str(error)))
        await until(lambda: bool(self.server.endpoints))
        for each in self.server.endpoints.values():
            each.abort("lost")
        await until(lambda: len(errors) == 3)

    async def refused(self) -> None:
        with pytest.raises(TransportError):
            await connect(Host.real(), NOWHERE)

    async def link(self) -> None:
        link = Link(Host.real(), lambda: (self.address,), handler=lambda command, endpoint: None)
        await link.request(GOOD, timeout_ms=10_000)
        await link.close()

    async def link_in_vain(self) -> None:
        await fail_and_close(Link(Host.real(), lambda: (NOWHERE,)))

    async def link_refused_by_handshake(self) -> None:
        async def handshake(endpoint: Endpoint) -> None:
            raise TransportError(f"{endpoint} is not welcome")

        await fail_and_close(Link(Host.real(), lambda: (self.address,), on_connected=handshake))


async def fail_and_close(link: Link) -> None:
    """Request something of a link that can't connect, and close it during its backoff, not in the middle of the next attempt."""
    request = asyncio.ensure_future(link.request(GOOD, timeout_ms=10_000))
    await until(lambda: link.last_error is not None)
    await link.close()
    (error,) = await asyncio.gather(request, return_exceptions=True)  # raised, it would refer to this frame and so to its task
    assert "the link is closed" in str(error)


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    "most of a frame": lambda world: world.send(PARTIAL + bytes(300_000)),
    "most of a frame, reset": lambda world: world.send(PARTIAL + bytes(300_000), end=lambda writer: writer.transport.abort()),
    "no frame": lambda world: world.send(b"GET / HTTP/1.1\r\n\r\n"),
    "a frame that is too long": lambda world: world.send(struct.pack(">iI", 1 << 30, 0x4D << 24)),
    "a classic frame with a bad header": lambda world: world.send(struct.pack(">iI", 14, 10) + b"[" * 10),
    "a request": lambda world: world.request(GOOD),
    "a request with a body that is too long": lambda world: world.request(GOOD, bytes(100_000)),
    "a request that is not supported": lambda world: world.request(12_345),
    "an unexpected error": lambda world: world.request(BAD),
    "an unexpected error in a lane": lambda world: world.request(BAD_LATER),
    "an unexpected error in the rest of a handler": lambda world: world.request(BAD_LANE),
    "a refusal": lambda world: world.request(BUSY),
    "a request without a response": World.timed_out,
    "a lost connection": World.lost,
    "a refused connection": World.refused,
    "a link": World.link,
    "a link to nowhere": World.link_in_vain,
    "a link that is refused": World.link_refused_by_handshake,
}


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    server = Server(Host.real(), {"main": ("127.0.0.1", 0)}, Dispatcher([Processor()], lanes={"slow": LaneLimits(2, 10)}))
    await server.start()
    try:
        yield World(server)
    finally:
        await server.close()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_connections_and_requests_are_freed_without_the_collector(name: str) -> None:
    async with serving() as world:
        await SCENARIOS[name](world)  # what is made once
        await until(lambda: not world.server.endpoints)
        await turns(5)
        with collector_off():
            await SCENARIOS[name](world)
            await until(lambda: not world.server.endpoints)
            await turns(5)


async def test_connection_that_sent_most_of_a_frame_is_gone_when_it_is_closed() -> None:
    async with serving() as world:
        gc.collect()
        gc.disable()
        try:
            host, _, port = world.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(PARTIAL + bytes(300_000))
            await until(lambda: world.server._partial_bytes == 300_008)
            peer = next(iter(world.server.endpoints.values())).peer
            assert peer in accepted()
            writer.close()
            await until(lambda: peer not in accepted(), "the connection is freed")
            assert world.server._partial_bytes == 0
        finally:
            gc.enable()


class SecureWorld:
    """A server that requires TLS, and clients that do and do not trust it."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.address = server.addresses["internal"]
        self._trusting = trusting(directory)
        self._mistrusting = trusting(directory, "theirs")

    async def request(self) -> None:
        assert (await call(Host.real(), self.address, GOOD, security=self._trusting, timeout_ms=10_000)).code == 0

    async def request_without(self) -> None:
        assert (await call(Host.real(), self.address, GOOD, timeout_ms=10_000)).code == ResponseCode.NO_PERMISSION

    async def mistrusted(self) -> None:
        with pytest.raises(TransportError):
            await call(Host.real(), self.address, GOOD, security=self._mistrusting, timeout_ms=10_000)

    async def send(self, data: bytes, end: Callable[[asyncio.StreamWriter], None]) -> None:
        host, _, port = self.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: self.server.half_open_count == 1)
        writer.write(data)
        await writer.drain()
        await turns(5)
        end(writer)
        await until(lambda: not self.server.half_open_count)
        writer.close()


HELLO = bytes.fromhex("16030100fa010000f60303") + bytes(100)
"""The beginning of a ClientHello."""
SECURE: dict[str, Callable[[SecureWorld], Awaitable[None]]] = {
    "a request": SecureWorld.request,
    "a request without TLS": SecureWorld.request_without,
    "a client that does not trust the server": SecureWorld.mistrusted,
    "nothing": lambda world: world.send(b"", lambda writer: writer.close()),
    "half a ClientHello": lambda world: world.send(HELLO, lambda writer: writer.close()),
    "half a ClientHello, reset": lambda world: world.send(HELLO, lambda writer: writer.transport.abort()),
    "no ClientHello": lambda world: world.send(HELLO[:5] + b"x" * 300, lambda writer: None),
    "something else": lambda world: world.send(b"GET /", lambda writer: None),
}


@pytest.mark.parametrize("name", SECURE)
async def test_handshakes_are_freed_without_the_collector(name: str, tmp_path: Path) -> None:
    security = requiring(server_tls(tmp_path))
    async with peers.serving(Dispatcher([Processor()], lanes={"slow": LaneLimits(2, 10)}), security=security) as server:
        world = SecureWorld(server, tmp_path)
        for _ in range(2):  # what is made once
            await SECURE[name](world)
        await until(lambda: not server.endpoints and not server.half_open_count)
        await turns(5)
        with collector_off():
            await SECURE[name](world)
            await until(lambda: not server.endpoints and not server.half_open_count)
            await turns(5)


def accepted() -> list[str]:
    """Return the peers of all accepted connections that exist."""
    return [each.peer for each in gc.get_objects() if type(each) is Endpoint and each.listener]


@pytest.mark.parametrize("end", [Endpoint.close, Endpoint.abort])
async def test_closed_connection_drops_what_it_has_received_although_something_refers_to_it(end: Callable[[Endpoint, str], None]) -> None:
    endpoint, _ = record(None)
    endpoint.data_received(PARTIAL + bytes(100_000))
    assert endpoint._frames.pending_bytes == 100_008
    end(endpoint, "done")
    assert (endpoint._frames.pending_bytes, len(endpoint._inbox), endpoint._out) == (0, 0, [])
    endpoint.connection_lost(None)


ADMIN = {
    "a page": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a page that fails": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a request that is too long": b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
    "no request": b"\r\n\r\n",
}


@pytest.mark.parametrize("name", ADMIN)
async def test_connections_of_the_admin_port_are_freed_without_the_collector(name: str) -> None:
    async def metrics() -> bytes:
        raise KeyError("metrics")

    port = AdminPort(("127.0.0.1", 0), AdminPages(Health, metrics, not_reloading))
    await port.start()
    await raw(port.address, ADMIN[name])
    await until(lambda: not port._open)
    await turns(5)
    with collector_off():
        await raw(port.address, ADMIN[name])
        await until(lambda: not port._open)
        await turns(5)
    await port.stop()


async def not_reloading() -> Reloaded:
    return Reloaded((), None, None)


async def test_admin_connection_that_sends_no_request_is_freed_without_the_collector() -> None:
    port = AdminPort(("127.0.0.1", 0), AdminPages(Health, lambda: asyncio.sleep(0, b""), not_reloading))
    await port.start()
    host, _, at = port.address.rpartition(":")
    with collector_off():
        _, writer = await asyncio.open_connection(host, int(at))
        writer.write(b"GET /livez")
        await until(lambda: bool(port._open))
        writer.close()
        await until(lambda: not port._open)
        await turns(5)
    await port.stop()


async def test_failure_of_a_task_is_kept_without_the_frames_in_which_it_came_up() -> None:
    async def fail(work: list[bytes]) -> None:
        raise KeyError("task") from ValueError(str(len(work)))

    tasks = Tasks()
    tasks.spawn(fail([b"x"]), "failing")
    await until(lambda: tasks.failure is not None)
    assert isinstance(tasks.failure, KeyError)
    assert tasks.failure.__traceback__ is None


def test_error_without_frames_keeps_its_causes_but_no_traceback() -> None:
    def raised() -> LockstepError:
        try:
            try:
                raise ValueError("cause")
            except ValueError as cause:
                raise TransportError("effect") from cause
        except LockstepError as error:
            return error

    error = raised()
    assert error.__traceback__ is not None
    assert without_frames(error) is error
    assert isinstance(error.__cause__, ValueError)
    assert (error.__traceback__, error.__cause__.__traceback__) == (None, None)


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield None


async def fail(_: None) -> None:
    raise KeyError("call")


def test_failed_call_of_a_blocking_client_is_freed_without_the_collector() -> None:
    thread = LoopThread("blocking", nothing)
    thread.start()
    with collector_off():
        for _ in range(2):
            with pytest.raises(KeyError):
                thread.call(fail)
    thread.close()


def test_kept_error_has_no_frames_whatever_it_refers_to() -> None:
    """Errors may refer to each other in a circle, and both to a cause and to what was handled when they were raised."""

    class EmptyError(Exception):
        def __len__(self) -> int:
            return 0

    def raised(error: Exception, cause: Exception | None = None) -> Exception:
        try:
            raise error from cause
        except Exception as caught:
            return caught

    first = raised(EmptyError("first"))
    try:
        raise ValueError("handled")
    except ValueError:
        second = raised(KeyError("second"), first)
    first.__context__ = second
    assert without_frames(second) is second
    assert [each.__traceback__ for each in (first, second, handled_of(second))] == [None] * 3


def handled_of(error: BaseException) -> BaseException:
    assert isinstance(error.__context__, ValueError)
    return error.__context__
