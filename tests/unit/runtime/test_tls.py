"""TLS: who is connected, and in which words everybody else is refused."""

import asyncio
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import ConfigError, TransportError
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.server_security import OPEN, ServerSecurity
from lockstep.runtime.security.tls import ClientTls, ServerCertificate, ServerTls, Tls, client_context
from support.certificates import requiring, server_tls, trusting, write_authority, write_certificate, write_self_signed
from support.loops import until
from support.peers import serving

pytestmark = pytest.mark.both_loops

ASK = RequestCode.GET_MAX_OFFSET
NOW = datetime.now(UTC)


def echo(command: Command, endpoint: Endpoint) -> None:
    endpoint.send(command.reply(body=command.body))


async def asked(address: str, security: ClientSecurity, body: bytes = b"x") -> Command:
    return await call(Host.real(), address, ASK, body=body, security=security, timeout_ms=5_000)


@pytest.mark.parametrize("size", [1, 100_000, 4 << 20])
async def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path, size: int) -> None:
    async with serving(echo, security=requiring(server_tls(tmp_path))) as server:
        assert len((await asked(server.addresses["internal"], trusting(tmp_path), b"x" * size)).body) == size
        await until(lambda: not server.endpoints)
        assert (server.refused_count, server.half_open_count) == (0, 0)


async def test_plain_connections_are_accepted_beside_tls_unless_it_is_required(tmp_path: Path) -> None:
    tls = server_tls(tmp_path)
    async with serving(echo, security=ServerSecurity(tls)) as server:
        for security, plain in ((NO_SECURITY, 1), (trusting(tmp_path), 0)):
            endpoint = await connect(Host.real(), server.addresses["internal"], security=security)
            assert (await endpoint.request(ASK, timeout_ms=5_000)).code == 0
            assert (server.plain_count, endpoint.is_encrypted) == (plain, not plain)
            endpoint.abort("done")
            await until(lambda: not server.endpoints)
            assert server.plain_count == 0
    async with serving(echo, security=requiring(tls)) as server:
        response = await asked(server.addresses["internal"], NO_SECURITY)
        assert (response.code, response.remark) == (ResponseCode.NO_PERMISSION, "listener 'internal' requires TLS: connect with TLS")


@pytest.mark.parametrize(
    ("certificate", "client", "words"),
    [
        ({"by": "theirs"}, {}, "is from an authority that is not trusted"),
        ({"names": ("broker-a", "10.0.0.1")}, {}, "is for another name: it has broker-a, 10.0.0.1"),
        ({"ends": NOW - timedelta(days=1), "begins": NOW - timedelta(days=9)}, {}, r"has expired: .* GMT \(the clock of this machine says"),
        ({"begins": NOW + timedelta(days=1)}, {}, r"is not valid yet: .* GMT \(the clock of this machine says"),
        ({}, {"server_name": "broker-a"}, "is for another name: it has 127.0.0.1"),
    ],
)
async def test_refused_certificate_has_words_of_its_own(tmp_path: Path, certificate: dict, client: dict, words: str) -> None:
    others = {name: value for name, value in certificate.items() if name != "names"}
    tls = ServerTls(ServerCertificate(*write_certificate(tmp_path, *certificate.get("names", ()), **others)))
    async with serving(echo, security=requiring(tls)) as server:
        address = server.addresses["internal"]
        with pytest.raises(TransportError, match=f"^{re.escape(address)}: (the certificate )?{words}"):
            await asked(address, trusting(tmp_path, **client))
        await until(lambda: not server.half_open_count)


async def test_self_signed_certificate_is_trusted_only_by_who_has_it(tmp_path: Path) -> None:
    cert, key = write_self_signed(tmp_path)
    async with serving(echo, security=requiring(ServerTls(ServerCertificate(cert, key)))) as server:
        address = server.addresses["internal"]
        with pytest.raises(TransportError, match="the certificate is self-signed, and not one of the trusted ones"):
            await asked(address, trusting(tmp_path))
        assert (await asked(address, ClientSecurity(ClientTls(Tls(ca=cert))))).code == 0


async def test_one_name_may_stand_for_all_servers(tmp_path: Path) -> None:
    async with serving(echo, security=requiring(server_tls(tmp_path, "brokers.example"))) as server:
        security = trusting(tmp_path, server_name="brokers.example")
        assert (await asked(server.addresses["internal"], security)).code == 0


async def test_certificates_of_clients_are_asked_for(tmp_path: Path) -> None:
    ca = write_authority(tmp_path / "clients.pem", "clients")
    cert, key = write_certificate(tmp_path, "billing", name="client", by="clients")
    foreign = write_certificate(tmp_path, "billing", name="foreign", by="theirs")
    async with serving(echo, security=requiring(server_tls(tmp_path, client_ca=ca))) as server:
        address = server.addresses["internal"]
        assert (await asked(address, trusting(tmp_path, cert=cert, key=key))).code == 0
        with pytest.raises(TransportError, match=r"closed: .*: it may require a certificate of this client, which shows none"):
            await asked(address, trusting(tmp_path))
        with pytest.raises(TransportError, match=r"closed: .*: it may not accept the certificate of this client"):
            await asked(address, trusting(tmp_path, cert=foreign[0], key=foreign[1]))


async def test_client_with_tls_of_a_server_without_it_says_so(tmp_path: Path) -> None:
    async with serving(echo) as server:
        with pytest.raises(TransportError, match="the server ended the handshake of TLS: it may have no TLS on this port"):
            await asked(server.addresses["internal"], trusting(tmp_path))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "byte 0x47 (G, as a request of HTTP without TLS), which is neither TLS nor"),
        (b"PRI * HTTP/2.0\r\n\r\n", "byte 0x50 (P, as a request of HTTP without TLS), which"),
        (b"\x01\x00\x00\x00", "byte 0x01, which is neither TLS nor"),
    ],
)
async def test_anything_else_is_closed_at_its_first_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes, words: str
) -> None:
    async with serving(echo, security=requiring(server_tls(tmp_path))) as server:
        host, _, port = server.addresses["internal"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass  # what was sent and not read is answered by a reset
        assert server.refused_count == 1
        assert words in caplog.text
        writer.close()


def test_what_is_wrong_with_files_is_said(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    other = write_certificate(tmp_path, name="other")[1]
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(ENCRYPTED)
    readable = tmp_path / "readable.key"
    readable.write_bytes(Path(key).read_bytes())
    readable.chmod(0o644)
    for files, words in [
        ((cert, other), f"the key {other} does not belong to the certificate {cert}"),
        ((str(text), key), f"{text} and {key}: expected a certificate and its key in PEM form"),
        ((cert, str(tmp_path / "none")), f"{tmp_path / 'none'}: no such file or directory"),
        ((cert, key, str(text)), f"{text} has no certificates in PEM form"),
        ((cert, key, str(tmp_path)), f"{tmp_path}: is a directory"),
        ((cert, str(readable)), f"{readable}: others than its owner may read it: chmod 600"),
        ((cert, str(encrypted)), f"the key {encrypted} is encrypted: store it without a passphrase"),
    ]:
        with pytest.raises(ConfigError) as caught:
            ServerTls(ServerCertificate(*files))
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="a certificate needs its key, and a key its certificate"):
        Tls(cert=cert)
    with pytest.raises(ConfigError, match="expected a path"):
        Tls(ca="")
    assert client_context(Tls()).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("secure", [False, True])
def test_connection_of_a_closed_loop_is_closed_without_it(tmp_path: Path, secure: bool) -> None:
    async def leave() -> tuple[Endpoint, ...]:
        server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, echo, security=requiring(server_tls(tmp_path)) if secure else OPEN)
        await server.start()
        endpoint = await connect(Host.real(), server.addresses["internal"], security=trusting(tmp_path) if secure else NO_SECURITY)
        await until(lambda: bool(server.endpoints) and not server.half_open_count)
        server.stop_accepting()
        return endpoint, *server.endpoints.values()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        endpoints = runner.run(leave())
    for endpoint in endpoints:
        assert endpoint._transport is not None
        connection = endpoint._transport.get_extra_info("socket")
        assert connection.fileno() >= 0
        endpoint.abandon()
        assert connection.fileno() == -1


async def test_silent_connections_close_nobody_elses_handshake(tmp_path: Path) -> None:
    async with serving(echo, security=requiring(server_tls(tmp_path)), half_open_max=64) as server:
        host, _, port = server.addresses["internal"].rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(80)]
        try:
            assert (await asked(server.addresses["internal"], trusting(tmp_path))).code == 0
            assert server.half_open_count == 64 - 1
            assert server.refused_count == 80 - 63
        finally:
            for each in silent:
                each.close()
        await until(lambda: not server.half_open_count)
        assert server.refused_count == 80 - 63


async def test_server_that_closes_cuts_the_half_open(tmp_path: Path) -> None:
    async with serving(echo, security=requiring(server_tls(tmp_path))) as server:
        host, _, port = server.addresses["internal"].rpartition(":")
        with socket.create_connection((host, int(port))) as silent:
            await until(lambda: server.half_open_count == 1)
            await server.close()
            silent.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""


ENCRYPTED = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiqyM0l/lnczgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEBwiqyUuusWcYlzMRt+aOhkEgZDa
XYtz0K38yqudPtA0VARWrwObZ9f3ze37ZlgkoBo6lN/F5VFuxaWLTUwTqIbo97gY
qoblQ/6PeWqwiA+OE+agjixn6qmn+VafOUG7UTbdfe/tHXdxEt5jtG3gd7X8s2S4
1OSeTUQamGByrwNqdElOOHIrno0Mgb8F5ERMx27Bdia6EJtNvuE60/kbOFVC91s=
-----END ENCRYPTED PRIVATE KEY-----
"""
"""A key that is encrypted by the word test."""
