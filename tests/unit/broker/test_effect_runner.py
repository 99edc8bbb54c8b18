"""Effects reach their connections, in slices, and one that fails does not keep the others."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lockstep.broker.groups.effect_runner import FREE_QUEUES_MAX, NOTICES_UNSENT_BYTES_MAX, EffectRunner
from lockstep.broker.groups.effects import CloseConnection, GroupEffect, Notify, PushQueueFree, StalePulls
from lockstep.protocol.bodies import FreeQueue, ListVersion, QueueFreeBody
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import MSGPACK
from support.broker_fakes import at_once


class Endpoint:
    def __init__(self) -> None:
        self.peer = "p"
        self.codec = MSGPACK
        self.unsent_bytes = 0
        self.sent: list[tuple[int, object, bytes]] = []
        self.aborted: str | None = None

    def oneway(self, code: int, fields: object = None, body: bytes = b"") -> None:
        self.sent.append((code, fields, body))

    def abort(self, reason: str) -> None:
        self.aborted = reason


class Pending:
    """Pending effects that a test sets."""

    def __init__(self) -> None:
        self.on_effects: Callable[[], None] | None = None
        self.effects: list[GroupEffect] = []

    def drain(self, count_max: int | None = None, *, notices: bool = True) -> list[GroupEffect]:
        drained, self.effects = self.effects, []
        return drained


async def test_effects_reach_their_connections_and_closed_connections_are_skipped() -> None:
    pending, reported, one, two = Pending(), list[StalePulls](), Endpoint(), Endpoint()
    EffectRunner(pending, {1: one, 2: two}, reported.append, when_confirmed=at_once)  # type: ignore[arg-type, dict-item]
    stale = StalePulls("g", "t", 0)
    free = (FreeQueue("g", "t", 0),)
    pending.effects = [
        Notify("g", (1, 9), ListVersion(3, 4)),
        PushQueueFree(2, free),
        PushQueueFree(9, free),
        CloseConnection(2, "why"),
        CloseConnection(9, "why"),
        stale,
    ]
    assert pending.on_effects is not None
    pending.on_effects()
    assert not one.sent, "in a turn of its own, after the state record"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert one.sent == [(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g", "listTerm": 3, "listCounter": 4}, b"")]
    ((code, _, body),) = two.sent
    assert (code, decode_body(QueueFreeBody, body), two.aborted) == (RequestCode.QUEUE_FREE, QueueFreeBody(free), "why")
    assert reported == [stale]


async def test_effects_wait_for_the_log_in_order_and_nothing_is_drained_while_notices_wait() -> None:
    pending, one, waiting = Pending(), Endpoint(), list[Callable[[], None]]()
    effects = EffectRunner(pending, {1: one}, cast(Any, None), when_confirmed=waiting.append)  # type: ignore[arg-type, dict-item]
    assert pending.on_effects is not None

    async def drained(*added: GroupEffect) -> int:
        """Add effects, and return how many are left after some turns."""
        assert pending.on_effects is not None
        pending.effects += added
        pending.on_effects()
        for _ in range(4):
            await asyncio.sleep(0)
        return len(pending.effects)

    assert await drained(PushQueueFree(1, (FreeQueue("g", "t", 0),))) == 0
    assert await drained(PushQueueFree(1, (FreeQueue("g", "t", 1),)), Notify("g", (1,), ListVersion(3, 4))) == 0
    assert await drained(Notify("g", (1,), ListVersion(3, 5))) == 1
    assert not effects._turn.is_scheduled, "it does not ask again in every turn"
    assert (len(waiting), one.sent) == (2, [])
    waiting.pop(0)()
    assert await drained() == 1
    assert [code for code, _, _ in one.sent] == [RequestCode.QUEUE_FREE]
    waiting.pop(0)()
    assert await drained() == 0
    assert [code for code, _, _ in one.sent[1:]] == [RequestCode.QUEUE_FREE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    waiting.pop(0)()
    await drained()
    assert len(one.sent) == 4


async def test_failing_effect_is_logged_and_the_others_are_executed(caplog: pytest.LogCaptureFixture) -> None:
    pending, reported, one = Pending(), list[StalePulls](), Endpoint()
    EffectRunner(pending, {1: one}, reported.append, when_confirmed=at_once)  # type: ignore[arg-type, dict-item]
    stale = StalePulls("g", "t", 0)
    pending.effects = [Notify("g", (1,), None), stale, CloseConnection(1, "over")]  # type: ignore[arg-type]
    assert pending.on_effects is not None
    pending.on_effects()
    await asyncio.sleep(0)
    assert reported == [stale]
    assert one.aborted == "over"
    assert [record.getMessage().split()[0] for record in caplog.records if record.exc_info] == ["effect.failed"]


async def test_connection_that_never_reads_its_notices_is_closed() -> None:
    pending, deaf, other = Pending(), Endpoint(), Endpoint()
    effects = EffectRunner(pending, {1: deaf, 2: other}, cast(Any, None), when_confirmed=at_once)  # type: ignore[arg-type, dict-item]
    for unsent in (NOTICES_UNSENT_BYTES_MAX, NOTICES_UNSENT_BYTES_MAX + 1):
        deaf.unsent_bytes = unsent
        pending.effects = [Notify("g", (1, 2), ListVersion(3, 4))]
        effects.run_slice()
        effects.run_slice()
    assert (len(deaf.sent), deaf.aborted) == (1, "it reads too slowly: 16777217 bytes are unsent")
    assert (len(other.sent), other.aborted) == (2, None)


async def test_free_queues_beyond_one_frame_are_sent_in_several() -> None:
    pending, one = Pending(), Endpoint()
    effects = EffectRunner(pending, {1: one}, cast(Any, None), when_confirmed=at_once)  # type: ignore[arg-type, dict-item]
    free = tuple(FreeQueue("g", "t", queue_id) for queue_id in range(2 * FREE_QUEUES_MAX + 1))
    pending.effects = [PushQueueFree(1, free)]
    effects.run_slice()
    reported = [decode_body(QueueFreeBody, body).queues for _, _, body in one.sent]
    assert [len(queues) for queues in reported] == [FREE_QUEUES_MAX, FREE_QUEUES_MAX, 1]
    assert sum(reported, ()) == free
