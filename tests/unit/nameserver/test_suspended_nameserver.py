"""A nameserver that was suspended reads pending frames before it replaces or unregisters a broker: real frames, a settable clock."""

from dataclasses import dataclass

import pytest

from lockstep.nameserver.app import SCAN_MS, Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.processor import RouteProcessor
from lockstep.nameserver.route_table import CHALLENGE_MS, COUNTDOWN_STEP_MS
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.bodies import DataVersion, RegisterBody
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import RegisterBrokerHeader
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from support.clocks import LoopClock
from support.loops import FrozenLoop, turns

pytestmark = pytest.mark.frozen_clock

HOST = Host.real()
OURS, OTHER = "5" * 32, "6" * 32


@dataclass
class Nodes:
    """A nameserver, a registered broker, and another store that registers under its name."""

    served: Nameserver
    incumbent: Endpoint
    challenger: Endpoint
    requested: list[Command]


async def start(frozen: FrozenLoop) -> Nodes:
    host = Host(LoopClock(frozen), HOST.random, HOST.files, HOST.threads, HOST.boot_id)
    served, requested = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), host), list[Command]()
    await served.start()
    incumbent = await connect(HOST, served.address, handler=lambda command, _: requested.append(command))
    nodes = Nodes(served, incumbent, await connect(HOST, served.address), requested)
    assert await register(nodes.incumbent, OURS) == ResponseCode.SUCCESS
    return nodes


async def stop(nodes: Nodes) -> None:
    await nodes.served.stop()
    for endpoint in (nodes.incumbent, nodes.challenger):
        endpoint.close("done")
    await turns(20)


async def register(endpoint: Endpoint, store: str) -> int:
    listeners = {"internal": f"host-{store[0]}:10911"}
    header = RegisterBrokerHeader("broker-a", "DefaultCluster", listeners["internal"], store, 1, "c" * 32, 0)
    body = encode_body(RegisterBody(listeners, (), DataVersion(0, 0)))
    future = endpoint.request(RequestCode.REGISTER_BROKER, to_plain(header), body, timeout_ms=10_000_000)
    while not future.done():
        await turns(1)
    return (await future).code


async def challenge(nodes: Nodes) -> Command:
    """Return the requests that the incumbent receives."""
    assert await register(nodes.challenger, OTHER) == ResponseCode.REGISTRATION_PENDING
    while not nodes.requested:
        await turns(1)
    return nodes.requested[0]


@pytest.mark.parametrize("counted", [0, 1, CHALLENGE_MS // COUNTDOWN_STEP_MS])
async def test_response_that_has_arrived_counts_even_if_the_challenger_is_read_first(frozen: FrozenLoop, counted: int) -> None:
    """The nameserver is suspended after `counted` slices of the response time."""
    nodes = await start(frozen)
    question = await challenge(nodes)
    for _ in range(counted):
        await frozen.advance(COUNTDOWN_STEP_MS / 1000)
        await turns(20)
    frozen.stall(2 * CHALLENGE_MS / 1000)
    nodes.incumbent.send(question.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    assert await register(nodes.challenger, OTHER) in (ResponseCode.REGISTRATION_PENDING, ResponseCode.BROKER_NAME_TAKEN)
    await turns(20)
    assert await register(nodes.challenger, OTHER) == ResponseCode.BROKER_NAME_TAKEN
    await stop(nodes)


async def test_broker_that_does_not_respond_is_replaced_after_five_counted_seconds(frozen: FrozenLoop) -> None:
    nodes = await start(frozen)
    await challenge(nodes)
    for _ in range(CHALLENGE_MS // COUNTDOWN_STEP_MS):
        frozen.stall(20 * COUNTDOWN_STEP_MS / 1000)
        await turns(30)
        assert await register(nodes.challenger, OTHER) == ResponseCode.REGISTRATION_PENDING, "a standstill counts as one slice"
    await frozen.advance(COUNTDOWN_STEP_MS / 1000)
    await turns(30)
    assert await register(nodes.challenger, OTHER) == ResponseCode.SUCCESS
    await stop(nodes)


async def test_readable_frames_are_read_before_a_slice_is_counted(frozen: FrozenLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = await start(frozen)
    question = await challenge(nodes)
    responded: list[bool] = []
    counted = nodes.served.table.count_down_challenges

    def count_down(ms: int) -> bool:
        responded.append(nodes.served.table._brokers["broker-a"].confirmed_ms is not None)
        return counted(ms)

    monkeypatch.setattr(nodes.served.table, "count_down_challenges", count_down)
    frozen.stall(COUNTDOWN_STEP_MS / 1000)
    nodes.incumbent.send(question.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    await turns(30)
    assert responded == [True]
    await stop(nodes)


async def test_suspension_of_the_nameserver_makes_no_broker_silent(frozen: FrozenLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    expire = RouteProcessor.expire

    def counted(self: RouteProcessor, *, pause_ms: int = 0) -> None:
        scans.append(pause_ms)
        expire(self, pause_ms=pause_ms)

    monkeypatch.setattr(RouteProcessor, "expire", counted)
    nodes = await start(frozen)
    await turns(4)
    frozen.stall((SCAN_MS + 10 * SILENCE_MS) / 1000)
    await turns(10)
    assert scans == [10 * SILENCE_MS]
    assert nodes.served.table.registered() == ("broker-a",)
    for _ in range(SILENCE_MS // SCAN_MS):
        await frozen.advance(SCAN_MS / 1000)
    assert nodes.served.table.registered() == ()
    await stop(nodes)
