"""Producer processes: keyed sends, batches and unkeyed sends, many at the same time. No body is sent twice."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any

from lockstep.client import BatchSendError, LockstepError, Message, Outcome, Producer, SendError, SendResult, TransactionProducer
from lockstep.client.producer.config import Require
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from sweep.access import producer_name
from sweep.compressed import make_large_body
from sweep.events.producers import SendAcked, SendBegan, SendFailed
from sweep.history import QueueKey, SendOutcome
from sweep.timers import TimerWorkload, Wait
from sweep.transactions import TransactionWorkload, decided
from sweep.universe import Main, Universe

AWAITED_SHARE = 0.3
"""The share of sends whose result their producer awaits before the next one."""


class Sender:
    """One producer process."""

    def __init__(self, universe: Universe, producer: Producer) -> None:
        process = universe.loop.current
        self._universe = universe
        self._producer = producer
        self._name = f"{process.machine.name.rpartition('.')[2]}.{process.number}"
        self._random = Random(f"{universe.setting.seed}/{process.machine.name}/{process.machine.starts}/sends")
        self._extra = Random(f"{universe.setting.seed}/{process.machine.name}/{process.machine.starts}/delayed")
        self._terms = Random(f"{universe.setting.seed}/{process.machine.name}/{process.machine.starts}/terms")
        self._sizes = Random(f"{universe.setting.seed}/{process.machine.name}/{process.machine.starts}/sizes")
        self._timers = TimerWorkload(universe, producer)
        self._transactions = TransactionWorkload(universe, producer) if isinstance(producer, TransactionProducer) else None
        self._sent: Counter[str] = Counter()
        self._tasks = Tasks(universe.task_failed)

    async def run(self, stop: asyncio.Event) -> None:
        setting, random = self._universe.setting, self._random
        while self._universe.sending and not stop.is_set():
            roll = random.random()
            wait = self._timers.next()
            count = 0 if self._transactions is None else self._transactions.count()
            if self._transactions is not None and count:
                coroutine = self._transactions.run(count, self._half, self._failed)
            elif wait is not None:
                coroutine = self._waiting(wait)
            elif roll < setting.unkeyed_share:
                coroutine = self._one(None)
            elif roll < setting.unkeyed_share + setting.batch_share:
                coroutine = self._batch([self._key() for _ in range(random.randint(2, 6))])
            else:
                coroutine = self._one(self._key())
            task = self._tasks.spawn(coroutine, "send")
            if random.random() < AWAITED_SHARE:
                await asyncio.wait([task])
            await asyncio.sleep(random.expovariate(1 / setting.send_every_s))

    def _key(self) -> str:
        return f"{self._name}-{self._random.randrange(self._universe.setting.keys)}"

    def _topic(self) -> str:
        topics = self._universe.setting.topics
        return topics[0] if len(topics) == 1 else self._random.choice(topics)

    def _half(self, transaction: str) -> Message:
        """Return the next message of a transaction."""
        return self._message(self._key() if self._random.random() < 0.8 else None, self._topic(), 0, 0, 0, transaction)

    def _message(self, key: str | None, topic: str, *waits: Any) -> Message:
        """Return the next message. `waits`: the facts of SendBegan by which it waits."""
        name = key or f"{self._name}-any"
        self._sent[name] += 1
        body = f"{name}/{self._sent[name]}".encode()
        if self._sizes.random() < self._universe.setting.large_share:
            body = make_large_body(body, self._sizes)
        tags = "B" if self._random.random() < self._universe.setting.tag_b_share else "A"
        self._universe.history.append(SendBegan(*self._universe.origin(), body, key, topic, tags, *waits))
        if not self._universe.calm and self._extra.random() < self._universe.setting.poison_share:
            self._universe.poison[body] = None
        return Message(topic, body, tags=tags, sharding_key=key)

    async def _one(self, key: str | None) -> None:
        message, require = self._message(key, self._topic()), self._require()
        try:
            self._acked(message, await self._producer.send(message, require=require), require)
        except LockstepError as error:
            self._failed(message, error)

    async def _batch(self, keys: list[str]) -> None:
        topic = self._topic()
        messages, require = [self._message(key, topic) for key in keys], self._require()
        for message, result in zip(messages, await results_of(self._producer.send_batch(messages, require=require), messages), strict=True):
            if isinstance(result, SendResult):
                self._acked(message, result, require)
            else:
                self._failed(message, result)

    async def _waiting(self, wait: Wait) -> None:
        """Send messages that wait. Keyed ones have queues by their keys, but no place in the order of a key."""
        topic, require, facts = self._topic(), self._require(), (wait.level, 0 if wait.deliver_ms else wait.delay_ms, wait.deliver_ms)
        messages = [self._message(self._key() if wait.keyed else None, topic, *facts) for _ in range(wait.count)]
        sending = self._timers.send(messages, wait, require)
        for message, result in zip(messages, await results_of(sending, messages), strict=True):
            if isinstance(result, SendResult):
                self._timers.acked(message, result, wait, require, self._tasks)
            else:
                self._failed(message, result)

    def _require(self) -> Require:
        share = self._universe.setting.written_share
        return "written" if share and self._terms.random() < share else "stored"

    def _acked(self, message: Message, result: SendResult, require: Require) -> None:
        queue = QueueKey("", result.queue.broker_name, result.queue.topic, result.queue.queue_id)
        body, offset, status = bytes(message.body), result.queue_offset, result.status.value
        self._universe.history.append(SendAcked(*self._universe.origin(), body, queue, offset, status, require == "written"))

    def _failed(self, message: Message, error: Exception) -> None:
        unknown = isinstance(error, SendError) and error.outcome is Outcome.UNKNOWN
        outcome = SendOutcome.UNKNOWN if unknown else SendOutcome.NOT_STORED
        self._universe.history.append(
            SendFailed(*self._universe.origin(), bytes(message.body), outcome, f"{type(error).__name__}: {error}")
        )


async def results_of(sending: Coroutine[Any, Any, list[SendResult]], messages: list[Message]) -> list[SendResult | Exception]:
    """Return the result of each message of a batch, or its error."""
    try:
        return list(await sending)
    except BatchSendError as error:
        return list(error.results)
    except LockstepError as error:
        return [error for _ in messages]


def producer_main(universe: Universe) -> Main:
    async def main(stop: asyncio.Event) -> int:
        while not stop.is_set():
            limit = universe.setting.in_flight_max
            login = universe.login(producer_name(universe.loop.current.machine.name))
            kind = TransactionProducer if universe.setting.transaction_share else Producer
            producer = kind("prod", nameserver=universe.nameserver, host=Host.current(), in_flight_count_max=limit, **login)
            sender = Sender(universe, producer)
            try:
                await producer.start()
                break
            except LockstepError:
                await asyncio.sleep(0.5)
        await sender.run(stop)
        await decided(universe, stop)
        await producer.close()
        return 0

    return main
