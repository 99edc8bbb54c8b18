"""Calling a concurrent listener: up to `concurrency` calls at a time over all queues. RocketMQ: ConsumeMessageConcurrentlyService.

    taken ─▶ called ─▶ done ──────────────────────────────▶ finished: progress goes to the smallest unfinished offset
                  └──▶ failed ─▶ sent back to the broker ─▶ finished: it comes again from %RETRY%group, or goes to %DLQ%group
                                 └─ that failed ─▶ called again here after 5 s

So progress moves on whether or not the listener succeeded, and never over a message that is neither done nor stored again. A call that runs
longer than `consume_timeout_ms` has its messages sent back; its result counts no more. There is no task or timer per message.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lockstep.client.consumer.events import MessageDeadLettered
from lockstep.client.consumer.listener import ConcurrentlyContext, ConsumeConcurrentlyStatus, read_concurrent_result
from lockstep.client.consumer.listener_call import call, ends_the_consumer
from lockstep.client.consumer.ownership import State
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.delays import FIRST_RETRY_LEVEL, failed_times
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.message import MessageExt
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.consumer.queue_worker import Consumption, Grant, QueueWorker

log = get_logger("client.consumer")

AGAIN_MS = 5_000
"""What can't be sent back is called again here after this. RocketMQ: submitConsumeRequestLater."""
SEND_BACK_TIMEOUT_MS = 5_000
"""RocketMQ: consumerSendMessageBack's timeout."""
OFFSETS_TOLD = 10
"""Of the messages that are dropped at once."""
SLICE_MS = 5
"""After so long without letting the loop go on, the calls do."""
SWEEPS = 4
"""Looks for calls that run too long, in each `consume_timeout_ms`."""


_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@dataclass(slots=True, eq=False)
class Running:
    """A call of the listener."""

    worker: "QueueWorker"
    holding: "Grant"
    batch: list[MessageExt]
    context: ConcurrentlyContext
    started_ms: int
    expired: bool = False
    """It ran too long: its messages are sent back, or being sent."""
    ended: bool = False
    """The listener is through; what it failed may be on its way back."""


class ConcurrentModel:
    """The calls of one consumer. `look` when a holding may have something to call for."""

    def __init__(self, use: "Consumption") -> None:
        self._use = use
        self._boot_ms = use.host.clock.boot_ms
        self._ready: OrderedDict[Grant, QueueWorker] = OrderedDict()
        """Holdings with waiting messages, the next one first."""
        self._running: dict[Running, None] = {}
        self._slice_end_ms = 0
        self.tasks: dict[asyncio.Task[None], None] = {}

    def running(self, worker: "QueueWorker") -> list[Running]:
        """The calls that work on a queue."""
        return [each for each in self._running if each.worker is worker]

    def look(self, worker: "QueueWorker", holding: "Grant") -> None:
        """Messages may wait here."""
        if self._callable(worker, holding):
            self._ready.setdefault(holding, worker)
            self._hire()

    def _callable(self, worker: "QueueWorker", holding: "Grant") -> bool:
        waits = bool(holding.again) or holding.messages.waiting > 0
        return waits and holding.alive and worker.own.state is State.HELD and not self._use.paused

    def _hire(self) -> None:
        if self._ready and len(self.tasks) < self._use.config.concurrency:
            task = self._use.runs.spawn(self._work(), f"{self._use.group} call")
            self.tasks[task] = None
            task.add_done_callback(lambda done: self.tasks.pop(done, None))

    async def _work(self) -> None:
        """One call after the other while something waits."""
        while (running := self._next()) is not None:
            self._hire()
            await self._run(running)
            now_ms = self._boot_ms()
            if now_ms >= self._slice_end_ms:
                await asyncio.sleep(0)
                self._slice_end_ms = max(self._slice_end_ms, self._boot_ms() + SLICE_MS)

    def _next(self) -> Running | None:
        """The next batch, of one queue after the other."""
        while self._ready:
            holding, worker = self._ready.popitem(last=False)
            if not self._callable(worker, holding):
                continue
            batch = holding.again.popleft() if holding.again else holding.messages.take(self._use.config.batch_count)
            if holding.again or holding.messages.waiting:
                self._ready[holding] = worker
            context = ConcurrentlyContext(worker.queue, len(batch), partial(_is_gone, holding))
            return Running(worker, holding, batch, context, self._boot_ms())
        return None

    # --------------------------------------------------------------------------------------------------------------- one call

    async def _run(self, running: Running) -> None:
        worker, own = running.worker, running.worker.own
        self._running[running] = None
        if not own.running:
            own.call_started()
            worker.call_started_ms = running.started_ms
        try:
            result, error = await call(self._use, worker.queue, running.batch, running.context)
            running.ended = True
            self._watch(running)
            whole = running.context.ack_index == len(running.batch) - 1
            if result is _SUCCESS and whole and running.holding.alive and not running.expired:
                self._finish(running, running.batch)
            else:
                await self._judge(running, result, error)
            if error is not None and ends_the_consumer(error):
                self._use.failed(error)
        finally:
            del self._running[running]
            self._ended(running)

    def _watch(self, running: Running) -> None:
        if self._use.in_loop:
            self._use.watch.call_ended(running.started_ms, self._boot_ms())

    async def _judge(self, running: Running, result: object, error: BaseException | None) -> None:
        """What the call's result means for its messages."""
        worker, holding, batch, context = running.worker, running.holding, running.batch, running.context
        if not holding.alive or running.expired:
            facts = {"queue": str(worker.queue), "offset": batch[0].queue_offset, "expired": running.expired}
            log.warning("result.was_stale", listener=self._use.listener_name, **facts)
            return
        status, wrong = (ConsumeConcurrentlyStatus.RECONSUME_LATER, None) if error is not None else read_concurrent_result(result)
        if error is not None or wrong is not None:
            why = f"{type(error).__name__}: {error}" if error is not None else wrong
            facts = {"queue": str(worker.queue), "offset": batch[0].queue_offset, "count": len(batch), "error": why}
            log.warning("call.failed", listener=self._use.listener_name, **facts, exc_info=self._first_of_its_kind(holding, error))
        done = len(batch)
        if status is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            done = 0
        elif type(context.ack_index) is int:
            done = min(max(context.ack_index + 1, 0), len(batch))
        self._finish(running, batch[:done])
        if done < len(batch):
            await self._send_all_back(running, batch[done:], context.delay_level_when_next_consume)

    def _first_of_its_kind(self, holding: "Grant", error: BaseException | None) -> BaseException | None:
        """The error whose traceback is told: the first of its kind under this holding, not each message's."""
        if error is None or (holding.traced is not None and holding.traced[1] is type(error)):
            return None
        holding.traced = (0, type(error))
        return error

    async def _send_all_back(self, running: Running, failed: Sequence[MessageExt], level: int) -> bool:
        """True: the broker has all of them. In broadcasting nobody has: they are dropped, as RocketMQ does."""
        if self._use.local is not None:
            facts = {"queue": str(running.worker.queue), "offsets": [message.queue_offset for message in failed[:OFFSETS_TOLD]]}
            log.warning("message.dropped", group=self._use.group, **facts, count=len(failed), why="a broadcasting group has no retries")
            self._finish(running, failed)
            return True
        if type(level) is not int:
            log.warning("result.bad_delay_level", listener=self._use.listener_name, level=repr(level)[:40], taken_as=0)
            level = 0
        taken = await asyncio.gather(*(self._send_back(running, message, level) for message in failed))
        self._finish(running, [message for message, ok in zip(failed, taken, strict=True) if ok])
        left = [message for message, ok in zip(failed, taken, strict=True) if not ok]
        if left and running.holding.alive and (running.ended or not running.expired):
            later = sum(message.queue_offset not in running.holding.refused for message in left)
            if later:
                why = running.holding.not_sent_back
                log.warning("send_back.later", queue=str(running.worker.queue), count=later, again_ms=AGAIN_MS, error=why)
            asyncio.get_running_loop().call_later(AGAIN_MS / 1000, self._again, running, left)
        return not left

    def _again(self, running: Running, left: list[MessageExt]) -> None:
        running.holding.again.append(left)
        self.look(running.worker, running.holding)

    async def _send_back(self, running: Running, message: MessageExt, level: int) -> bool:
        """False: the broker does not have it, as far as is known."""
        worker = running.worker
        header = SendBackHeader(
            message.physical_offset,
            worker.own.group,
            level,
            message.message_id,
            message.topic,
            max_reconsume_times=self._use.config.max_reconsume_times,
        )
        try:
            await worker.session.link.call(RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except (TransportError, BrokerError) as error:
            log.info("send_back.failed", queue=str(worker.queue), offset=message.queue_offset, error=str(error))
            _note(running, message, error)
            return False
        if level < 0 or message.reconsume_times >= self._use.config.max_reconsume_times:
            attempts = message.reconsume_times + 1
            why = "given up by its listener" if level < 0 else failed_times(attempts)
            facts = {"queue": str(worker.queue), "offset": message.queue_offset, "attempts": attempts, "error": why}
            log.error("message.dead_lettered", group=worker.own.group, **facts)
            self._use.tell(MessageDeadLettered(worker.queue, message.queue_offset, attempts, why))
        return True

    def _finish(self, running: Running, messages: Sequence[MessageExt]) -> None:
        """These are done, or stored again: progress may move over them."""
        worker, holding = running.worker, running.holding
        if not messages or not holding.alive:
            return
        if holding.refused:
            holding.refused.difference_update(message.queue_offset for message in messages)
        if holding.messages.finish(messages):
            worker.own.progressed(holding.epoch, holding.messages.commit_offset)
            worker.session.changed(worker.own)
        if holding.pull_waits and holding.messages.room():
            holding.pull_wake.set()

    def _ended(self, running: Running) -> None:
        """The last call of a queue is over: what drains is released, what is gone may be asked for again."""
        worker, holding = running.worker, running.holding
        if self.running(worker):
            return
        worker.own.call_ended(holding.epoch, holding.messages.commit_offset, 0)
        worker.session.changed(worker.own)
        if not holding.alive:
            worker.session.trigger()
            worker.look()

    # ------------------------------------------------------------------------------------------------------------- too long

    async def sweep(self) -> None:
        """Until the consumer ends: the messages of calls that run too long are sent back."""
        timeout_ms = self._use.config.consume_timeout_ms
        while True:
            await asyncio.sleep(timeout_ms / SWEEPS / 1000)
            now_ms = self._boot_ms()
            for running in [each for each in self._running if now_ms - each.started_ms >= timeout_ms]:
                if running.holding.alive and not running.ended and not running.expired:
                    await self._expire(running, now_ms)

    async def _expire(self, running: Running, now_ms: int) -> None:
        running.expired = True
        running.context.cancel()
        facts = {"queue": str(running.worker.queue), "offset": running.batch[0].queue_offset, "started_ms_ago": now_ms - running.started_ms}
        log.warning("call.expired", listener=self._use.listener_name, **facts, then="its messages are sent back")
        if not await self._send_all_back(running, running.batch, FIRST_RETRY_LEVEL):
            running.expired = False  # its own result counts, or the next sweep tries again; where it has ended, they are called again


def _note(running: Running, message: MessageExt, error: Exception) -> None:
    """Why it could not be sent back; a refusal that trying again does not mend is told by message, and once."""
    holding = running.holding
    if not isinstance(error, BrokerError) or error.retriable:
        holding.not_sent_back = str(error)
    elif message.queue_offset not in holding.refused:
        holding.refused.add(message.queue_offset)
        facts = {"queue": str(running.worker.queue), "offset": message.queue_offset, "message_id": message.message_id}
        then = f"it is called here until it succeeds, {AGAIN_MS // 1000} s after each call"
        log.warning("send_back.refused", **facts, error=str(error), then=then)


def _is_gone(holding: "Grant") -> bool:
    return not holding.alive


async def consume_concurrently(worker: "QueueWorker", holding: "Grant") -> None:
    """The runner of one holding: hands it to the crew whenever somebody wakes it."""
    crew = worker.use.crew
    assert crew is not None
    while holding.alive:
        holding.run_wake.clear()
        crew.look(worker, holding)
        await holding.run_wake.wait()
