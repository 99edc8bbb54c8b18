"""The shell of parked keys: requests whose grant ends meanwhile, connections that are lost, and what is left of it after its grant."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.lanes import Lanes
from lockstep.client.consumer.calls.parking.replay import ReplayStage
from lockstep.client.consumer.calls.parking.shell import ParkedKeys
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.events import KeyResumed
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.headers.pull import PullReply
from lockstep.protocol.topics.queue import MessageQueue

PULLED = 40


class FakeLink:
    """A link whose requests are answered by the test."""

    def __init__(self) -> None:
        self.up = True
        self.sent: list[tuple[int, Any]] = []
        self.pending: asyncio.Future[Command] | None = None

    def request(self, code: int, header: Any, *, timeout_ms: int | None = None) -> "asyncio.Future[Command]":
        self.sent.append((code, header))
        if not self.up:
            raise TransportError("not connected")
        self.pending = asyncio.get_running_loop().create_future()
        return self.pending

    def respond(self, reply: object = None, code: int = ResponseCode.SUCCESS) -> None:
        """Answer the request that was sent last."""
        future, self.pending = self.pending, None
        assert future is not None
        if not future.done():
            future.set_result(Command(code, 1, fields={} if reply is None else to_plain(reply)))

    def take(self) -> list[int]:
        """Return the codes of the requests since the last call."""
        sent, self.sent = self.sent, []
        return [code for code, _ in sent]


class Bench:
    """The parked keys of one grant, over fakes."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.events: list[object] = []
        self.failures: list[BaseException] = []
        self.stale: list[str] = []
        self.lock_requests = 0
        self.grant = Grant(17, None, ProcessQueue(PULLED, 0, FlowLimits(1_000, 1 << 30, 10_000)))
        config = ConsumerConfig()
        self.ctx: Any = SimpleNamespace(
            group="billing", config=config, paused=False, filters={}, report=self.events.append, fail=self.failures.append
        )
        session = SimpleNamespace(link=self.link, trigger=self._trigger)
        ownership = SimpleNamespace(state=OwnershipState.HELD)
        self.queue: Any = SimpleNamespace(
            ctx=self.ctx, queue=MessageQueue("orders", "broker-a", 0), session=session, ownership=ownership, handle_stale=self._handle_stale
        )
        self.keys = ParkedKeys(self.ctx, self.queue, self.grant, Lanes(0, 0, unkeyed_together=True))

    def _trigger(self) -> None:
        self.lock_requests += 1

    def _handle_stale(self, grant: Grant, *, by: str) -> None:
        self.stale.append(by)
        grant.alive = False

    async def at(self, stage: ReplayStage) -> "Bench":
        """Begin a replay, or for ENDING a drop, and bring it to a stage."""
        self.keys.start(ReplayKey("k", 10, drop=stage is ReplayStage.ENDING))
        if stage is not ReplayStage.WAITING:
            await turn()
        if stage is ReplayStage.PAUSING:
            self.link.respond(code=ResponseCode.SYSTEM_BUSY)
            await turn()
        assert [replay.stage for replay in self.keys.machine.replays.values()] == [stage]
        self.link.take()
        return self


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_requests_of_a_replay_and_what_is_reported() -> None:
    bench = Bench()
    bench.keys.start(ReplayKey("k", 10))
    await turn()
    ((code, header),) = bench.link.sent
    assert (code, header.queue_offset, header.key, header.epoch) == (RequestCode.PULL_MESSAGE, 10, "k", 17)
    bench.link.take()
    bench.link.respond(PullReply(PULLED, 0, PULLED), ResponseCode.PULL_NOT_FOUND)
    await turn()
    ((code, header),) = bench.link.sent
    assert (code, header.key, header.next, header.pulled, header.epoch) == (RequestCode.PARK_END, "k", PULLED, PULLED, 17)
    bench.grant.run_wake.clear()
    bench.link.respond(ParkEndReply(upto=PULLED))
    await turn()
    assert bench.events == [KeyResumed(bench.queue.queue, "k", PULLED)]
    assert (bench.lock_requests, bench.grant.run_wake.is_set(), bench.keys.machine.replays) == (1, True, {})


ANSWERS = {
    ReplayStage.PULLING: (PullReply(PULLED, 0, PULLED), ResponseCode.PULL_NOT_FOUND),
    ReplayStage.ENDING: (ParkEndReply(upto=PULLED), ResponseCode.SUCCESS),
}


@pytest.mark.parametrize("stage", [ReplayStage.WAITING, ReplayStage.PULLING, ReplayStage.ENDING])
@pytest.mark.parametrize("stopped", [False, True])
async def test_what_comes_after_the_end_of_the_grant_changes_nothing(stage: ReplayStage, stopped: bool) -> None:
    """The runner stops the replays in the turn after the end of the grant: a response may come before and after that."""
    bench = await Bench().at(stage)
    bench.grant.alive = False
    if stopped:
        bench.keys.stop()
    if stage in ANSWERS:
        bench.link.respond(*ANSWERS[stage])
    await turn()
    assert (bench.link.take(), bench.events, bench.failures, bench.lock_requests) == ([], [], [], 0)


@pytest.mark.parametrize("stage", [ReplayStage.WAITING, ReplayStage.PAUSING, ReplayStage.PULLING, ReplayStage.ENDING])
async def test_nothing_refers_to_a_shell_that_was_stopped(stage: ReplayStage) -> None:
    """Without the garbage collector: a timer, a turn of the loop or a request that has no response would keep it."""
    bench = await Bench().at(stage)
    link, pending = bench.link, bench.link.pending
    bench.keys.stop()
    keys = weakref.ref(bench.keys)
    del bench.keys
    await turn()
    assert keys() is None
    assert pending is None or pending.cancelled(), "its error is not reported as unhandled"
    assert link.take() == []


async def test_nothing_refers_to_a_shell_whose_replays_have_ended() -> None:
    bench = await Bench().at(ReplayStage.ENDING)
    bench.link.respond(ParkEndReply(upto=PULLED))
    await turn()
    keys = weakref.ref(bench.keys)
    del bench.keys
    await turn()
    assert keys() is None


@pytest.mark.parametrize("stage", [ReplayStage.PULLING, ReplayStage.ENDING])
async def test_stale_epoch_ends_the_grant(stage: ReplayStage) -> None:
    bench = await Bench().at(stage)
    bench.link.respond(code=ResponseCode.STALE_EPOCH)
    await turn()
    assert (bench.stale, bench.link.take()) == (["PARK_END"], [])


@pytest.mark.parametrize("stage", [ReplayStage.PULLING, ReplayStage.ENDING])
async def test_lost_connection_pauses_the_replay(stage: ReplayStage) -> None:
    bench = await Bench().at(stage)
    pending = bench.link.pending
    assert pending is not None
    pending.set_exception(TransportError("lost"))
    await turn()
    expected = ReplayStage.PAUSING if stage is ReplayStage.PULLING else ReplayStage.ENDING
    assert [replay.stage for replay in bench.keys.machine.replays.values()] == [expected]
    bench.keys.stop()


async def test_request_on_a_link_that_is_down_counts_as_lost() -> None:
    bench = await Bench().at(ReplayStage.PULLING)
    bench.link.respond(PullReply(PULLED, 0, PULLED), ResponseCode.PULL_NOT_FOUND)
    bench.link.up = False
    await turn()
    assert bench.link.take() == [RequestCode.PARK_END], "the end is repeated whether or not the broker is connected"
    assert not bench.keys.machine.may_take
    bench.keys.stop()


async def test_response_that_can_not_be_read_stops_the_consumer() -> None:
    bench = await Bench().at(ReplayStage.ENDING)
    pending = bench.link.pending
    assert pending is not None
    pending.set_result(Command(ResponseCode.SUCCESS, 1, fields={"upto": "x"}))
    await turn()
    assert [type(error) for error in bench.failures] == [RemoteProtocolError]
    bench.keys.stop()


async def test_progress_is_committed_before_a_release_and_its_response_is_not_awaited() -> None:
    bench = await Bench().at(ReplayStage.WAITING)
    (replay,) = bench.keys.machine.replays.values()
    replay.next = 13
    bench.keys.commit_soon()
    assert bench.link.take() == [RequestCode.PARK_END]
    bench.keys.stop()
    pending = bench.link.pending
    assert pending is not None
    pending.set_exception(TransportError("lost"))
    del pending
    bench.link.pending = None
    await turn()
