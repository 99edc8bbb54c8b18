"""A cluster whose ports require TLS: servers, clients, commands and pages, while certificates are replaced."""

import asyncio
import json
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.runtime.security.client_security import ClientSecurity
from support.background import resident_bytes
from support.certificates import trusting, write_authority, write_certificate
from support.cluster import Cluster
from support.loops import until
from support.native import Member, Native, native

pytestmark = pytest.mark.e2e

LOOK_S = 10
"""Within how long a server has read new files: it looks every 5 s."""


@pytest.fixture
def secure(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Return a cluster whose servers require TLS."""
    cert, key = write_certificate(tmp_path)
    cluster.parameters = f"tls_ca={write_authority(tmp_path / 'ca.pem')}"
    cluster.server_options = ("--tls", "require", "--tls-cert", cert, "--tls-key", key)
    return cluster


def shown(address: str) -> bytes:
    """Return the certificate that a port shows."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as connection:
        return connection.getpeercert(binary_form=True) or b""


async def test_ordered_consumption_goes_on_while_certificates_are_replaced(secure: Cluster, tmp_path: Path) -> None:
    secure.server_options += ("--admin-listen", "127.0.0.1:0")
    await secure.servers()
    dashboard = await secure.start(
        "dashboard", ["-m", "lockstep.dashboard", "--listen", "127.0.0.1:0", "--nameserver", secure.nameservers, *secure.server_options[:6]]
    )
    url = str((await dashboard.wait_for_event("dashboard.started"))["address"])
    assert url.startswith("https://")
    ports = [*secure.addresses.values(), url.removeprefix("https://").rstrip("/")]
    ports += [str((await secure.processes["broker-a"].wait_for_event("broker.started"))["admin"])]
    await secure.consumer("consumer-1")
    await secure.consumer("consumer-2")
    await secure.until_held(8, "consumer-1", "consumer-2")
    await secure.producer("producer", "--keys", "50", "--steps", "1000000")
    await secure.until_handled(200)
    before = shown(ports[0])
    assert {shown(port) for port in ports} == {before}
    write_certificate(tmp_path, by="renewed")
    write_authority(tmp_path / "ca.pem", "ours", "renewed")
    await until(lambda: before not in map(shown, ports), "every port shows the new certificate")
    report = json.loads(await secure.command("cluster", "--json"))
    assert all(each["reached"] for each in report["brokers"])
    await secure.kill("broker-a")
    await secure.restart("broker-a")
    await secure.until_handled_more(200)
    await secure.finish_producer()
    await secure.prove("consumer-1", "consumer-2")


async def test_client_whose_authority_is_taken_away_is_cut_and_another_one_connects_again(cluster: Cluster, tmp_path: Path) -> None:
    ca, allowed = write_authority(tmp_path / "ca.pem"), write_authority(tmp_path / "clients.pem", "old", "new")
    cert, key = write_certificate(tmp_path)
    cluster.server_options = ("--tls", "require", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", allowed)
    own = {by: write_certificate(tmp_path, "client", name=by, by=by) for by in ("old", "new")}
    cluster.parameters = "&".join((f"tls_ca={ca}", f"tls_cert={own['new'][0]}", f"tls_key={own['new'][1]}"))
    await cluster.servers(brokers=["broker-a"], queues=1)
    address = cluster.addresses["broker-a"]
    old, new = (trusting(tmp_path, cert=own[by][0], key=own[by][1]) for by in ("old", "new"))
    async with native(address, old) as leaving, native(address, new) as staying:
        for client in (leaving, staying):
            await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
        write_authority(tmp_path / "clients.pem", "new")
        await until(lambda: leaving.endpoint.closed and staying.endpoint.closed, "both are closed")
        with pytest.raises(TransportError, match="it may not accept the certificate of this client"):
            async with native(address, old) as refused:
                await refused.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
        async with native(address, new) as again:
            await again.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
    assert json.loads(await cluster.command("cluster", "--json"))["brokers"][0]["reached"]


async def test_who_has_no_tls_or_trusts_another_authority_is_told_so(secure: Cluster, tmp_path: Path) -> None:
    await secure.servers(brokers=["broker-a"])
    foreign = write_authority(tmp_path / "foreign.pem", "theirs")
    address = secure.addresses["nameserver"]
    for nameserver, words in [
        (address, "listener 'internal' requires TLS: connect with TLS"),
        (f"lockstep://{address}/?tls_ca={foreign}", "the certificate is from an authority that is not trusted"),
        (f"lockstep://{address}/?tls_ca={tmp_path / 'none'}", f"{tmp_path / 'none'}: no such file or directory"),
    ]:
        code, _, error = await secure.started_command("topic", "list", "--nameserver", nameserver)
        assert code != 0
        assert words in " ".join(error.split()), error


async def test_certificate_that_can_not_be_used_stops_the_start(cluster: Cluster, tmp_path: Path) -> None:
    cluster.addresses["nameserver"] = "127.0.0.1:1"
    cert, _ = write_certificate(tmp_path)
    _, other = write_certificate(tmp_path, name="other")
    for options, words in [
        (("--tls-cert", cert), "a certificate needs its key, and a key its certificate"),
        (("--tls", "require"), "tls = require needs a certificate of this server: set tls_cert and tls_key"),
        (("--tls-cert", cert, "--tls-key", other), f"the key {other} does not belong to the certificate {cert}"),
    ]:
        for program in ("nameserver", "broker", "dashboard"):
            code, _, error = await cluster.started_command(program, "--listen", "127.0.0.1:0", *options)
            assert (code, words in error) == (2, True), error


MEMBERS = 2_000
"""Each with a connection, a group and a queue of its own."""


@pytest.mark.slow
async def test_members_keep_their_queues_over_a_restart_after_which_all_shake_hands_at_once(secure: Cluster, tmp_path: Path) -> None:
    await secure.servers("--disconnect-grace-ms", "1000", brokers=["broker-a"], queues=1)  # in which not all handshakes can be done
    address, security = secure.addresses["broker-a"], trusting(tmp_path)
    async with AsyncExitStack() as stack:
        members: dict[Member, int | None] = {}
        for n in range(MEMBERS):
            client = await dial(stack, address, security)
            member = Member(client, "orders", f"group-{n}", client_id=f"c@{n}", session=f"{n:032x}")
            await member.join()
            members[member] = (await member.lock()).epoch
        await secure.kill("broker-a")
        starting = asyncio.ensure_future(secure.restart("broker-a"))

        async def come_back(member: Member) -> int | None:
            while True:
                try:
                    await member.join(await dial(stack, address, security))
                    return (await member.lock(epoch=members[member], offset=0)).epoch
                except TransportError:
                    await asyncio.sleep(0.2)  # as a link does between two attempts

        assert await asyncio.gather(*map(come_back, members)) == list(members.values())
        await starting


async def dial(stack: AsyncExitStack, address: str, security: ClientSecurity) -> Native:
    return await stack.enter_async_context(native(address, security))


@pytest.mark.slow
async def test_ten_thousand_failed_handshakes_take_no_memory_and_delay_nobody(secure: Cluster, tmp_path: Path) -> None:
    await secure.servers(brokers=["broker-a"], queues=1)
    address, security = secure.addresses["broker-a"], trusting(tmp_path)
    pid = secure.processes["broker-a"].pid

    async def fail(count: int) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(count):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x16\x03\x01\x00\x05hello" * 3)
            writer.close()

    async with native(address, security) as good:
        await asyncio.gather(*(fail(250) for _ in range(8)))
        before = resident_bytes(pid)
        failing = asyncio.gather(*(fail(1_250) for _ in range(8)))
        while not failing.done():
            await good.done(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0))
        await failing
        assert resident_bytes(pid) - before < 8 << 20
