"""The shell of the parked keys of one grant: it carries out the effects of their machine, and reports to it what becomes of them.

Each replay waits for one thing at a time: a turn of the loop, a timer or a response. `stop` ends that wait, so nothing refers to the shell
after its grant.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.lanes import Lanes
from lockstep.client.consumer.calls.parking.effects import (
    Effect,
    EndStaleGrant,
    LetPull,
    Log,
    PassOn,
    Pause,
    PullPage,
    RequestLocks,
    Resumed,
    RunSoon,
    SendParkEnd,
    StopPull,
    TakeBack,
    WakeRunner,
)
from lockstep.client.consumer.calls.parking.machine import Conditions, ParkMachine, ReplayPage
from lockstep.client.consumer.calls.parking.replay import Replay
from lockstep.client.consumer.calls.pull_loop import read_page
from lockstep.client.consumer.calls.runner import AbstractQueueWorker
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import KeyResumed
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, StaleEpochError, TransportError, broker_error
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply
from lockstep.protocol.headers.pull import PullHeader
from lockstep.protocol.messages.message import MessageExt
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

PAGE_TIMEOUT_MS = 30_000


class ParkedKeys:
    """The parked keys of one grant of one queue, as its runner needs them.

    It passes the messages of replayed keys to `lanes`. The runner calls `accepted`, `left_out` or `parked` for them.
    """

    def __init__(self, ctx: ConsumerContext, worker: AbstractQueueWorker, grant: Grant, lanes: Lanes) -> None:
        self.machine = ParkMachine(grant.messages)
        self._ctx = ctx
        self._worker = worker
        self._grant = grant
        self._lanes = lanes
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Replay, Callable[[], object]] = {}
        """Replay → what ends the wait for its turn, its timer or its response."""

    # ------------------------------------------------------------------------------------------------------- from the runner

    def start(self, key: ReplayKey) -> None:
        self.machine.start(key)
        self._carry_out()

    def parked(self, key: str) -> None:
        self.machine.parked(key)
        self._carry_out()

    def park_ended(self, message: MessageExt) -> None:
        self.machine.park_ended(message)
        self._carry_out()

    def accepted(self, replay: Replay, batch: Sequence[MessageExt]) -> None:
        self.machine.accepted(replay, batch)
        self._carry_out()

    def left_out(self, replay: Replay, count: int) -> None:
        self.machine.left_out(replay, count)
        self._carry_out()

    def wake(self) -> None:
        if self.machine.replays:
            self.machine.wake()
            self._carry_out()

    def commit_soon(self) -> None:
        self.machine.commit_soon(self._conditions())
        self._carry_out()

    def stop(self) -> None:
        """End the replays, because the grant has ended."""
        self.machine.stop()
        waits, self._waits = self._waits, {}
        for end in waits.values():
            end()

    # --------------------------------------------------------------------------------------------------------------- effects

    def _conditions(self) -> Conditions:
        held = self._worker.ownership.state is OwnershipState.HELD
        return Conditions(held, self._ctx.paused, self._worker.session.link.up)

    def _carry_out(self) -> None:
        machine = self.machine
        while machine.effects:
            effects, machine.effects = machine.effects, []
            for effect in effects:
                self._carry_out_one(effect)

    def _carry_out_one(self, effect: Effect) -> None:
        match effect:
            case RunSoon(replay):
                self._waits[replay] = self._loop.call_soon(self._run, replay).cancel
            case Pause(replay, pause_ms):
                self._waits[replay] = self._loop.call_later(pause_ms / 1000, self._run, replay).cancel
            case PullPage(replay, offset):
                self._request(replay, RequestCode.PULL_MESSAGE, self._pull_header(replay, offset), PAGE_TIMEOUT_MS)
            case SendParkEnd(replay, offset, pulled, awaited):
                header = self._end_header(replay, offset, pulled)
                if awaited:
                    self._request(replay, RequestCode.PARK_END, header)
                else:
                    self._worker.session.link.request(RequestCode.PARK_END, header).add_done_callback(_ignore)
            case PassOn(key, messages):
                self._lanes.put_replayed(key, messages)
                self._grant.run_wake.set()
            case TakeBack(replay):
                self.machine.left_out(replay, self._lanes.take_back(replay.key))
            case StopPull():
                self._grant.pull_stops += 1
            case LetPull():
                self._grant.pull_stops -= 1
                self._grant.pull_wake.set()
            case WakeRunner():
                self._grant.run_wake.set()
            case RequestLocks():
                self._worker.session.trigger()
            case EndStaleGrant():
                self._worker.handle_stale(self._grant, by="PARK_END")
            case Resumed(key, offset):
                self._ctx.report(KeyResumed(self._worker.queue, key, offset))
            case Log(level, event, key, facts):
                getattr(log, level)(event, group=self._ctx.group, queue=str(self._worker.queue), key=key, **facts)

    def _pull_header(self, replay: Replay, offset: int) -> PullHeader:
        config, queue = self._ctx.config, self._worker.queue
        return PullHeader(
            self._ctx.group,
            queue.topic,
            queue.queue_id,
            offset,
            max_msg_nums=config.pull_count,
            max_msg_bytes=config.pull_bytes,
            epoch=self._grant.token,
            key=replay.key,
        )

    def _end_header(self, replay: Replay, offset: int, pulled: int | None) -> ParkEndHeader:
        queue = self._worker.queue
        return ParkEndHeader(self._ctx.group, queue.topic, queue.queue_id, self._grant.token, replay.key, offset, pulled)

    # --------------------------------------------------------------------------------------------------- turns and responses

    def _run(self, replay: Replay) -> None:
        self._waits.pop(replay, None)
        if self._grant.alive:
            self.machine.run(replay, self._conditions())
            self._carry_out()

    def _request(self, replay: Replay, code: RequestCode, header: PullHeader | ParkEndHeader, timeout_ms: int | None = None) -> None:
        """Send a request. Its result is handled in the turn after that in which it is received."""
        try:
            future = self._worker.session.link.request(code, header, timeout_ms=timeout_ms)
        except TransportError as error:
            self.machine.failed(replay, error, self._conditions())
            return
        handle = partial(self._handle, replay, header)
        future.add_done_callback(handle)
        self._waits[replay] = partial(_forget, future, handle)

    def _handle(self, replay: Replay, header: PullHeader | ParkEndHeader, future: "asyncio.Future[Command]") -> None:
        """Pass the result of a replay's request to the machine, unless the grant has ended."""
        self._waits.pop(replay, None)
        error = future.exception()
        if error is not None and not isinstance(error, TransportError | BrokerError):
            self._ctx.fail(error)
        elif self._grant.alive:
            try:
                result = self._result(header, future.result()) if error is None else error
            except RemoteProtocolError as unreadable:
                self._ctx.fail(unreadable)
                return
            match result:
                case ParkEndReply():
                    self.machine.answered(replay, result, self._conditions())
                case TransportError() | BrokerError():
                    self.machine.failed(replay, result, self._conditions())
                case _:
                    self.machine.page_read(replay, result, self._conditions())
            self._carry_out()

    def _result(self, header: PullHeader | ParkEndHeader, response: Command) -> ReplayPage | ParkEndReply | BrokerError | None:
        """Return what a response says; None if a pull was refused, or can't be read."""
        if response.code == ResponseCode.STALE_EPOCH:
            return StaleEpochError(response.remark or "")
        if isinstance(header, ParkEndHeader):
            if response.code != ResponseCode.SUCCESS:
                return broker_error(response.code, response.remark)
            return from_plain(ParkEndReply, response.fields)
        try:
            return read_page(self._worker, response, header.queue_offset)
        except RemoteProtocolError as error:
            log.error("pull.unreadable", queue=str(self._worker.queue), offset=header.queue_offset, error=str(error))
            return None


def _forget(future: "asyncio.Future[Command]", handle: Callable[..., object]) -> None:
    future.remove_done_callback(handle)
    future.cancel()


def _ignore(future: "asyncio.Future[Command]") -> None:
    """Take the error of a request whose result is not needed."""
    if not future.cancelled():
        future.exception()
