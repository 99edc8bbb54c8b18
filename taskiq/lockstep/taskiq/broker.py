"""LockstepBroker: `kick` sends a message, and `listen` yields what a concurrent consumer receives. Taskiq: AsyncBroker.

A call of the consumer's listener lasts until the task is acknowledged: by default when its result is saved, whether it failed or not. So a
task whose worker dies, or that is not acknowledged within `consume_timeout_ms`, is delivered again; one that raises is not (Taskiq's retry
middlewares send it again).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumerState,
    LocalProtocolError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from lockstep.client.config import Nameserver
from lockstep.runtime.daemon import Tasks
from taskiq import AckableMessage, AsyncBroker, BrokerMessage

DELAY, SHARDING_KEY = "delay", "sharding_key"
"""The labels that `kick` reads."""
RETRY_SOON = 1
"""The delay level of a message that this worker gives back: a second."""


@dataclass(eq=False)
class _Delivery:
    """A message that waits for Taskiq, or for the end of its task."""

    message: MessageExt
    context: ConcurrentlyContext
    done: "asyncio.Future[bool]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """True: the task was acknowledged. False: the message is given back."""

    def end(self, acknowledged: bool) -> None:
        if not self.done.done():
            self.done.set_result(acknowledged)

    def ack(self) -> None:
        self.end(True)


class LockstepBroker(AsyncBroker):
    """A Taskiq broker whose tasks are the messages of one topic.

    Labels of a task: `delay`, in seconds, which must be one of the brokers' delay levels; and `sharding_key`, which chooses the queue. The
    workers are a concurrent group: tasks run in no order, also those of one key.

    Args:
        topic: The topic, which must exist, or brokers must be allowed to create it.
        group: The group of the workers, and of the producer.
        nameserver: "HOST:PORT", several separated by ";", or a list of them.
        concurrency: Tasks that a worker process has at a time, running or prefetched. Taskiq limits those that run (`--max-async-tasks`).
        consume_timeout_ms: A task that is not acknowledged by then is delivered again.
        max_reconsume_times: How often a message is delivered again after that, or after a worker gave it back; then it is dead-lettered.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or an address is invalid.
        LocalProtocolError: The name of the group or of the topic is invalid.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        nameserver: Nameserver | None = None,
        *,
        concurrency: int = 100,
        consume_timeout_ms: int = 900_000,
        max_reconsume_times: int = 16,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.producer = Producer(group, nameserver=nameserver)
        self.consumer = PushConsumer(
            group,
            nameserver=nameserver,
            concurrency=concurrency,
            consume_timeout_ms=consume_timeout_ms,
            max_reconsume_times=max_reconsume_times,
        )
        self.consumer.subscribe(topic)
        self.consumer.concurrently(self._take)
        self._timeout_s = consume_timeout_ms / 1000
        self._waiting: asyncio.Queue[_Delivery | None]
        """Deliveries that Taskiq has not asked for yet; None: the consumer has ended."""
        self._open: dict[_Delivery, None] = {}
        self._tasks = Tasks()

    async def startup(self) -> None:
        """Connect the producer.

        Raises:
            TransportError: No nameserver responds.
        """
        await super().startup()
        await self.producer.start()

    async def shutdown(self) -> None:
        """Give back the messages whose tasks are not acknowledged, leave the group, and disconnect."""
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
            SendError, BrokerError: As `Producer.send` does. MessageIllegalError: no level has this delay.
        """
        key = message.labels.get(SHARDING_KEY)
        sent = Message(self.topic, message.message, keys=message.task_id, sharding_key=None if key is None else str(key))
        await self.producer.send(sent, delay=_delay_of(message))

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Join the group, and yield tasks until the consumer ends.

        Raises:
            LockstepError: The consumer can't start, was refused, or has failed.
        """
        self._waiting = asyncio.Queue()
        await self.consumer.start()
        ended = self._tasks.spawn(self._wait_closed(), f"{self.consumer.group} taskiq")
        while (delivery := await self._waiting.get()) is not None:
            if delivery.context.cancelled:
                delivery.end(False)  # its queue is another worker's, which has the message too
            elif not delivery.done.done():
                yield AckableMessage(data=delivery.message.body, ack=delivery.ack)
        await ended

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
        delivery = _Delivery(message, context)
        self._open[delivery] = None
        self._waiting.put_nowait(delivery)
        try:
            async with asyncio.timeout(self._timeout_s):
                if await delivery.done:
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        except TimeoutError:
            pass
        finally:
            del self._open[delivery]
        context.delay_level_when_next_consume = RETRY_SOON
        return ConsumeConcurrentlyStatus.RECONSUME_LATER


def _delay_of(message: BrokerMessage) -> timedelta | None:
    given = message.labels.get(DELAY)
    if given is None:
        return None
    try:
        return timedelta(seconds=float(given))
    except (ValueError, OverflowError):
        raise LocalProtocolError(f"task {message.task_name}: label {DELAY} is {given!r}, expected seconds") from None
