"""Transactions: all messages of a block are delivered once, or none, as `check` and the block's end say."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.client import (
    Client,
    LocalProtocolError,
    Message,
    MessageExt,
    StateError,
    Transaction,
    TransactionProducer,
    TransactionRolledBackError,
    TransactionStatus,
)
from lockstep.testing import TestCluster, simulate
from support.delayed import Seen, listening

COMMIT, ROLLBACK, UNKNOWN = TransactionStatus.COMMIT, TransactionStatus.ROLLBACK, TransactionStatus.UNKNOWN


class Database:
    """What local transactions have committed, and the questions about them."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.asked: list[str] = []

    def answer(self, transaction_id: str, message: MessageExt) -> Any:
        self.asked.append(transaction_id)
        return self.outcomes.get(transaction_id, ROLLBACK)


@asynccontextmanager
async def shop(cluster: TestCluster, check: Callable[[str, MessageExt], Any], **settings: Any) -> AsyncIterator[TransactionProducer]:
    """Yield a producer of transactions of group `shop`."""
    producer = TransactionProducer("shop", nameserver=cluster.nameserver, **settings)

    @producer.check
    async def answer(transaction_id: str, message: MessageExt) -> Any:
        return check(transaction_id, message)

    async with producer:
        yield producer


def order(body: str, **facts: Any) -> Message:
    return Message("orders", body.encode(), **facts)


def bodies(seen: Seen) -> list[bytes]:
    return [message.body for _, message in seen]


async def send_all(block: Transaction, *names: str) -> None:
    for name in names:
        await block.send(order(name, sharding_key="k"))


class Unreadable:
    def __repr__(self) -> str:
        raise KeyError

    __str__ = __repr__


class UnreadableError(Exception):
    __str__ = __repr__ = Unreadable.__repr__  # type: ignore[assignment]


async def broken(block: Transaction, *names: str, then: Callable[[], Any] = lambda: None) -> None:
    """Send messages in a block that an exception ends."""
    async with block:
        await send_all(block, *names)
        then()
        raise ValueError("from the block")


def test_messages_of_a_block_are_delivered_in_order_when_it_has_ended() -> None:
    async def main() -> None:
        database = Database()
        async with TestCluster(brokers=2) as cluster, listening(cluster) as (_, seen), shop(cluster, database.answer) as producer:
            async with producer.transaction() as block:
                results = [await block.send(order(f"m{number}", sharding_key="k")) for number in range(3)]
                assert [result.queue_offset for result in results] == [-1, -1, -1]
                await block.send(order("other"))
                await cluster.advance(seconds=60)
                assert not seen
                assert not database.asked  # its sender is asked, and says that the block still runs
            await cluster.advance(seconds=5)
            assert block.status is COMMIT
            assert Counter(bodies(seen)) == Counter([b"m0", b"m1", b"m2", b"other"])
            assert [body for body in bodies(seen) if body != b"other"] == [b"m0", b"m1", b"m2"]
            assert [result.message_id for result in block.results[:3]] == [result.message_id for result in results]
            first = block.results[0].queue_offset
            assert [result.queue_offset for result in block.results[:3]] == [first, first + 1, first + 2]
            stored = {(message.broker_name, message.queue_id, message.queue_offset): message.body for _, message in seen}
            queue = block.results[3].queue
            assert stored[queue.broker_name, queue.queue_id, block.results[3].queue_offset] == b"other"

    simulate(main)


def test_messages_that_are_rolled_back_are_never_delivered() -> None:
    async def main() -> None:
        database = Database()
        async with TestCluster() as cluster, listening(cluster) as (_, seen), shop(cluster, database.answer) as producer:
            async with producer.transaction() as block:
                await send_all(block, "a", "b")
                await block.rollback()
                with pytest.raises(StateError, match="has ended"):
                    await block.send(order("late"))
            assert block.status is ROLLBACK
            await cluster.advance(minutes=30)
            assert not seen
            assert not database.asked

    simulate(main)


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK, True, False])
def test_check_decides_after_an_exception_in_the_block(outcome: Any) -> None:
    async def main() -> None:
        database = Database()
        async with TestCluster() as cluster, listening(cluster) as (_, seen), shop(cluster, database.answer) as producer:
            block = producer.transaction()
            with pytest.raises(ValueError, match="from the block"):
                await broken(block, "a", "b", then=lambda: database.outcomes.update({block.id: outcome}))
            assert block.status is UNKNOWN
            await cluster.advance(seconds=3)
            assert set(database.asked) == {block.id}
            assert bodies(seen) == ([b"a", b"b"] if outcome in (COMMIT, True) else [])

    simulate(main)


@pytest.mark.parametrize("answer", [UNKNOWN, None, Unreadable(), UnreadableError()])
def test_check_without_an_answer_is_asked_again(answer: Any) -> None:
    async def main() -> None:
        asked = 0

        def check(_: str, message: MessageExt) -> Any:
            nonlocal asked
            asked += 1
            if asked < 4:
                if isinstance(answer, Exception):
                    raise answer
                return answer
            assert (message.topic, message.body) == ("orders", b"a")
            return COMMIT

        async with TestCluster() as cluster, listening(cluster) as (_, seen), shop(cluster, check) as producer:
            with pytest.raises(ValueError, match="from the block"):
                await broken(producer.transaction(), "a")
            await cluster.advance(seconds=200)
            assert asked == 3
            assert not seen
            await cluster.advance(seconds=60)
            assert bodies(seen) == [b"a"]

    simulate(main)


def test_another_producer_of_the_group_is_asked_when_the_sender_is_gone() -> None:
    async def main() -> None:
        database = Database()
        async with TestCluster() as cluster, listening(cluster) as (_, seen):
            async with shop(cluster, database.answer) as producer:
                block = producer.transaction()
                await block.__aenter__()
                await send_all(block, "a")
            await cluster.advance(minutes=2)
            assert not database.asked
            database.outcomes[block.id] = COMMIT
            async with shop(cluster, database.answer):
                await cluster.advance(minutes=2)
            assert database.asked == [block.id]
            assert bodies(seen) == [b"a"]

    simulate(main)


def test_block_of_another_producer_on_the_same_connections_is_not_decided() -> None:
    async def main() -> None:
        database = Database()
        async with TestCluster() as cluster, listening(cluster) as (_, seen):
            client = Client(cluster.nameserver)
            first, second = (TransactionProducer("shop", client=client) for _ in range(2))
            for producer in (first, second):
                producer.check(database.answer)
            async with first, second, second.transaction() as block:
                await send_all(block, "a")
                await cluster.advance(minutes=3)
                assert not database.asked
            await cluster.advance(seconds=5)
            assert (block.status, bodies(seen)) == (COMMIT, [b"a"])

    simulate(main)


def test_a_producer_without_a_check_does_not_start() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            with pytest.raises(StateError, match="no check"):
                await TransactionProducer("shop", nameserver=cluster.nameserver).start()

    simulate(main)


def test_commit_of_a_message_that_was_rolled_back_meanwhile_is_an_error() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (_, seen), shop(cluster, lambda *_: UNKNOWN) as producer:
            block = await producer.transaction().__aenter__()
            await send_all(block, "a")
            await producer._end(block.id, block._in_order(), ROLLBACK)
            with pytest.raises(TransactionRolledBackError, match="was rolled back"):
                await block.__aexit__(None, None, None)
            assert block.status is UNKNOWN
            await cluster.advance(seconds=5)
            assert not seen

    simulate(main)


@pytest.mark.parametrize(
    ("sends", "error", "words"),
    [
        (lambda block: block.send(Message("no-such-topic", b"x")), Exception, "no-such-topic"),
        (lambda block: block.send(order("x", sharding_key="k"), selector=lambda *_: 0), LocalProtocolError, "selector"),
    ],
)
def test_send_that_fails_raises_in_the_block(sends: Callable[[Transaction], Any], error: type[Exception], words: str) -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster), shop(cluster, lambda *_: UNKNOWN, auto_create_topics=False) as producer:
            async with producer.transaction() as block:
                with pytest.raises(error, match=words):
                    await sends(block)
            assert (block.status, block.results) == (COMMIT, [])

    simulate(main)


def test_block_is_entered_once_and_waits_for_its_sends() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster), shop(cluster, lambda *_: UNKNOWN) as producer:
            block = producer.transaction()
            with pytest.raises(StateError, match="has not begun"):
                await block.send(order("x"))
            await block.__aenter__()
            sending = asyncio.ensure_future(block.send(order("x")))
            await asyncio.sleep(0)
            with pytest.raises(StateError, match="sends have not ended"):
                await block.__aexit__(None, None, None)
            with pytest.raises((StateError, asyncio.CancelledError)):
                await sending
            with pytest.raises(StateError, match="entered before"):
                await block.__aenter__()

    simulate(main)


async def undecided_over_a_loss(cluster: TestCluster, producer: TransactionProducer) -> Transaction:
    """Lose the machine of a broker while a transaction is open, promote its replica, and commit."""
    block = await producer.transaction().__aenter__()
    await send_all(block, "a", "b")
    await cluster.replicated("broker-a")
    await cluster.lose("broker-a")
    await cluster.promote("broker-a")
    await block.__aexit__(None, None, None)
    return block


def test_transaction_goes_on_at_a_promoted_replica() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1, replicas=1) as cluster, listening(cluster) as (_, seen):
            async with shop(cluster, lambda *_: UNKNOWN) as producer:
                block = await undecided_over_a_loss(cluster, producer)
                await cluster.advance(seconds=30)
            assert (block.status, bodies(seen)) == (COMMIT, [b"a", b"b"])

    simulate(main)
