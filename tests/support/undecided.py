"""Transactions of which no producer has said how they have ended."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lockstep.client import Message, MessageQueue, Transaction, TransactionProducer, TransactionStatus
from lockstep.testing import TestCluster


@asynccontextmanager
async def undecided(
    cluster: TestCluster, messages: Sequence[Message], queues: Sequence[MessageQueue | None] = (), *, group: str = "shop"
) -> AsyncIterator[Transaction]:
    """Yield a transaction with these messages, to these queues in turn, of which its producer knows nothing."""
    producer = TransactionProducer(group, nameserver=cluster.nameserver)
    producer.check(lambda *_: TransactionStatus.UNKNOWN)
    async with producer:
        block = await producer.transaction().__aenter__()
        for number, message in enumerate(messages):
            await block.send(message, queue=queues[number % len(queues)] if queues else None)
        block.status = TransactionStatus.UNKNOWN
        producer._ended_block(block)
        yield block
