"""The register in etcd against servers that are no etcd, or one with a fault of its operator: errors, and never a wait beyond the limit."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.broker.office.register import Register, RegisterEntryError, RegisterError, RegisterUnknownError, RegisterUnreachableError
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.registers import entry, listening, next_request

pytestmark = pytest.mark.simulated

UNKNOWN, UNREACHABLE = RegisterUnknownError, RegisterUnreachableError
LIMIT_S = 1.01


def http(status: int, body: str | bytes, *fields: str) -> bytes:
    raw = body if isinstance(body, bytes) else body.encode()
    return "\r\n".join([f"HTTP/1.1 {status} Why", f"Content-Length: {len(raw)}", *fields, "", ""]).encode() + raw


def grpc(status: int, text: str) -> bytes:
    return http(status, json.dumps({"error": text, "code": 1, "message": text}))


def row(value: object, revision: object = "7") -> bytes:
    return http(200, json.dumps({"header": {}, "kvs": [{"mod_revision": revision, "value": value}]}))


@asynccontextmanager
async def answering(raw: bytes, *, closes: bool = False) -> AsyncIterator[Register]:
    """Yield a register at a server that answers each request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await next_request(reader):
            writer.write(raw)
            if closes:
                return writer.close()

    async with listening(serve) as address:
        register = open_register(RegisterUrl.parse(f"etcd://{address}"), "shop", "broker-a", Host.current(), NO_SECURITY)
        yield register
        await register.close()


async def test_entry_is_read_as_it_is_now() -> None:
    """A serializable read of etcd is answered by one member, which may have been cut off from the others for long."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while raw := await next_request(reader):
            asked.append(raw)
            writer.write(http(200, '{"header": {}}'))

    async with listening(serve) as address:
        register = open_register(RegisterUrl.parse(f"etcd://{address}"), "shop", "broker-a", Host.current(), NO_SECURITY)
        assert await register.read() == (None, 0)
        await register.close()
    key = b64encode(b"lockstep/shop/brokers/broker-a").decode()
    assert [json.loads(raw.partition(b"\r\n\r\n")[2]) for raw in asked] == [{"key": key}], "linearizable is what etcd does unless asked"


async def error_of(call: Awaitable[object], says: str) -> type[RegisterError]:
    """Return the type of the error of a call, which has this text and comes in time."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(RegisterError, match=says) as raised:
        await call
    assert loop.time() - begin <= LIMIT_S
    return raised.type


@pytest.mark.parametrize(
    ("raw", "closes", "says"),
    [
        (b"", True, "closed by the peer before its response; it may require TLS"),
        (b"", False, "no answer in time"),
        (b"\x00\xff\x15\x03rubbish\r\n\r\n", False, "not one of HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, "not one of HTTP/1.1|no answer in time"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000, False, "not one of HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", True, "not one of HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", False, "no answer in time"),
        (http(200, "x" * 100_000), False, "more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 0x8000 + b"\r\n", False, "no answer in time"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: h2\r\n\r\n", False, "not one of HTTP/1.1|no answer in time"),
        (http(200, "<html>Welcome to the hotel's network</html>"), False, "does not answer as etcd does: <html>Welcome"),
        (http(200, "[1, 2]"), False, "does not answer as etcd does"),
        (http(200, "[" * 60_000), False, "does not answer as etcd does"),
        (http(200, '{"kvs": []}'), False, "does not answer as etcd does"),
        (http(302, "", "Location: https://elsewhere"), False, "HTTP 302"),
        (http(500, "\x00\x1b[31mred"), False, "HTTP 500"),
        (grpc(503, "etcdserver: request timed out"), False, "HTTP 503 etcdserver: request timed out"),
        (grpc(503, "etcdserver: no leader"), False, "HTTP 503 etcdserver: no leader"),
        (grpc(503, "connection error: tls: bad certificate"), False, "lacks the usage clientAuth"),
        (grpc(504, "context deadline exceeded"), False, "HTTP 504"),
    ],
)
async def test_answer_that_leaves_it_open_is_an_error_and_a_swap_is_unknown(raw: bytes, closes: bool, says: str) -> None:
    async with answering(raw, closes=closes) as register:
        assert await error_of(register.read(), says) is UNREACHABLE
        assert await error_of(register.swap(0, entry()), says) is UNKNOWN


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (http(404, "404 page not found\n"), "set enable-grpc-gateway: true in its configuration file, .* or start etcd 3.6 or later"),
        (http(404, ""), "it has no JSON gateway there"),
        (http(421, ""), "its --host-whitelist lacks the host of the URL"),
        (http(400, "Client sent an HTTP request to an HTTPS server.\n"), "it requires TLS: use etcds://"),
        (grpc(400, "CommonName of client sending a request against gateway will be ignored and not used as expected"), "make one without"),
        (grpc(400, "etcdserver: user name is empty"), "it requires a login: name a user"),
        (grpc(401, "etcdserver: invalid auth token"), "HTTP 401 etcdserver: invalid auth token"),
        (grpc(500, "auth: revision in header is old"), "revision in header is old"),
        (grpc(403, "etcdserver: permission denied"), "grant it"),
        (grpc(429, "etcdserver: mvcc: database space exceeded"), "compact and defragment it"),
        (grpc(429, "etcdserver: too many requests"), "HTTP 429 etcdserver: too many requests"),
    ],
)
async def test_refusal_is_explained_and_a_swap_was_not_done(raw: bytes, says: str) -> None:
    async with answering(raw) as register:
        assert await error_of(register.read(), says) is UNREACHABLE
        assert await error_of(register.swap(0, entry()), says) is UNREACHABLE


@pytest.mark.parametrize(
    ("raw", "kind", "says"),
    [
        (row("***"), UNREACHABLE, "does not answer as etcd does"),
        (row(None), UNREACHABLE, "does not answer as etcd does"),
        (row("", revision="many"), UNREACHABLE, "does not answer as etcd does"),
        (row("", revision=0), UNREACHABLE, "does not answer as etcd does"),
        (http(200, '{"header": {}, "kvs": {"a": 1}}'), UNREACHABLE, "does not answer as etcd does"),
        (http(200, '{"header": {}, "kvs": [5]}'), UNREACHABLE, "does not answer as etcd does"),
        (row(""), RegisterEntryError, "etcd key lockstep/shop/brokers/broker-a: it is not JSON"),
        (row(b64encode(b"hello").decode()), RegisterEntryError, "it is not JSON"),
    ],
)
async def test_value_that_is_no_entry_is_an_error(raw: bytes, kind: type[RegisterError], says: str) -> None:
    async with answering(raw) as register:
        assert await error_of(register.read(), says) is kind
