"""Timeouts of an endpoint: requests, slow frames, silence, and a suspended process."""

import asyncio

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import RESPONSE_FLAG, Command
from lockstep.protocol.errors import RequestTimeoutError, TransportError
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.connections.endpoint import Endpoint
from support.loops import FrozenLoop, turns
from support.recorder import Recorder, record

pytestmark = pytest.mark.frozen_clock

FRAME = encode_frame(Command(RequestCode.GET_MAX_OFFSET, 1, body=bytes(100)))
MS = 0.001


def ignore(command: Command, endpoint: Endpoint) -> None: ...


def response_to(opaque: int) -> bytes:
    return encode_frame(Command(0, opaque, RESPONSE_FLAG))


async def test_request_times_out_at_its_timeout_and_not_earlier(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None)
    future = endpoint.request(RequestCode.GET_MIN_OFFSET, timeout_ms=3000)
    await frozen.advance(2.998)
    assert not future.done()
    await frozen.advance(2 * MS)
    with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:1000: no response to GET_MIN_OFFSET \(31\) within 3000 ms"):
        future.result()
    endpoint.abort("")


async def test_each_request_has_its_own_timeout(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None)
    futures = {ms: endpoint.request(999, timeout_ms=ms) for ms in (900, 300, 600)}
    for at in (300, 600, 900):
        await frozen.advance(0.3)
        assert [ms for ms, future in futures.items() if future.done()] == [ms for ms in futures if ms <= at]
    assert all(isinstance(future.exception(), RequestTimeoutError) for future in futures.values())
    endpoint.abort("")


async def test_all_requests_share_one_timer(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None, listener="")
    futures = [endpoint.request(1, timeout_ms=3000 + n) for n in range(500)]
    assert len([handle for handle in frozen._scheduled if not handle.cancelled()]) == 1  # type: ignore[attr-defined]
    endpoint.abort("")
    assert all(isinstance(future.exception(), TransportError) for future in futures)


async def test_completed_request_never_times_out(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None)
    first = endpoint.request(1, timeout_ms=1000)
    second = endpoint.request(1, timeout_ms=2000)
    endpoint.data_received(response_to(1))
    await frozen.advance(1.5)
    assert first.result().opaque == 1
    assert not second.done()
    await frozen.advance(0.5)
    assert isinstance(second.exception(), RequestTimeoutError)
    endpoint.abort("")


async def test_timer_is_not_set_for_completed_requests(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None, listener="")
    silent = endpoint.request(1, timeout_ms=1000)
    endpoint.request(1, timeout_ms=2000)
    endpoint.data_received(response_to(2))
    await frozen.advance(1)
    assert isinstance(silent.exception(), RequestTimeoutError)
    assert [handle for handle in frozen._scheduled if not handle.cancelled()] == []  # type: ignore[attr-defined]
    endpoint.abort("")


async def test_pending_requests_are_bounded() -> None:
    endpoint, _ = record(None, requests_max=2)
    futures = [endpoint.request(1, timeout_ms=5000) for _ in range(2)]
    with pytest.raises(TransportError, match="2 requests are pending"):
        await endpoint.request(1, timeout_ms=5000)
    endpoint.abort("")
    assert all(isinstance(future.exception(), TransportError) for future in futures)


async def test_responses_are_read_before_timeouts_expire_after_a_suspension(frozen: FrozenLoop) -> None:
    endpoint, _ = record(None, late_ms=100)
    responded = endpoint.request(1, timeout_ms=3000)
    silent = endpoint.request(1, timeout_ms=3000)
    await turns(2)
    frozen.stall(60)
    await turns(4)
    assert not responded.done(), "the timer rang 57 s late: what came meanwhile has not been read"
    endpoint.data_received(response_to(1))
    await frozen.advance(0.1)
    assert responded.result().opaque == 1
    assert isinstance(silent.exception(), RequestTimeoutError)
    endpoint.abort("")


async def test_incomplete_frame_closes_the_connection_at_its_time_limit(frozen: FrozenLoop) -> None:
    endpoint, recorder = record(ignore)
    endpoint.data_received(FRAME[:-1])
    await frozen.advance(29.998)
    assert not endpoint.closed
    await frozen.advance(2 * MS)
    assert recorder.ended == "closed"
    assert f"{len(FRAME) - 1} bytes of a frame arrived, the rest did not within 30000 ms" in endpoint.reason


async def test_arriving_bytes_do_not_extend_the_time_limit_of_a_frame(frozen: FrozenLoop) -> None:
    endpoint, _ = record(ignore)
    for at in range(len(FRAME) - 1):
        endpoint.data_received(FRAME[at : at + 1])
        await frozen.advance(1)
        assert endpoint.closed == (at >= 29)


async def test_each_frame_has_its_own_time_limit(frozen: FrozenLoop) -> None:
    endpoint, _ = record(ignore)
    endpoint.data_received(FRAME[:50])
    for _ in range(10):
        await frozen.advance(20)
        endpoint.data_received(FRAME[50:] + FRAME[:50])
    assert not endpoint.closed, "there always was a part of a frame, but never the same one for 30 s"
    await frozen.advance(29.998)
    assert not endpoint.closed
    await frozen.advance(2 * MS)
    assert endpoint.closed


async def test_complete_frame_has_no_time_limit(frozen: FrozenLoop) -> None:
    endpoint, _ = record(ignore, idle_ms=0)
    endpoint.data_received(FRAME[:-1])
    endpoint.data_received(FRAME[-1:])
    await frozen.advance(3600)
    assert not endpoint.closed
    endpoint.abort("")


async def test_time_limit_of_a_frame_is_suspended_while_reading_is_paused(frozen: FrozenLoop) -> None:
    def response(command: Command, endpoint: Endpoint) -> None:
        endpoint.send(command.reply(body=bytes(1000)))

    endpoint, recorder = record(response, unsent_bytes_high=500, unsent_bytes_low=100, partial_frame_ms=30_000, idle_ms=0)
    recorder.stuck = True
    endpoint.data_received(FRAME + FRAME[:50])
    assert not recorder.reading
    await frozen.advance(600)
    assert not endpoint.closed, "the peer may have sent the rest long ago"
    recorder.unstick()
    await frozen.advance(29)
    assert not endpoint.closed
    await frozen.advance(31)
    assert endpoint.closed


async def test_server_end_closes_a_silent_connection(frozen: FrozenLoop) -> None:
    endpoint, recorder = record(ignore, idle_ms=120_000)
    await frozen.advance(100)
    endpoint.data_received(FRAME)
    await frozen.advance(119.998)
    assert not endpoint.closed
    await frozen.advance(2 * MS)
    assert (recorder.ended, endpoint.reason) == ("closed", "nothing received for 120000 ms")


async def test_peer_that_reads_no_responses_is_closed_as_silent(frozen: FrozenLoop) -> None:
    def response(command: Command, endpoint: Endpoint) -> None:
        endpoint.send(command.reply(body=bytes(1000)))

    endpoint, recorder = record(response, unsent_bytes_high=500, unsent_bytes_low=100, idle_ms=120_000)
    recorder.stuck = True
    endpoint.data_received(FRAME)
    assert not recorder.reading
    await frozen.advance(119)
    recorder.unstick()
    await frozen.advance(119.998)
    assert not endpoint.closed, "it read its response less than 120 s ago"
    await frozen.advance(2 * MS)
    assert endpoint.closed


async def test_client_end_does_not_close_a_silent_connection(frozen: FrozenLoop) -> None:
    endpoint, _ = record(ignore, listener="")
    await frozen.advance(3600)
    assert not endpoint.closed
    endpoint.abort("")


async def test_close_waits_a_limited_time_for_unsent_bytes(frozen: FrozenLoop) -> None:
    endpoint, recorder = record(None, linger_ms=5000)
    endpoint.send(Command(0, 1, RESPONSE_FLAG))
    endpoint.close("done")
    assert len(recorder.writes) == 1
    await frozen.advance(4.999)
    assert recorder.ended == "closed"
    await frozen.advance(1 * MS)
    assert recorder.ended == "aborted"


async def test_closed_endpoint_leaves_no_timer_on_the_loop(frozen: FrozenLoop) -> None:
    endpoint, recorder = record(ignore)
    waiting = endpoint.request(1, timeout_ms=3000)
    endpoint.data_received(FRAME[:5])
    endpoint.close("done")
    endpoint.connection_lost(None)
    assert [handle for handle in frozen._scheduled if not handle.cancelled()] == []  # type: ignore[attr-defined]
    assert isinstance(waiting.exception(), TransportError)
    assert isinstance(recorder, Recorder)
    await asyncio.wait_for(endpoint.wait_closed(), None)
