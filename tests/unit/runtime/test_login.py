"""Logins at a server: who gets in, what everybody else may cost, and what ends a login."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.client.kept_connection import KeptConnection
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError, ConfigError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import AuthenticateHeader
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.link import Link
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.requests import login
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.login import GUEST_BYTES_MAX, GUEST_REQUESTS_MAX, LoginProcessor
from lockstep.runtime.requests.needs import ANY_USER
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.server_security import OPEN, ServerSecurity
from support.logins import PASSWORD, logging_in, with_users, write_users
from support.loops import until

ASK = RequestCode.GET_MAX_OFFSET


class Processor:
    @handles(ASK, None, bytes, needs=ANY_USER, body_bytes_max=1 << 20, classic=True)
    def who(self, request: Request) -> HandlerResult:
        identity = request.endpoint.identity
        return request.reply(remark=None if identity is None else identity.name)


@asynccontextmanager
async def serving(security: ServerSecurity) -> AsyncIterator[tuple[Server, RequestAudit]]:
    audit = RequestAudit("server")
    logins = LoginProcessor(Host.real(), security, audit)
    dispatcher = Dispatcher([Processor(), logins], admit=logins.gate)
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, dispatcher, on_connect=logins.connected, security=security)
    await server.start()
    try:
        yield server, audit
    finally:
        await server.close()


@pytest.fixture
def users(tmp_path: Path) -> ServerSecurity:
    return with_users(write_users(tmp_path / "users", {"billing": [PASSWORD], "shop": ["another password"]}))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a failed login at once: its delay has a test of its own."""
    monkeypatch.setattr(login, "FAILED_S", 0.0)


async def ask(server: Server, security: ClientSecurity, body: bytes = b"") -> Command:
    return await call(Host.real(), server.addresses["internal"], ASK, body=body, security=security, timeout_ms=5_000)


@pytest.mark.both_loops
async def test_user_with_the_password_is_served_and_known(users: ServerSecurity) -> None:
    async with serving(users) as (server, _):
        assert (await ask(server, logging_in())).remark == "billing"
        assert (await ask(server, logging_in("shop", "another password"), bytes(500_000))).remark == "shop"


async def test_password_comes_from_a_file_or_a_function_as_it_is_at_each_login(users: ServerSecurity, tmp_path: Path) -> None:
    path, answers = tmp_path / "password", ["wrong password", PASSWORD]
    path.write_text(f"{PASSWORD}\r\nmore\n")
    async with serving(users) as (server, _):
        assert (await ask(server, logging_in(password=path))).remark == "billing"
        by_function = logging_in(password=lambda: answers.pop(0))
        with pytest.raises(AuthenticationError):
            await ask(server, by_function)
        assert (await ask(server, by_function)).remark == "billing"


@pytest.mark.parametrize(("user", "password"), [("billing", "wrong password"), ("nobody", PASSWORD), ("shop", PASSWORD)])
async def test_wrong_password_and_unknown_user_are_refused_in_the_same_words(users: ServerSecurity, user: str, password: str) -> None:
    async with serving(users) as (server, audit):
        words = f"user {user}: the user or the password is wrong, or the user may not log in from 127.0.0.1"
        with pytest.raises(AuthenticationError, match=words):
            await ask(server, logging_in(user, password))
        assert audit.failed_logins == {user if user != "nobody" else "": 1}
        await until(lambda: not server.endpoints)


async def test_user_may_be_limited_to_networks(tmp_path: Path) -> None:
    path = write_users(tmp_path / "users", {"near": [PASSWORD], "far": [PASSWORD]}, near=["127.0.0.0/8"], far=["10.0.0.0/8"])
    async with serving(with_users(path)) as (server, _):
        assert (await ask(server, logging_in("near"))).remark == "near"
        with pytest.raises(AuthenticationError, match=r"may not log in from 127\.0\.0\.1"):
            await ask(server, logging_in("far"))


async def test_without_a_login_a_connection_gets_four_refusals(users: ServerSecurity) -> None:
    async with serving(users) as (server, _):
        endpoint = await connect(Host.real(), server.addresses["internal"])
        for _ in range(GUEST_REQUESTS_MAX):
            response = await endpoint.request(ASK, timeout_ms=5_000)
            assert (response.code, response.remark) == (
                ResponseCode.UNAUTHENTICATED,
                "this server requires a login: give the client a user and a password",
            )
        endpoint.oneway(ASK)
        await endpoint.wait_closed()


async def test_without_a_login_a_frame_of_a_message_is_refused(users: ServerSecurity) -> None:
    async with serving(users) as (server, _):
        with pytest.raises(TransportError):
            await ask(server, NO_SECURITY, bytes(GUEST_BYTES_MAX))
        assert (await ask(server, NO_SECURITY, bytes(60_000))).code == ResponseCode.UNAUTHENTICATED


async def test_without_a_login_a_connection_ends_in_its_time(users: ServerSecurity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LOGIN_S", 0.5)  # long enough for a login beside other work
    async with serving(users) as (server, _):
        silent = await connect(Host.real(), server.addresses["internal"])
        good = await connect(Host.real(), server.addresses["internal"], security=logging_in())
        await until(lambda: silent.closed)
        assert not good.closed
        good.abort("done")
        await good.wait_closed()


async def test_optional_logins_serve_everybody_and_check_who_logs_in(tmp_path: Path) -> None:
    security = with_users(write_users(tmp_path / "users", {"billing": [PASSWORD]}), optional=True)
    async with serving(security) as (server, _):
        assert (await ask(server, NO_SECURITY, bytes(500_000))).remark is None
        assert (await ask(server, logging_in())).remark == "billing"
        with pytest.raises(AuthenticationError):
            await ask(server, logging_in(password="wrong password"))


async def test_client_with_a_password_refuses_a_server_that_asks_for_none(users: ServerSecurity) -> None:
    async with serving(OPEN) as (server, _):
        with pytest.raises(AuthenticationError, match="the server asks for no login, so a password protects nothing there"):
            await ask(server, logging_in())
        assert (await ask(server, logging_in(optional=True))).code == 0


async def test_login_is_made_once_and_by_the_offered_mechanism(users: ServerSecurity) -> None:
    async with serving(users) as (server, _):
        endpoint = await connect(Host.real(), server.addresses["internal"], security=logging_in())
        fields = to_plain(AuthenticateHeader("SCRAM-SHA-256"))
        response = await endpoint.request(RequestCode.AUTHENTICATE, fields, b"n,,n=u,r=" + b"x" * 20, timeout_ms=5_000)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "this connection has logged in already")
        endpoint.abort("done")
        await endpoint.wait_closed()
        other = await call(Host.real(), server.addresses["internal"], 30026, to_plain(AuthenticateHeader("PLAIN")), b"x", timeout_ms=5_000)
        assert (other.code, other.remark) == (ResponseCode.UNAUTHENTICATED, "login by 'PLAIN' is not offered: SCRAM-SHA-256 is")


async def test_user_or_password_that_is_taken_away_ends_its_connections_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.runtime.connections.server.RENEW_S", 0.0)
    path = tmp_path / "users"
    security = with_users(write_users(path, {"a": ["old password", "new password"], "b": [PASSWORD]}))
    async with serving(security) as (server, _):
        address = server.addresses["internal"]
        logins = {"old": ("a", "old password"), "new": ("a", "new password"), "b": ("b", PASSWORD)}
        ends = {name: await connect(Host.real(), address, security=logging_in(*login)) for name, login in logins.items()}
        assert security.users is not None
        for change, closed in (({"a": ["new password"], "b": [PASSWORD]}, {"old"}), ({"a": ["new password"]}, {"old", "b"})):
            write_users(path, change)
            assert security.users.look(0)
            server.renew("taken away", security.is_gone)
            await until(lambda closed=closed: {name for name, end in ends.items() if end.closed} == closed)
        assert (await ends["new"].request(ASK, timeout_ms=5_000)).remark == "a"
        ends["new"].abort("done")


async def test_link_tries_a_refused_login_again_and_logs_it_once(
    users: ServerSecurity, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lockstep.runtime.connections.link.LOGIN_PAUSE_S", 0.01)
    passwords = ["wrong password"] * 3 + [PASSWORD]
    async with serving(users) as (server, audit):
        link = Link(Host.real(), lambda: (server.addresses["internal"],), security=logging_in(password=lambda: passwords.pop(0)))
        assert (await link.request(ASK, timeout_ms=10_000)).remark == "billing"
        assert audit.failed_logins == {"billing": 3}
        assert sum(message.startswith("login.refused") for message in caplog.messages) == 1
        await link.close()


async def test_failed_login_waits_and_a_good_one_beside_it_does_not(users: ServerSecurity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FAILED_S", 3_600.0)
    async with serving(users) as (server, audit):
        failing = [asyncio.ensure_future(ask(server, logging_in(password="wrong password"))) for _ in range(20)]
        await until(lambda: audit.failed_logins["billing"] == 20)
        assert (await ask(server, logging_in())).remark == "billing"
        assert not any(each.done() for each in failing)
        for each in failing:
            each.cancel()
        await asyncio.wait(failing)


async def test_password_that_could_not_be_read_is_read_again_at_the_next_dial(users: ServerSecurity, tmp_path: Path) -> None:
    path = tmp_path / "password"
    async with serving(users) as (server, _):
        security = logging_in(password=path)
        connection = KeptConnection(Host.real(), server.addresses["internal"], security=security, dial_ms=5_000, redial_ms=0)
        with pytest.raises(ConfigError, match="password: no such file or directory"):
            await connection.open()
        path.write_text(PASSWORD)
        assert (await (await connection.open()).request(ASK, timeout_ms=5_000)).remark == "billing"
        connection.end()
        await connection.wait_ended()
