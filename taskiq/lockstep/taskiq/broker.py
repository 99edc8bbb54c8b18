"""LockstepBroker: `kick` sends a message, and `listen` yields what a concurrent consumer receives. Taskiq: AsyncBroker.

A call of the consumer's listener lasts until the task is acknowledged: by default when its result is saved, whether it failed or not. So a
task whose worker dies, or that is not acknowledged within `consume_timeout_ms`, is delivered again; one that raises is not (Taskiq's retry
middlewares send it again). If Taskiq's handling itself fails before that, such as a middleware that can't send the retry, the call fails
with its error: it is logged, and the task is delivered again after a second.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumerState,
    LocalProtocolError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TooLateToRecallError,
)
from lockstep.client.config import NameserverAddresses
from lockstep.protocol.object_text import text_of
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.security.credentials import PasswordSource
from lockstep.runtime.security.tls import Tls
from taskiq import AckableMessage, AsyncBroker, BrokerMessage, TaskiqMessage, TaskiqMiddleware

log = get_logger("taskiq")

DELAY, SHARDING_KEY, RETRIES, RETRY_ON_ERROR = "delay", "sharding_key", "_retries", "retry_on_error"
"""The labels that `kick` reads. The last two are those of Taskiq's retry middlewares: RETRIES is set in what they send."""
HANDLES_MAX = 100_000
"""Delayed tasks that `cancel` knows: the last ones that were sent."""
RETRY_SOON = 1
"""The delay level of a message that this worker gives back: a second."""


@dataclass(eq=False)
class _Delivery:
    """A message that waits for Taskiq, or for the end of its task."""

    message: MessageExt
    context: ConcurrentlyContext
    done: "asyncio.Future[bool]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """True: the task was acknowledged. False: the message is given back. An error: Taskiq failed to handle it, and it is given back."""
    begun: bool = False
    """Taskiq handles it."""

    def end(self, acknowledged: bool) -> None:
        if not self.done.done():
            self.done.set_result(acknowledged)

    def ack(self) -> None:
        self.end(True)

    def handled(self, handler: "asyncio.Task[object]") -> None:
        """Called when the task of Taskiq that handles the message has ended."""
        if handler.cancelled():
            self.end(False)
        elif (error := handler.exception()) is None:
            pass  # the task is acknowledged, or will be (ack_type "manual")
        elif not self.done.done():
            self.done.set_exception(error)
        else:  # it was acknowledged before (ack_type "when_received")
            log.error("task.failed", task=" ".join(self.message.keys), error=text_of(error), exc_info=error)


class _HandlerWatch(TaskiqMiddleware):
    """Tells which of asyncio's tasks handles a message: Taskiq neither acknowledges nor reports one whose handling fails."""

    def __init__(self, begun: Callable[[str], None]) -> None:
        super().__init__()
        self._begun = begun

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        self._begun(message.task_id)
        return message


class LockstepBroker(AsyncBroker):
    """A Taskiq broker whose tasks are the messages of one topic.

    Labels of a task: `delay`, in seconds, from a millisecond to 40 days; and `sharding_key`, which chooses the queue. The `delay` that a
    retried task declares is that of its retries. The workers are a concurrent group: tasks run in no order, also those of one key.

    Args:
        topic: The topic, which must exist, or brokers must be allowed to create it.
        group: The group of the workers, and of the producer.
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE".
        tls: Connect by TLS: True, or lockstep.client.Tls(ca=FILE).
        user: The user to log in as.
        password: The password, the Path of a file that has it, or a function that returns it.
        concurrency: Tasks that a worker process has at a time, running or prefetched. Taskiq limits those that run (`--max-async-tasks`).
        consume_timeout_ms: A task that is not acknowledged by then is delivered again.
        max_reconsume_times: How often a message is delivered again after that, or after a worker gave it back; then it is dead-lettered.
        start_in_background: Start without a nameserver too, for an application that serves requests meanwhile.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or an address is invalid.
        LocalProtocolError: The name of the group or of the topic is invalid.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        nameserver: NameserverAddresses | None = None,
        *,
        tls: Tls | bool | None = None,
        user: str | None = None,
        password: PasswordSource | None = None,
        concurrency: int = 100,
        consume_timeout_ms: int = 900_000,
        max_reconsume_times: int = 16,
        start_in_background: bool = False,
    ) -> None:
        super().__init__()
        self.add_middlewares(_HandlerWatch(self._begun))
        self.topic = topic
        connection: dict[str, Any] = {"nameserver": nameserver, "tls": tls, "user": user, "password": password}
        self.producer = Producer(group, **connection, start_in_background=start_in_background)
        self.consumer = PushConsumer(
            group,
            **connection,
            concurrency=concurrency,
            consume_timeout_ms=consume_timeout_ms,
            max_reconsume_times=max_reconsume_times,
            start_in_background=start_in_background,
        )
        self.consumer.subscribe(topic)
        self.consumer.concurrently(self._take)
        self._timeout_s = consume_timeout_ms / 1000
        self._waiting: asyncio.Queue[_Delivery | None]
        """Deliveries that Taskiq has not asked for yet; None: the consumer has ended."""
        self._open: dict[_Delivery, None] = {}
        self._tasks = Tasks()
        self._handles: dict[str, str] = {}
        """Task id → recall handle, of delayed tasks."""
        self._starting: asyncio.Task[PushConsumer] | None = None

    async def startup(self) -> None:
        """Connect the producer.

        Raises:
            TransportError: No nameserver responds, unless it has `start_in_background`.
        """
        await super().startup()
        await self.producer.start()

    async def shutdown(self) -> None:
        """Give back messages whose tasks are not acknowledged, leave the group, and disconnect. A start of the consumer is cancelled."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self.consumer.health().alive:
            if self.consumer.state is ConsumerState.RUNNING:
                self.consumer.pause()
            for delivery in list(self._open):
                delivery.end(False)
            await self.consumer.stop()
        await self._tasks.cancel_all()
        await self.producer.close()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task.

        Raises:
            LocalProtocolError: The label `delay` is no number.
            SendError, BrokerError: As `Producer.send` does. MessageIllegalError: the delay is longer than the brokers allow.
        """
        key = message.labels.get(SHARDING_KEY)
        sent = Message(self.topic, message.message, keys=message.task_id, sharding_key=None if key is None else str(key))
        result = await self.producer.send(sent, delay=self._delay_of(message))
        self._handles.pop(message.task_id, None)
        if result.recall_handle:
            self._handles[message.task_id] = result.recall_handle
            if len(self._handles) > HANDLES_MAX:
                del self._handles[next(iter(self._handles))]

    def recall_handle(self, task_id: str) -> str | None:
        """Return what takes back a delayed task that this object has sent, by `producer.recall` in any process.

        None if it has not sent the task, has sent it without a delay, or has sent 100,000 delayed ones since.
        """
        return self._handles.get(task_id)

    async def cancel(self, task_id: str) -> bool:
        """Take back a delayed task. Return whether it will not run; False: a worker has got it, or will.

        Raises:
            LocalProtocolError: `recall_handle` is None for the task.
            TransportError: The broker at which the task waits was not reached in time. It may have been taken back: try again.
        """
        handle = self.recall_handle(task_id)
        if handle is None:
            task = task_id[:80]
            any_task = f"`lockstep timer recall --key {task}` takes back any delayed task"
            raise LocalProtocolError(f"task {task} was not sent with a delay by this object: {any_task}")
        try:
            await self.producer.recall(handle)
        except TooLateToRecallError:
            return False
        return True

    def _delay_of(self, message: BrokerMessage) -> timedelta | None:
        """Return the delay that the label `delay` asks for, in whole milliseconds and rounded up; None without one."""
        given = message.labels.get(DELAY)
        if given is None or given == str(None) or not self._is_for_this_send(message, given):
            return None
        try:
            delay_ms = -(-timedelta(seconds=float(given)) // timedelta(milliseconds=1))
        except (ValueError, OverflowError):
            raise LocalProtocolError(f"task {message.task_name}: label {DELAY} is {given!r}, expected seconds") from None
        return timedelta(milliseconds=delay_ms) if delay_ms > 0 else None

    def _is_for_this_send(self, message: BrokerMessage, given: object) -> bool:
        """Return whether the label `delay` of a message delays it.

        Taskiq's retry middlewares take the label that a task declares as the delay of its retries, and send each retry with the label of
        its own delay; with a schedule source it has passed when the retry is sent.
        """
        retried = message.labels.get(RETRY_ON_ERROR)
        if retried is None:
            retried = any(getattr(each, "default_retry_label", False) for each in self.middlewares)
        if str(retried).lower() != "true":
            return True
        if RETRIES in message.labels:
            return all(getattr(each, "schedule_source", None) is None for each in self.middlewares)
        task = self.find_task(message.task_name)
        return task is None or str(task.labels.get(DELAY)) != str(given)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Join the group, and yield tasks until the consumer ends.

        Raises:
            LockstepError: The consumer can't start, was refused, or has failed.
        """
        self._waiting = asyncio.Queue()
        self._starting = self._tasks.spawn(self.consumer.start(), f"{self.consumer.group} start")
        await self._starting
        ended = self._tasks.spawn(self._wait_closed(), f"{self.consumer.group} taskiq")
        while (delivery := await self._waiting.get()) is not None:
            if delivery.context.cancelled:
                delivery.end(False)  # its queue is another worker's, which has the message too
            elif not delivery.done.done():
                yield AckableMessage(data=delivery.message.body, ack=delivery.ack)
        await ended

    def _begun(self, task_id: str) -> None:
        """Give the message of this task back if the task of asyncio that handles it, the current one, fails.

        A retry has the id of its task, and may be here before that is acknowledged: Taskiq begins them in the order of `listen`.
        """
        handler, keys = asyncio.current_task(), tuple(task_id.split())
        delivery = next((each for each in self._open if each.message.keys == keys and not each.begun), None)
        if handler is not None and delivery is not None:
            delivery.begun = True
            handler.add_done_callback(delivery.handled)

    async def _wait_closed(self) -> None:
        try:
            await self.consumer.wait_closed()
        finally:
            self._waiting.put_nowait(None)

    async def _take(self, messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        """Hand a message over to Taskiq, and wait until its task is acknowledged.

        A body that can't be decompressed fails the call here, as in any consumer: it is delivered again later, and dead-lettered at
        last. In `listen` it would end the worker.
        """
        (message,) = messages
        _ = message.body
        context.delay_level_when_next_consume = RETRY_SOON
        delivery = _Delivery(message, context)
        self._open[delivery] = None
        self._waiting.put_nowait(delivery)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if await delivery.done:
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            del self._open[delivery]
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
