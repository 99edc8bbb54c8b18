"""Signed requests of RocketMQ's clients at a server: whose they are, what everybody else may cost, and in which words they are refused."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import BINARY, JSON, ONEWAY_FLAG, VERSION_5_0, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.frame import encode_frame
from lockstep.protocol.headers.clients import AuthenticateHeader
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.runtime.configuration.config import render
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.requests import login
from lockstep.runtime.requests.audit import AuditFacts, RequestAudit
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.login import GUEST_BYTES_MAX, GUEST_REQUESTS_MAX, LoginProcessor
from lockstep.runtime.requests.needs import PUB, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import watch_users
from support.access_keys import SECRET, signed, write_signers
from support.java_wire import JavaWire, Reply, frame, java_wire
from support.logins import PASSWORD, logging_in
from support.loops import until

ASK, DROP = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET
TOPIC = {"topic": "orders", "queueId": "0"}
BODY = b"a message of the shop"


class Processor:
    """Asks for Pub. A request without a declared body has its body dropped before the handler."""

    @handles(DROP, QueueHeader, needs=[on_topic(PUB)], classic=True)
    @handles(ASK, QueueHeader, bytes, needs=[on_topic(PUB)], body_bytes_max=1 << 22, classic=True)
    def who(self, request: Request) -> HandlerResult:
        return request.reply(remark=f"{request.user.name} {len(request.body)}")


@asynccontextmanager
async def serving(security: ServerSecurity, events: list[AuditFacts] | None = None) -> AsyncIterator[tuple[Server, LoginProcessor]]:
    audit = RequestAudit("server", None if events is None else lambda facts: events.append(facts) is None)
    logins = LoginProcessor(Host.real(), security, audit)
    dispatcher = Dispatcher([Processor(), logins], admit=logins.gate, audit=audit)
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, dispatcher, on_connect=logins.connected, security=security)
    await server.start()
    try:
        yield server, logins
    finally:
        await server.close()


def with_signers(path: Path, *, optional: bool = False) -> ServerSecurity:
    users = {"billing": SECRET, "shop": "a secret of the shop", "far": "a secret from afar"}
    written = write_signers(path / "users.toml", users, {"shop": 'allow = ["Pub topic:invoices"]'}, far=["10.0.0.0/8"])
    return ServerSecurity(users=watch_users(written), users_optional=optional)


@pytest.fixture
def users(tmp_path: Path) -> ServerSecurity:
    return with_signers(tmp_path)


@asynccontextmanager
async def wire(server: Server, kind: int = JSON) -> AsyncIterator[JavaWire]:
    async with java_wire(server.addresses["internal"], kind) as found:
        yield found


async def ask(java: JavaWire, body: bytes = b"", version: int = VERSION_5_0, code: int = ASK, **signer: Any) -> Reply:
    return await java.call(code, signed(TOPIC, body, **signer), body, version=version)


@pytest.mark.parametrize("kind", [JSON, BINARY])
async def test_user_is_that_of_the_request_and_bodies_are_signed_also_those_that_are_dropped(users: ServerSecurity, kind: int) -> None:
    async with serving(users) as (server, logins), wire(server, kind) as java:
        assert (await ask(java)).remark == "billing 0"
        assert (await ask(java, BODY, code=DROP)).remark == "billing 0"
        shop = await java.call(ASK, signed({**TOPIC, "topic": "invoices"}, BODY, "shop", "a secret of the shop"), BODY)
        assert shop.remark == f"shop {len(BODY)}"
        assert (await ask(java, bytes(1 << 22))).remark == f"billing {1 << 22}"
        wrong = await java.call(DROP, signed(TOPIC, BODY), BODY + b"x")
        assert (wrong.code, logins._audit.failed_logins["billing"]) == (ResponseCode.SYSTEM_ERROR, 1)


async def test_numbers_and_booleans_of_a_header_count_as_the_text_that_was_sent(users: ServerSecurity) -> None:
    async with serving(users) as (server, _), wire(server) as java:
        fields = signed({"topic": "orders", "queueId": 4, "m": True})
        assert (await java.call(ASK, fields)).remark == "billing 0"


UNKNOWN = "the AccessKey or its secret is wrong, or the user may not come from 127.0.0.1"
NOT_SIGNED = "this server requires signed requests: give the client an AccessKey and its secret"
ACL = "org.apache.rocketmq.acl.common.AclException: "


async def test_each_version_of_a_client_is_refused_in_the_form_that_it_knows(
    users: ServerSecurity, caplog: pytest.LogCaptureFixture
) -> None:
    digest = users.users.value.digest  # type: ignore[union-attr]
    denied = f"user shop may not Pub topic:orders (users file {digest}), from 127.0.0.1"
    shop = {"key": "shop", "secret": "a secret of the shop"}
    refusals: list[tuple[dict[str, Any], str]] = [
        (signed(TOPIC, secret="wrong secret"), UNKNOWN),
        (signed(TOPIC, key="nobody"), UNKNOWN),
        (signed(TOPIC, key="far", secret="a secret from afar"), UNKNOWN),
        ({**TOPIC, "AccessKey": "billing"}, UNKNOWN),
        ({**signed(TOPIC), "Signature": "é"}, UNKNOWN),
        (TOPIC, NOT_SIGNED),
        ({**TOPIC, "AccessKey": "", "Signature": "", "OnsChannel": ""}, NOT_SIGNED),
        (signed(TOPIC, **shop), denied),
    ]
    async with serving(users) as (server, logins):
        for fields, words in refusals:
            async with wire(server) as java:
                for version, code, prefix in (
                    (VERSION_5_0 - 1, ResponseCode.SYSTEM_ERROR, ACL),
                    (VERSION_5_0, ResponseCode.NO_PERMISSION, ""),
                ):
                    reply = await java.call(ASK, fields, version=version)
                    assert (reply.code, reply.remark) == (code, prefix + words), fields
    assert logins._audit.failed_logins == {"billing": 6, "": 2, "far": 2}
    assert sum(message.startswith("login.failed") for message in caplog.messages) == 10


async def test_connection_without_a_valid_signature_is_a_guest_and_with_one_it_is_not(users: ServerSecurity) -> None:
    async with serving(users) as (server, logins):
        async with wire(server) as java:
            for _ in range(GUEST_REQUESTS_MAX):
                assert (await ask(java, secret="wrong secret")).code == ResponseCode.NO_PERMISSION
            with pytest.raises(asyncio.IncompleteReadError):
                await ask(java, secret="wrong secret")
        async with wire(server) as java:
            assert logins.awaited_count == 1
            assert (await ask(java)).code == 0
            assert logins.awaited_count == 0
            for _ in range(2 * GUEST_REQUESTS_MAX):
                assert (await ask(java, secret="wrong secret")).code == ResponseCode.NO_PERMISSION
            assert (await java.call(ASK, TOPIC, version=VERSION_5_0)).remark == NOT_SIGNED, "each request needs its own"


async def test_guest_has_its_time(users: ServerSecurity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LOGIN_S", 0.5)  # long enough for a login beside other work
    async with serving(users) as (server, _), wire(server) as java, wire(server) as silent:
        assert (await ask(java)).code == 0
        assert await silent.reader.read() == b""
        assert (await ask(java)).code == 0


async def test_frame_of_a_guest_above_the_limit_needs_a_known_access_key_in_its_header(users: ServerSecurity) -> None:
    body = bytes(GUEST_BYTES_MAX)
    async with serving(users) as (server, logins):
        for fields, answered in ((signed(TOPIC, body), True), (signed(TOPIC, body, secret="wrong secret"), True), (TOPIC, False)):
            async with wire(server) as java:
                data = frame(JSON, 1, ASK, fields, body)
                java.writer.write(data[: len(data) - len(body)])
                if answered:
                    java.writer.write(body)
                    assert (await java.read())[1] == 1
                    assert not any(each.long_bytes for each in logins._guests.values())
                else:
                    assert await java.reader.read() == b"", "the body is not awaited"


async def test_longer_frames_of_guests_are_limited_together_and_the_longest_makes_way(
    users: ServerSecurity, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login, "LONG_BYTES_MAX", 1_000_000)

    frames = {size: frame(JSON, 1, ASK, signed(TOPIC, bytes(size)), bytes(size)) for size in (200_000, 300_000, 600_000, 900_000)}
    async with serving(users) as (server, logins), AsyncExitStack() as stack:
        wires = {size: await stack.enter_async_context(wire(server)) for size in frames}
        for size in (300_000, 600_000):
            wires[size].writer.write(frames[size][:1_000])
            await until(lambda size=size: any(size <= each.long_bytes for each in logins._guests.values()))
        wires[200_000].writer.write(frames[200_000][:1_000])
        assert await wires[600_000].reader.read() == b"", "the longest one"
        wires[900_000].writer.write(frames[900_000][:1_000])
        assert await wires[900_000].reader.read() == b"", "its own is the longest"
        for size in (200_000, 300_000):
            wires[size].writer.write(frames[size][1_000:])
            assert (await wires[size].read())[2].remark == f"billing {size}"
    reasons = [message for message in caplog.messages if message.startswith("connection.refused")]
    for reason, words in zip(reasons, ["frames without a valid signature have more than 1000000 bytes", "frame length"], strict=True):
        assert words in reason


async def test_audit_has_each_signer_once_a_connection_and_what_was_refused_also_oneway_and_connections_are_limited(
    users: ServerSecurity, tmp_path: Path
) -> None:
    events: list[AuditFacts] = []
    written = tmp_path / "users.toml"
    written.write_text(written.read_text().replace("[user.billing]", "[user.billing]\nlimits = { connections = 1 }"))
    assert users.users is not None
    assert users.users.look(0)
    shop = {"key": "shop", "secret": "a secret of the shop"}
    async with serving(users, events) as (server, _), wire(server) as java, wire(server) as other:
        for signer in ({}, {}, shop, {"secret": "wrong secret"}):
            java.writer.write(encode_frame(Command(ASK, 5, ONEWAY_FLAG, fields=signed(TOPIC, **signer), codec=JSON)))
        assert (await ask(java)).remark == "billing 0"
        refused = await ask(other)
        assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "user billing has 1 connections to this server, its limit")
        assert (await ask(java)).remark == "billing 0"
    assert [(each["event"], each["user"], each["outcome"]) for each in events] == [
        ("login", "billing", "done"),
        ("login", "shop", "done"),
        ("request", "shop", "denied"),
        ("login", "billing", "failed"),
        ("login", "billing", "failed"),
    ]
    assert not [each for each in events if SECRET in str(each)]


async def test_change_of_the_files_is_in_force_for_the_next_request(users: ServerSecurity, tmp_path: Path) -> None:
    assert users.users is not None
    async with serving(users) as (server, _), wire(server) as java:
        assert (await ask(java)).code == 0
        (tmp_path / "billing.secret").write_text("another secret")
        assert users.users.look(0) == (str(tmp_path / "billing.secret"),)
        assert (await ask(java)).code == ResponseCode.NO_PERMISSION
        assert (await ask(java, secret="another secret")).code == 0


async def test_signatures_are_optional_where_logins_are_and_checked_if_there_is_one(tmp_path: Path) -> None:
    security = with_signers(tmp_path, optional=True)
    async with serving(security) as (server, _), wire(server) as java, wire(server) as other:
        assert (await java.call(ASK, TOPIC, bytes(GUEST_BYTES_MAX))).remark == f" {GUEST_BYTES_MAX}"
        assert (await other.call(ASK, TOPIC)).code == 0
        assert anonymous(server) == 2
        assert (await ask(java)).remark == "billing 0"
        assert anonymous(server) == 1
        for _ in range(2 * GUEST_REQUESTS_MAX):
            assert (await ask(other, secret="wrong secret")).code == ResponseCode.NO_PERMISSION


def anonymous(server: Server) -> int:
    return sum(each.is_anonymous for each in server.endpoints.values())


async def test_requests_of_rocketmqs_tools_for_users_are_refused_with_what_does_it_here(users: ServerSecurity) -> None:
    async with serving(users) as (server, _), wire(server) as java:
        for code in (50, 54, 3001, 3005, 3010):
            reply = await java.call(code, signed({}))
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "the file of --security; `lockstep user` and `lockstep acl`" in str(reply.remark)
        reply = await java.call(3011, signed({}))
        assert "lockstep user" not in str(reply.remark)


async def test_nothing_secret_is_logged_or_shown(users: ServerSecurity, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = signed(TOPIC, BODY), signed(TOPIC, BODY, secret="a wrong secret")
    authenticate, proof = to_plain(AuthenticateHeader("SCRAM-SHA-256")), b"c=biws,r=nonce,p=cHJvb2Y="
    shown = []
    async with serving(users) as (server, logins), wire(server) as java:
        for fields in (good, bad, signed({**TOPIC, "queueId": "none"}, BODY)):
            shown.append(str(await java.call(ASK, fields, BODY)))
            shown.append(repr(Command(ASK, fields=fields, body=BODY, codec=JSON)))
        for password in (PASSWORD, "a wrong password"):
            try:
                end = await connect(Host.real(), server.addresses["internal"], security=logging_in("billing", password))
                shown.append(repr(end))
                shown.append(str(await end.request(RequestCode.AUTHENTICATE, authenticate, proof, timeout_ms=5_000)))
                end.abort("done")
            except Exception as error:
                shown.append(str(error))
        shown += [repr(each) for each in (users, users.users.value, logins._audit.failed_logins, replace(users, users=None))]  # type: ignore[union-attr]
        shown.append(repr(Command(RequestCode.AUTHENTICATE, body=proof)))
        config = NameserverConfig(listen=("127.0.0.1:0",), security=users.users.paths[0])  # type: ignore[union-attr]
        shown += repr(config), render(config, {"listen": "", "security": "", "users": ""})
    text = "\n".join([*caplog.messages, *(str(record.__dict__) for record in caplog.records), *shown])
    assert "login.failed" in text
    assert "login.succeeded" in text
    secrets = SECRET, "a secret of the shop", "a wrong secret", PASSWORD, "a wrong password", good["Signature"], bad["Signature"]
    assert [each for each in (*secrets, BODY.decode(), "cHJvb2Y=", "0a0a0a0a", r"\n\n\n\n") if each in text] == []
