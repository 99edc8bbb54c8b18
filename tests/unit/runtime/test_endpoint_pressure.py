"""Back-pressure: a peer that does not read uses a bounded number of bytes and is not read from. A peer that floods gets a limited share."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import RESPONSE_FLAG, Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.limits import DEFAULT_LIMITS, EndpointLimits
from support.certificates import secured_peers
from support.loops import turns, until
from support.peers import dialled, raw_peer, serving
from support.recorder import record

HIGH, LOW = 256 * 1024, 64 * 1024
TIGHT = EndpointLimits(unsent_bytes_high=HIGH, unsent_bytes_low=LOW)


@pytest.fixture(params=["plain", "tls"], autouse=True)
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    with secured_peers(tmp_path, request.param == "tls"):
        yield


def amplify(command: Command, endpoint: Endpoint) -> None:
    """Respond to each request with 64 KiB."""
    endpoint.send(command.reply(body=bytes(65_536)))


@pytest.mark.both_loops
async def test_peer_that_does_not_read_is_not_read_from_and_its_unsent_bytes_are_bounded() -> None:
    handled: list[int] = []
    requested = 3000

    def count(command: Command, endpoint: Endpoint) -> None:
        handled.append(command.opaque)
        amplify(command, endpoint)

    async with serving(count, TIGHT) as server, raw_peer(server) as peer:
        peer.writer.write(b"".join(encode_frame(Command(RequestCode.GET_MAX_OFFSET, n)) for n in range(requested)))
        await until(lambda: bool(server.endpoints), "accepted")
        endpoint = next(iter(server.endpoints.values()))
        await until(lambda: endpoint.unsent_bytes > HIGH, "the peer's sockets are full")
        before = 0
        while before != len(handled):  # with TLS the bytes that are encrypted are not counted any more, until their buffer is full too
            before = len(handled)
            await turns(50)
        assert before < requested / 10, "nothing more is handled while the responses are not read"
        assert before < requested
        assert endpoint.unsent_bytes <= HIGH + 3 * 65_536
        for n in range(requested):
            assert (await peer.next()).opaque == n, "it goes on where it stopped, in order, none lost"


@pytest.mark.both_loops
async def test_other_connections_are_served_despite_a_peer_that_does_not_read() -> None:
    async with serving(amplify, TIGHT) as server, raw_peer(server) as deaf, dialled(server) as good:
        deaf.writer.write(b"".join(encode_frame(Command(RequestCode.GET_MAX_OFFSET, n)) for n in range(2000)))
        for _ in range(20):
            assert len((await good.request(RequestCode.GET_MAX_OFFSET, timeout_ms=5000)).body) == 65_536


@pytest.mark.both_loops
async def test_drain_waits_until_the_peer_reads() -> None:
    arrived: list[Endpoint] = []
    async with serving(amplify, TIGHT, on_connect=arrived.append) as server, raw_peer(server) as peer:
        await until(lambda: bool(arrived), "accepted")
        endpoint = arrived[0]
        await endpoint.drain()
        sent = 0
        while endpoint.unsent_bytes <= HIGH:
            endpoint.send(Command(0, sent, RESPONSE_FLAG, body=bytes(65_536)))
            sent += 1
            await turns(2)
        waiting = asyncio.get_running_loop().create_task(endpoint.drain())
        await turns(20)
        assert not waiting.done()
        for n in range(sent):
            assert (await peer.next()).opaque == n
        await waiting
        assert endpoint.unsent_bytes <= LOW


async def test_drain_fails_when_the_connection_ends() -> None:
    endpoint, recorder = record(None, unsent_bytes_high=10, unsent_bytes_low=5)
    recorder.stuck = True
    endpoint.send(Command(0, 1, RESPONSE_FLAG, body=bytes(100)))
    await turns(2)
    waiting = asyncio.get_running_loop().create_task(endpoint.drain())
    await turns(2)
    endpoint.abort("gone")
    with pytest.raises(TransportError, match="gone"):
        await waiting


async def test_unsent_bytes_includes_joined_frames_and_the_transport_buffer() -> None:
    endpoint, recorder = record(None)
    frame = encode_frame(Command(0, 1, RESPONSE_FLAG, body=bytes(100)))
    endpoint.send_frame(frame)
    assert endpoint.unsent_bytes == len(frame)
    recorder.stuck = True
    await turns(2)
    endpoint.send_frame(frame)
    assert endpoint.unsent_bytes == 2 * len(frame)
    endpoint.abort("")
    assert endpoint.unsent_bytes == 0


async def test_client_end_keeps_reading_while_its_requests_are_unsent() -> None:
    """Otherwise two ends that both wait for the other to read would deadlock."""
    endpoint, recorder = record(None, listener="", unsent_bytes_high=10, unsent_bytes_low=5)
    recorder.stuck = True
    future = endpoint.request(RequestCode.GET_MAX_OFFSET, body=bytes(100), timeout_ms=1000)
    await turns(2)
    assert recorder.reading
    endpoint.data_received(encode_frame(Command(0, 1, RESPONSE_FLAG)))
    assert future.result().opaque == 1
    endpoint.abort("")


@pytest.mark.both_loops
async def test_two_ends_that_flood_each_other_do_not_deadlock() -> None:
    async with serving(amplify, TIGHT) as server, dialled(server, limits=TIGHT) as endpoint:
        futures = [endpoint.request(RequestCode.GET_MAX_OFFSET, body=bytes(65_536), timeout_ms=60_000) for _ in range(300)]
        responses = await asyncio.gather(*futures)
        assert sum(len(response.body) for response in responses) == 300 * 65_536


async def test_loop_turn_handles_a_limited_number_of_bytes_and_the_rest_in_order() -> None:
    seen: list[int] = []
    endpoint, recorder = record(lambda command, _: seen.append(command.opaque), turn_bytes_max=1000)
    frame_bytes = len(encode_frame(Command(1, 1, body=bytes(80))))
    wire = b"".join(encode_frame(Command(1, n, body=bytes(80))) for n in range(100))
    endpoint.data_received(wire)
    assert len(seen) <= 1000 // frame_bytes
    assert not recorder.reading
    per_turn = []
    while len(seen) < 100:
        before = len(seen)
        await turns(1)
        per_turn.append(len(seen) - before)
    assert max(per_turn) <= 1000 // frame_bytes + 1
    assert seen == list(range(100))
    await turns(2)
    assert recorder.reading
    endpoint.abort("")


@pytest.mark.parametrize("piece_bytes", [7, 100, 1_000, 100_000])
async def test_loop_turn_handles_a_limited_number_of_frames_and_the_rest_in_order(piece_bytes: int) -> None:
    seen: list[int] = []
    endpoint, recorder = record(lambda command, _: seen.append(command.opaque), turn_frames_max=10)
    wire = b"".join(encode_frame(Command(1, n)) for n in range(300))
    pieces = [wire[at : at + piece_bytes] for at in range(0, len(wire), piece_bytes)]
    per_turn = [0]
    while pieces or len(seen) < 300:
        before = len(seen)
        while pieces and recorder.reading:
            endpoint.data_received(pieces.pop(0))
        await turns(1)
        per_turn.append(len(seen) - before)
        assert len(per_turn) < 1_000, "frames are left in the buffer"
    assert max(per_turn) <= 2 * 10, "a share before the turn that was awaited, a share in it"
    assert seen == list(range(300))
    await turns(2)
    assert recorder.reading
    endpoint.abort("")


async def test_turn_stopped_by_unsent_responses_continues_in_order() -> None:
    seen: list[int] = []

    def response(command: Command, endpoint: Endpoint) -> None:
        seen.append(command.opaque)
        endpoint.send(command.reply(body=bytes(100)))

    endpoint, recorder = record(response, turn_frames_max=3, unsent_bytes_high=300, unsent_bytes_low=100, join_bytes=1)
    recorder.stuck = True
    endpoint.data_received(b"".join(encode_frame(Command(1, n)) for n in range(50)))
    for _ in range(200):
        await turns(1)
        recorder.unstick()
        recorder.stuck = True
        if len(seen) == 50:
            break
    assert seen == list(range(50))
    endpoint.abort("")


@pytest.mark.both_loops
async def test_flood_on_one_connection_does_not_starve_another() -> None:
    handled_before_good: list[int] = []
    flood = 40_000

    def count(command: Command, endpoint: Endpoint) -> None:
        if command.is_oneway:
            handled_before_good.append(1)
        else:
            endpoint.send(command.reply(fields={"flooded": len(handled_before_good)}))

    async with serving(count, DEFAULT_LIMITS) as server, dialled(server) as loud, dialled(server) as good:
        for _ in range(flood):
            loud.oneway(RequestCode.GET_MAX_OFFSET, body=bytes(200))
        response = await good.request(RequestCode.GET_MAX_OFFSET, timeout_ms=5000)
        assert response.fields["flooded"] < flood
        await until(lambda: len(handled_before_good) == flood, "the flood")


@pytest.mark.both_loops
async def test_request_waits_for_at_most_three_shares_of_each_other_connection() -> None:
    """The turn in which it is written, the turn in which it is read, and one in between. This counts requests, not time."""
    share, strangers, flood = 20, 3, 6_000
    served, waited = [0], []

    def count(command: Command, endpoint: Endpoint) -> None:
        if command.is_oneway:
            served[0] += 1
        else:
            endpoint.send(command.reply(fields={"served": served[0]}))

    limits = replace(DEFAULT_LIMITS, turn_frames_max=share)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(count, limits))
        good = await stack.enter_async_context(dialled(server))
        for _ in range(strangers):
            loud = await stack.enter_async_context(dialled(server))
            for _ in range(flood):
                loud.oneway(RequestCode.GET_MAX_OFFSET)
        while served[0] < strangers * flood:
            before = served[0]
            response = await good.request(RequestCode.GET_MAX_OFFSET, timeout_ms=60_000)
            waited.append(response.fields["served"] - before)
    assert max(waited) <= 3 * share * strangers
    assert len(waited) > flood // share // 6, "it was asked all the while"


async def test_pause_within_a_burst_keeps_the_order() -> None:
    seen: list[int] = []

    def response(command: Command, endpoint: Endpoint) -> None:
        seen.append(command.opaque)
        endpoint.send(command.reply(body=bytes(100)))

    endpoint, recorder = record(response, unsent_bytes_high=300, unsent_bytes_low=100, join_bytes=1)
    recorder.stuck = True
    wire = b"".join(encode_frame(Command(1, n)) for n in range(20))
    endpoint.data_received(wire[:-5])
    before = len(seen)
    assert before < 20
    endpoint.data_received(wire[-5:])
    await turns(3)
    assert len(seen) == before, "what still comes waits behind the rest"
    while len(seen) < 20:
        recorder.unstick()
        recorder.stuck = True
        before = len(seen)
        await turns(3)
        assert len(seen) > before
    assert seen == list(range(20))
    endpoint.abort("")


async def test_abort_in_a_handler_discards_the_rest_of_the_burst() -> None:
    seen: list[int] = []

    def once(command: Command, endpoint: Endpoint) -> None:
        seen.append(command.opaque)
        endpoint.abort("enough")

    endpoint, _ = record(once)
    endpoint.data_received(encode_frame(Command(1, 1)) + encode_frame(Command(1, 2)))
    await turns(3)
    assert seen == [1]
