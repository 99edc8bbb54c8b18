"""Transactions: half messages, a local transaction in a database, and how both have ended, also of producers that are killed in between."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from lockstep.client import LockstepError, Message, MessageExt, Transaction, TransactionProducer, TransactionStatus
from sweep.events.producers import DelayedSendAcked, LocalEnded, TransactionEnded
from sweep.history import QueueKey
from sweep.universe import Universe

COUNTS = (1, 1, 2, 3)
"""The messages of one transaction."""
LOCAL_S = (0.0, 0.01, 0.2, 3.0, 12.0)
"""How long the local transaction takes: the longest ones are asked about while they run."""
FATES = {"commit": 12, "rollback": 3, "commit, then fail": 3, "fail": 3}
"""What becomes of a transaction → weight. A failure is an exception in the block."""
NO_ANSWER_SHARE = 0.2
"""The share of the questions in the storm to which there is no answer, or an exception."""


class DecidedError(Exception):
    """The database says that the transaction was rolled back."""


class BlockFailedError(Exception):
    """An exception in a block."""


class TransactionWorkload:
    """Draws the transactions of one producer process, and answers how transactions have ended."""

    def __init__(self, universe: Universe, producer: TransactionProducer) -> None:
        machine = universe.loop.current.machine
        self._universe = universe
        self._producer = producer
        self._random = Random(f"{universe.setting.seed}/{machine.name}/{machine.starts}/transactions")
        producer.check(self._check)

    def count(self) -> int:
        """Return the number of messages of the next transaction; 0: the next send is none."""
        share, random = self._universe.setting.transaction_share, self._random
        return random.choice(COUNTS) if share and random.random() < share else 0

    async def run(self, count: int, message: Callable[[str], Message], failed: Callable[[Message, Exception], None]) -> None:
        """Run a transaction of so many messages. `message` makes one of a transaction, `failed` notes that it could not be sent."""
        random, block = self._random, self._producer.transaction()
        (fate,) = random.choices(list(FATES), list(FATES.values()))
        local_s = random.choice(LOCAL_S)
        try:
            async with block:
                for _ in range(count):
                    await self._send(block, message(block.id), failed)
                await asyncio.sleep(local_s)
                if fate == "rollback":
                    await block.rollback()
                elif fate != "fail":
                    self._commit(block.id)
                if fate.endswith("fail"):
                    raise BlockFailedError
        except (LockstepError, DecidedError, BlockFailedError):
            pass  # the checks say what may come of it
        status = TransactionStatus.UNKNOWN if block.status is None else block.status
        self._universe.history.append(TransactionEnded(*self._universe.origin(), block.id, status.value))

    async def _send(self, block: Transaction, message: Message, failed: Callable[[Message, Exception], None]) -> None:
        try:
            result = await block.send(message)
        except LockstepError as error:
            failed(message, error)
            raise
        queue = QueueKey("", result.queue.broker_name, result.queue.topic, result.queue.queue_id)
        self._universe.history.append(DelayedSendAcked(*self._universe.origin(), bytes(message.body), queue, result.status.value))

    def _commit(self, transaction: str) -> None:
        """Commit the local transaction, with a mark. Raise DecidedError if it was decided before."""
        if transaction in self._universe.marks:
            raise DecidedError
        self._decide(transaction, committed=True)

    def _decide(self, transaction: str, *, committed: bool) -> None:
        self._universe.marks[transaction] = committed
        self._universe.history.append(LocalEnded(*self._universe.origin(), transaction, committed))

    async def _check(self, transaction: str, _: MessageExt) -> bool | TransactionStatus:
        """Say how a transaction has ended, by the database alone: without a mark, it is rolled back from now on."""
        await asyncio.sleep(self._random.choice((0.0, 0.05, 1.0)))
        if not self._universe.calm and (roll := self._random.random()) < NO_ANSWER_SHARE:
            if roll < NO_ANSWER_SHARE / 2:
                raise BlockFailedError
            return TransactionStatus.UNKNOWN
        if transaction not in self._universe.marks:
            self._decide(transaction, committed=False)
        return self._universe.marks[transaction]


async def decided(universe: Universe, stop: asyncio.Event) -> None:
    """Return when no half message is left, about which brokers ask this process."""
    while universe.calm and open_halves(universe) and not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)


def open_halves(universe: Universe) -> Sequence[str]:
    """Return one line for each broker that has half messages without an outcome."""
    counts = {broker.config.name: len(broker.state.transactions) for broker in universe.open_brokers()}
    return [f"{name}: {count} half messages have no outcome" for name, count in counts.items() if count]
