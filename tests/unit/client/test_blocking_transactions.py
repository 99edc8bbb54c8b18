"""Transactions of programs that block: `with producer.transaction()`, and a check in a thread."""

import os
import threading
from pathlib import Path

import pytest

from lockstep.client import Message, MessageExt, StateError, TransactionStatus
from lockstep.client.sync import Transaction as BlockingTransaction
from lockstep.client.sync import TransactionProducer
from support.cluster_thread import cluster_in_a_thread

ORDER = Message("orders", b"x", sharding_key="k")


def leave(block: BlockingTransaction) -> None:
    with block:
        block.send(ORDER)
        raise ValueError("from the block")


def test_block_commits_at_its_end_and_check_decides_after_an_exception(tmp_path: Path) -> None:
    asked: list[tuple[str, bytes, str]] = []
    called = threading.Event()
    with cluster_in_a_thread(tmp_path) as nameserver:
        producer = TransactionProducer("shop", nameserver=nameserver)
        with pytest.raises(StateError, match="no check"):
            producer.start()

        @producer.check
        def check(transaction_id: str, message: MessageExt) -> bool:
            asked.append((transaction_id, message.body, threading.current_thread().name))
            called.set()
            return False

        with producer:
            with producer.transaction() as block:
                results = [block.send(ORDER), block.send(ORDER)]
            assert block.status is TransactionStatus.COMMIT
            assert [result.queue_offset for result in block.results] == [0, 1]
            assert [result.message_id for result in block.results] == [result.message_id for result in results]
            with producer.transaction() as block:
                block.send(ORDER)
                block.rollback()
            assert block.status is TransactionStatus.ROLLBACK
            block = producer.transaction()
            with pytest.raises(ValueError, match="from the block"):
                leave(block)
            assert called.wait(30)
            ((asked_id, body, thread),) = asked
            assert (asked_id, body) == (block.id, b"x")
            assert thread not in (threading.current_thread().name, "producer shop")
            assert producer.send(ORDER).queue_offset == 2


def test_block_of_the_parent_can_not_be_used_in_a_forked_child(tmp_path: Path) -> None:
    with cluster_in_a_thread(tmp_path) as nameserver:
        producer = TransactionProducer("shop", nameserver=nameserver)
        producer.check(lambda *_: False)
        with producer, producer.transaction() as block:
            read, write = os.pipe()
            if not (child := os.fork()):
                try:
                    block.send(ORDER)
                except StateError as error:
                    os.write(write, str(error).encode())
                finally:
                    os._exit(0)
            os.close(write)
            assert b"was begun in another process" in os.read(read, 1_000)
            os.waitpid(child, 0)
            os.close(read)
            block.rollback()
