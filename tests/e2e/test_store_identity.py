"""The identity of stores and names: a broker that would use the store or name of another one does not start, and prints one line."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.nameserver_registration import RegistrationRefusedError
from lockstep.protocol.bodies import BrokerStatus, DataVersion, RegisterBody
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import RegisterBrokerHeader
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from support.broker_ahead import ClockAhead
from support.hostile_world import GOES_ON, checked_world, hostile_world
from support.native import native
from support.processes import program, run_program

pytestmark = pytest.mark.e2e

NAMESERVER = ("lockstep.nameserver", "--listen", "127.0.0.1:0")


def broker(store: Path, *options: str) -> tuple[str, ...]:
    """Start with small files, so that a store is quickly copied."""
    return "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1", *options


def run_rejected(exit_code: int, store: Path, *options: str) -> str:
    """Return the one line on stderr."""
    ended = run_program(*broker(store, *options))
    assert ended.returncode == exit_code, (ended.returncode, ended.stderr)
    assert ended.stderr.startswith("lockstep broker: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "broker.started" not in ended.stdout
    return ended.stderr


def create_store(store: Path, *options: str) -> None:
    """Create a store that has served once."""
    with program(*broker(store, *options), event="broker.started") as once:
        assert once.stop() == 0


def check_serves(store: Path, *options: str) -> int:
    """Check that it starts and stops cleanly; return its term."""
    with program(*broker(store, *options), event="broker.started") as once:
        assert once.stop() == 0
        return int(once.started["term"])


@pytest.fixture
def routes() -> Iterator[str]:
    """Return a nameserver's address."""
    with program(*NAMESERVER, event="nameserver.started") as running:
        yield str(running.started["address"])


def test_second_broker_on_a_store_exits_with_6_and_the_first_continues(tmp_path: Path) -> None:
    with program(*broker(tmp_path / "s"), event="broker.started") as first:
        for options in ((), ("--name", "broker-b"), ("--cluster", "other")):
            words = run_rejected(6, tmp_path / "s", *options)
            assert f"store {tmp_path / 's'} is open in another broker" in words
            assert "directory of its own" in words
        assert first.process.poll() is None
        assert first.stop() == 0
    assert check_serves(tmp_path / "s") > first.started["term"]


def test_store_of_a_killed_broker_can_be_opened(tmp_path: Path) -> None:
    with program(*broker(tmp_path / "s"), event="broker.started") as first:
        first.process.kill()
        first.process.wait()
    check_serves(tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--name", "broker-b"), "belongs to broker broker-a of cluster DefaultCluster, not to broker-b of DefaultCluster"),
        (("--cluster", "other"), "belongs to broker broker-a of cluster DefaultCluster, not to broker-a of other"),
    ],
)
def test_store_of_another_name_or_cluster_exits_with_4_and_is_unchanged(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    create_store(tmp_path / "s")
    assert words in run_rejected(4, tmp_path / "s", *options)
    check_serves(tmp_path / "s")


def test_name_of_a_registered_broker_with_another_store_exits_with_4(tmp_path: Path, routes: str) -> None:
    options = ("--nameserver", routes)
    with program(*broker(tmp_path / "one", *options), event="broker.started") as first:
        words = run_rejected(4, tmp_path / "two", *options)
        assert f"nameserver {routes} refused this broker" in words
        assert f"'broker-a' is registered from {first.started['address']} with store" in words
        assert "give it another name and a store of its own" in words
        assert registered_brokers(routes) == {"broker-a": (first.started["address"], True)}


def registered_brokers(routes: str) -> dict[str, tuple[str, bool]]:
    """Return broker → (address, registered); nothing while a nameserver that was restarted knows no broker yet."""
    shown = run_program("lockstep.cli.main", "cluster", "--json", "--nameserver", routes)
    if "ROUTE_NOT_READY" in shown.stderr:
        return {}
    assert shown.returncode == 0, shown.stderr
    return {each["name"]: (each["address"], each["registered"]) for each in json.loads(shown.stdout)["brokers"]}


async def test_copy_with_a_lower_term_exits_with_4_and_the_original_is_unaffected(tmp_path: Path, routes: str) -> None:
    """The original has since served under a clock that was ahead; terms never fall."""
    create_store(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    real = Host.real()
    ahead = Broker(BrokerConfig(listen=("127.0.0.1:0",), store=str(tmp_path / "one")), replace(real, clock=ClockAhead()))
    await ahead.start()
    await ahead.stop()
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        assert first.started["term"] == ahead.term + 1
        words = run_rejected(4, tmp_path / "copy", "--nameserver", routes)
        assert f"is registered from {first.started['address']} with term {first.started['term']}" in words
        assert "two copies of one store" in words
        assert "Do not delete either" in words
        assert registered_brokers(routes) == {"broker-a": (first.started["address"], True)}
        assert first.stop() == 0
    words = run_rejected(4, tmp_path / "copy", "--nameserver", routes)
    assert f"is last registered from {first.started['address']}" in words


def test_repeatedly_started_copy_does_not_replace_the_original(tmp_path: Path, routes: str) -> None:
    """A supervisor starts it again after each rejection; then the original's machine is gone for a moment."""
    create_store(tmp_path / "one", "--nameserver", routes)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        for _ in range(3):
            run_rejected(4, tmp_path / "copy", "--nameserver", routes)
        assert first.stop() == 0
    words = run_rejected(4, tmp_path / "copy", "--nameserver", routes)
    assert f"is last registered from {first.started['address']}" in words
    assert f"it has not seen term {first.started['term']}" in words
    assert check_serves(tmp_path / "one", "--nameserver", routes) > first.started["term"]


def broker_ahead(store: Path, routes: str) -> Broker:
    """Return a broker whose clock, and therefore whose term, is an hour ahead."""
    config = BrokerConfig(listen=("127.0.0.1:0",), store=str(store), nameserver=routes)
    return Broker(config, replace(Host.real(), clock=ClockAhead()))


async def test_copy_with_a_higher_term_exits_with_4_while_the_original_is_registered(tmp_path: Path, routes: str) -> None:
    create_store(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        copy = broker_ahead(tmp_path / "copy", routes)
        with pytest.raises(RegistrationRefusedError, match=f"it has not seen term {first.started['term']}"):
            await copy.start()
        await copy.stop()
        assert await asyncio.to_thread(registered_brokers, routes) == {"broker-a": (first.started["address"], True)}
        assert first.stop() == 0
    assert check_serves(tmp_path / "one", "--nameserver", routes) > first.started["term"]


async def test_copy_of_the_last_state_is_rejected_while_the_original_responds(tmp_path: Path, routes: str) -> None:
    """It was copied while the original ran, as by a snapshot of the volume: the copy has seen the registered term."""
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        copy = broker_ahead(tmp_path / "copy", routes)
        with pytest.raises(RegistrationRefusedError, match="The registered one responds"):
            await copy.start()
        await copy.stop()
        assert await asyncio.to_thread(registered_brokers, routes) == {"broker-a": (first.started["address"], True)}
        assert first.stop() == 0


async def test_original_exits_with_4_after_its_copy_has_served_and_is_unchanged(tmp_path: Path, routes: str) -> None:
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        assert first.stop() == 0
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = broker_ahead(tmp_path / "copy", routes)
    await copy.start()
    address, term = copy.address, copy.term
    await copy.stop()
    words = await asyncio.to_thread(run_rejected, 4, tmp_path / "one", "--nameserver", routes)
    assert f"is last registered from {address} with term {term}" in words
    assert "which is lower" in words
    check_serves(tmp_path / "copy", "--nameserver", routes)
    with program(*NAMESERVER, event="nameserver.started") as fresh:
        check_serves(tmp_path / "one", "--nameserver", str(fresh.started["address"]))


async def test_repeatedly_killed_broker_is_accepted_each_time(tmp_path: Path, routes: str) -> None:
    """This includes starts that no nameserver has seen."""
    for round_ in range(3):
        with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as once:
            once.process.kill()
            once.process.wait()
        if round_:
            create_store(tmp_path / "one")


async def test_registration_of_a_stranger_does_not_replace_a_broker_that_responds(tmp_path: Path, routes: str) -> None:
    """The copy has everything that the broker reports about itself."""
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        async with native(str(first.started["address"])) as client:
            status = decode_body(BrokerStatus, (await client.send_request(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        store_id = json.loads((tmp_path / "one/lockstep/identity").read_text())["store_id"]
        assert status.store_id == store_id[:8]
        async with native(routes) as stranger:
            for known in (status.store_id.ljust(32, "0"), store_id):
                header = RegisterBrokerHeader("broker-a", "DefaultCluster", "127.0.0.1:1", known, status.term + 1, "e" * 32, status.term)
                body = encode_body(RegisterBody({"internal": "127.0.0.1:1"}, (), DataVersion(1, 1)))
                code = ResponseCode.REGISTRATION_PENDING
                while code == ResponseCode.REGISTRATION_PENDING:
                    code, remark = await stranger.refused(RequestCode.REGISTER_BROKER, header, body)
                assert code == ResponseCode.BROKER_NAME_TAKEN
                assert (tmp_path / "one/lockstep/proof").read_text() not in remark
        assert await asyncio.to_thread(registered_brokers, routes) == {"broker-a": (first.started["address"], True)}


async def test_producer_and_consumer_continue_while_strangers_register_their_brokers_name(tmp_path: Path) -> None:
    """Copies have everything the broker reports about itself, and its nameserver challenges it each time. Then it starts again."""
    with hostile_world(tmp_path) as world:
        name = world.broker.started("broker.started")["name"]
        async with checked_world(world), AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(native(world.nameserver_address)) for _ in range(8)]
            store_id = json.loads((tmp_path / "store/lockstep/identity").read_text())["store_id"]
            body = encode_body(RegisterBody({"internal": "127.0.0.1:1"}, (), DataVersion(1, 1)))
            goal, codes = world.handled() + 4 * GOES_ON, Counter[int]()
            while world.handled() < goal or codes.keys() != {ResponseCode.REGISTRATION_PENDING, ResponseCode.BROKER_NAME_TAKEN}:
                headers = [
                    RegisterBrokerHeader(name, "DefaultCluster", "127.0.0.1:1", known, 1 << 62, "e" * 32, 0)
                    for known in (store_id, "f" * 32)
                ]
                requested = [each.send_request(RequestCode.REGISTER_BROKER, header, body) for each in strangers for header in headers]
                codes.update(response.code for response in await asyncio.gather(*requested))
        assert await asyncio.to_thread(registered_brokers, world.nameserver_address) == {name: (world.broker_address, True)}
        with world.restarted_broker() as again:
            back = again.started("broker.started")["address"]
            assert await asyncio.to_thread(registered_brokers, world.nameserver_address) == {name: (back, True)}


async def test_stranger_with_the_name_of_a_killed_broker_is_replaced_when_it_returns(tmp_path: Path, routes: str) -> None:
    """The copy responds to each challenge of the nameserver, and has the highest possible term."""
    with program(*broker(tmp_path / "one", "--nameserver", routes), event="broker.started") as first:
        first.process.kill()
        first.process.wait()
    store_id = json.loads((tmp_path / "one/lockstep/identity").read_text())["store_id"]
    for known in ("f" * 32, store_id):
        async with stranger(routes) as endpoint:
            header = RegisterBrokerHeader("broker-a", "DefaultCluster", "127.0.0.1:1", known, 1 << 62, "e" * 32, 1 << 61)
            body = encode_body(RegisterBody({"internal": "127.0.0.1:1"}, (), DataVersion(1, 1)))
            code: int = ResponseCode.REGISTRATION_PENDING
            while code == ResponseCode.REGISTRATION_PENDING:
                code = (await endpoint.request(RequestCode.REGISTER_BROKER, to_plain(header), body, timeout_ms=20_000)).code
            assert code == ResponseCode.SUCCESS
            assert await asyncio.to_thread(serves_as_registered, tmp_path / "one", routes)


def serves_as_registered(store: Path, routes: str) -> bool:
    """Check that it starts at once, that the nameserver names it, and that it stops cleanly."""
    with program(*broker(store, "--nameserver", routes), event="broker.started") as back:
        found = registered_brokers(routes) == {"broker-a": (back.started["address"], True)}
        assert back.stop() == 0
    return found


@asynccontextmanager
async def stranger(routes: str) -> AsyncIterator[Endpoint]:
    """Return a connection that responds to every request."""

    def response(command: Command, endpoint: Endpoint) -> None:
        if not command.is_oneway:
            endpoint.send(command.reply(ResponseCode.SUCCESS))

    endpoint = await connect(Host.real(), routes, handler=response)
    try:
        yield endpoint
    finally:
        endpoint.close("done")


def test_restarted_nameserver_accepts_the_running_broker(tmp_path: Path) -> None:
    """Both are killed, and the broker returns first: it waits for a nameserver and then serves under its name."""
    with program(*NAMESERVER, event="nameserver.started") as routes:
        where = routes.started["address"]
        with program(*broker(tmp_path / "one", "--nameserver", where), event="broker.started") as first:
            routes.process.kill()
            routes.process.wait()
            again = ("lockstep.nameserver", "--listen", where)
            with program(*again, event="nameserver.started"):
                while registered_brokers(where) != {"broker-a": (first.started["address"], True)}:
                    assert first.process.poll() is None
                run_rejected(4, tmp_path / "two", "--nameserver", where)
