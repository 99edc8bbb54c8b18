"""Which nameserver is asked, and which connection a request has."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.client import kept_connection
from lockstep.client.cluster_client import ClusterClient
from lockstep.protocol.bodies import BrokerAddress, ClusterInfo, TopicRoute
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerSystemError,
    LockstepError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    RouteNotReadyError,
    TopicNotExistError,
    TransportError,
)
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.cycles import collector_off
from support.fake_broker import LOOPBACK, make_layout
from support.loops import until

pytestmark = pytest.mark.simulated

CODE = RequestCode.GET_BROKER_CLUSTER_INFO
TIMEOUT_MS = 2_000


def respond(code: int, remark: str | None = None, body: bytes = b"") -> Callable[[Command, Endpoint], None]:
    return lambda command, endpoint: endpoint.send(command.reply(code, remark, body=body))


FATES: dict[str, Callable[[Command, Endpoint], None]] = {
    "good": respond(ResponseCode.SUCCESS, body=encode_body(ClusterInfo(()))),
    "closes": lambda command, endpoint: endpoint.abort("as the test says"),
    "silent": lambda command, endpoint: None,
    "empty": respond(ResponseCode.ROUTE_NOT_READY, "no broker yet"),
    "broker": respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported here"),
    "failing": respond(ResponseCode.SYSTEM_ERROR, "as the test says"),
}
"""What a nameserver does with a request. One that "refuses" connections does not run."""


class Nameservers:
    """Nameservers with a fate each."""

    def __init__(self) -> None:
        self.fates: list[str] = []
        self.first_fates: list[str] = []
        """The fates of the next requests, whichever receives them."""
        self.servers: list[Server] = []
        self.asked: list[int] = []
        """The position of the nameserver, for each request that was received."""
        self.dialled: list[int] = []
        """The position of the nameserver, for each connection."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(server.addresses["internal"] for server in self.servers)

    @property
    def connected(self) -> list[int]:
        return [len(server.endpoints) for server in self.servers]

    async def start(self, fates: Sequence[str]) -> None:
        for position, fate in enumerate(fates):
            self.fates.append(fate)
            server = Server(
                Host.current(),
                LOOPBACK,
                lambda command, endpoint, position=position: self._handle(position, command, endpoint),  # type: ignore[misc]
                on_connect=lambda _, position=position: self.dialled.append(position),  # type: ignore[misc]
            )
            await server.start()
            self.servers.append(server)
        for server, fate in zip(self.servers, fates, strict=True):
            if fate == "refuses":  # once all have ports of their own
                await server.close()

    def client(self, **options: Any) -> ClusterClient:
        return ClusterClient(Host.current(), self.addresses, security=NO_SECURITY, timeout_ms=TIMEOUT_MS, **options)

    def _handle(self, position: int, command: Command, endpoint: Endpoint) -> None:
        self.asked.append(position)
        fate = self.first_fates.pop(0) if self.first_fates else self.fates[position]
        FATES[fate](command, endpoint)


async def arrived() -> None:
    """Wait until everything that was sent has arrived."""
    await asyncio.sleep(1)


@asynccontextmanager
async def nameservers(*fates: str) -> AsyncIterator[Nameservers]:
    running = Nameservers()
    try:
        await running.start(fates)
        yield running
    finally:
        for server in running.servers:
            await server.close()


async def outcome(client: ClusterClient) -> type[LockstepError] | None:
    try:
        await client.brokers()
    except LockstepError as error:
        return type(error)
    return None


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "alone"])
@pytest.mark.parametrize(
    ("fates", "asked", "error"),
    [
        ("good good", [0], None),
        ("refuses good", [1], None),
        ("closes good", [0, 1], None),
        ("silent good", [0, 1], None),
        ("empty good", [0, 1], None),
        ("refuses closes silent empty good", [1, 2, 3, 4], None),
        ("broker good", [0], RequestCodeNotSupportedError),
        ("failing good", [0], BrokerSystemError),
        ("empty broker", [0, 1], RequestCodeNotSupportedError),
        ("refuses refuses", [], TransportError),
        ("silent closes", [0, 1], TransportError),
        ("empty refuses", [0], RouteNotReadyError),
        ("refuses empty", [1], RouteNotReadyError),
        ("empty", [0], RouteNotReadyError),
        ("silent", [0], TransportError),
    ],
)
async def test_next_nameserver_is_asked_until_one_responds(
    fates: str, asked: list[int], error: type[LockstepError] | None, kept: bool
) -> None:
    async with nameservers(*fates.split()) as running:
        client = running.client()
        if kept:
            client.keep(0)
        assert (await outcome(client), running.asked) == (error, asked)
        await arrived()
        left = len(asked) and asked[-1]
        if kept and error is None:
            assert running.connected == [position == left for position in range(len(running.fates))], "those that were left are not kept"
            assert await outcome(client) is None
            assert running.asked == [*asked, left], "the one that responded is asked first"
            assert running.dialled.count(left) == 1
        if kept:
            await client.close()
        await arrived()
        assert sum(running.connected) == 0


@pytest.mark.parametrize(
    ("fates", "texts"),
    [
        ("refuses closes", ["no nameserver responds: ", "{0}: ", "as the test says|closed", "Check that one is running there"]),
        ("empty refuses", ["nameserver {0} knows no broker yet: none has registered", "`lockstep broker --nameserver {0} …`", "{1}: "]),
        ("broker", ["{0} does not know GET_BROKER_CLUSTER_INFO: is it a nameserver's address, and not a broker's?"]),
    ],
)
async def test_error_names_each_nameserver_that_was_asked(fates: str, texts: list[str]) -> None:
    async with nameservers(*fates.split()) as running:
        with pytest.raises(LockstepError) as raised:
            await running.client().brokers()
        for text in texts:
            assert any(part.format(*running.addresses) in str(raised.value) for part in text.split("|")), text


@pytest.mark.parametrize(("first", "asked"), [(0, [0]), (1, [1]), (2, [2, 0])])
async def test_list_is_begun_at_the_first_and_goes_round(first: int, asked: list[int]) -> None:
    async with nameservers("good", "good", "empty") as running:
        assert await outcome(running.client(first=first)) is None
        assert running.asked == asked


@pytest.mark.parametrize(("tries", "error"), [(1, TransportError), (2, None)])
async def test_single_nameserver_is_asked_again_over_a_new_connection_if_there_are_tries_left(
    tries: int, error: type[LockstepError] | None
) -> None:
    async with nameservers("good") as running:
        client = running.client(tries=tries)
        client.keep(0)
        await client.brokers()
        running.first_fates = ["closes"]
        assert await outcome(client) is error
        assert len(running.dialled) == tries
        await client.close()


async def test_connect_names_all_that_could_not_be_reached() -> None:
    async with nameservers("refuses", "refuses") as running:
        client = running.client(tries=4)
        client.keep(0)
        with pytest.raises(TransportError) as raised:
            await client.connect()
        assert str(raised.value).startswith(f"no nameserver can be reached: {running.addresses[0]}: ")
        assert [str(raised.value).count(address) for address in running.addresses] == [1, 1]
        await client.close()


async def test_one_nameserver_is_asked_alone() -> None:
    async with nameservers("empty", "good") as running:
        client = running.client()
        with pytest.raises(RouteNotReadyError):
            await client.ask_at(running.addresses[0], CODE)
        await client.ask_at(running.addresses[1], CODE)
        assert running.asked == [0, 1]
        await client.brokers()
        assert running.asked == [0, 1, 0, 1], "which is asked first is not changed"


async def test_brokers_and_routes_are_read() -> None:
    broker = BrokerAddress("a", "c", "127.0.0.1:1", True, 1)
    route = TopicRoute(make_layout("orders", "a"), (broker,))
    FATES["brokers"] = respond(ResponseCode.SUCCESS, body=encode_body(ClusterInfo((broker,))))
    FATES["route"] = respond(ResponseCode.SUCCESS, body=encode_body(route))
    FATES["deleted"] = respond(ResponseCode.TOPIC_NOT_EXIST, "deleted", encode_body(route))
    FATES["unknown"] = respond(ResponseCode.TOPIC_NOT_EXIST, "unknown")
    async with nameservers("brokers") as running:
        client = running.client()
        assert await client.brokers() == (broker,)
        for fate, deleted, known in (
            ("route", False, True),
            ("route", True, True),
            ("deleted", False, False),
            ("deleted", True, True),
            ("unknown", False, False),
            ("unknown", True, False),
        ):
            running.fates[0] = fate
            if known:
                assert await client.route("orders", deleted=deleted) == route
            else:
                with pytest.raises(TopicNotExistError, match=fate):
                    await client.route("orders", deleted=deleted)


async def test_requests_at_the_same_time_share_one_connection() -> None:
    async with nameservers("good") as running:
        client = running.client()
        client.keep(0)
        first = asyncio.ensure_future(client.brokers())
        others = [asyncio.ensure_future(client.brokers()) for _ in range(9)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        assert running.dialled == [0]
        await client.close()


async def test_any_address_is_sent_requests_whatever_the_code_of_the_response() -> None:
    async with nameservers("refuses", "empty") as running:
        client = running.client()
        for kept in (False, True):
            if kept:
                client.keep(0)
            assert (await client.request(running.addresses[1], CODE)).code == ResponseCode.ROUTE_NOT_READY
            with pytest.raises(TransportError):
                await client.request(running.addresses[0], CODE)
            running.fates[1] = "silent"
            with pytest.raises(RequestTimeoutError):
                await client.request(running.addresses[1], CODE)
            running.fates[1] = "empty"
        await client.close()


async def test_last_end_closes_the_connections() -> None:
    async with nameservers("good") as running:
        client = running.client()
        client.keep(0)
        client.keep(None)
        await client.brokers()
        await client.close()
        await client.brokers()
        assert (running.connected, running.dialled) == ([1], [0])
        await client.close()
        await arrived()
        assert running.connected == [0]
        await client.brokers()
        await client.brokers()
        assert running.dialled == [0, 0, 0], "nothing is kept any more"


async def test_close_that_is_cancelled_ends_every_connection_and_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = kept_connection.connect

    async def slow(host: Host, address: str, **options: Any) -> Endpoint:
        await asyncio.sleep(0 if address == running.addresses[0] else 3_600)
        return await connect(host, address, **options)

    monkeypatch.setattr(kept_connection, "connect", slow)
    async with nameservers("good", "good") as running:
        client = running.client()
        client.keep(0)
        await client.request(running.addresses[0], CODE)
        request = asyncio.ensure_future(client.request(running.addresses[1], CODE))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(TransportError, match="the client was closed"):
            await request
        await arrived()
        assert running.connected == [0, 0]
        assert closing.cancelled()


@pytest.mark.parametrize(
    ("redial_ms", "waited_ms", "dials"),
    [(None, 3_600_000, 1), (0, 0, 2), (1_000, 999, 1), (1_000, 1_000, 2), (1_000, 1_001, 2)],
)
async def test_address_that_could_not_be_dialled_is_not_dialled_again_for_a_while(
    redial_ms: int | None, waited_ms: int, dials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[str] = []

    async def refused(host: Host, address: str, **_: object) -> Endpoint:
        dialled.append(address)
        await asyncio.sleep(1)
        raise TransportError(f"{address}: refused")

    monkeypatch.setattr(kept_connection, "connect", refused)
    client = ClusterClient(Host.current(), ("nowhere:1",), security=NO_SECURITY, timeout_ms=TIMEOUT_MS)
    client.keep(redial_ms)
    found = await asyncio.gather(*(client.request("nowhere:1", CODE) for _ in range(9)), return_exceptions=True)
    assert {str(error) for error in found} == {"nowhere:1: refused"}
    assert len(dialled) == 1, "those that waited for the dial do not dial in turn"
    await asyncio.sleep(waited_ms / 1000)
    with pytest.raises(TransportError, match="nowhere:1: refused"):
        await client.request("nowhere:1", CODE)
    assert len(dialled) == dials
    await client.close()


@pytest.mark.real_network
async def test_requests_that_fail_are_freed_without_the_collector() -> None:
    async with nameservers("refuses", "silent", "closes", "empty") as running:

        async def fail() -> None:
            for redial_ms in (0, None):
                client = ClusterClient(Host.real(), running.addresses, security=NO_SECURITY, timeout_ms=20)
                assert await outcome(client) is not None
                client.keep(redial_ms)
                assert await outcome(client) is not None
                assert await outcome(client) is not None, "over connections that are there"
                await client.close()
            await until(lambda: sum(running.connected) == 0)

        await fail()  # what is made once
        with collector_off():
            await fail()


@pytest.mark.parametrize(("first", "error"), [("empty", RouteNotReadyError), ("silent", TransportError)])
async def test_nameserver_that_is_left_still_responds_to_the_requests_that_it_has(first: str, error: type[LockstepError]) -> None:
    held: list[Callable[[], None]] = []
    FATES["held"] = lambda command, endpoint: held.append(lambda: FATES["good"](command, endpoint))
    async with nameservers("held") as running:
        client = running.client()
        client.keep(0)
        await client.connect()
        running.first_fates = [first]
        leaving = asyncio.ensure_future(outcome(client))
        await asyncio.sleep(TIMEOUT_MS / 2_000)
        others = [asyncio.ensure_future(outcome(client)), asyncio.ensure_future(client.request(running.addresses[0], CODE))]
        assert await leaving is error
        await arrived() if first == "empty" else await asyncio.sleep(0)
        for respond_now in held:
            respond_now()
        assert [await others[0], (await others[1]).code] == [None, ResponseCode.SUCCESS]  # type: ignore[attr-defined]
        running.fates = ["good"]
        assert await outcome(client) is None
        await arrived()
        assert running.connected == [1], "the connection that was left is closed"
        await client.close()


async def test_server_that_closes_each_connection_at_once_is_dialled_once_for_a_request() -> None:
    async with nameservers("good") as running:
        dialled: list[Endpoint] = []

        def close_at_once(endpoint: Endpoint) -> None:
            dialled.append(endpoint)
            endpoint.abort("as the test says")

        running.servers[0]._on_connect = close_at_once
        client = running.client()
        client.keep(None)
        assert (await outcome(client), len(dialled)) == (TransportError, 1)
        await client.close()
