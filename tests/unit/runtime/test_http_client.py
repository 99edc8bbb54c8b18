"""The HTTP client: what it sends, which connection it uses again, and which responses it understands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lockstep.protocol.errors import TransportError
from lockstep.runtime.connections.http_client import HttpClient
from lockstep.runtime.host import Host
from support.registers import listening, next_request

pytestmark = pytest.mark.simulated

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Scripted:
    """A server that answers the requests of all connections with these bytes, one after the other."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            self.requests.append(await next_request(reader))
            answer = self._answers.pop(0)
            writer.write(answer.removesuffix(b"<end>"))
            if answer.endswith(b"<end>"):
                return writer.close()


@asynccontextmanager
async def client_of(server: Scripted, response_bytes_max: int = 100) -> AsyncIterator[HttpClient]:
    async with listening(server.serve) as address:
        client = HttpClient(Host.current(), address, response_bytes_max=response_bytes_max)
        yield client
        client.close()


async def ask(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes]:
    connection = await client.connection()
    response = await connection.request("POST", "/v3", {"X-Test": "1"}, body)
    client.keep(connection)
    return response.status, response.body


async def test_request_has_its_length_and_the_connection_is_used_again() -> None:
    server = Scripted(OK, OK)
    async with client_of(server) as client:
        assert [await ask(client), await ask(client, b"{1}")] == [(200, b"ok")] * 2
        first = f"POST /v3 HTTP/1.1\r\nHost: {client.address}\r\nContent-Length: 2\r\nX-Test: 1\r\n\r\n{{}}"
        assert server.requests == [first.encode(), first.replace("Length: 2", "Length: 3").replace("{}", "{1}").encode()]
        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "expected", "used_again"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (200, b"ok"), True),
        (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n1\r\n!\r\n0\r\n\r\n", (503, b"no!"), True),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", (204, b""), True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", (200, b"ok"), False),
        (b"HTTP/1.0 200 OK\r\n\r\nup to the end<end>", (200, b"up to the end"), False),
        (OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake", (200, b"ok"), False),
        (OK + b"<end>", (200, b"ok"), False),
    ],
)
async def test_response_in_each_form_is_understood(answer: bytes, expected: tuple[int, bytes], used_again: bool) -> None:
    server = Scripted(answer, OK)
    async with client_of(server) as client:
        assert await ask(client) == expected
        await asyncio.sleep(1)
        assert await ask(client) == (200, b"ok"), "never what came unasked"
        assert server.connections == (1 if used_again else 2)


async def test_bytes_without_a_request_close_the_connection() -> None:
    server = Scripted(OK, OK)
    async with client_of(server) as client:
        connection = await client.connection()
        connection.data_received(OK)
        with pytest.raises(TransportError, match="closed by the peer"):
            await connection.request("GET", "/", {})
        assert await ask(client) == (200, b"ok")


async def test_response_beyond_the_limit_is_an_error_and_its_connection_closed() -> None:
    server = Scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, OK)
    async with client_of(server) as client:
        with pytest.raises(TransportError, match="more than 100 bytes, the limit"):
            await ask(client)
        assert await ask(client) == (200, b"ok")
        assert server.connections == 2


async def test_request_that_is_given_up_closes_its_connection() -> None:
    server = Scripted(b"", OK)
    async with client_of(server) as client:
        connection = await client.connection()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await connection.request("GET", "/", {})
        assert not connection.is_idle
        client.keep(connection)
        assert await ask(client) == (200, b"ok")
