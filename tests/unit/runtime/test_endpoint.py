"""One connection: framing from any split, pairing of responses, one write per turn, a peer that breaks the protocol."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from lockstep.protocol.errors import LocalProtocolError, RequestTimeoutError, TransportError
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.connections.address import format_address
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.limits import DEFAULT_LIMITS
from support.certificates import secured_peers
from support.loops import LoopWatch, turns, until
from support.peers import dialled, raw_peer, serving
from support.recorder import Recorder, record

pytestmark = pytest.mark.both_loops


@pytest.fixture(params=["plain", "tls"], autouse=True)
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    with secured_peers(tmp_path, request.param == "tls"):
        yield


ECHO = RequestCode.GET_MAX_OFFSET
SILENT = RequestCode.GET_MIN_OFFSET


def echo(command: Command, endpoint: Endpoint) -> None:
    """Respond with an echo, except to SILENT."""
    if command.code != SILENT and not command.is_oneway:
        endpoint.send(command.reply(fields=command.fields, body=command.body))


def recorded(**settings: Any) -> tuple[Endpoint, Recorder]:
    return record(echo, **settings)


async def test_response_has_the_fields_and_body_of_its_request() -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        response = await endpoint.request(ECHO, {"queueId": 3}, b"body", timeout_ms=5000)
        assert (response.code, response.fields, response.body) == (ResponseCode.SUCCESS, {"queueId": 3}, b"body")
        assert response.is_response


async def test_both_ends_of_a_connection_can_send_requests() -> None:
    arrived: list[Endpoint] = []
    async with serving(echo, on_connect=arrived.append) as server, dialled(server, echo) as endpoint:
        await endpoint.request(ECHO, timeout_ms=5000)
        assert (await arrived[0].request(ECHO, {"n": 7}, timeout_ms=5000)).fields == {"n": 7}
        assert arrived[0].peer == endpoint.local
        assert endpoint.peer == server.addresses["internal"]
        assert (arrived[0].listener, endpoint.listener) == ("internal", "")


async def test_responses_in_another_order_complete_their_requests() -> None:
    kept: list[Command] = []

    def keep(command: Command, endpoint: Endpoint) -> None:
        kept.append(command)
        if len(kept) == 3:
            for held in reversed(kept):
                endpoint.send(held.reply(fields=held.fields))

    async with serving(keep) as server, dialled(server) as endpoint:
        futures = [endpoint.request(ECHO, {"n": n}, timeout_ms=5000) for n in range(3)]
        assert [(await future).fields["n"] for future in futures] == [0, 1, 2]


async def test_frames_split_anywhere_yield_the_same_requests() -> None:
    wire = b"".join(encode_frame(Command(ECHO, n, fields={"n": n}, body=b"x" * n)) for n in range(5))
    for cut in range(1, len(wire), 7):
        endpoint, transport = recorded()
        endpoint.data_received(wire[:cut])
        endpoint.data_received(wire[cut:])
        whole, reference = recorded()
        whole.data_received(wire)
        assert b"".join(transport.writes) == b"".join(reference.writes)
        endpoint.abort("")
        whole.abort("")


async def test_responses_to_one_burst_are_sent_in_one_write() -> None:
    endpoint, transport = recorded()
    endpoint.data_received(b"".join(encode_frame(Command(ECHO, n)) for n in range(200)))
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_requests_of_one_loop_turn_are_sent_in_one_write() -> None:
    endpoint, transport = recorded()
    futures = [endpoint.request(ECHO, {"n": n}, timeout_ms=5000) for n in range(200)]
    endpoint.oneway(ECHO)
    endpoint.send(Command(0, 1, RESPONSE_FLAG))
    assert transport.writes == []
    await turns(1)
    assert len(transport.writes) == 1
    for future in futures:
        future.cancel()
    endpoint.abort("")


async def test_held_frames_are_sent_by_flush() -> None:
    endpoint, transport = recorded()
    endpoint.hold()
    endpoint.oneway(ECHO)
    endpoint.send(Command(0, 1, RESPONSE_FLAG))
    await turns(2)
    assert transport.writes == []
    endpoint.flush()
    assert len(transport.writes) == 1
    endpoint.oneway(ECHO)
    await turns(1)
    assert len(transport.writes) == 2
    endpoint.abort("")


async def test_flush_soon_includes_frames_of_earlier_callbacks() -> None:
    endpoint, transport = recorded()
    loop = asyncio.get_running_loop()
    for _ in range(2):
        loop.call_soon(endpoint.send, Command(0, 1, RESPONSE_FLAG))
    endpoint.flush_soon()
    await turns(1)
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_more_than_join_bytes_are_written_immediately() -> None:
    endpoint, transport = recorded(join_bytes=1000)
    endpoint.send(Command(0, 1, RESPONSE_FLAG, body=b"x" * 400))
    assert transport.writes == []
    endpoint.send(Command(0, 2, RESPONSE_FLAG, body=b"y" * 600))
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_parts_are_sent_as_one_frame_after_earlier_frames() -> None:
    endpoint, transport = recorded(join_bytes=64)
    first, second = Command(0, 1, RESPONSE_FLAG), Command(0, 2, RESPONSE_FLAG, body=b"abc" * 100)
    endpoint.send(first)
    endpoint.send_parts(replace(second, body=b""), [b"abc" * 50, memoryview(b"abc" * 50)])
    assert b"".join(transport.writes) == encode_frame(first) + encode_frame(second)
    endpoint.abort("")


async def test_oneway_request_has_the_flag_and_the_codec_of_the_connection() -> None:
    endpoint, transport = recorded()
    endpoint.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    await turns(1)
    assert transport.writes[0] == encode_frame(Command(40, 1, ONEWAY_FLAG, fields={"consumerGroup": "g"}, codec=endpoint.codec))
    endpoint.abort("")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "length", id="http"),
        pytest.param(b"\x7f\xff\xff\xff" + bytes(4), "length", id="2 GiB"),
        pytest.param(b"\xff\xff\xff\xff" + bytes(4), "length", id="negative"),
        pytest.param(b"\x00\x00\x00\x10\x77\x00\x00\x05" + bytes(20), "type", id="type byte"),
        pytest.param(b"\x00\x00\x00\x10M\x00\x00\x0b" + b"\xff" * 12, "", id="header"),
    ],
)
async def test_invalid_bytes_close_only_their_connection_and_the_reason_is_logged(
    data: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str] = []
    async with serving(echo, on_close=lambda _, reason: reasons.append(reason)) as server, dialled(server) as good:
        async with raw_peer(server) as peer:
            await peer.send(data)
            assert await peer.ended() == b""
        assert (await good.request(ECHO, timeout_ms=5000)).code == 0
        await until(lambda: bool(reasons), "on_close")
    assert reasons[0].startswith("protocol broken by the peer")
    assert why in reasons[0]
    refused = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message.split()[0] for record in refused] == ["connection.refused"]
    assert "peer=127.0.0.1:" in refused[0].message


async def test_requests_before_invalid_bytes_get_responses() -> None:
    async with serving(echo) as server, raw_peer(server) as peer:
        await peer.send(encode_frame(Command(ECHO, 5)) + b"garbage!garbage!")
        assert (await peer.next()).opaque == 5
        with pytest.raises((EOFError, ConnectionError)):
            await peer.next()


async def test_partial_frame_times_out_and_an_idle_connection_does_not() -> None:
    limits = replace(DEFAULT_LIMITS, partial_frame_ms=80)
    frame = encode_frame(Command(ECHO, 1))
    async with serving(echo, limits) as server, raw_peer(server) as slow, raw_peer(server) as idle, dialled(server) as good:
        await slow.send(frame[:-1])
        assert await slow.ended() == b"", "one byte is missing for longer than the limit"
        await idle.send(frame)
        assert (await idle.next()).opaque == 1, "an idle connection is not a partial frame"
        assert (await good.request(ECHO, timeout_ms=5000)).code == 0


async def test_timeout_error_names_the_request_and_its_late_response_is_dropped() -> None:
    kept: list[Command] = []
    arrived: list[Endpoint] = []
    async with (
        serving(lambda command, _: kept.append(command), on_connect=arrived.append) as server,
        dialled(server) as endpoint,
    ):
        with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:\d+: no response to GET_MIN_OFFSET \(31\) within 20 ms"):
            await endpoint.request(SILENT, timeout_ms=20)
        arrived[0].send(kept[0].reply())
        future = endpoint.request(SILENT, timeout_ms=5000)
        await until(lambda: len(kept) == 2, "second request")
        arrived[0].send(kept[1].reply(fields={"second": 1}))
        assert (await future).fields == {"second": 1}


async def test_completed_requests_are_not_kept_until_their_timeout() -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        for _ in range(50):
            await asyncio.gather(*(endpoint.request(ECHO, timeout_ms=3_600_000) for _ in range(20)))
        assert len(endpoint._pending._heap) <= 64 + 2 * 20


async def test_close_fails_pending_requests_with_peer_and_reason() -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        future = endpoint.request(SILENT, timeout_ms=5000)
        endpoint.close("no longer needed")
        with pytest.raises(TransportError, match=rf"{endpoint.peer}: connection closed: no longer needed"):
            await future
        with pytest.raises(TransportError, match="no longer needed"):
            await endpoint.request(ECHO, timeout_ms=5000)
        endpoint.oneway(ECHO)
        endpoint.send(Command(0))


async def test_lost_connection_fails_pending_requests_and_is_reported_once() -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        reported: list[str] = []
        endpoint.on_close.append(lambda _, reason: reported.append(reason))
        future = endpoint.request(SILENT, timeout_ms=5000)
        await until(lambda: bool(server.endpoints), "accepted")
        for end in list(server.endpoints.values()):
            end.abort("server says so")
        with pytest.raises(TransportError, match=endpoint.peer):
            await future
        await endpoint.wait_closed()
        assert len(reported) == 1


async def test_close_sends_accepted_frames_first() -> None:
    seen: list[bytes] = []
    async with serving(lambda command, _: seen.append(bytes(command.body))) as server, dialled(server) as endpoint:
        endpoint.oneway(ECHO, body=b"a" * 300_000)
        endpoint.oneway(ECHO, body=b"b" * 300_000)
        endpoint.close("done")
        await until(lambda: len(seen) == 2, "both frames")
        assert seen == [b"a" * 300_000, b"b" * 300_000]


async def test_close_wait_for_a_peer_that_does_not_read_is_limited() -> None:
    async with serving(echo, replace(DEFAULT_LIMITS, linger_ms=50)) as server, raw_peer(server):
        await until(lambda: bool(server.endpoints), "accepted")
        endpoint = next(iter(server.endpoints.values()))
        for _ in range(4):
            endpoint.send(Command(0, 1, RESPONSE_FLAG, body=bytes(4_000_000)))
        endpoint.close("done")
        await endpoint.wait_closed()


async def test_too_large_request_is_rejected_before_anything_is_sent() -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        with pytest.raises(LocalProtocolError):
            endpoint.request(ECHO, body=bytes(17 * 1024 * 1024), timeout_ms=5000)
        assert len(endpoint._pending) == 0
        assert (await endpoint.request(ECHO, timeout_ms=5000)).code == 0


async def test_response_to_a_cancelled_request_is_dropped(loop_watch: LoopWatch) -> None:
    async with serving(echo) as server, dialled(server) as endpoint:
        endpoint.request(ECHO, timeout_ms=5000).cancel()
        assert (await endpoint.request(ECHO, {"n": 1}, timeout_ms=5000)).fields == {"n": 1}
    assert loop_watch.errors == []


async def test_ipv6_addresses_are_formatted_with_brackets() -> None:
    assert format_address(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert format_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert format_address(None) == "unknown"


async def test_failing_close_callback_does_not_prevent_the_others(caplog: pytest.LogCaptureFixture) -> None:
    endpoint, _ = record(None)
    reported: list[str] = []
    endpoint.on_close.append(lambda *_: {}["missing"])
    endpoint.on_close.append(lambda _, reason: reported.append(reason))
    endpoint.abort("over")
    await until(lambda: bool(reported), "on_close")
    assert reported == ["over"]
    assert [each.getMessage().split()[0] for each in caplog.records if each.exc_info] == ["close.failed"]
