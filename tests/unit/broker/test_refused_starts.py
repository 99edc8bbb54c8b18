"""A rejected start leaves the directory of a cleanly stopped store unchanged, except for the changes that a test names."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.nameserver_registration import RegistrationRefusedError
from lockstep.broker.store import IdentityError, StoreCorruptError, StoreInUseError
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.host import Host
from support.whole_broker import TOPIC, dialled, running, settings, stored


async def create_served_store(path: Path) -> None:
    """Create a store with a message and stop it cleanly."""
    async with running(settings(path)) as broker, dialled(broker) as client:
        await client.create()
        response = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("prod", TOPIC, 0), b"kept")
        assert response.code == ResponseCode.SUCCESS


def contents(path: Path) -> dict[str, bytes]:
    root = path / "store"
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


async def check_rejected(config: BrokerConfig, error: type[Exception]) -> Broker:
    broker = Broker(config, Host.real())
    try:
        with pytest.raises(error):
            await broker.start()
    finally:
        await broker.stop()
    return broker


async def check_no_loss(path: Path) -> None:
    """Check that the next start, after a reboot, assumes no loss, because the store was stopped cleanly."""
    broker = Broker(settings(path), replace(Host.real(), boot_id=lambda: "another boot"))
    await broker.start()
    try:
        assert broker._store is not None
        assert broker._store.stopped_clean
        assert not broker.state.coordination.state.grants_suspended
        async with dialled(broker) as client:
            assert [record.body for record in await stored(client, TOPIC)] == [b"kept"]
    finally:
        await broker.stop()


def taken_port() -> tuple[socket.socket, str]:
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, f"127.0.0.1:{taken.getsockname()[1]}"


def damaged_log(path: Path) -> Callable[[], None]:
    """Damage the log before the last record; return the function that repairs it."""
    (log,) = (path / "store/commitlog").iterdir()
    before = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(0)
        file.write(b"\xff" * 8)
    for snapshot in (path / "store/lockstep").glob("snapshot-*"):
        snapshot.rename(path / snapshot.name)

    def undo() -> None:
        log.write_bytes(before)
        for snapshot in path.glob("snapshot-*"):
            snapshot.rename(path / "store/lockstep" / snapshot.name)

    return undo


def damaged_proof(path: Path) -> Callable[[], None]:
    proof = path / "store/lockstep/proof"
    before = proof.read_bytes()
    proof.write_bytes(b"####")

    def undo() -> None:
        proof.write_bytes(before)

    return undo


@pytest.mark.parametrize("damage", [damaged_log, damaged_proof])
async def test_start_rejected_for_damage_changes_nothing(tmp_path: Path, damage: Callable[[Path], Callable[[], None]]) -> None:
    await create_served_store(tmp_path)
    undo = damage(tmp_path)
    before = contents(tmp_path)
    await check_rejected(settings(tmp_path), StoreCorruptError)
    assert changed(before, contents(tmp_path)) == set()
    undo()
    await check_no_loss(tmp_path)


@pytest.mark.parametrize("wrong", [{"name": "broker-b"}, {"cluster": "other"}])
async def test_start_under_another_name_changes_nothing(tmp_path: Path, wrong: dict[str, str]) -> None:
    await create_served_store(tmp_path)
    before = contents(tmp_path)
    await check_rejected(settings(tmp_path, **wrong), IdentityError)
    assert changed(before, contents(tmp_path)) == set()
    await check_no_loss(tmp_path)


async def test_start_with_a_taken_port_changes_nothing(tmp_path: Path) -> None:
    await create_served_store(tmp_path)
    before = contents(tmp_path)
    taken, address = taken_port()
    with taken:
        await check_rejected(settings(tmp_path, listen=(address,)), Exception)
    assert changed(before, contents(tmp_path)) == set()
    await check_no_loss(tmp_path)


async def test_second_start_on_an_open_store_changes_nothing(tmp_path: Path) -> None:
    await create_served_store(tmp_path)
    async with running(settings(tmp_path)) as first:
        assert first._store is not None
        await first._store.sync()
        before = contents(tmp_path)
        await check_rejected(settings(tmp_path), StoreInUseError)
        assert changed(before, contents(tmp_path)) == set()
    await check_no_loss(tmp_path)


@asynccontextmanager
async def refusing_nameserver() -> AsyncIterator[str]:
    """Another store is registered under the name, and its broker responds."""
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    other = Registration("broker-a", "DefaultCluster", "b" * 32, 1, {"internal": "10.0.0.9:1"}, (), "d" * 32, 0)
    nameserver.table.register(other, -1, 0)

    async def responses() -> None:
        while True:
            nameserver.table.confirm_alive("broker-a", -1, Host.real().clock.monotonic_ms())
            await asyncio.sleep(0)

    task = asyncio.create_task(responses())
    try:
        yield nameserver.address
    finally:
        task.cancel()
        await nameserver.stop()


async def test_start_rejected_by_every_nameserver_adds_only_its_term(tmp_path: Path) -> None:
    """The term has to be durable before it is sent to a nameserver: the next start must have a higher one."""
    await create_served_store(tmp_path)
    before = contents(tmp_path)
    async with refusing_nameserver() as address:
        for _ in range(3):
            broker = await check_rejected(settings(tmp_path, nameserver=address), RegistrationRefusedError)
    after = contents(tmp_path)
    names = {name.partition("snapshot-")[0] + "snapshot" * ("snapshot-" in name) for name in changed(before, after)}
    assert names <= {"commitlog/" + "0" * 20, "lockstep/term", "lockstep/boot", "lockstep/synced", "lockstep/snapshot", "checkpoint"}
    accepted, *tried = after["lockstep/term"].split()
    assert (accepted, len(tried), int(tried[-1])) == (before["lockstep/term"].split()[0], 3, broker.term)
    assert "abort" not in after
    log = "commitlog/" + "0" * 20
    used = len(before[log].rstrip(b"\0"))
    assert after[log][:used] == before[log][:used], "records are appended, none is changed"
    assert len(after[log].rstrip(b"\0")) - used < 3 * 2_000
    await check_no_loss(tmp_path)


async def test_unclean_store_stays_unclean_after_a_rejected_start(tmp_path: Path) -> None:
    await create_served_store(tmp_path)
    (tmp_path / "store/abort").touch()
    taken, address = taken_port()
    with taken:
        await check_rejected(settings(tmp_path, listen=(address,)), Exception)
    assert (tmp_path / "store/abort").exists()
