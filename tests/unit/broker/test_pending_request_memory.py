"""A pending request keeps only the fields that its handler declares, regardless of its frame. Counted in bytes of objects."""

import asyncio
import sys
from typing import Any, cast

import pytest

from lockstep.broker.tables import long_poll_table
from lockstep.broker.tables.long_poll_table import LONG_EXPRESSION_CHARS
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.runtime.limits import REQUEST_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.needs import ANY_USER
from lockstep.runtime.requests.request import HandlerResult, Request, RunInLane
from support.broker_fakes import FakeEndpoint
from support.pull_kit import LONG, Broker, turn

PULL = PullHeader("g", "t", 0, 0, max_msg_nums=32, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=15_000)
UNKNOWN = {"unknown": "x" * (REQUEST_HEADER_BYTES_MAX - 500)}


def received(code: RequestCode, fields: dict[str, Any], body: bytes = b"", remark: str | None = None) -> Command:
    """Return the command as it comes out of a connection's buffer."""
    buffer = FrameBuffer()
    buffer.feed(encode_frame(Command(code, 1, fields=fields, body=body, remark=remark)))
    command = buffer.next()
    assert command is not None
    return command


def bytes_of(*things: object) -> int:
    """Return the bytes of all reachable str and bytes objects, each counted once, without endpoints and code."""
    seen: dict[int, None] = {}
    total, todo = 0, list(things)
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, FakeEndpoint | type):
            continue
        seen[id(each)] = None
        if isinstance(each, str | bytes):
            total += sys.getsizeof(each)
        elif isinstance(each, dict):
            todo += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            todo += each
        else:
            slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
            todo += [getattr(each, name) for name in slots if hasattr(each, name)] + list(getattr(each, "__dict__", {}).values())
    return total


LARGEST = {
    "a body": {"body": bytes(REQUEST_BYTES_MAX)},
    "an unknown field": {"fields": {**to_plain(PULL), **UNKNOWN}},
    "a remark": {"remark": "x" * (REQUEST_HEADER_BYTES_MAX - 500)},
}


@pytest.mark.parametrize("what", LARGEST)
@pytest.mark.parametrize("where", ["held", "cold", "blocked"])
async def test_waiting_pull_keeps_no_more_memory_than_a_normal_one(what: str, where: str) -> None:
    async def kept(**frame: Any) -> int:
        broker = Broker()
        if where != "held":
            broker.store.append("t", 0, [b"x"])
        if where == "cold":
            broker.store.cold = True
            broker.pulls._cold.reader_count = 1 << 30  # no reader is free
        if where == "blocked":
            broker.endpoint.unsent_bytes = 1 << 30
            broker.endpoint.drained = asyncio.get_running_loop().create_future()
        command = received(RequestCode.PULL_MESSAGE, **{"fields": to_plain(PULL), **frame})
        broker.dispatcher(command, cast(Any, broker.endpoint))
        del command
        await turn()
        pulls = broker.pulls
        waiting = {
            "held": [each.item for each in pulls._holds],
            "cold": [each for queue in pulls._cold.waiting.values() for each in queue],
            "blocked": [each for found in pulls._blocked.values() for each in found],
        }[where]
        assert len(waiting) == 1
        await broker.tasks.cancel_all()
        return bytes_of(waiting)

    assert await kept(**LARGEST[what]) == await kept() < 1_000


async def test_header_above_the_limit_of_its_request_is_rejected() -> None:
    broker = Broker()
    fields = {**to_plain(PULL), "unknown": "x" * 200_000}
    broker.dispatcher(received(RequestCode.PULL_MESSAGE, fields), cast(Any, broker.endpoint))
    await turn()
    (response,) = broker.endpoint.take()
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert "PULL_MESSAGE (11) has a header of 200" in (response.remark or "")
    assert "at most 36864" in (response.remark or "")
    assert broker.pulls.held_count == 0


async def test_expressions_of_held_pulls_are_limited_and_the_oldest_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_poll_table, "HELD_EXPRESSION_BYTES_MAX", 3 * 8_000)
    broker = Broker()
    for number in range(10):
        broker.pull(opaque=100 + number, subscription="a" * LONG_EXPRESSION_CHARS, **LONG)
        broker.pull(opaque=number, subscription=str(number) * 8_000, **LONG)
        await turn()
    assert [response.opaque for response in broker.endpoint.take()] == list(range(7))
    assert broker.pulls.held_count == 13
    broker.arrive(b"x", tag="a")
    await turn()
    broker.pulls.stop()
    assert broker.pulls._holds._long_bytes == 0


class Backs:
    """Send-backs that wait in their lane after one that never ends."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader, needs=ANY_USER, lane="back")
    async def send_back(self, request: Request) -> HandlerResult:
        await self.gate
        return request.reply()

    @handles(RequestCode.LOCK_BATCH_MQ, None, bytes, needs=ANY_USER)
    def lock(self, request: Request) -> HandlerResult:
        return RunInLane("back", lambda: self.send_back(request))


async def test_request_waiting_in_a_lane_keeps_only_declared_fields() -> None:
    fields = to_plain(SendBackHeader(7, "g", 3))

    async def kept(fields: dict[str, Any], body: bytes) -> int:
        endpoint = FakeEndpoint()
        dispatcher = Dispatcher([Backs()], lanes={"back": LaneLimits(1, 100)})
        for _ in range(2):
            dispatcher(received(RequestCode.CONSUMER_SEND_MSG_BACK, fields, body), cast(Any, endpoint))
        (waiting,) = dispatcher._lanes["back"].waiting
        await dispatcher.close()
        return bytes_of(waiting[0])

    assert await kept({**fields, **UNKNOWN}, bytes(REQUEST_BYTES_MAX)) == await kept(fields, b"") < 1_000


async def test_bytes_waiting_in_a_lane_are_limited() -> None:
    endpoint = FakeEndpoint()
    processor = Backs()
    dispatcher = Dispatcher([processor], lanes={"back": LaneLimits(1, 100, bytes_max=25_000)})
    for _ in range(5):
        dispatcher(received(RequestCode.LOCK_BATCH_MQ, {}, encode_body(SendBackHeader(7, "g" * 10_000, 3))), cast(Any, endpoint))
    refused = endpoint.take()
    assert [response.code for response in refused] == [ResponseCode.SYSTEM_BUSY] * 2
    assert "lane 'back' is full: requests of 20" in (refused[0].remark or "")
    processor.gate.set_result(None)
    await turn()
    assert [response.code for response in endpoint.take()] == [ResponseCode.SUCCESS] * 3
    assert dispatcher._lanes["back"].waiting_bytes == 0
    await dispatcher.close()
