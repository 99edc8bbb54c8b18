"""Errors in the broker's own callbacks: the affected requests get SYSTEM_ERROR, later ones are served.

The process ends only if it is unknown which changes are written and which responses are sent.
"""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.groups.effect_runner import EffectRunner
from lockstep.broker.groups.effects import CloseConnection, DrainFault
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.store import StoreDiskError
from lockstep.broker.store.log.commit_waiters import CommitWaiters
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.tables.long_poll_table import LongPollTable
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log_limit import EventLimit
from support.broker_fakes import at_once
from support.coordination_kit import Bench, joined, layout
from support.until import until
from support.whole_broker import dialled, frame, kill, running, settings

WAITING: dict[str, Any] = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 9_000}


@pytest.fixture(autouse=True)
def check_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLimit, "allows", lambda *_: True)


def fail_once(owner: type, name: str, monkeypatch: pytest.MonkeyPatch, on_call: int = 1, at_end: bool = False) -> list[int]:
    """Let one call of `owner.name` raise KeyError, at its beginning or its end; return the calls so far."""
    own, calls = getattr(owner, name), list[int]()

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) != on_call:
            return own(*arguments, **named)
        if at_end:
            own(*arguments, **named)
        return {}["missing"]

    monkeypatch.setattr(owner, name, call)
    return calls


def logged_events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events that were logged with a traceback."""
    return [record.getMessage().split()[0] for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("name", "at_end"), [("take_woken", False), ("_compact", False), ("_compact", True), ("_unlink", True)])
async def test_held_pulls_get_a_response_if_waking_them_fails(
    name: str, at_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        requested = [client.pull(**WAITING) for _ in range(3)] + [client.pull(0, 1, **WAITING)]
        pulls = broker.running.pulls
        assert pulls is not None
        await until(lambda: pulls.held_count == 4)
        held = list(pulls._holds)
        with monkeypatch.context() as patch:
            fail_once(LongPollTable, name, patch, at_end=at_end)
            header, data, _ = frame(0, 1)
            await client.done(RequestCode.SEND_RECORDS, header, data)
            responses = [await each for each in requested]
        assert {response.code for response in responses} == {ResponseCode.SYSTEM_ERROR}
        assert {response.remark for response in responses} == {"KeyError: 'missing'"}
        assert logged_events(caplog) == ["pulls.failed"] + ["request.failed"] * len(held)
        assert pulls.held_count == 0
        assert (await client.pull()).code == ResponseCode.SUCCESS
        assert not broker._gate.has_failed


async def test_held_pulls_get_a_response_if_the_table_fails_at_their_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        fail_once(LongPollTable, "take_expired", monkeypatch)
        first = await client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20)
        second = await client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20)
        assert (first.code, second.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.PULL_NOT_FOUND)


async def test_deadlines_are_served_after_their_callback_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(PullProcessor, "_expire", monkeypatch)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        response = await client.pull(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20)
        assert response.code == ResponseCode.PULL_NOT_FOUND


async def test_pulls_of_a_failing_turn_get_a_response_and_the_next_turn_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_once(PullProcessor, "_serve_found", monkeypatch)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        responses = await asyncio.gather(client.pull(), client.pull(0, 1))
        assert [response.code for response in responses] == [ResponseCode.SYSTEM_ERROR] * 2
        assert logged_events(caplog) == ["turn.failed", "request.failed", "request.failed"]
        assert (await client.pull()).code == ResponseCode.PULL_NOT_FOUND
        assert not broker._gate.has_failed


@pytest.mark.parametrize("callback", [(LogWriter, "end_turn"), (CommitWaiters, "close_turn"), (CommitWaiters, "confirm")])
async def test_error_at_the_end_of_a_store_turn_ends_the_process(
    callback: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException] = []
    broker = Broker(settings(tmp_path), Host.real())
    broker.on_fatal = ended.append
    owner, name = callback
    own, failing = getattr(owner, name), list[int]()
    monkeypatch.setattr(owner, name, lambda *arguments: {}["missing"] if failing else own(*arguments))
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        failing.append(1)
        header, data, _ = frame(0, 1)
        with pytest.raises(TransportError, match="closed"):
            await client.send_request(RequestCode.SEND_RECORDS, header, data)
        failing.clear()
    assert [type(error) for error in ended] == [StoreDiskError]
    await kill(broker)


async def test_connection_with_a_failing_callback_is_closed_and_others_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client, dialled(broker) as other:
        await client.create()
        server = broker.running.server
        assert server is not None
        with monkeypatch.context() as patch:
            first = next(iter(server.endpoints.values()))
            patch.setattr(first._flush_turn, "_work", lambda: {}["missing"])
            patch.setattr(Endpoint, "flush", lambda self: setattr(self, "_held", False) or self.flush_soon())
            with pytest.raises(TransportError, match="closed"):
                await asyncio.wait_for(client.pull(), 5)
        assert (await other.pull()).code == ResponseCode.PULL_NOT_FOUND


def test_error_while_building_notices_loses_no_close_and_no_stale_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(layout(queues=4))
    a = joined(bench, "a")
    bench.c.state.pending.drain()
    bench.c.state.pending.close_connection(a.connection, "its session is over")
    fail_once(PendingEffects, "_free_queue_effects", monkeypatch)
    effects = bench.c.state.pending.drain()
    assert [type(each) for each in effects] == [CloseConnection, DrainFault]


async def test_effects_are_executed_after_their_callback_failed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(layout(queues=4))
    closed: list[str] = []

    class Peer:
        peer = "p"
        abort = closed.append

    fail_once(EffectRunner, "_run_steps", monkeypatch)
    EffectRunner(bench.c.state.pending, cast(Any, {7: Peer()}), cast(Any, None), when_confirmed=at_once)
    bench.c.state.pending.close_connection(7, "its session is over")
    await until(lambda: closed == ["its session is over"])
    assert logged_events(caplog) == ["turn.failed"]
