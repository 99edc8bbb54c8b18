"""The registers of broker names, as real processes: one suite of laws for etcd and for `lockstep witness`."""

import asyncio
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lockstep.broker.office.register import Register, RegisterUnknownError, RegisterUnreachableError
from support.certificates import write_authority, write_certificate
from support.ports import free_ports
from support.registers import MEMBERS, RegisterServer, cutting, entry, running_server

pytestmark = pytest.mark.e2e

SWAPS = 25


@pytest.fixture(params=["etcd", "witness"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RegisterServer]:
    async with running_server(request.param, tmp_path) as found:
        yield found


async def test_entry_is_created_once_and_changed_only_from_its_version(server: RegisterServer) -> None:
    register, other = server.register(), server.register("broker-b")
    assert await register.read() == (None, 0)
    assert await register.swap(0, entry(1))
    found, version = await register.read()
    assert found == entry(1)
    assert version > 0
    assert not await register.swap(0, entry(2)), "there is one already"
    assert await register.swap(version, entry(3))
    assert not await register.swap(version, entry(4)), "the version has moved"
    assert (await register.read())[0] == entry(3)
    assert await other.read() == (None, 0), "another broker name has an entry of its own"
    await register.close()
    await other.close()


async def test_of_swaps_that_race_one_wins_for_each_version(server: RegisterServer) -> None:
    won: list[tuple[int, str]] = []

    async def change(register: Register, member: str) -> None:
        for number in range(1, SWAPS + 1):
            version = (await register.read())[1]
            mine = entry(number, member=member)
            if await register.swap(version, mine):
                won.append((version, mine.write))

    registers = [server.register() for _ in MEMBERS]
    await asyncio.gather(*map(change, registers, MEMBERS))
    assert len({version for version, _ in won}) == len(won) >= SWAPS, "one of each round wins"
    last, version = await registers[0].read()
    assert last is not None
    assert last.write == max(won)[1], "the last winner's stands"
    assert version > max(won)[0]
    for register in registers:
        await register.close()


async def test_killed_server_keeps_the_entry_and_is_unreachable_meanwhile(server: RegisterServer) -> None:
    register = server.register()
    assert await register.swap(0, entry(1))
    before = await register.read()
    server.kill()
    with pytest.raises(RegisterUnreachableError, match=r"connection refused|closed by the peer"):
        await register.read()
    with pytest.raises(RegisterUnreachableError, match="connection refused"):
        await register.swap(before[1], entry(2))
    await server.start()
    assert await register.read() == before
    assert await register.swap(before[1], entry(2))
    await register.close()


async def test_swap_whose_answer_is_lost_is_unknown_and_may_have_happened(server: RegisterServer) -> None:
    register = server.register()
    async with cutting(server.address) as address:
        cut = server.register(address=address)
        with pytest.raises(RegisterUnreachableError):
            await cut.read()
        with pytest.raises(RegisterUnknownError):
            await cut.swap(0, entry(1))
        await cut.close()
    assert (await register.read())[0] == entry(1)
    await register.close()


async def test_server_that_stands_still_is_unreachable_and_a_swap_unknown(server: RegisterServer) -> None:
    register = server.register()
    assert await register.swap(0, entry(1))
    version = (await register.read())[1]
    server.signal(signal.SIGSTOP)
    with pytest.raises(RegisterUnreachableError, match="no answer in time"):
        await register.read()
    with pytest.raises(RegisterUnknownError, match="no answer in time"):
        await register.swap(version, entry(2))
    server.signal(signal.SIGCONT)
    assert (await register.read())[0] in (entry(1), entry(2))
    await register.close()


async def test_one_address_of_etcd_that_answers_is_enough(tmp_path: Path) -> None:
    async with running_server("etcd", tmp_path) as server:
        register = server.register(address=f"127.0.0.1:{free_ports(1)[0]},{server.address}")
        assert await register.read() == (None, 0)
        assert await register.swap(0, entry(1))
        await register.close()


async def test_stopped_server_ends_in_order_and_keeps_the_entry(server: RegisterServer) -> None:
    register = server.register()
    assert await register.swap(0, entry(1))
    before = await register.read()
    server.signal(signal.SIGTERM)
    assert server.wait() in ((0,) if server.scheme == "witness" else (0, -signal.SIGTERM))
    await server.start()
    assert await register.read() == before
    await register.close()


async def test_etcd_with_tls_and_client_certificates(tmp_path: Path) -> None:
    ca = write_authority(tmp_path / "ca.pem")
    cert, key = write_certificate(tmp_path)
    own = *("--cert-file", cert, "--key-file", key), *("--client-cert-auth", "--trusted-ca-file", ca)
    async with running_server("etcds", tmp_path, *own, query=f"?ca={ca}&cert={cert}&key={key}") as server:
        register = server.register()
        assert await register.swap(0, entry(1))
        assert (await register.read())[0] == entry(1)
        await register.close()
        other = write_authority(tmp_path / "other.pem", "other")
        for query, says in [
            (f"?ca={ca}", "certificate"),
            (f"?ca={other}&cert={cert}&key={key}", "not trusted"),
        ]:
            server.query = query
            register = server.register()
            with pytest.raises(RegisterUnreachableError, match=says):
                await register.read()
            await register.close()
        server.scheme, server.query = "etcd", ""
        register = server.register()
        with pytest.raises(RegisterUnreachableError, match=r"it may require TLS|use etcds://"):
            await register.read()
        await register.close()


async def allow(server: RegisterServer, user: str, prefix: str) -> None:
    """Add a user of etcd with the password `secret`, who may use keys that begin with the prefix."""
    key, end = (b64encode(text.encode()).decode() for text in (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))
    await server.call("/v3/auth/user/add", {"name": user, "password": "secret"})
    await server.call("/v3/auth/role/add", {"name": user})
    await server.call("/v3/auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", "key": key, "range_end": end}})
    await server.call("/v3/auth/user/grant", {"user": user, "role": user})


async def refused(register: Register, says: str) -> None:
    """Assert that nothing was read or done, for this reason."""
    for call in (register.read(), register.swap(0, entry(9))):
        with pytest.raises(RegisterUnreachableError, match=says):
            await call
    await register.close()


async def test_etcd_with_users_whose_tokens_end(tmp_path: Path) -> None:
    for name in ("secret", "wrong"):
        (tmp_path / name).write_text(f"{name}\n")
    async with running_server("etcd", tmp_path) as server:
        plain = server.register()
        server.query = f"?password_file={tmp_path / 'secret'}"
        await refused(server.register(user="root"), "it has no authentication: leave the user out")
        for user, prefix in (("root", "/"), ("lockstep", "lockstep/shop/"), ("stranger", "elsewhere/")):
            await allow(server, user, prefix)
        await server.call("/v3/auth/enable", {})
        register = server.register(user="lockstep")
        assert await register.swap(0, entry(1))
        version = (await register.read())[1]
        # A restarted member knows no tokens, and a change of users makes all tokens old: nothing was done, and a new token helps.
        server.kill()
        await server.start(user="lockstep")
        assert await register.swap(version, entry(2))
        root = (await server.call("/v3/auth/authenticate", {"name": "root", "password": "secret"}))["token"]
        await server.call("/v3/auth/user/add", {"name": "another", "password": "secret"}, token=root)
        found, version = await register.read()
        assert found == entry(2)
        await server.call("/v3/auth/user/delete", {"name": "another"}, token=root)
        assert await register.swap(version, entry(3))
        await register.close()
        await refused(plain, "it requires a login: name a user")
        await refused(server.register(user="stranger"), "the user may not read or write the key")
        server.query = f"?password_file={tmp_path / 'wrong'}"
        await refused(server.register(user="lockstep"), "the user or the password is wrong")
