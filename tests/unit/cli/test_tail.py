"""`lockstep tail` goes on when a broker is back."""

import asyncio

import pytest

from lockstep.cli.tail import Selection, Tail
from lockstep.client import Message, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.targets import Target
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

TOPIC = "orders"


async def send(cluster: TestCluster, *bodies: str) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body.encode(), sharding_key=body))


@pytest.mark.lockstep(brokers=1)
async def test_each_message_is_shown_once_although_the_broker_restarts(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, shown = lockstep_cluster, list[str]()
    await cluster.create_topic(TOPIC, queues=2)
    await send(cluster, "a", "b", "c")
    admin = AdminClient(Host.current(), cluster.nameserver)
    tail = Tail(admin, TOPIC, Selection(Target("beginning")), lambda message: shown.append(message.body.decode()))
    running = asyncio.ensure_future(tail.run(6))
    await cluster.advance(seconds=20)
    assert sorted(shown) == ["a", "b", "c"]
    assert "retrying" not in capsys.readouterr().err, "a queue without new messages is no failure"
    await cluster.kill("broker-a")
    await cluster.advance(seconds=10)
    await cluster.restart("broker-a")
    await send(cluster, "d", "e", "f")
    await running
    assert sorted(shown) == ["a", "b", "c", "d", "e", "f"]
    assert capsys.readouterr().err.count("broker broker-a: ") == 1
