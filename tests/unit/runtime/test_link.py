"""Outgoing connections: calls, and links that reconnect."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, ConfigError, DuplicateClientIdError, RequestTimeoutError, TransportError
from lockstep.runtime.connections import link
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.link import BACKOFF_FIRST_MS, BACKOFF_MAX_MS, ELECTION_TRIES, STABLE_MS, Link, backoff_ms
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from support.loops import FrozenLoop, until
from support.peers import serving

ASK = RequestCode.GET_MAX_OFFSET
SILENT = RequestCode.GET_MIN_OFFSET


def echo(command: Command, endpoint: Endpoint) -> None:
    if command.code == ASK:
        endpoint.send(command.reply(fields=command.fields))


async def closed_port() -> str:
    """Return an address without a listener."""
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, echo)
    await server.start()
    await server.close()
    return server.addresses["internal"]


class Jitter:
    """Random values for a link under test: requested backoffs are recorded and shortened to nothing."""

    def __init__(self) -> None:
        self.requested: list[tuple[float, float]] = []

    def token(self, count: int) -> bytes:
        return bytes(count)

    def uniform(self, low: float, high: float) -> float:
        self.requested.append((low, high))
        return 1.0

    def below(self, limit: int) -> int:
        return 0


class Watched:
    """A link whose hooks are recorded."""

    def __init__(self, resolve: Callable[[], str | None]) -> None:
        self.jitter = Jitter()
        self.events: list[str] = []
        self.handshake: Callable[[Endpoint], None] = lambda endpoint: None
        self.link = Link(
            replace(Host.real(), random=self.jitter),
            lambda: () if (address := resolve()) is None else (address,),
            on_connected=self._connected,
            on_refused=lambda: self.events.append("refused"),
            on_lost=lambda endpoint, reason: self.events.append("lost"),
            name="broker-a",
        )

    async def _connected(self, endpoint: Endpoint) -> None:
        self.events.append("connected")
        self.handshake(endpoint)


@pytest.fixture
async def links() -> AsyncIterator[Callable[[Callable[[], str | None]], Watched]]:
    made: list[Watched] = []

    def make(resolve: Callable[[], str | None]) -> Watched:
        made.append(Watched(resolve))
        return made[-1]

    yield make
    for watched in made:
        await watched.link.close()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("broker.local:1", ("broker.local", 1)),
        ("[::1]:65535", ("::1", 65535)),
        (" h:0 ", ("h", 0)),
    ],
)
def test_address_is_parsed_into_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9876",
        ":9876",
        "host",
        "host:",
        "host:65536",
        "host:-1",
        "host:x",
        "host:٣",
        "a b:1",
        "a\x00:1",
        "h" * 256 + ":1",
        "host:" + "9" * 5_000,
    ],
)
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(text)


@pytest.mark.both_loops
async def test_call_sends_one_request_and_closes_its_connection() -> None:
    async with serving(echo) as server:
        response = await call(Host.real(), server.addresses["internal"], ASK, {"n": 1}, timeout_ms=5000)
        assert response.fields == {"n": 1}
        await until(lambda: not server.endpoints, "closed again")


@pytest.mark.both_loops
async def test_error_of_a_refused_call_names_the_address() -> None:
    address = await closed_port()
    with pytest.raises(TransportError, match=rf"{address}: .*refused"):
        await call(Host.real(), address, ASK, timeout_ms=5000)


@pytest.mark.both_loops
@pytest.mark.parametrize("name", ["a..b", "h" * 64])
async def test_invalid_host_name_raises_a_transport_error(name: str) -> None:
    with pytest.raises(TransportError, match=f"{name}:1: "):
        await call(Host.real(), f"{name}:1", ASK, timeout_ms=5000)


async def test_call_without_a_response_times_out_and_closes_its_connection() -> None:
    async with serving(echo) as server:
        with pytest.raises(RequestTimeoutError):
            await call(Host.real(), server.addresses["internal"], SILENT, timeout_ms=30)
        await until(lambda: not server.endpoints, "closed again")


@pytest.mark.both_loops
async def test_link_is_up_once_its_handshake_has_returned(links: Callable[..., Watched]) -> None:
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        gate = asyncio.Event()

        async def handshake(endpoint: Endpoint) -> None:
            assert watched.link.current is None
            assert (await endpoint.request(ASK, timeout_ms=5000)).code == 0
            await gate.wait()

        watched.link._on_connected = handshake
        waiting = asyncio.get_running_loop().create_task(watched.link.endpoint(5000))
        await until(lambda: bool(server.endpoints), "dialled")
        assert watched.link.current is None
        gate.set()
        endpoint = await waiting
        assert watched.link.current is endpoint
        assert (await watched.link.request(ASK, {"n": 2}, timeout_ms=5000)).fields == {"n": 2}
        assert await watched.link.endpoint(5000) is endpoint


@pytest.mark.both_loops
async def test_stable_link_reconnects_immediately_after_a_loss(links: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "STABLE_MS", 0)
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        first = await watched.link.endpoint(5000)
        for end in list(server.endpoints.values()):
            end.abort("cut")
        await until(lambda: watched.link.current not in (first, None), "a new connection")
        assert watched.events == ["connected", "lost", "connected"]
        assert watched.jitter.requested == []


async def test_link_closed_right_after_each_connect_backs_off(links: Callable[..., Watched]) -> None:
    assert STABLE_MS == 1000
    async with serving(echo, on_connect=lambda endpoint: endpoint.close("go away")) as server:
        watched = links(lambda: server.addresses["internal"])
        watched.link.start()
        await until(lambda: len(watched.jitter.requested) >= 3, "three back-offs")
        assert watched.events.count("connected") <= len(watched.jitter.requested) + 1


@pytest.mark.both_loops
async def test_refused_connects_back_off_up_to_a_second_and_each_is_reported(links: Callable[..., Watched]) -> None:
    address = await closed_port()
    watched = links(lambda: address)
    watched.link.start()
    await until(lambda: len(watched.jitter.requested) >= 8, "eight back-offs")
    ceilings = [high for _, high in watched.jitter.requested]
    assert ceilings[:6] == [BACKOFF_FIRST_MS * 2**n for n in range(5)] + [BACKOFF_MAX_MS]
    assert set(ceilings[5:]) == {BACKOFF_MAX_MS}
    assert all(low == high / 2 for low, high in watched.jitter.requested)
    assert watched.events.count("refused") in (len(ceilings), len(ceilings) + 1)
    assert BACKOFF_MAX_MS <= 1000


def test_peer_with_several_addresses_is_dialed_often_while_a_copy_may_be_elected() -> None:
    pauses = [backoff_ms(failures, 2) for failures in range(1, 20)]
    assert pauses[:ELECTION_TRIES] == [50] + [100] * (ELECTION_TRIES - 1)
    assert pauses[ELECTION_TRIES:] == [200, 400, 800] + [1_000] * 4


async def test_backoff_restarts_after_a_stable_connection(links: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "STABLE_MS", 0)
    dead = await closed_port()
    async with serving(echo) as server:
        address = dead
        watched = links(lambda: address)
        watched.link.start()
        await until(lambda: len(watched.jitter.requested) >= 4, "back-offs")
        address = server.addresses["internal"]
        await watched.link.endpoint(5000)
        address, before = dead, len(watched.jitter.requested)
        for end in list(server.endpoints.values()):
            end.abort("cut")
        await until(lambda: len(watched.jitter.requested) > before, "back-off after the loss")
        assert watched.jitter.requested[before][1] == BACKOFF_FIRST_MS


async def test_address_is_resolved_at_each_attempt_and_retry_ends_the_backoff(links: Callable[..., Watched]) -> None:
    async with serving(echo) as server:
        address: str | None = None
        watched = links(lambda: address)
        watched.jitter.uniform = lambda low, high: 3_600_000.0  # type: ignore[method-assign]
        watched.link.start()
        await until(lambda: watched.events == ["refused"], "no address yet")
        assert "no address is known" in str(watched.link.last_error)
        address = server.addresses["internal"]
        watched.link.retry()
        assert (await watched.link.endpoint(5000)).peer == address


async def test_wait_for_a_link_that_stays_down_raises_with_the_reason(links: Callable[..., Watched]) -> None:
    address = await closed_port()
    watched = links(lambda: address)
    with pytest.raises(TransportError, match=rf"broker-a: not connected within 50 ms: {address}: .*refused"):
        await watched.link.endpoint(50)


async def test_link_keeps_a_later_address_that_answers_and_reports_the_error_of_the_first() -> None:
    dead, others = await closed_port(), [await closed_port()]
    async with serving(echo) as server:
        link = Link(Host.real(), lambda: (dead, *others))
        with pytest.raises(TransportError, match=rf"{dead}: .*refused"):
            await link.endpoint(200)
        others.append(server.addresses["internal"])
        assert (await link.endpoint(5000)).peer == others[1]
        await link.close()


@pytest.mark.parametrize("error", [DuplicateClientIdError("billing@1"), TransportError("closed"), RequestTimeoutError("no response")])
async def test_failed_handshake_closes_the_connection_and_is_retried(links: Callable[..., Watched], error: BrokerError) -> None:
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        failing = [error, error]

        def handshake(endpoint: Endpoint) -> None:
            if failing:
                raise failing.pop()

        watched.handshake = handshake
        endpoint = await watched.link.endpoint(5000)
        assert watched.events == ["connected", "refused", "connected", "refused", "connected"]
        assert watched.link.last_error is error
        await until(lambda: len(server.endpoints) == 1, "the refused connections are closed")
        assert not endpoint.closed


async def test_connection_lost_during_the_handshake_is_reported_lost_once(links: Callable[..., Watched]) -> None:
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        first: list[Endpoint] = []

        def handshake(endpoint: Endpoint) -> None:
            if not first:
                first.append(endpoint)
                endpoint.abort("at once")

        watched.handshake = handshake
        assert await watched.link.endpoint(5000) is not first[0]
        assert watched.events == ["connected", "lost", "connected"]


@pytest.mark.both_loops
async def test_closing_a_link_ends_its_connection_and_its_waiters(links: Callable[..., Watched]) -> None:
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        endpoint = await watched.link.endpoint(5000)
        outstanding = endpoint.request(SILENT, timeout_ms=5000)
        await watched.link.close()
        with pytest.raises(TransportError):
            await outstanding
        with pytest.raises(TransportError, match="closed"):
            await watched.link.endpoint(5000)
        await until(lambda: not server.endpoints, "server saw it")
        assert watched.events == ["connected", "lost"]


async def test_closing_a_connecting_link_fails_its_waiters(links: Callable[..., Watched]) -> None:
    address = await closed_port()
    watched = links(lambda: address)
    waiting = asyncio.get_running_loop().create_task(watched.link.endpoint(60_000))
    await until(lambda: "refused" in watched.events, "an attempt")
    await watched.link.close()
    with pytest.raises(TransportError, match="the link is closed"):
        await waiting


@pytest.mark.parametrize("ends", [False, True], ids=["within", "at its end"])
async def test_closing_during_the_handshake_leaves_no_connection(links: Callable[..., Watched], ends: bool) -> None:
    async with serving(echo) as server:
        watched = links(lambda: server.addresses["internal"])
        begun = asyncio.Event()

        async def handshake(endpoint: Endpoint) -> None:
            begun.set()
            if not ends:
                await asyncio.Event().wait()

        watched.link._on_connected = handshake
        watched.link.start()
        await begun.wait()
        assert watched.link.current is None
        async with asyncio.timeout(5):
            await watched.link.close()
        await until(lambda: not server.endpoints, "closed")


async def test_inbound_requests_of_a_link_reach_its_handler() -> None:
    async with serving(echo) as server:
        seen: list[int] = []
        link = Link(Host.real(), lambda: (server.addresses["internal"],), handler=lambda command, _: seen.append(command.code))
        await link.request(ASK, timeout_ms=5000)
        next(iter(server.endpoints.values())).oneway(RequestCode.QUEUE_FREE)
        await until(lambda: seen == [RequestCode.QUEUE_FREE], "notice")
        await link.close()


@pytest.mark.frozen_clock
async def test_connect_times_out(frozen: FrozenLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_responses(*args: object, **settings: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(frozen, "create_connection", no_responses)
    dialling = frozen.create_task(connect(Host.real(), "192.0.2.1:9876", timeout_ms=3000))
    await frozen.advance(2.999)
    assert not dialling.done()
    await frozen.advance(0.001)
    with pytest.raises(TransportError, match=r"192\.0\.2\.1:9876: no connection within 3000 ms"):
        await dialling
