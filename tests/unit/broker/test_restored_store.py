"""The first start of a restored backup: it is the first one until a nameserver has accepted one."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.nameserver_registration import NameserverRegistration, RegistrationRefusedError
from lockstep.broker.store import Store
from lockstep.cli.store_restore import restore
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Host
from support.whole_broker import TOPIC, dialled, kill, running, settings

KEY = ("g", TOPIC, 0)


class ClockOf(Clock):
    """A clock that differs from the machine's by some hours."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, hours: int) -> None:
        self._ahead_ms = hours * 3_600_000

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


def broker_of(config: BrokerConfig, hours: int) -> Broker:
    """Return a broker whose clock, and therefore whose term, is so many hours ahead."""
    return Broker(config, replace(Host.real(), clock=ClockOf(hours)))


@asynccontextmanager
async def nameserver() -> AsyncIterator[Nameserver]:
    started = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


async def restored_after_a_later_start(path: Path, address: str) -> tuple[BrokerConfig, int]:
    """Return the settings of a restored backup with progress of a group, and the term in which the original was last registered: its clock
    was an hour ahead."""
    config = settings(path, nameserver=address)
    async with running(config) as first, dialled(first) as client:
        await client.create()
        sent = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0), b"m0")
        assert sent.code == ResponseCode.SUCCESS
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 1))
    shutil.copytree(path / "store", path / "backup")
    original = broker_of(config, 1)
    await original.start()
    await original.stop()
    shutil.rmtree(path / "store")
    restore(str(path / "store"), str(path / "backup"), lambda _copied, _total: None)
    return config, original.term


def is_marked(path: Path) -> bool:
    return (path / "store/lockstep/restored").exists()


async def check_first_start(path: Path, broker: Broker, original_term: int) -> None:
    """Check that this start is accepted, raises the generations above those of the original, and clears the mark."""
    assert is_marked(path)
    await broker.start()
    try:
        state = broker.state.coordination.state
        assert state.grants_suspended
        assert dict(state.progress)[KEY].generation >> 32 == broker.term > original_term
        assert not is_marked(path), "the port is open"
    finally:
        await broker.stop()


async def check_later_start(path: Path, broker: Broker, first_term: int) -> None:
    """Check that this start is one like any other: it is accepted and keeps the generations."""
    await broker.start()
    try:
        assert dict(broker.state.coordination.state.progress)[KEY].generation >> 32 == first_term
        assert not is_marked(path)
    finally:
        await broker.stop()


async def test_start_that_is_refused_for_the_clock_keeps_the_mark_and_the_next_one_is_accepted(tmp_path: Path) -> None:
    async with nameserver() as routes:
        config, original_term = await restored_after_a_later_start(tmp_path, routes.address)
        for _ in range(2):
            behind = broker_of(config, 0)
            with pytest.raises(RegistrationRefusedError, match=f"with term {original_term}"):
                await behind.start()
            await behind.stop()
            assert is_marked(tmp_path)
        corrected = broker_of(config, 2)
        await check_first_start(tmp_path, corrected, original_term)
        await check_later_start(tmp_path, broker_of(config, 2), corrected.term)


async def test_start_that_one_of_two_nameservers_refuses_keeps_the_mark(tmp_path: Path) -> None:
    """The other one was restarted, and does not know the original."""
    async with nameserver() as routes, nameserver() as restarted:
        config, original_term = await restored_after_a_later_start(tmp_path, routes.address)
        both = replace(config, nameserver=f"{restarted.address};{routes.address}")
        behind = broker_of(both, 0)
        with pytest.raises(RegistrationRefusedError, match=f"nameserver {routes.address} refused this broker"):
            await behind.start()
        await behind.stop()
        await check_first_start(tmp_path, broker_of(both, 2), original_term)


class KilledError(Exception):
    """The process was killed here."""


def before(owner: type, name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the process be killed before it calls the method."""

    async def killed(*_arguments: object, **_named: object) -> None:
        raise KilledError

    patch.setattr(owner, name, killed)


def after(owner: type, name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the process be killed after the method has returned."""
    method = getattr(owner, name)

    async def killed(*arguments: object, **named: object) -> None:
        await method(*arguments, **named)
        raise KilledError

    patch.setattr(owner, name, killed)


@pytest.mark.parametrize(
    ("when", "owner", "name"),
    [
        (before, Store, "mark_terms"),
        (after, Store, "mark_terms"),
        (after, Store, "mark_boot"),
        (before, NameserverRegistration, "wait_until_accepted"),
        (after, NameserverRegistration, "wait_until_accepted"),
        (before, Store, "clear_restored"),
    ],
)
async def test_start_that_is_killed_before_the_mark_is_cleared_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Callable[[type, str, pytest.MonkeyPatch], None], owner: type, name: str
) -> None:
    async with nameserver() as routes:
        config, original_term = await restored_after_a_later_start(tmp_path, routes.address)
        first = broker_of(config, 2)
        with monkeypatch.context() as patch:
            when(owner, name, patch)
            with pytest.raises(KilledError):
                await first.start()
            await kill(first)
        await check_first_start(tmp_path, broker_of(config, 2), original_term)


async def test_start_that_is_killed_after_the_mark_is_cleared_is_followed_by_an_ordinary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nameserver() as routes:
        config, _ = await restored_after_a_later_start(tmp_path, routes.address)
        first = broker_of(config, 2)
        with monkeypatch.context() as patch:
            after(Store, "clear_restored", patch)
            with pytest.raises(KilledError):
                await first.start()
            await kill(first)
        await check_later_start(tmp_path, broker_of(config, 2), first.term)


async def test_start_without_a_nameserver_keeps_the_mark(tmp_path: Path) -> None:
    """It is a look at the backup. A nameserver that has accepted later starts of the original still accepts the next one."""
    async with nameserver() as routes:
        config, original_term = await restored_after_a_later_start(tmp_path, routes.address)
        async with running(replace(config, nameserver=None)):
            assert is_marked(tmp_path)
        await check_first_start(tmp_path, broker_of(config, 2), original_term)


async def test_copy_that_was_killed_before_it_was_refused_is_refused_by_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has drawn a term above that of the original, which it has not seen."""
    async with nameserver() as routes:
        config = settings(tmp_path, nameserver=routes.address)
        async with running(config):
            pass
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        original = broker_of(config, 1)
        await original.start()
        await original.stop()
        copied = replace(config, store=str(tmp_path / "copy"))
        first = broker_of(copied, 2)
        with monkeypatch.context() as patch:
            before(NameserverRegistration, "wait_until_accepted", patch)
            with pytest.raises(KilledError):
                await first.start()
            await kill(first)
        second = broker_of(copied, 3)
        with pytest.raises(RegistrationRefusedError, match=f"has not seen term {original.term}"):
            await second.start()
        await second.stop()
