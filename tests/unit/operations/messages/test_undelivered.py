"""What waits for a topic is counted before the topic is deleted."""

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.client import Message, Producer, TransactionProducer, TransactionStatus
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.messages import undelivered
from lockstep.operations.messages.undelivered import Undelivered, count_undelivered
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

DAY = timedelta(days=1)


async def filled(cluster: TestCluster) -> AdminClient:
    """Send three messages with a delay to orders and one to bills, and begin a transaction with one message for each."""
    for topic in ("orders", "bills"):
        await cluster.create_topic(topic, queues=2)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for topic in ("orders", "orders", "orders", "bills"):
            await producer.send(Message(topic, b"m"), delay=DAY)
    transactions = TransactionProducer("shop", nameserver=cluster.nameserver)
    transactions.check(lambda transaction_id, message: TransactionStatus.UNKNOWN)
    async with transactions:
        with suppress(RuntimeError):
            async with transactions.transaction() as tx:
                for topic in ("orders", "bills"):
                    await tx.send(Message(topic, b"half"))
                raise RuntimeError
    return AdminClient(Host.current(), cluster.nameserver)


@pytest.mark.lockstep(brokers=2)
async def test_messages_of_the_topic_are_counted_at_all_brokers(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = await filled(lockstep_cluster)
    assert await count_undelivered(admin, "orders") == Undelivered(3, 1, {})
    assert await count_undelivered(admin, "bills") == Undelivered(1, 1, {})
    plan = await TopicDelete(topic="orders").plan(admin)
    assert "3 messages that wait for their delay or a time of day are never delivered." in plan.effect
    assert "1 messages of transactions that are not decided are rolled back." in plan.effect
    monkeypatch.setattr(undelivered, "COUNTED_MAX", 2)
    cut = await count_undelivered(admin, "orders")
    assert cut.sentences[0].startswith("at least 2 messages that wait")
    assert cut.as_json() == {"timers": 2, "timers_complete": False, "half_messages": 1}
    capsys.readouterr()
    await carry_out(TopicDelete(topic="bills"), lockstep_cluster.nameserver, as_json=True)
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (shown["timers"], shown["timers_complete"], shown["half_messages"]) == (1, True, 1)


@pytest.mark.lockstep(brokers=2)
async def test_broker_that_does_not_say_what_waits_is_named(lockstep_cluster: TestCluster) -> None:
    admin = await filled(lockstep_cluster)
    await lockstep_cluster.pause("broker-a")
    found = await count_undelivered(admin, "orders")
    assert list(found.failed) == ["broker-a"]
    assert found.sentences[-1].startswith("broker broker-a does not say what waits there: ")
    assert not found.as_json()["timers_complete"]
