"""The witness: its files, its limits, and who may use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.broker.office.register import Register, RegisterEntryError, RegisterUnknownError, RegisterUnreachableError
from lockstep.broker.store.errors import IdentityError, StoreCorruptError, StoreInUseError
from lockstep.broker.witness.app import Witness
from lockstep.broker.witness.config import WitnessConfig
from lockstep.broker.witness.values import WitnessValues
from lockstep.runtime.daemon import exit_code_of
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.server_security import OPEN, ServerSecurity
from support.logins import PASSWORD, logging_in, with_users, write_users
from support.registers import entry

NAMES = ("shop", "broker-a")


@asynccontextmanager
async def witness_at(folder: Path, security: ServerSecurity = OPEN) -> AsyncIterator[Witness]:
    witness = Witness(WitnessConfig(listen=("127.0.0.1:0",), store=str(folder)), Host.real(), security)
    await witness.start()
    try:
        yield witness
    finally:
        await witness.stop()


@asynccontextmanager
async def register_at(witness: Witness, security: ClientSecurity = NO_SECURITY, name: str = "broker-a") -> AsyncIterator[Register]:
    register = open_register(RegisterUrl.parse(f"witness://{witness.address}"), "shop", name, Host.real(), security)
    yield register
    await register.close()


@asynccontextmanager
async def values_in(folder: Path) -> AsyncIterator[WitnessValues]:
    values = WitnessValues(Host.real(), str(folder))
    await values.open()
    try:
        yield values
    finally:
        await values.close()


async def test_versions_rise_by_one_and_values_outlive_the_process(tmp_path: Path) -> None:
    async with values_in(tmp_path / "w") as values:
        assert await values.swap(NAMES, 0, b"first")
        assert not await values.swap(NAMES, 0, b"again")
        assert await values.swap(NAMES, 1, b"\xff\x00second")
        assert not await values.swap(NAMES, 3, b"from the future")
    async with values_in(tmp_path / "w") as values:
        found = values.get(NAMES)
        assert (found.version, found.value) == (2, b"\xff\x00second")
        assert values.get(("shop", "broker-b")).version == 0


async def test_directory_that_is_not_its_own_or_damaged_ends_the_start_with_its_exit_code(tmp_path: Path) -> None:
    async with values_in(tmp_path / "w") as values:
        assert await values.swap(NAMES, 0, b"first")
        with pytest.raises(StoreInUseError) as in_use:
            await WitnessValues(Host.real(), str(tmp_path / "w")).open()
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    with pytest.raises(IdentityError, match="is the store of a broker") as other:
        await WitnessValues(Host.real(), str(tmp_path / "store")).open()
    (path,) = (tmp_path / "w" / "register").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-5], whole.replace(b"first", b"forst")):
        path.write_bytes(damaged)
        with pytest.raises(StoreCorruptError, match="is damaged: remove it") as corrupt:
            await WitnessValues(Host.real(), str(tmp_path / "w")).open()
    assert [exit_code_of(each.value) for each in (other, corrupt, in_use)] == [4, 5, 6]
    path.unlink()
    (path.parent / "left.tmp").touch()
    async with values_in(tmp_path / "w") as values:
        assert values.get(NAMES).version == 0, "what is lost is absent"
    assert not list(path.parent.iterdir())


async def test_number_of_names_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.witness.values.NAMES_MAX", 2)
    async with witness_at(tmp_path) as witness:
        for name in ("broker-a", "broker-b", "broker-c"):
            async with register_at(witness, name=name) as register:
                if name == "broker-c":
                    with pytest.raises(RegisterUnreachableError, match="the witness has 2 broker names, its limit"):
                        await register.swap(0, entry())
                else:
                    assert await register.swap(0, entry())
        async with register_at(witness) as register:
            assert await register.swap(1, entry(2)), "a known name is served"


async def test_disk_that_fails_leaves_a_swap_unknown_and_the_witness_unready_until_one_succeeds(tmp_path: Path) -> None:
    async with witness_at(tmp_path / "w") as witness, register_at(witness) as register:
        assert await register.swap(0, entry(1))
        (tmp_path / "w" / "register").rename(tmp_path / "away")
        with pytest.raises(RegisterUnknownError, match="can't be written: no such file"):
            await register.swap(1, entry(2))
        assert "can't be written" in witness.health().unready[0]
        assert await register.read() == (entry(1), 1)
        (tmp_path / "away").rename(tmp_path / "w" / "register")
        assert await register.swap(1, entry(3))
        assert witness.health().unready == ()


async def test_only_the_user_of_a_broker_changes_its_register(tmp_path: Path) -> None:
    rules = {"alice": 'brokers = ["broker-a"]', "bob": 'brokers = ["broker-b"]', "eve": 'allow = ["Pub topic:*"]'}
    path = write_users(tmp_path / "users.toml", {name: [PASSWORD] for name in rules}, rules)
    async with witness_at(tmp_path / "w", with_users(path)) as witness:
        async with register_at(witness, logging_in("alice")) as register:
            assert await register.swap(0, entry(1))
            assert (await register.read())[0] == entry(1)
        async with register_at(witness, logging_in("bob")) as register:
            assert (await register.read())[0] == entry(1), "the user of any broker may look"
            with pytest.raises(RegisterUnreachableError, match="change the register of broker broker-a: its `brokers` do not"):
                await register.swap(1, entry(2))
        for security, says in (
            (logging_in("eve"), "may not"),
            (logging_in("alice", "wrong horse"), "a wrong user or password is answered late"),
            (NO_SECURITY, "requires a login"),
        ):
            async with register_at(witness, security) as register:
                with pytest.raises(RegisterUnreachableError, match=says):
                    await register.swap(1, entry(2))
                with pytest.raises(RegisterUnreachableError, match=says):
                    await register.read()


async def test_value_that_is_no_entry_is_an_error(tmp_path: Path) -> None:
    async with values_in(tmp_path) as values:
        assert await values.swap(NAMES, 0, b"hello")
    async with witness_at(tmp_path) as witness, register_at(witness) as register:
        with pytest.raises(RegisterEntryError, match="witness of broker broker-a: it is not JSON"):
            await register.read()


async def test_swap_that_is_being_written_ends_before_the_directory_is_unlocked(tmp_path: Path) -> None:
    values = WitnessValues(Host.real(), str(tmp_path))
    await values.open()
    swap = asyncio.ensure_future(values.swap(NAMES, 0, b"first"))
    await asyncio.sleep(0)
    swap.cancel()
    await asyncio.wait([swap])
    await values.close()
    async with values_in(tmp_path) as again:
        assert again.get(NAMES).value in (b"", b"first")
