"""What each request needs: every handler of a broker and of a nameserver, for users without, with some and with all rights."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import VERSION_5_0
from lockstep.protocol.errors import TransportError
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import Dispatcher, HandlerSpec
from lockstep.runtime.requests.needs import ANY_USER, InsideNeed
from support.access import DENIAL, UserWithRights, example, resources, users_with_just
from support.java_wire import JSON, java_wire
from support.whole_broker import dialled, heartbeat, running, settings

Call = Callable[[HandlerSpec, UserWithRights], Awaitable[tuple[int, str]]]
AFTER_READING = {RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.END_TRANSACTION}
"""Handlers that ask when they have read a message, which the examples do not name."""
PAGE = Path(__file__).parents[3] / "docs" / "permissions.md"


@asynccontextmanager
async def servers(path: Path) -> AsyncIterator[dict[str, tuple[Dispatcher, str]]]:
    """Run a nameserver, and a broker with a topic and a group. Yield the dispatcher and the address of each."""
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    try:
        async with running(settings(path, nameserver=nameserver.address)) as broker:
            async with dialled(broker) as client:
                await client.create()
                await heartbeat(client, "member", "1" * 32)
            yield {
                "broker": (broker.running.dispatcher, broker.address),
                "nameserver": (nameserver._dispatcher, nameserver.address),
            }
    finally:
        await nameserver.stop()


def calls_of(dispatcher: Dispatcher, address: str, *, native: bool) -> Call:
    """Return what sends an example of a request as a user, and returns code and remark of the response."""

    async def call(spec: HandlerSpec, user: UserWithRights) -> tuple[int, str]:
        dispatcher._admit = lambda *_: user
        fields, body = example(spec, native=native)
        endpoint = await connect(Host.real(), address)
        async with java_wire(address, JSON) as java:
            java.version = VERSION_5_0
            asked: Awaitable[Any] = (
                endpoint.request(spec.code, fields, body, timeout_ms=10_000) if native else java.call(spec.code, fields, body)
            )
            try:
                found = await asked
            except (TransportError, asyncio.IncompleteReadError) as error:  # the connection of a request that has no session is closed
                return 0, str(error)
            finally:
                endpoint.close("done")
                await endpoint.wait_closed()
            return found.code, found.remark or ""

    return call


@pytest.fixture(params=[(server, native) for server in ("broker", "nameserver") for native in (True, False)], ids=str)
async def requests(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[dict[int, HandlerSpec], Call]]:
    """Run the servers. Return the declarations of the requests of one, in one kind of codec, and what sends it their examples."""
    server, native = request.param
    async with servers(tmp_path) as running_servers:
        dispatcher, address = running_servers[server]
        yield dispatcher.specs(native=native), calls_of(dispatcher, address, native=native)


async def test_every_request_is_refused_without_a_right_or_asks_for_it_itself(requests: tuple[dict[int, HandlerSpec], Call]) -> None:
    wrong, (specs, call) = {}, requests
    for code, spec in specs.items():
        nobody = UserWithRights()
        result, remark = await call(spec, nobody)
        refused = result == ResponseCode.NO_PERMISSION and DENIAL in remark
        asks = any(isinstance(need, InsideNeed) for need in spec.needs)
        expected = not refused if spec.needs == ANY_USER else nobody.asked > 0 if asks and not resources(spec.needs) else refused
        if not expected and code not in AFTER_READING:
            wrong[RequestCode(code).name] = result, remark
    assert wrong == {}


async def test_request_is_not_refused_with_the_rights_that_it_needs_and_no_others(requests: tuple[dict[int, HandlerSpec], Call]) -> None:
    wrong, (specs, call) = {}, requests
    for code, spec in specs.items():
        for user in users_with_just(spec):
            result, remark = await call(spec, user)
            if DENIAL in remark:
                wrong[RequestCode(code).name] = result, remark
    assert wrong == {}


async def test_responses_that_need_no_proof_of_office_are_these(tmp_path: Path) -> None:
    """A master that was replaced sends no other response: what operators ask a broker in trouble, and what copies ask each other."""
    async with servers(tmp_path) as running_servers:
        dispatcher, _ = running_servers["broker"]
        specs = [*dispatcher.specs(native=True).values(), *dispatcher.specs(native=False).values()]
    assert {RequestCode(spec.code).name for spec in specs if spec.at_once} == {
        "AUTHENTICATE",
        "GET_BROKER_CONFIG",
        "GET_BROKER_RUNTIME_INFO",
        "GROUP_EVENTS",
        "OVERVIEW",
        "REPLICA_ACK",
        "REPLICA_FETCH",
        "REPLICA_FILE",
        "REPLICA_FOLLOW",
        "REPLICA_HAND_OVER",
        "REPLICA_PROMOTE",
        "REPLICA_STATUS",
        "UPDATE_BROKER_CONFIG",
    }


async def test_page_has_the_needs_of_every_request(tmp_path: Path) -> None:
    """The table of docs/permissions.md is that of the handlers. After a change put the lines that the failure shows into it."""
    rows = []
    async with servers(tmp_path) as running_servers:
        for server, (dispatcher, _) in running_servers.items():
            native, classic = (dispatcher.specs(native=each) for each in (True, False))
            for code in sorted({*native, *classic}):
                for clients, spec in (("lockstep", native.get(code)), ("RocketMQ", classic.get(code))):
                    if spec is None:
                        continue
                    if code in native and code in classic and str_of(native[code]) == str_of(classic[code]):
                        if clients == "RocketMQ":
                            continue
                        clients = "all"
                    rows.append(f"| {server} | {RequestCode(code).name} | {code} | {clients} | {str_of(spec)} |")
    found = re.findall(r"^\| (?:broker|nameserver) \|.*$", PAGE.read_text(), re.MULTILINE)
    assert found == rows, "\n".join(rows)


def str_of(spec: HandlerSpec) -> str:
    return "; ".join(map(str, spec.needs)) or "any user"
