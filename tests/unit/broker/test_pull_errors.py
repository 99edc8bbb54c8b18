"""An unexpected error in one pull fails that pull alone, however late it is served, and each pull has exactly one response."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.broker.groups.effects import StalePulls
from lockstep.protocol.codes import ResponseCode
from support.pull_kit import LONG, Broker, turn


def fail_once(owner: object, name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the next call of `owner.name` raise KeyError; later calls succeed."""
    own, calls = getattr(owner, name), list[int]()

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return {}["missing"] if len(calls) == 1 else own(*arguments, **named)

    patch.setattr(owner, name, call)


def wake(broker: Broker) -> None:
    broker.arrive(b"x")


def expire(broker: Broker) -> None:
    broker.host.clock.now_ms += 15_000
    broker.pulls._expire()


def make_stale(broker: Broker) -> None:
    broker.pulls.stale(StalePulls("g", "t", 0))


def stop(broker: Broker) -> None:
    broker.pulls.stop()


@pytest.mark.parametrize("serve", [wake, expire, make_stale, stop])
async def test_failing_held_pull_does_not_affect_others(serve: Callable[[Broker], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    for opaque in (1, 2, 3):
        broker.pull(opaque=opaque, **LONG)
    await turn()
    assert broker.pulls.held_count == 3
    fail_once(broker.topics, "check_readable", monkeypatch)
    serve(broker)
    await turn()
    broker.pulls.stop()
    await turn()
    responses = broker.endpoint.take()
    assert sorted(response.opaque for response in responses) == [1, 2, 3]
    failed = [response for response in responses if response.code == ResponseCode.SYSTEM_ERROR]
    assert [(response.opaque, response.remark) for response in failed] == [(1, "KeyError: 'missing'")]


async def test_failing_pull_of_a_drained_connection_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.endpoint.unsent_bytes = 1 << 30
    broker.endpoint.drained = asyncio.get_running_loop().create_future()
    for opaque in (1, 2):
        broker.pull(opaque=opaque)
    await turn()
    assert not broker.endpoint.take()
    fail_once(broker.topics, "check_readable", monkeypatch)
    broker.endpoint.unsent_bytes = 0
    broker.endpoint.drained.set_result(None)
    await turn()
    responses = broker.endpoint.take()
    assert [(response.opaque, response.code) for response in responses] == [
        (1, ResponseCode.SYSTEM_ERROR),
        (2, ResponseCode.PULL_NOT_FOUND),
    ]


@pytest.mark.parametrize("stage", ["read_cold", "_filter", "_deliver"])
async def test_failing_cold_pull_does_not_affect_others(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.arrive(b"x")
    broker.store.cold = True
    for opaque in (1, 2):
        broker.pull(opaque=opaque)
    fail_once(broker.store if stage == "read_cold" else broker.pulls, stage, monkeypatch)
    await turn()
    await turn()
    codes = {response.opaque: response.code for response in broker.endpoint.take()}
    assert codes == {1: ResponseCode.SYSTEM_ERROR, 2: ResponseCode.SUCCESS}


async def test_pull_that_fails_after_its_response_gets_no_second_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    own = broker.pulls._send

    def send_and_fail(*arguments: Any, **named: Any) -> None:
        own(*arguments, **named)
        raise KeyError("missing")

    monkeypatch.setattr(broker.pulls, "_send", send_and_fail)
    broker.pull()
    await turn()
    assert [response.code for response in broker.endpoint.take()] == [ResponseCode.PULL_NOT_FOUND]
    assert [record.getMessage().split()[0] for record in caplog.records if record.exc_info] == ["request.failed"]
