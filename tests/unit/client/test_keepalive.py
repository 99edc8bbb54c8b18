"""An idle client keeps its sessions at the brokers."""

import asyncio

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageModel, Producer, PushConsumer
from lockstep.client.client import Client
from lockstep.testing import TestCluster, simulate


@pytest.mark.parametrize("session_timeout_ms", [1_000, 20_000])
def test_idle_producer_keeps_its_connections_with_any_session_timeout(session_timeout_ms: int) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2, session_timeout_ms=session_timeout_ms, disconnect_grace_ms=1_000) as cluster:
            await cluster.create_topic("t")
            client = Client(cluster.nameserver)
            async with Producer("shop", client=client) as producer:
                await producer.send(Message("t", b"1"))
                await cluster.advance(minutes=1)
                instance = client.instance()
                connections = [link.connection for link in instance.links()]
                await instance.close()
                assert connections == [1, 1]

    simulate(main)


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING])
def test_consumer_without_queues_or_locks_keeps_its_connections(model: MessageModel) -> None:
    """Two members of a group have one queue: a clustering member has none of it, and broadcasting members take no locks."""

    async def main() -> None:
        connections: list[int] = []

        async def member() -> None:
            client = Client(cluster.nameserver)
            consumer = PushConsumer("billing", client=client, message_model=model).subscribe("t")
            consumer.orderly(lambda messages, context: ConsumeOrderlyStatus.SUCCESS)
            async with consumer:
                await asyncio.sleep(60)
                instance = client.instance()
                connections.extend(link.connection for link in instance.links())
                await instance.close()

        async with TestCluster(brokers=1, session_timeout_ms=1_000, disconnect_grace_ms=1_000) as cluster:
            await cluster.create_topic("t", queues=1)
            for name in ("one", "two"):
                await cluster.start(name, member)
            await cluster.advance(minutes=2)
            assert connections == [1, 1]

    simulate(main)
